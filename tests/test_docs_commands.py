"""Every command line of the README and of the documents runs, page by page and in order, at a tiny size.

What is made tiny: the data sets, the epochs, the rows of a suite (the first one alone, on clean images), the corruptions
(two of 19). The commands for several machines (devices.md) run in test_devices.py and data/test_service.py.
"""

import glob
import os
import re
import shlex

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image

from tests.test_cli import little_drawn, main  # noqa: F401
from tf_robust import cli, corruptions
from tf_robust.experiments import suites
from tf_robust.models import heads

DOCS = os.path.join(cli.ROOT, "docs")
PAGES = [
    page
    for page in sorted([*glob.glob(os.path.join(DOCS, "*.md")), os.path.join(cli.ROOT, "README.md")])
    if os.path.basename(page) != "devices.md"
]
TINY = ["--seeds=0", "--epochs=1", "--batch_size=10", "--train_examples=30", "--subset=15", "--attack_queries=30"]


def commands(page):
    """The command lines of a page, as lists of words without `python run_experiment.py`."""
    with open(page, encoding="utf-8") as file:
        lines = re.findall(r"python run_experiment\.py([^\n`]*(?:\n +--[^\n`]*)*)", file.read())
    for line in lines:
        words = shlex.split(re.sub(r"\s\s+[a-z].*", "", line).replace("...", "").rstrip(".:;,)"), comments=True)
        yield [word for word in words if word.startswith("--")]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Returns {placeholder of a command, such as --data_dir=DIR: its value in the tests}."""
    root = tmp_path_factory.mktemp("places")
    random = np.random.RandomState(0)
    for name, version, shape, count in (("mnist", "3.0.1", (28, 28, 1), 300), ("cifar10", "3.0.2", (32, 32, 3), 40)):
        images, labels = random.randint(0, 256, (count, *shape)).astype(np.uint8), np.arange(count) % 10
        features = tfds.features.FeaturesDict(
            {"id": tfds.features.Text(), "image": tfds.features.Image(shape=shape), "label": tfds.features.ClassLabel(num_classes=10)}
        )
        examples = tf.data.Dataset.from_tensor_slices({"id": labels.astype(str), "image": images, "label": labels})
        tfds.dataset_builders.store_as_tfds_dataset(
            name=name, version=version, features=features, data_dir=str(root / "tfds"), split_datasets={"train": examples, "test": examples}
        )
    for label in ("dark", "light"):
        os.makedirs(root / "images" / "train" / label)
        os.makedirs(root / "images" / "validation" / label)
        for i in range(15):
            for split in ("train", "validation"):
                Image.fromarray(random.randint(0, 256, (32, 32, 3)).astype(np.uint8)).save(root / "images" / split / label / f"{i}.png")
    images = keras.Input((32, 32, 3))
    model = heads.classifier(images, keras.layers.GlobalAveragePooling2D()(images), 10, "theirs")
    model.export(str(root / "model"), verbose=False)
    return {
        "--data=folder:DIR": f"--data=folder:{root}/images",
        "--data_dir=DIR": f"--data_dir={root}/tfds",
        "--saved_model=DIR": f"--saved_model={root}/model",
        "--saved_model=YOUR_MODEL": f"--saved_model={root}/model",
        "--data=NAME": "--data=cifar10",
        "TFDS": f"--data_dir={root}/tfds",
    }


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=os.path.basename)
def test_the_commands_of_a_page_run(page, places, tmp_path, monkeypatch):
    for folder in ("docs", "flags", "results"):
        os.symlink(os.path.join(cli.ROOT, folder), tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(corruptions, "CORRUPTIONS", {name: corruptions.CORRUPTIONS[name] for name in ("fog", "contrast")})
    whole = suites.table_of

    def first_row_of(folder, home):
        here, rows, table = whole(folder, home)
        return here, rows[:1], table

    for words in commands(page):
        if words and words[0].split("=")[0] in ("--help", "--helpfull", "--list", "--dry_run") or "ROW" in "".join(words):
            continue  # named in a sentence; test_catalogue.py and test_dry_run.py run them
        words = [places.get(word, word) for word in words] or ["--mode=suite", "--suite=flags/quickstart"]
        report = "--mode=report" in words
        tiny = [] if report else [*TINY, places["TFDS"], *(["--evaluations=clean"] if "--mode=suite" in words else [])]
        monkeypatch.setattr(suites, "table_of", whole if report else first_row_of)
        main(*words, *tiny)
