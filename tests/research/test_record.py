import json
import sys

import pytest

from research.record import __main__ as record
from tf_robust.report import comparison
from tf_robust.utils.files import write_json


def evaluation_of(row, seed, value):
    rows = [{"metric": "clean", "value": value, "count": 10, "low": None, "high": None}]
    facts = {"method": "m", "data": "d", "model": "n", "split": "test", "commit": "c", "versions": {}, "saved_model": "s"}
    return {"row": row, "seed": seed, "rows": rows, **facts}


def test_a_recorded_table_is_read_as_its_runs_are(tmp_path, monkeypatch):
    for row, seed, value in (("a", 0, 0.5), ("a", 1, 0.6), ("b", 0, 0.7)):
        folder = tmp_path / "runs" / row / f"seed_{seed}"
        folder.mkdir(parents=True)
        write_json(str(folder / "evaluation.json"), evaluation_of(row, seed, value))
    (tmp_path / "runs/b/seed_0/flags.txt").write_text("--seeds=0\n--data=d\n")
    write_json(str(tmp_path / "runs/b/seed_0/history.json"), [{"epoch": 0, "total": 2.5}])
    pattern, table = str(tmp_path / "runs/*/seed_*"), str(tmp_path / "table.json")
    monkeypatch.setattr(sys, "argv", ["record", table, pattern])
    record.main()
    runs, recorded = comparison.read_evaluations([pattern]), comparison.read_evaluations([table])
    assert recorded[2].pop("flags") == ["--seeds=0", "--data=d"] and recorded[2].pop("history") == [{"epoch": 0, "total": 2.5}]
    assert [one | {"measured_in": ""} for one in recorded] == [one | {"measured_in": ""} for one in runs]
    (tmp_path / "damaged.json").write_text(json.dumps({"evaluations": [{"row": "a"}]}))
    with pytest.raises(ValueError, match="'seed' is a required property"):
        comparison.read_evaluations([str(tmp_path / "damaged.json")])


def test_rows_of_a_sweep_are_named_by_their_folders(tmp_path):
    folders = []
    for trial in ("rate=0.1", "rate=0.2"):
        folders.append(str(tmp_path / trial / "seed_0"))
        (tmp_path / trial / "seed_0").mkdir(parents=True)
        write_json(f"{folders[-1]}/evaluation.json", evaluation_of("a", 0, 0.5))
    assert [one["row"] for one in record.evaluations_of(folders)] == ["rate=0.1", "rate=0.2"]
