"""The tables of benchmarks and of docs/reference/scale.md, and the rule by which the quick ones fail; nothing is timed."""

import json
import types

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import goals, scale, timing
from benchmarks.hardware import Hardware
from benchmarks.timing import provenance
from tests.hardware_needs import NEED

RECORDED = {"step": 2.0, "speed": 2.0}


@pytest.mark.parametrize("step, speed, worse", [(2.49, 1.61, []), (2.51, 1.61, ["step"]), (2.49, 1.59, ["speed"]), (1.0, 9.0, [])])
def test_a_ratio_may_be_a_quarter_worse_than_recorded(step, speed, worse):
    assert benchmarks.worse({"step": (step, "lower"), "speed": (speed, "higher")}, RECORDED) == worse


def test_the_better_of_two_measurements_counts():
    found, again = ({"step": (step, "lower"), "speed": (speed, "higher")} for step, speed in ((2.6, 1.8), (2.2, 1.5)))
    assert benchmarks.better_of(found, again, RECORDED) == {"step": (2.2, "lower"), "speed": (1.8, "higher")}


def test_the_table_has_quartiles_machine_and_versions(tmp_path, monkeypatch):
    row = {"what": "seconds", "row": "start", "value": 8.03, "quartiles": [7.15, 8.37], "goal": None}
    old = {**row, "row": "memory", "what": "MiB", "commit": "abc", "versions": {"numpy": "2.0"}}
    made = {name: value for name, value in provenance("scipy", "not-installed").items() if name != "command"}
    (tmp_path / "end_to_end.json").write_text(json.dumps({"rows": [{**row, **made}, old]}))
    monkeypatch.setattr(goals, "END_TO_END", {"memory": 8.0, "start": 9.0})
    rows = benchmarks.rows_in(tmp_path)
    lines = benchmarks.table({"one": rows, "other": {"seconds, start": rows["seconds, start"]}})
    assert lines[4] == "| what | goal | one | other |"
    assert lines[-5:-3] == [
        "| seconds, start | ≤ 9 | 8.03 [7.15, 8.37] (1) | 8.03 [7.15, 8.37] (1) |",
        "| MiB, memory | ≤ 8 | **8.03** [7.15, 8.37] (2) |  |",
    ]
    assert lines[-1] == "2. commit abc; machine not recorded; numpy 2.0"
    assert all(word in lines[-2] for word in (" cores, ", " GiB, ", "python 3.", "tensorflow 2.", "keras 3.", "numpy 2.", "scipy 1."))


def test_rows_that_are_not_measured_again_are_kept(tmp_path):
    path = str(tmp_path / "rows.json")
    old, new = ({"command": command, "commit": commit, "machine": "x"} for command, commit in (("a", "1"), ("b", "2")))
    rows = timing.with_earlier_rows(path, [{"row": "one", "value": 1}, {"row": "two", "value": 2}], old, ("row",))
    (tmp_path / "rows.json").write_text(json.dumps({"rows": rows}))
    rows = timing.with_earlier_rows(path, [{"row": "one", "value": 3}], new, ("row",))
    assert rows == [{"row": "two", "value": 2, **old}, {"row": "one", "value": 3, **new}]
    assert timing.sources(rows, ("row",)) == "- two: `a`, commit 1, x\n- one: `b`, commit 2, x\n"


def test_every_cpu_model_has_its_folder_and_column():
    assert benchmarks.folder_of("AMD EPYC (family 26, model 2)").name == "amd_epyc_family_26_model_2"
    assert all("AMD" in name or "Intel" in name for name in benchmarks.recorded())


def test_a_line_of_scale_has_memory_and_network_for_each_number_of_devices():
    machine = Hardware(devices=8, flops=1e13, utilization=0.5, memory=2**33, network=1e8, cores=4)
    cells = scale.line("fcl/x", [NEED, {**NEED, "kept": 0, "making": 0.0}], machine, 2).split(" | ")
    assert cells[1] == "4" and [cell.endswith(", not all fit") for cell in cells[2:5]] == [True, False, False]
    # 16 MB of weights and state, 1.5 times 6 GB of features; 0, 7 / 4 and 63 / 32 of 4 MB of gradients
    assert cells[5:8] == ["images 1, products 1", "8.4 / 1.1 / 0.1 GiB", "0 / 7 / 8 MiB"]


def test_quick_ratios_are_compared_only_with_those_of_the_same_cpu_model(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benchmarks, "RESULTS", tmp_path)
    monkeypatch.setattr(benchmarks, "FLAGS", types.SimpleNamespace(record=False))
    monkeypatch.setattr(benchmarks, "measured", lambda: {"step": (9.0, "lower")})
    monkeypatch.setattr(timing, "cpu_model", lambda: "one")
    benchmarks.record(tmp_path / "quick.json", "other", {"step": 2.0})
    benchmarks.quick()
    assert "No ratios are recorded for the CPU model one" in (out := capsys.readouterr().out) and "step: 9.00" in out
    benchmarks.record(tmp_path / "quick.json", "one", {"step": 2.0})
    with pytest.raises(SystemExit, match="25% worse than recorded: step"):
        benchmarks.quick()
    records = json.loads((tmp_path / "quick.json").read_text())
    assert set(records) == {"one", "other"} and {"commit", "machine", "versions"} <= set(records["other"])
