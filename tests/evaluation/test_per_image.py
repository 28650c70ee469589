"""Per-image results come from the records of an evaluation, and only from its own."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.evaluation.shared import values_of
from tests.small_runs import without_charts  # noqa: F401
from tf_robust import corruptions, evaluation, metrics
from tf_robust.evaluation import values
from tf_robust.report import comparison
from tf_robust.testing.samples import tiny_source
from tf_robust.utils.files import decoded, write_json


def model(threshold):
    """Returns a model of three classes: the brightest third of the image."""

    def predict(images):
        thirds = tf.reduce_mean(tf.reshape(images[:, :15], [-1, 3, 5 * 16]), axis=2)
        return thirds + tf.constant([0.0, 0.0, threshold])

    return predict


CONFIG = evaluation.EvalConfig(evaluations=("clean", "calibration", "corruptions", "perturbations"), sequences="cifar_p")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("measured")


@pytest.fixture(scope="module")
def measured(folder):
    """Returns a function that evaluates a model of a few corruptions and a sequence, and writes its records to a row's folder."""

    def evaluated(row, threshold, count=60):
        test, digest, interface = tiny_source(count, split="test"), f"digest {threshold}", {"input_range": "0,1"}
        card = evaluation.card_of(test, CONFIG, None)
        records = evaluation.records(
            model(threshold),
            evaluation.evaluation_sets(test, None, CONFIG),
            str(folder / row / "measured.jsonl"),
            lambda name: evaluation.dependencies(digest, interface, card, name),
            log=lambda _: None,
        )
        return {
            "row": row,
            "seed": 0,
            "method": "m",
            "data": "tiny",
            "model": "m",
            "split": "test",
            "card": card,
            "commit": "c",
            "rows": [one.to_json() for one in evaluation.metrics_of(records, CONFIG)],
            "saved_model": str(folder / row / "saved_model"),
            "model_digest": digest,
            "interface": interface,
        }

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(corruptions, "CORRUPTIONS", {name: corruptions.CORRUPTIONS[name] for name in ("contrast", "pixelate")})
        patched.setattr(corruptions, "sequence_names", lambda _: ("gaussian_noise",))
        yield functools.cache(evaluated)


@pytest.fixture(scope="module")
def reader(folder):
    return evaluation.PerImage(lambda one: str(folder / one["row"]))


def test_few_images_have_no_interval_of_the_rms_calibration_error(measured, reader, monkeypatch):
    evaluated = measured("xe", 0.45)
    assert reader(evaluated, "calibration/rms") is None and reader(evaluated, "calibration/ece")
    monkeypatch.setattr(values, "MIN_FOR_RMS", 60)
    assert reader(evaluated, "calibration/rms")


def test_means_of_per_image_values_equal_the_metrics(measured, reader, monkeypatch):
    monkeypatch.setattr(values, "MIN_FOR_RMS", 60)
    evaluated = measured("xe", 0.45)
    kinds = {}
    for row in evaluated["rows"]:
        if result := reader(evaluated, row["metric"]):
            kinds[row["metric"]] = result[1].dtype.name
            assert len(result[1]) == 60 and result[1].mean() == pytest.approx(row["value"]), row["metric"]
    calibration = [f"calibration/{name}" for name in ("rms", "ece", "brier", "nll")]
    assert kinds == {
        "clean": "bool",
        **dict.fromkeys([*calibration, "aurra", "flips/gaussian_noise", "corruptions/contrast", "corruptions/pixelate"], "float64"),
        **{f"corruptions/{name}/{severity}": "bool" for name in ("contrast", "pixelate") for severity in metrics.SEVERITIES},
    }


def test_means_of_flips_of_each_image_equal_the_flip_rates(measured, reader, folder, monkeypatch):
    evaluated = measured("xe", 0.45)
    (flips,) = (r for r in evaluation.read_records(str(folder / "xe" / "measured.jsonl")) if r["set"] == "flips/gaussian_noise")
    counts = decoded(flips["flips"], np.uint16)
    assert counts.sum() == pytest.approx(flips["flip_probability"] * 60 * (flips["frames"] - 1)) and counts.any()
    others = {f"flips/{name}": {**flips, "set": f"flips/{name}"} for name in metrics.PERTURBATIONS}
    rates = values_of(evaluation.metrics_of([*others.values()], evaluation.EvalConfig(evaluations=("perturbations",)), True))
    monkeypatch.setattr(values, "own_records", lambda *_: others)
    for metric, value in rates.items():
        assert reader({**evaluated, "card": {**evaluated["card"], "flips": {}}}, metric)[1].mean() == pytest.approx(value), metric


def test_values_are_those_of_the_evaluation_alone(measured, reader, folder):
    evaluated = measured("xe", 0.45)
    np.testing.assert_array_equal(reader(evaluated, "label_fraction_0.1/clean")[1], reader(evaluated, "clean")[1])
    for change in ({"model_digest": "another"}, {"card": None}, {"interface": {}}, {"row": "without records"}):
        assert reader({**evaluated, **change}, "clean") is None
    assert reader({name: value for name, value in evaluated.items() if name != "model_digest"}, "clean") is None
    assert "corruptions_bar" not in evaluated["card"] and reader(evaluated, "corruptions_bar/mean") is None
    write_json(str(folder / "evaluation.json"), evaluated)
    assert evaluation.read_evaluation(str(folder / "evaluation.json"))["model_digest"] == "digest 0.45"  # by its schema


def test_a_report_has_paired_tests_over_the_same_images(measured, reader, tmp_path, capsys):
    runs = [measured("xe", 0.45), measured("fcl", 0.5)]
    table = comparison.write_report(str(tmp_path / "report"), runs, title="T", command="c")
    comparison.print_table(table, runs)
    for entry in (e for e in table["cells"].values() if e["row"] == "fcl"):
        results = [reader(one, entry["metric"]) for one in runs[::-1]]
        assert entry["difference"]["images"] == (metrics.paired_difference(*(values for _, values in results)) if results[0] else None)
    comparison.print_summary(table)
    assert capsys.readouterr().out.endswith("95% intervals: paired over the images.\n")
    clean = metrics.paired_difference(*(reader(one, "clean")[1] for one in runs[::-1]))
    text = "{:+.1f} points [{:.1f}, {:.1f}] vs xe".format(*(100 * clean[key] for key in ("mean", "low", "high")))
    assert text in (tmp_path / "report" / "report.md").read_text()
    digests = {reader(one, "clean")[0] for one in runs}
    assert len(digests) == 1 and reader(measured("more", 0.45, 90), "clean")[0] not in digests
