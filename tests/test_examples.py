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

from tests.conftest import ROOT


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """A function that runs a script in a new folder and in this process, since another one takes seconds to start; returns its output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def output(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(os.path.join(ROOT, "examples", name), run_name="__main__")
        return capsys.readouterr().out

    return output


@pytest.mark.slow
def test_evaluate_your_model(run):
    values = dict(re.findall(r"^(\S+) +([\d.]+)$", run("evaluate_your_model.py"), re.MULTILINE))
    assert {"clean", "un", "nun", "corruptions/mean15", "corruptions/noise", "corruptions/blur", "corruptions/weather"} == set(values)
    assert float(values["clean"]) > 0.7 and 0.1 < float(values["corruptions/mean15"]) < float(values["clean"])


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
def test_attack_a_model(run):
    left = [float(value) for value in re.findall(r"accuracy ([\d.]+)", run("attack_a_model.py"))]
    assert len(left) == 4 and left == sorted(left, reverse=True) and left[0] > left[-1]


def test_corrupt_a_folder(run, tmp_path):
    random = np.random.RandomState(0)
    (tmp_path / "photos").mkdir()
    Image.fromarray(random.randint(0, 256, (40, 60, 3)).astype(np.uint8)).save(tmp_path / "photos" / "cat.png")
    printed = run("corrupt_a_folder.py", "photos", "--out=worse", "--corruptions", "contrast", "--severity=5").split()
    assert printed == ["worse/cat_contrast.png"]
    before, after = (np.asarray(Image.open(tmp_path / name), float) for name in ("photos/cat.png", printed[0]))
    assert after.shape == before.shape and after.std() < 0.2 * before.std()


@pytest.mark.slow
def test_corrupt_embedded_photographs(run):
    printed = run("corrupt_a_folder.py").split()
    assert len(printed) == 6 and all(os.path.getsize(path) > 1000 for path in printed)


@pytest.mark.slow
def test_harden_a_pytorch_model(run, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    printed = run("harden_a_pytorch_model.py")
    lines = [re.search(rf"^{name} .* ([\d.]+)  PGD ([\d.]+)$", printed, re.MULTILINE) for name in ("initial", "hardened")]
    initial, robust = ([float(value) for value in line.groups()] for line in lines)
    assert robust[1] > initial[1] + 0.2 and robust[0] > 0.8 and os.path.getsize(tmp_path / "hardened.pt") > 10_000
