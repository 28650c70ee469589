"""Confidence and open sets from Python and the command line, to the report and the calibrated SavedModel."""

import os
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.command_line import main
from tests.small_runs import read, without_charts  # noqa: F401
from tf_robust import api, data, evaluation, metrics
from tf_robust.configs import DataConfig
from tf_robust.data.subsets import split_train_val_test, without_validation
from tf_robust.evaluation.evaluation_data import with_validation_of_card
from tf_robust.saved_models import formats
from tf_robust.saved_models.loading import ModelInterface, load_classifier

CLASSES = 3


def _drawn(count, seed):
    """Images whose first pixels hold logits, and labels drawn from them."""
    random = np.random.default_rng(seed)
    images = random.random((count, 16, 16, 1)).astype(np.float32)
    labels = (4 * images[:, 0, :CLASSES, 0] + random.gumbel(size=(count, CLASSES))).argmax(axis=1)
    return images, labels


def _model(images):
    return 12 * images[:, 0, :CLASSES, 0]


def _write(folder, seed):
    """Writes data without splits, of 200 images. Returns their name."""
    images, labels = _drawn(200, seed)
    np.savez(folder / "data.npz", images=(255 * images).astype(np.uint8), labels=labels)
    return f"npz:{folder}/data.npz"


def test_python_takes_validation_and_other_data_in_memory():
    result = api.evaluate(
        _model,
        data=_drawn(300, 0),
        validation_data=_drawn(400, 1),
        evaluations="clean",
        calibrate="temperature",
        conformal=0.8,
        abstain_accuracy=0.5,
        ood={"dark": (np.zeros((20, 16, 16, 1), np.float32), np.zeros(20, int))},
        shifts={"same": _drawn(100, 2)},
    )
    assert result.values["calibrated/temperature"] == pytest.approx(3, rel=0.3)
    assert result.values["abstention/accuracy"] > 0.4
    assert {"conformal/shift/same/coverage", "ood/dark/auroc", "ood/dark/energy/fpr95"} <= set(result.values)
    assert "ood/dark/knn/auroc" not in result.values  # a function has no embedding
    logits = [_model(images) for images in (_drawn(300, 0)[0], np.zeros((20, 16, 16, 1)))]
    assert result.values["ood/dark/energy/auroc"] == pytest.approx(metrics.auroc(*(metrics.logit_scores(one)["energy"] for one in logits)))


@pytest.mark.parametrize("fitted", [{"calibrate": "temperature"}, {"abstain_accuracy": 0.5}, {"conformal": 0.8}])
def test_confidences_need_clean_shifted_or_corrupted_images(fitted):
    config = evaluation.EvalConfig(("noise", "corruptions_bar"), **fitted)
    assert not config.needs_validation_set and evaluation.EvalConfig(("noise",), shifts=("folder:night",), **fitted).needs_validation_set
    with pytest.raises(ValueError, match=next(iter(fitted))):
        api.evaluate(_model, data=_drawn(30, 0), validation_data=_drawn(30, 1), evaluations="noise", **fitted)


def test_a_missing_validation_part_is_named():
    with pytest.raises(ValueError, match="validation_data"):
        api.evaluate(_model, data=_drawn(30, 0), evaluations="clean", conformal=0.8)


def test_data_sets_of_other_classes_have_different_names():
    with pytest.raises(ValueError, match="ood"):
        api.evaluate(_model, data=_drawn(30, 0), evaluations="clean", ood="digits,digits")


def test_the_command_writes_report_and_calibrated_model(tmp_path):
    flags = ("--data=digits", "--subset=60", "--evaluations=clean,corruptions", "--severities=5", f"--workdir={tmp_path}")
    main("evaluate", "zoo:digits/lenet_augmix", *flags, "--conformal=0.9", "--abstain_accuracy=0.8", "--ood=digits")
    report = (tmp_path / "report.html").read_text("utf-8")
    for text in ("Confidence on clean and corrupted images", "severity 5", "Images of other classes", "error among the answered"):
        assert text in report
    content = read(tmp_path / "evaluation.json")
    values = {row["metric"]: row["value"] for row in content["rows"]}
    assert values["ood/digits/auroc"] == pytest.approx(0.5) == values["ood/digits/energy/auroc"]  # the same images
    assert values["ood/digits/knn/fpr95"] >= 0.95
    assert values["conformal/severity_5/coverage"] > values["conformal/severity_5/size"] / 10  # better than chance
    assert content["confidence"]["low"] >= 0.8
    assert all((tmp_path / "figures" / f"{name}.png").exists() for name in ("risk_coverage", "reliability_severity"))


def test_the_calibrated_model_has_the_measured_calibration(tmp_path, network):
    images, folder = _drawn(200, 3)[0], tmp_path / "run"
    network().save(tmp_path / "model.keras")
    flags = (f"--data={_write(tmp_path, 3)}", "--evaluation_split=test", "--evaluations=clean", f"--workdir={folder}")
    main("evaluate", str(tmp_path / "model.keras"), *flags, "--calibrate=temperature")
    scale = read(folder / "evaluation.json")["confidence"]["scale"]
    calibrated = load_classifier(folder / "calibrated")
    np.testing.assert_allclose(calibrated(images), load_classifier(tmp_path / "model.keras")(images) * scale, atol=1e-5)
    assert calibrated.card["confidence"]["calibrate"] == "temperature"


@pytest.mark.slow
def test_files_of_the_calibrated_model_contain_the_scaling(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main("evaluate", "zoo:digits/lenet_augmix", "--evaluations=clean", "--calibrate=vector", "--workdir=run")
    main("export", "run/calibrated", "--formats=tflite,tflite_int8,onnx,savedmodel", "--workdir=files")  # data: those of the card
    images = evaluation.first_images(data.open_source("digits", "test"), 40)[0]
    fitted = read("run/evaluation.json")["confidence"]
    expected = load_classifier("zoo:digits/lenet_augmix")(images) * np.float32(fitted["scale"]) + np.float32(fitted["bias"])
    largest = np.abs(expected).max()
    for name in ("tflite", "tflite_int8", "onnx", "savedmodel"):
        path = os.path.join("files", formats.FORMATS[name].file)
        model = load_classifier(path, ModelInterface(outputs="logits"))
        np.testing.assert_allclose(model(images), expected, atol=largest * (0.05 if name == "tflite_int8" else 1e-5))
        assert model.card["confidence"]["scale"] == fitted["scale"]


def test_a_model_without_a_graph_gets_no_calibrated_model(tmp_path, capsys):
    model, folder = keras.Sequential([keras.Input((16, 16, 1)), keras.layers.Flatten(), keras.layers.Dense(CLASSES)]), tmp_path / "run"
    (tmp_path / "model.tflite").write_bytes(tf.lite.TFLiteConverter.from_keras_model(model).convert())
    flags = (f"--data={_write(tmp_path, 4)}", "--evaluation_split=test", "--evaluations=clean", f"--workdir={folder}")
    main("evaluate", str(tmp_path / "model.tflite"), *flags, "--check_inputs=false", "--calibrate=vector")
    assert "no calibrated SavedModel" in capsys.readouterr().out and not (folder / "calibrated").exists()


def test_confidence_is_fitted_on_the_validation_images_of_the_training(tmp_path, capsys):
    name, run, folder = _write(tmp_path, 4), tmp_path / "run", tmp_path / "measured"
    options = ("--model=mlp", "--epochs=1", "--batch_size=40", "--evaluations=none", "--validation_fraction=0.2")
    main("train", f"--data={name}", *options, f"--workdir={run}")
    flags = (f"--data={name}", "--evaluation_split=test", "--evaluations=clean", "--conformal=0.8", f"--workdir={folder}")
    main("evaluate", f"{run}/saved_model", *flags)
    assert "validation_fraction=0.2, from the card" in capsys.readouterr().out
    card = read(folder / "evaluation.json")["card"]["confidence"]
    trained, held_out = (data.open_source(name, split, validation_fraction=0.2) for split in ("train", "validation"))
    assert card["fingerprint"] == held_out.fingerprint() and not {*trained.positions} & {*held_out.positions}
    with pytest.raises(ValueError, match=r"Expected validation_fraction <= 0.2.*Received: 0.3"):
        main("evaluate", f"{run}/saved_model", *flags, "--validation_fraction=0.3")


@pytest.mark.parametrize("subset", [0, 50])
def test_a_fraction_of_data_without_splits_is_for_the_fit_and_all_others_for_the_evaluation(tmp_path, network, capsys, subset):
    network().save(tmp_path / "model.keras")
    name, folder = _write(tmp_path, 5), tmp_path / "run"
    flags = (f"--data={name}", "--evaluations=clean", "--calibrate=temperature", f"--subset={subset}", f"--workdir={folder}")
    with pytest.raises(ValueError, match="validation_fraction=0.1, which evaluates on all others"):
        main("evaluate", str(tmp_path / "model.keras"), *flags)
    capsys.readouterr()
    main("evaluate", str(tmp_path / "model.keras"), *flags, "--validation_fraction=0.2")
    assert "confidences are fitted on 0.2 of its images, all others are evaluated" in capsys.readouterr().out
    content = read(folder / "evaluation.json")
    whole = data.open_source(name, "all")
    held_out = data.open_source(name, "validation", validation_fraction=0.2)
    others = whole.subset(np.setdiff1d(np.arange(200), held_out.positions))
    assert len(others) == 160 and content["split"] == "all" and content["card"]["data"]["num_images"] == (subset or 160)
    assert subset or content["card"]["data"]["fingerprint"] == others.fingerprint()
    assert content["card"]["confidence"]["fingerprint"] == held_out.fingerprint()
    logits = np.asarray(load_classifier(tmp_path / "model.keras")(held_out.images / np.float32(255)))
    assert content["confidence"]["scale"] == pytest.approx(1 / metrics.fit_temperature(logits, held_out.labels), rel=1e-3)


def test_a_fraction_of_images_in_memory_is_for_the_fit():
    images, labels = _drawn(400, 6)
    result = api.evaluate(_model, data=(images, labels), evaluations="clean", calibrate="temperature", validation_fraction=0.25)
    held_out = split_train_val_test(data.from_arrays(images, labels), "validation", 0.25)
    others = np.setdiff1d(np.arange(400), held_out.positions)
    logits = _model(np.round(255 * images) / 255)
    assert result.evaluation["rows"][0]["count"] == 300 == len(others)
    assert result.values["clean"] == pytest.approx((logits.argmax(axis=1) == labels)[others].mean())
    expected = metrics.fit_temperature(logits[held_out.positions], labels[held_out.positions])
    assert result.values["calibrated/temperature"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("name, recorded, given, expected", [
    ("mnist", "0.1", 0.0, 0.1),  # of the training
    ("mnist", "0.1", 0.05, 0.05),  # a part of them
    ("mnist", "0.1", 0.2, "Expected validation_fraction <= 0.1"),
    ("mnist", "0.0", 0.1, "trained on all training images"),
    ("digits", "0.0", 0.0, 0.0),  # a split of its own
    ("cifar10", "0.0", 0.1, 0.1),  # other data than those of the training
    ("mnist", None, 0.1, 0.1),  # not known
])  # fmt: skip
def test_validation_images_are_not_those_of_the_training(name, recorded, given, expected, monkeypatch):
    monkeypatch.setattr(data.tfds_sets, "has_validation", lambda name, data_dir, fraction: fraction > 0)
    flags = {} if recorded is None else {"validation_fraction": recorded}
    model = types.SimpleNamespace(path="model", card={"data": "digits" if name == "digits" else "mnist", "flags": flags})
    config = DataConfig(data=name, validation_fraction=given)
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            with_validation_of_card(model.card, model.path, config)
    else:
        assert with_validation_of_card(model.card, model.path, config).validation_fraction == expected


def test_smaller_validation_fractions_are_parts_of_larger_ones(source):
    for part in (split_train_val_test, without_validation):
        trained = {*part(source(100), "train", 0.2).positions}
        for fraction in (0.05, 0.1, 0.2):
            held_out = {*part(source(100), "validation", fraction).positions}
            assert len(held_out) == round(100 * fraction) and not trained & held_out
