"""Means over the data sets of several suites, beside what the paper prints as its Average."""

import json
import os

import numpy as np
import pytest

from tests.command_line import main
from tests.conftest import ROOT
from tests.small_runs import read, without_charts  # noqa: F401
from tf_robust import evaluation, metrics
from tf_robust.cli.flags import expanded, last_value
from tf_robust.evaluation import recording
from tf_robust.runs import suite
from tf_robust.utils import files

FOLDER = "flags/urrl/table2"
RADII = {"a": "l2_0.5", "b": "l2_0.0625"}  # of two suites
MEASURED = {"method": "m", "model": "m", "split": "test", "commit": "c", "model_digest": "m", "interface": {}}


def means_of(folder=FOLDER, home=ROOT):
    here, rows, table = suite.table_of(folder, home)
    assert rows == table["rows"]
    return suite.SuiteMeans(here, table, home, lambda path: last_value(expanded([f"--flagfile={path}"]), "data", ""))


def test_the_printed_average_is_the_mean_over_twelve_suites():
    means = means_of()
    assert len(means.suites) == 12
    printed, twelve = means.paper(means.suites), {}
    for row in means.table["rows"]:
        for metric in ("clean", "robust/pgd"):
            twelve[row, metric] = np.mean(
                [means.suites[name]["paper"][row][chosen[metric]][0] for name, chosen in means.table["suites"].items()]
            )
    odd = {key for key, value in twelve.items() if abs(value - printed[key[0]][key[1]][0]) > 0.00006}
    assert odd == {("moco_v2_sr", "clean")} and twelve["moco_v2_sr", "clean"] == pytest.approx(0.7790, abs=1e-4)  # as the notes say
    assert means.paper({"table2_cars": [], "table2_cifar10": []})["urrl"] == {
        "clean": [pytest.approx((0.8991 + 0.9734) / 2), None],
        "robust/pgd": [pytest.approx((0.2283 + 0.3985) / 2), None],
    }


def test_suites_without_numbers_of_the_paper_have_no_mean_of_them():
    means = means_of()
    del means.suites["table2_cars"]["paper"]  # optional in suite.json
    assert means.paper({"table2_cars": [], "table2_cifar10": []}) == {}
    assert means.paper({"table2_cifar10": []})["urrl"]["clean"] == [pytest.approx(0.9734), None]


@pytest.fixture
def runs(tmp_path):
    """Two suites of two data sets, three rows and two seeds; (folder of their table, {(suite, row, seed): [correct, attacked]})."""
    home, values = tmp_path / "flags", {}
    random = np.random.RandomState(0)
    for group, dataset, count in (("a", "digits", 60), ("b", "folder:birds", 90)):
        os.makedirs(home / group)
        for number, row in enumerate(("plain", "better", "half")):
            (home / group / f"{row}.flags").write_text(f"--data={dataset}\n")
            for seed in range(2):
                if (group, row, seed) == ("b", "half", 1):
                    continue
                folder = tmp_path / "runs" / group / row / f"seed_{seed}"
                os.makedirs(folder)
                right = values[group, row, seed] = [random.rand(count) < chance + 0.2 * number for chance in (0.7, 0.3)]
                card = {
                    "data": {"name": dataset, "split": "test", "num_images": count, "fingerprint": group, "image_shape": [8, 8, 1]},
                    "robust_pgd": {"seed": 15},
                }
                sets = dict(zip(("clean", f"robust/pgd/{RADII[group]}"), right))
                with open(folder / "measured.jsonl", "w") as file:
                    for name, bits in sets.items():
                        depends = evaluation.record_key(evaluation.dependencies("m", {}, card, name))
                        record = {"set": name, "kind": "accuracy", "depends": depends, "count": count}
                        record["which"] = files.encoded(np.packbits(bits))
                        file.write(json.dumps({**record, "crc32": recording._crc32(record)}) + "\n")
                rows = [evaluation.parse_metric(name).with_accuracy(int(bits.sum()), count).to_json() for name, bits in sets.items()]
                of_run = {"row": row, "seed": seed, "data": dataset.replace("folder:", "folder:/somewhere/"), "card": card, "rows": rows}
                files.write_json(folder / "evaluation.json", {**MEASURED, **of_run, "saved_model": str(folder / "saved_model")})
        paper = {"plain": {"clean": [0.8, None]}, "better": {"clean": [0.9 if group == "a" else 0.7, None]}}
        files.write_json(home / group / "suite.json", {"paper": paper})
    os.makedirs(home / "mean")
    table = {"title": "Mean of two", "baseline": "plain", "rows": ["plain", "better", "half"], "paper": {"better": {"clean": [0.81, None]}}}
    suites = {group: {"clean": "clean/per_class", "robust/pgd": f"robust/pgd/{radius}"} for group, radius in RADII.items()}
    files.write_json(home / "mean" / "suite.json", {**table, "suites": suites})
    return home / "mean", values


def test_a_report_over_suites_has_their_means_and_those_of_the_paper(runs, tmp_path, capsys):
    folder, values = runs
    main("report", f"--suite={folder}", f"{tmp_path}/runs/*/*/*", f"--workdir={tmp_path}/out")
    entries = {(e["row"], e["metric"]): e for e in read(tmp_path / "out" / "results.json")["rows"]}
    for (row, metric), entry in entries.items():
        place = ("clean", "robust/pgd").index(metric)
        expected = [np.mean([values[suite, row, seed][place].mean() for suite in "ab"]) for seed in entry["seeds"]]
        np.testing.assert_allclose(entry["values"], expected)
        assert entry["seeds"] == ([0] if row == "half" else [0, 1])
    assert set(entries) == {(row, metric) for row in ("plain", "better", "half") for metric in ("clean", "robust/pgd")}
    assert entries["better", "clean"]["paper"] == [0.81, None] and entries["plain", "clean"]["paper"] is None
    said = capsys.readouterr().out
    assert "half, seed 1, is excluded: it was not measured in b." in said and "Mean of two" in said
    own = {(e["row"], e["metric"]): e["paper"] for e in read(tmp_path / "out" / "b" / "results.json")["rows"]}
    assert own["better", "clean"] == [0.7, None] and own["plain", "clean"] == [0.8, None]
    half = entries["half", "clean"]["difference"]  # one seed: the means of two independent suites
    errors = [np.var(values[s, "half", 0][0].astype(int) - values[s, "plain", 0][0].astype(int)) / n for s, n in (("a", 60), ("b", 90))]
    assert half["images"]["count"] == 150 and half["images"]["mean"] == pytest.approx(half["mean"])
    assert (half["images"]["high"] - half["images"]["low"]) / 2 == pytest.approx(1.96 * np.sqrt(sum(errors)) / 2, rel=0.03)


def test_with_fewer_suites_the_mean_of_the_paper_is_over_these(runs, tmp_path, capsys):
    folder, _ = runs
    main("report", f"--suite={folder}", f"{tmp_path}/runs/a/*/*", f"--workdir={tmp_path}/out")
    entries = {(e["row"], e["metric"]): e for e in read(tmp_path / "out" / "results.json")["rows"]}
    assert entries["better", "clean"]["paper"] is None  # the suite prints `clean`, the mean takes `clean/per_class`
    assert "The mean is over 1 of 2 data sets" in capsys.readouterr().out
    with pytest.raises(ValueError, match="averages over a, b"):
        main("suite", f"{folder}", f"--workdir={tmp_path}/out")
    for path in (tmp_path / "runs" / "a").rglob("evaluation.json"):
        path.write_text(path.read_text().replace('"digits"', '"letters"'))
    with pytest.raises(ValueError, match="digits, folder:birds. Received: letters"):
        main("report", f"--suite={folder}", f"{tmp_path}/runs/a/*/*", f"--workdir={tmp_path}/out")


def test_the_mean_is_over_one_split(runs, tmp_path):
    folder, _ = runs
    for path in (tmp_path / "runs" / "a").rglob("evaluation.json"):
        path.write_text(path.read_text().replace('"split": "test"', '"split": "validation"'))
    with pytest.raises(ValueError, match="one split .* Received: test and validation"):
        main("report", f"--suite={folder}", f"{tmp_path}/runs/*/*/*", f"--workdir={tmp_path}/out")


def test_the_standard_error_is_that_of_independent_suites():
    random = np.random.RandomState(3)
    parts = {"a": random.rand(40), "b": random.rand(90) / 3}
    means = suite.SuiteMeans.__new__(suite.SuiteMeans)
    means.table = {"suites": {name: {"m": "m"} for name in parts}}
    one = {"parts": {name: {"rows": [{"metric": "m"}], "name": name} for name in parts}}
    _, values = means.per_image(lambda part, _: ("digest", parts[part["name"]]))(one, "m")
    found = metrics.paired_difference(values, np.zeros(130))
    expected = np.sqrt(sum(part.var() / len(part) for part in parts.values())) / 2
    assert found["mean"] == pytest.approx(np.mean([part.mean() for part in parts.values()]))
    assert np.std(values, ddof=1) / np.sqrt(130) == pytest.approx(expected, rel=0.01)
