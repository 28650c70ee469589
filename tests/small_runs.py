"""Small runs of the command line, and their data and results, for tests."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.command_line import main
from tf_robust import report
from tf_robust.configs import DataConfig
from tf_robust.configs.train import TrainConfig
from tf_robust.report import comparison, images
from tf_robust.runs.config import RunConfig
from tf_robust.runs.run import Run

COMMON = "--data=digits --train_examples=40 --model=mlp --batch_size=20 --epochs=1 --evaluations=clean,noise --subset=40".split()
CLEAN = [*COMMON, "--evaluations=clean"]


@pytest.fixture(scope="module")
def eagerly():
    """Runs a few steps of training without graphs, which take longer to build. Exported models are graphs still."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def write_rows(folder, rows, /, **table):
    """Writes a flagfile for each row, {row: flags}, and the fields of suite.json into a folder. Returns its path."""
    folder.mkdir(exist_ok=True)
    for row, flags in rows.items():
        (folder / f"{row}.flags").write_text("\n".join(flags))
    if table:
        (folder / "suite.json").write_text(json.dumps(table))
    return str(folder)


def write_table(folder):
    """Writes the flagfiles of two rows into a new folder `table`. Returns its path."""
    return write_rows(folder / "table", {row: [*COMMON, f"--learning_rate={rate}"] for row, rate in (("low", 0.01), ("high", 0.1))})


@pytest.fixture
def table(tmp_path):
    return write_table(tmp_path)


def write_images(folder, images):
    """Writes images, {name of a class: uint8 images [H, W, C]}, as PNG files, in one subfolder for each class."""
    for name, members in images.items():
        os.makedirs(os.path.join(folder, name))
        for number, image in enumerate(members):
            Image.fromarray(image).save(os.path.join(folder, name, f"{number}.png"))


def gray_images(count, **levels):
    """Returns images 20x18 of {name of a class: its first gray level}, each a level brighter than the one before."""
    return {name: [np.full((20, 18, 3), level + number, np.uint8) for number in range(count)] for name, level in levels.items()}


SMALL = ["--model=lenet", "--image_size=16", "--epochs=1", "--batch_size=8", "--evaluations=clean"]


@pytest.fixture(scope="module")
def sample_images(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    for split in ("train", "test"):
        write_images(root / split, gray_images(12, dark=40, light=200))
    return f"--data=folder:{root}"


@pytest.fixture(scope="module")
def trained(sample_images, tmp_path_factory):
    """The workdir of a finished run, for tests that only read it."""
    folder = str(tmp_path_factory.mktemp("trained") / "run")
    main_without_charts(sample_images, *SMALL, f"--workdir={folder}")
    return folder


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """The workdir of a finished run of `CLEAN`, for tests that damage copies of it."""
    folder = tmp_path_factory.mktemp("evaluated") / "run"
    main_without_charts(*CLEAN, f"--workdir={folder}")
    return folder


def omit_charts(monkeypatch):
    monkeypatch.setattr(report.charts, "of_table", lambda *_: [])
    monkeypatch.setattr(report.page, "library", lambda: "")
    monkeypatch.setattr(comparison, "training_charts", lambda *_: [])
    monkeypatch.setattr(comparison, "data_figures", lambda *_: [])
    monkeypatch.setattr(images, "draw_maps", lambda *_: None)


def main_without_charts(*arguments):
    """Runs a command, for fixtures of a module, which begin before `without_charts`."""
    with pytest.MonkeyPatch.context() as patched:
        omit_charts(patched)
        main(*arguments)


@pytest.fixture(autouse=True)
def without_charts(request, monkeypatch):
    """Charts and maps take most of so small a run's time: they are drawn for the two tests that look for them."""
    if "drawn" not in request.keywords:
        omit_charts(monkeypatch)


def read(*parts):
    with open(os.path.join(*parts), encoding="utf-8") as file:
        return json.load(file)


HYPERPARAMETERS = {"cross_entropy": {}, "fcl": {"k": 100, "weight": 0.5}}


def run_of(method, **settings):
    """LeNet on 64 digits in one batch: a step is an epoch, so that the history holds every step."""
    train = TrainConfig(batch_size=64, epochs=4, method=method, **settings)
    return Run(RunConfig(DataConfig(data="digits", train_examples=64), train, method=HYPERPARAMETERS[method]), row=method, seed=0)
