"""Per-image results come from the records of an evaluation, and only from its own."""

import numpy as np
import pytest
import tensorflow as tf

from tf_robust import corruptions, evaluation, metrics
from tf_robust.evaluation import values
from tf_robust.report import comparison
from tf_robust.utils.files import write_json


def model(threshold):
    """Returns a model of three classes: the brightest third of the image."""

    def predict(images):
        thirds = tf.reduce_mean(tf.reshape(images[:, :15], [-1, 3, 5 * 16]), axis=2)
        return thirds + tf.constant([0.0, 0.0, threshold])

    return predict


@pytest.fixture
def measured(source, tmp_path, monkeypatch):
    """Returns a function that evaluates a model and writes its records below tmp_path/row."""
    monkeypatch.setattr(corruptions, "CORRUPTIONS", {name: corruptions.CORRUPTIONS[name] for name in ("contrast", "pixelate")})
    eval_config = evaluation.EvalConfig(evaluations=("clean", "calibration", "corruptions", "perturbations"), sequences="cifar_p")

    def metric(row, threshold, count=60):
        test, digest, interface = source(count, split="test"), f"digest {threshold}", {"input_range": "0,1"}
        card = evaluation.card_of(test, eval_config, None)
        sets = [
            one
            for one in evaluation.evaluation_sets(test, None, eval_config)
            if not one.name.startswith("flips/") or one.name == "flips/gaussian_noise"
        ]
        records = evaluation.records(
            model(threshold),
            sets,
            str(tmp_path / row / "measured.jsonl"),
            lambda name: evaluation.dependencies(digest, interface, card, name),
            log=lambda _: None,
        )
        rows = evaluation.metrics_of(records, eval_config)
        return {
            "row": row,
            "seed": 0,
            "method": "m",
            "data": "tiny",
            "model": "m",
            "split": "test",
            "card": card,
            "commit": "c",
            "rows": [one.to_json() for one in rows],
            "saved_model": str(tmp_path / row / "saved_model"),
            "model_digest": digest,
            "interface": interface,
        }

    return metric


def test_few_images_have_no_interval_of_the_rms_calibration_error(measured, tmp_path, monkeypatch):
    reader, evaluated = evaluation.PerImage(lambda _: str(tmp_path / "xe")), measured("xe", 0.45)
    assert reader(evaluated, "calibration/rms") is None and reader(evaluated, "calibration/ece")
    monkeypatch.setattr(values, "MIN_FOR_RMS", 60)
    assert reader(evaluated, "calibration/rms")


def test_means_of_per_image_values_equal_the_metrics(measured, tmp_path, monkeypatch):
    monkeypatch.setattr(values, "MIN_FOR_RMS", 60)
    evaluated = measured("xe", 0.45)
    reader = evaluation.PerImage(lambda _: str(tmp_path / "xe"))
    kinds = {}
    for row in evaluated["rows"]:
        result = reader(evaluated, row["metric"])
        kinds[row["metric"]] = result and result[1].dtype.name
        if result:
            assert len(result[1]) == 60 and result[1].mean() == pytest.approx(row["value"]), row["metric"]
    assert all(kinds.pop(metric) == "float64" for metric in ("calibration/rms", "calibration/ece", "aurra"))
    assert kinds.pop("calibration/brier") == kinds.pop("calibration/nll") == "float64"
    assert kinds.pop("corruptions/calibration_rms", None) is None
    assert kinds.pop("clean") == "bool" and kinds.pop("flips/gaussian_noise") == "float64"
    assert kinds == {
        f"corruptions/{name}{end}": "bool" if end else "float64"
        for name in ("contrast", "pixelate")
        for end in ("", *(f"/{s}" for s in range(1, 6)))
    }
    others = [
        {**r, "set": f"flips/{name}", "depends": r["depends"]}
        for name in metrics.PERTURBATIONS
        for r in evaluation.read_records(str(tmp_path / "xe" / "measured.jsonl"))
        if r["set"] == "flips/gaussian_noise"
    ]
    rates = {str(row): row.value for row in evaluation.metrics_of(others, evaluation.EvalConfig(evaluations=("perturbations",)), True)}
    with monkeypatch.context() as patched:
        patched.setattr(values, "own_records", lambda *_: {record["set"]: record for record in others})
        for metric, value in rates.items():
            assert reader({**evaluated, "card": {**evaluated["card"], "flips": {}}}, metric)[1].mean() == pytest.approx(value), metric
    labelled = {**evaluated, "rows": []}
    assert reader(labelled, "label_fraction_0.1/clean")[1].tolist() == reader(evaluated, "clean")[1].tolist()
    for change in ({"model_digest": "another"}, {"card": None}, {"interface": {}}):
        assert reader({**evaluated, **change}, "clean") is None
    assert reader({name: value for name, value in evaluated.items() if name != "model_digest"}, "clean") is None
    assert evaluation.PerImage(lambda _: str(tmp_path))(evaluated, "clean") is None  # no records


def test_a_report_has_paired_tests_over_the_same_images(measured, tmp_path, capsys):
    runs = [measured("xe", 0.45), measured("fcl", 0.5)]
    table = comparison.write_report(str(tmp_path / "report"), runs, title="T", command="c")
    comparison.print_table(table, runs)
    reader = evaluation.PerImage(lambda one: str(tmp_path / one["row"]))
    for entry in (e for e in table["cells"].values() if e["row"] == "fcl"):
        results = [reader(one, entry["metric"]) for one in runs[::-1]]
        assert entry["difference"]["images"] == (metrics.paired_difference(*(values for _, values in results)) if results[0] else None)
    comparison.print_summary(table)
    assert capsys.readouterr().out.endswith("95% intervals: paired over the images.\n")
    clean = metrics.paired_difference(*(reader(one, "clean")[1] for one in runs[::-1]))
    text = "{:+.1f} points [{:.1f}, {:.1f}] vs xe".format(*(100 * clean[key] for key in ("mean", "low", "high")))
    assert text in (tmp_path / "report" / "report.md").read_text()
    digests = {reader(one, "clean")[0] for one in (*runs, {**runs[0], "row": "xe"})}
    assert len(digests) == 1 and reader(measured("more", 0.45, 90), "clean")[0] not in digests


def test_evaluations_with_digests_follow_the_schema(measured, tmp_path):
    path = str(tmp_path / "evaluation.json")
    write_json(path, measured("xe", 0.45))
    assert evaluation.read_evaluation(path)["model_digest"] == "digest 0.45"
    flips = next(r for r in evaluation.read_records(str(tmp_path / "xe" / "measured.jsonl")) if r["set"] == "flips/gaussian_noise")
    flip_counts = values.decoded(flips["flips"], np.uint16)
    assert flip_counts.sum() == pytest.approx(flips["flip_probability"] * 60 * (flips["frames"] - 1)) and flip_counts.any()


def test_a_mean_without_its_part_of_the_card_has_no_values(measured, tmp_path):
    evaluated = measured("xe", 0.45)
    assert "corruptions_bar" not in evaluated["card"]
    assert evaluation.PerImage(lambda _: str(tmp_path / "xe"))(evaluated, "corruptions_bar/mean") is None
