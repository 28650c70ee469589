"""Confidence and open sets from Python and the command line, to the report and the calibrated SavedModel."""

import json
import os

import numpy as np
import pytest

from tests.test_cli import main
from tf_robust import api, metrics
from tf_robust.saved_models.loading import load_classifier

CLASSES = 3


def _drawn(count, seed):
    """Images whose first pixels hold logits, and labels drawn from them."""
    random = np.random.default_rng(seed)
    images = random.random((count, 16, 16, 1)).astype(np.float32)
    labels = (4 * images[:, 0, :CLASSES, 0] + random.gumbel(size=(count, CLASSES))).argmax(axis=1)
    return images, labels


def _model(images):
    return 12 * images[:, 0, :CLASSES, 0]


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


def test_a_missing_validation_part_is_named():
    with pytest.raises(ValueError, match=r"Expected a validation part.*Try: validation_data=\(images, labels\)"):
        api.evaluate(_model, data=_drawn(30, 0), evaluations="clean", conformal=0.8)
    with pytest.raises(ValueError, match="Expected ood with different names"):
        api.evaluate(_model, data=_drawn(30, 0), evaluations="clean", ood="digits,digits")
    with pytest.raises(ValueError, match="Expected images with 1 channels"):
        api.evaluate(
            _model, data=_drawn(30, 0), evaluations="clean", ood={"color": (np.zeros((4, 16, 16, 3), np.float32), np.zeros(4, int))}
        )


def test_the_command_writes_report_and_calibrated_model(tmp_path):
    folder = str(tmp_path / "run")
    flags = ("--data=digits", "--subset=60", "--evaluations=clean,corruptions", "--severities=5", f"--workdir={folder}")
    main("evaluate", "zoo:digits/lenet_augmix", *flags, "--conformal=0.9", "--abstain_accuracy=0.8", "--ood=digits")
    with open(os.path.join(folder, "report.html"), encoding="utf-8") as file:
        report = file.read()
    for text in ("Confidence on clean and corrupted images", "severity 5", "Images of other classes", "error among the answered"):
        assert text in report
    with open(os.path.join(folder, "evaluation.json"), encoding="utf-8") as file:
        content = json.load(file)
    values = {row["measure"]: row["value"] for row in content["rows"]}
    assert values["ood/digits/auroc"] == pytest.approx(0.5) == values["ood/digits/energy/auroc"]  # the same images
    assert values["ood/digits/knn/fpr95"] >= 0.95
    assert values["conformal/severity_5/coverage"] > values["conformal/severity_5/size"] / 10  # better than chance
    assert content["confidence"]["low"] >= 0.8
    assert {"figures/risk_coverage.png", "figures/reliability_severity.png"} <= {
        os.path.relpath(os.path.join(parent, name), folder) for parent, _, names in os.walk(folder) for name in names
    }


def test_the_calibrated_model_has_the_measured_calibration(tmp_path, network, source):
    images, labels = _drawn(200, 3)
    network().save(tmp_path / "model.keras")
    folder = str(tmp_path / "run")
    np.savez(tmp_path / "data.npz", images=(255 * images).astype(np.uint8), labels=labels)
    main("evaluate", str(tmp_path / "model.keras"), f"--data=npz:{tmp_path}/data.npz", "--evaluation_split=test", "--evaluations=clean",
         "--calibrate=temperature", f"--workdir={folder}")  # fmt: skip
    with open(os.path.join(folder, "evaluation.json"), encoding="utf-8") as file:
        scale = json.load(file)["confidence"]["scale"]
    calibrated = load_classifier(os.path.join(folder, "calibrated"))
    np.testing.assert_allclose(calibrated(images), load_classifier(tmp_path / "model.keras")(images) * scale, atol=1e-5)
    assert calibrated.card["calibration"]["calibrate"] == "temperature"
