"""Every script of examples/ runs on embedded images, without arguments, and prints what it promises."""

import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
from PIL import Image

from tests.conftest import ROOT


def run(name, folder, *arguments):
    """The output of a script that is run in a folder."""
    script = os.path.join(ROOT, "examples", name)
    environment = {**os.environ, "PYTHONPATH": ROOT, "TMPDIR": str(folder)}
    finished = subprocess.run([sys.executable, script, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.slow
def test_evaluate_your_model(tmp_path):
    values = dict(re.findall(r"^(\S+) +([\d.]+)$", run("evaluate_your_model.py", tmp_path), re.MULTILINE))
    assert {"clean", "un", "nun", "corruptions/mean15", "corruptions/noise", "corruptions/blur", "corruptions/weather"} == set(values)
    assert float(values["clean"]) > 0.7 and 0.1 < float(values["corruptions/mean15"]) < float(values["clean"])


@pytest.mark.slow
def test_train_a_robust_model(tmp_path):
    printed = run("train_a_robust_model.py", tmp_path)
    lines = re.findall(r"^(\w+) +clean ([\d.]+)  uniform noise ([\d.]+)  (\S+)$", printed, re.MULTILINE)
    (_, _, plain, _), (_, _, robust, _) = lines
    assert [line[0] for line in lines] == ["plain", "robust"] and float(robust) > float(plain) + 0.03
    for name, clean, _, path in lines:
        model = keras.models.load_model(path)
        assert float(clean) > 0.6 and os.path.basename(path) == f"{name}.keras" and model.output_shape == (None, 15)


@pytest.mark.slow
def test_attack_a_model(tmp_path):
    left = [float(value) for value in re.findall(r"accuracy ([\d.]+)", run("attack_a_model.py", tmp_path))]
    assert len(left) == 4 and left == sorted(left, reverse=True) and left[0] > left[-1]


def test_corrupt_a_folder(tmp_path):
    random = np.random.RandomState(0)
    (tmp_path / "photos").mkdir()
    Image.fromarray(random.randint(0, 256, (40, 60, 3)).astype(np.uint8)).save(tmp_path / "photos" / "cat.png")
    printed = run("corrupt_a_folder.py", tmp_path, "photos", "--out=worse", "--corruptions", "contrast", "--severity=5").split()
    assert printed == ["worse/cat_contrast.png"]
    before, after = (np.asarray(Image.open(tmp_path / name), float) for name in ("photos/cat.png", printed[0]))
    assert after.shape == before.shape and after.std() < 0.2 * before.std()


@pytest.mark.slow
def test_corrupt_embedded_photographs(tmp_path):
    printed = run("corrupt_a_folder.py", tmp_path).split()
    assert len(printed) == 6 and all(os.path.getsize(path) > 1000 for path in printed)
