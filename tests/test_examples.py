"""Every script of examples/ runs on embedded images, without arguments, and prints what it promises."""

import os
import re
import runpy
import sys
import tempfile

import keras
import numpy as np
import pytest
from PIL import Image

import tf_robust as tfr
from tests.conftest import ROOT

MAX_BYTES, MIN_WIDTH = 150_000, 390  # of a figure: quick to load, and readable on a phone


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """A function that runs a script in a new folder and in this process, since another one takes seconds to start.

    Returns its output; `variables` of the function has the variables of the script.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def output(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        output.variables = runpy.run_path(os.path.join(ROOT, "examples", name), run_name="__main__")
        return capsys.readouterr().out

    return output


def _check_figure(path):
    """Checks the only file that a script has written into its folder."""
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]
    with Image.open(path) as image:
        assert os.path.getsize(path) <= MAX_BYTES and image.width >= MIN_WIDTH
        assert len(image.convert("RGB").getcolors(image.width * image.height)) > 10  # not empty


@pytest.fixture
def gallery(run, tmp_path):
    """A function that runs a script of the gallery, checks its figure, and returns its output and its variables."""

    def results(name):
        (tmp_path / "figures").mkdir()
        printed = run(f"{name}.py", "figures")
        _check_figure(str(tmp_path / "figures" / f"{name}.png"))
        return printed, run.variables

    return results


@pytest.mark.slow
def test_corrupt_an_image(gallery):
    printed, variables = gallery("corrupt_an_image")
    lines = re.findall(r"^(\w+) +RMS change ([\d.]+) ([\d.]+) ([\d.]+)$", printed, re.MULTILINE)
    changes = {name: [float(value) for value in values] for name, *values in lines}
    assert list(changes) == ["gaussian_noise", "motion_blur", "fog", "pixelate"]
    assert all(values == sorted(values) for values in changes.values())
    image = variables["image"]
    for size, change in zip((0.6, 0.4, 0.25), changes["pixelate"]):  # of ImageNet-C, by Pillow
        small = Image.fromarray((255 * image).astype(np.uint8)).resize([int(224 * size)] * 2, Image.Resampling.BOX)
        pixelated = np.asarray(small.resize([224, 224], Image.Resampling.NEAREST)) / 255
        np.testing.assert_allclose(np.std(pixelated - image), change, atol=0.003)


@pytest.mark.slow
def test_evaluate_a_model(gallery):
    printed, variables = gallery("evaluate_a_model")
    values = dict(re.findall(r"^(\S+) +(0\.\d+)$", printed, re.MULTILINE))
    clean, *worst = (float(value) for value in values.values())
    assert len(worst) == 5 and worst == sorted(worst) and worst[-1] < clean and "robust/pgd/linf_0.1" in values
    images, labels = tfr.images(299, data="digits")
    correct = np.argmax(tfr.load("digits/lenet_cross_entropy")(images)["logits"], axis=1) == labels
    assert abs(correct.mean() - clean) < 6e-4
    assert re.search(r"^Clean accuracy: augmix .* vs cross_entropy", printed, re.MULTILINE)


@pytest.mark.slow
def test_attack_a_model(gallery):
    printed, variables = gallery("attack_a_model")
    left = {line[:20].strip(): [float(value) for value in re.findall(r": ([\d.]+)", line)] for line in printed.splitlines()}
    assert all(len(values) == 4 and values == sorted(values, reverse=True) for values in left.values())
    assert left["adversarial training"][2] > left["cross-entropy"][2] + 0.2
    for name, path in variables["models"].items():  # without an attack
        logits = tfr.load(path.removeprefix("zoo:"))(variables["images"])["logits"]
        np.testing.assert_allclose(left[name][0], np.mean(np.argmax(logits, axis=1) == variables["labels"]), atol=0.006)


@pytest.mark.slow
def test_calibration_under_shift(gallery):
    printed, variables = gallery("calibration_under_shift")
    lines = re.findall(r"^(.+?) +confidence ([\d.]+)  accuracy ([\d.]+)  expected calibration error ([\d.]+)$", printed, re.MULTILINE)
    errors = {name: float(error) for name, *_, error in lines}
    assert errors["clean"] < 0.03 < errors["shift, scaled"] < errors["shift"]
    confidences, correct = variables["outcomes"]["shift"]
    bins = np.ceil(15 * confidences)
    gaps = [abs(confidences[bins == one].sum() - correct[bins == one].sum()) for one in np.unique(bins)]
    np.testing.assert_allclose(sum(gaps) / len(correct), errors["shift"], atol=6e-4)


@pytest.mark.slow
def test_harden_a_model(gallery):
    printed, variables = gallery("harden_a_model")
    lines = re.findall(r"^(\w+) +([\d.]+) -> ([\d.]+)$", printed, re.MULTILINE)
    values = {name: (float(before), float(after)) for name, before, after in lines}
    assert values["un"][1] > values["un"][0] + 0.02 and values["clean"][1] > values["clean"][0] - 0.03
    images = np.round(255 * variables["x_test"]) / 255  # as they are stored
    for model, accuracy in zip((variables["model"], variables["hardened"].model), values["clean"]):
        predicted = np.argmax(model.predict(images, verbose=0), axis=1)
        np.testing.assert_allclose(np.mean(predicted == variables["y_test"]), accuracy, atol=6e-4)


@pytest.mark.slow
def test_plug_in(gallery, monkeypatch):
    monkeypatch.setitem(tfr.corruptions.CORRUPTIONS, "glare", None)  # is undone with what the script adds
    printed, variables = gallery("plug_in")
    for name, line in re.findall(r"^(\w+) +clean and severities 1 to 5: ([\d. ]+)$", printed, re.MULTILINE):
        accuracies = [float(value) for value in line.split()]
        assert len(accuracies) == 6 and accuracies[0] > 0.95 and accuracies == sorted(accuracies, reverse=True)
        np.testing.assert_allclose(accuracies, variables["values"][name], atol=6e-4)
    x, y = np.meshgrid(np.linspace(0, 1, 6), np.linspace(0, 1, 5))
    expected = 0.5 + np.exp(-((x - 0.3) ** 2 + (y - 0.7) ** 2) / 0.04)
    glare = variables["glare"](np.full([1, 5, 6, 1], 0.5, np.float32), 0.2, center=np.float32([[0.7, 0.3]]))
    np.testing.assert_allclose(glare[0, :, :, 0], expected, atol=1e-5)


@pytest.mark.slow
def test_train_a_robust_model(run):
    printed = run("train_a_robust_model.py", "--epochs=4")
    lines = re.findall(r"^(\w+) +clean ([\d.]+)  uniform noise ([\d.]+)  (\S+)$", printed, re.MULTILINE)
    (_, _, plain, _), (_, _, robust, _) = lines
    assert [line[0] for line in lines] == ["plain", "robust"] and float(robust) > float(plain) + 0.03
    for name, clean, _, path in lines:
        model = keras.models.load_model(path)
        assert float(clean) > 0.6 and os.path.basename(path) == f"{name}.keras" and model.output_shape == (None, 15)


@pytest.mark.slow
def test_harden_a_pytorch_model(run, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    printed = run("harden_a_pytorch_model.py")
    lines = [re.search(rf"^{name} .* ([\d.]+)  PGD ([\d.]+)$", printed, re.MULTILINE) for name in ("initial", "hardened")]
    initial, robust = ([float(value) for value in line.groups()] for line in lines)
    assert robust[1] > initial[1] + 0.2 and robust[0] > 0.8 and os.path.getsize(tmp_path / "hardened.pt") > 10_000
