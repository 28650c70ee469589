"""Every command line of the README and of the documents runs, page by page and in order, at a tiny size.

What is made tiny: the data sets, the epochs, the rows of a suite (the first one alone, on clean images), the corruptions
(two of 19). The commands for several machines (scale.md) run in test_devices.py, data/test_service.py and
integrations/test_launchers.py, those with a module of the user (extend.md) in test_plugins.py.
"""

import glob
import importlib.util
import os
import re
import shlex
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from tests.command_line import main
from tests.conftest import ROOT
from tests.conversion.files import write as write_onnx
from tests.small_runs import without_charts, write_images  # noqa: F401
from tf_robust import corruptions
from tf_robust.cli import command_line
from tf_robust.runs import run, suite

HAS_TORCH = importlib.util.find_spec("torch") is not None
DOCS = os.path.join(ROOT, "docs")
PAGES = [
    page
    for page in sorted([*glob.glob(os.path.join(DOCS, "**", "*.md"), recursive=True), os.path.join(ROOT, "README.md")])
    if os.path.basename(page) not in ("scale.md", "extend.md")
]
_TRAINING = ["--seeds=0", "--epochs=1", "--batch_size=10", "--train_examples=10", "--subset=15"]
TINY = {
    "train": _TRAINING,
    "sweep": [*_TRAINING, "--trials=2"],
    "suite": [*_TRAINING, "--evaluations=clean"],
    "evaluate": ["--subset=15"],
    "attack": ["--subset=15", "--attack_queries=30", "--attack_radii=linf_8/255"],
    "corrupt": ["--subset=15"],
}


def command_lines(page):
    """The arguments of the command lines in the code blocks of a page, also those of workflows, as lists of words."""
    with open(page, encoding="utf-8") as file:
        blocks = re.findall(r"^```(?:sh|yaml)\n(.*?)^```", file.read(), re.DOTALL | re.MULTILINE)
    for line in "".join(blocks).replace("\\\n", "").splitlines():
        if found := re.search(r"(?:tf-robust|python run_experiment\.py)(?: (.*))?$", line):
            yield shlex.split(found[1] or "", comments=True)


def write_torchscript(path):
    """Writes a network of ten classes; without PyTorch an empty file."""
    if not HAS_TORCH:
        path.write_bytes(b"")
        return
    import torch

    layers = [torch.nn.Conv2d(3, 4, 3, 8), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 10)]
    torch.jit.trace(torch.nn.Sequential(*layers).eval(), torch.zeros(2, 3, 32, 32)).save(path)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A folder with what the commands name: TFDS data sets in DIR, image files in photos/, models in model.keras, new.keras, ..."""
    root = tmp_path_factory.mktemp("places")
    random = np.random.RandomState(0)
    for name, version, shape, count in (("mnist", "3.0.1", (28, 28, 1), 300), ("cifar10", "3.0.2", (32, 32, 3), 40)):
        images, labels = random.randint(0, 256, (count, *shape)).astype(np.uint8), np.arange(count) % 10
        features = tfds.features.FeaturesDict(
            {"id": tfds.features.Text(), "image": tfds.features.Image(shape=shape), "label": tfds.features.ClassLabel(num_classes=10)}
        )
        examples = tf.data.Dataset.from_tensor_slices({"id": labels.astype(str), "image": images, "label": labels})
        tfds.dataset_builders.store_as_tfds_dataset(
            name=name, version=version, features=features, data_dir=str(root / "DIR"), split_datasets={"train": examples, "test": examples}
        )
    for folder in ("photos/train", "photos/validation", "photos/test", "night"):
        write_images(root / folder, {str(label): random.randint(0, 256, (5, 32, 32, 3)).astype(np.uint8) for label in range(10)})
    (root / "rain.csv").write_text("path,label\n" + "".join(f"night/{label}/0.png,{label}\n" for label in range(10)))
    keras.Sequential([keras.Input((32, 32, 3)), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)]).save(root / "model.keras")
    shutil.copyfile(root / "model.keras", root / "new.keras")
    write_onnx(root / "model.onnx")
    write_torchscript(root / "net.pt")
    for folder in ("docs", "flags", "results"):
        os.symlink(os.path.join(ROOT, folder), root / folder)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: os.path.relpath(page, ROOT).removeprefix("docs/"))
def test_the_commands_of_a_page_run(page, places, tmp_path, monkeypatch):
    for name in os.listdir(places):
        os.symlink(places / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(corruptions, "CORRUPTIONS", {name: corruptions.CORRUPTIONS[name] for name in ("fog", "contrast")})
    whole, train = suite.table_of, run.Run.train

    def train_eagerly(*arguments):  # a few steps take less time than their graph
        tf.config.run_functions_eagerly(True)
        try:
            return train(*arguments)
        finally:
            tf.config.run_functions_eagerly(False)

    monkeypatch.setattr(run.Run, "train", train_eagerly)

    def first_row_of(folder, home):
        here, rows, table = whole(folder, home)
        return here, rows[:1], table

    for words in command_lines(page):
        command, values = command_line.read_command(words)
        if values.get("dry_run") or command.name == "harden" or "net.pt" in words and not HAS_TORCH:
            continue  # test_dry_run.py; test_hardening_run.py, with a trained model
        monkeypatch.setattr(suite, "table_of", whole if command.name == "report" else first_row_of)
        words = [re.sub(r">=[\d.]+", ">=0", word).replace("corruptions/mean15", "corruptions/fog") for word in words]  # bounds that are met
        if command.name == "suite" and "suite" not in words:
            words = ["suite", command_line.QUICK_START, *words]
        if command.name == "attack" and "attack" not in values:
            words.append("--attack=pgd")  # test_auto_attack.py
        if command.name in ("train", "suite", "sweep", "evaluate", "attack", "corrupt"):
            words += [flag for flag in TINY[command.name] if flag[2:].partition("=")[0] in command.parameters(words)]
        if "--data_dir=DIR" not in words and re.search("cifar10|mnist", "".join(words)):
            words.append("--data_dir=DIR")
        main(*words)
