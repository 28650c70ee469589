"""The commands that are printed at the end of a run can be copied: they carry every flag that they need."""

import contextlib
import io
import json
import os
import re
import shlex

import numpy as np
import pytest
from PIL import Image

from tests.command_line import main
from tests.small_runs import eagerly, without_charts  # noqa: F401

pytestmark = pytest.mark.usefixtures("eagerly")

SMALL = ["--model=mlp", "--epochs=1", "--batch_size=8", "--evaluations=clean"]


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """Data whose images and labels depend on many flags, in a folder whose name has to be quoted."""
    root = tmp_path_factory.mktemp("some data")
    for label, gray in (("dark", 40), ("light", 200)):
        os.makedirs(root / "images" / label)
        for i in range(20):
            Image.fromarray(np.full((20 + i % 3, 18, 3), gray + i, np.uint8)).save(root / "images" / label / f"{i}.png")
    (root / "label map.txt").write_text("dark 1\nlight 0\n")
    return [
        f"--data=folder:{root}/images",
        "--image_size=16",
        "--image_fit=pad",
        f"--label_map={root}/label map.txt",
        "--validation_fraction=0.2",
        "--subset=6",
        "--evaluation_split=validation",
    ]


def command_for(purpose, text):
    """The words of the command for a purpose in a printed text, without `python run_experiment.py`."""
    (command,) = re.findall(rf"^(?:Next:|) +{purpose}:\n +(.*)$", text, re.MULTILINE)
    words = shlex.split(command)
    assert words[:2] == ["python", "run_experiment.py"], text
    return words[2:]


def printed(capsys, purpose):
    return command_for(purpose, capsys.readouterr().out)


def read(*path):
    with open(os.path.join(*path)) as file:
        return json.load(file)


@pytest.fixture(scope="module")
def trained(flags, tmp_path_factory):
    """The workdir of a run and what it printed."""
    folder, text = str(tmp_path_factory.mktemp("trained") / "a run"), io.StringIO()
    with contextlib.redirect_stdout(text):
        main(*flags, *SMALL, f"--workdir={folder}")
    return folder, text.getvalue()


def test_commands_after_a_run(trained, flags, capsys):
    run, text = trained
    main(*command_for("evaluate more of a model", text), "--evaluations=clean,noise")  # attacks take long
    measured, before = read(run, "measured", "evaluation.json"), read(run, "evaluation.json")
    assert measured["rows"][0] == before["rows"][0] and measured["card"]["data"] == before["card"]["data"]
    assert measured["rows"][0]["count"] == 6 and {row["metric"] for row in measured["rows"]} == {"clean", "un", "nun"}
    main(*printed(capsys, "compare it with the others in its folder"), f"--workdir={run}/compared")
    assert os.path.exists(os.path.join(run, "compared", "report.html"))


def test_commands_after_writing_a_corrupted_set(trained, flags, tmp_path, capsys):
    main("corrupt", *flags, "--corruptions=contrast", f"--workdir={tmp_path}/corrupted set")
    words = printed(capsys, "evaluate a model on it")
    main(*[trained[0] if word == "MODEL" else word for word in words], f"--workdir={tmp_path}/measured")
    found = read(tmp_path, "measured", "evaluation.json")
    assert {"clean", "corruptions/contrast"} <= {row["metric"] for row in found["rows"]} and found["rows"][0]["count"] == 6


@pytest.mark.slow
def test_commands_after_a_sweep(flags, tmp_path, capsys):
    main("sweep", "learning_rate=0.003", *flags, *SMALL, f"--workdir={tmp_path}/a sweep")
    words = printed(capsys, "train it with more seeds")
    assert "--learning_rate=0.003" in words and "--seeds=0,1,2" in words
    main(*words, "--seeds=4")
    assert "--learning_rate=0.003\n" in (tmp_path / "a sweep" / "chosen" / "flags.txt").read_text()


def test_commands_after_training_without_evaluations(tmp_path, capsys):
    """Of a data set that is found by --data_dir alone."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    features = tfds.features.FeaturesDict(
        {"image": tfds.features.Image(shape=(16, 16, 1)), "label": tfds.features.ClassLabel(num_classes=2)}
    )
    images = tf.data.Dataset.from_tensor_slices({"image": np.zeros([16, 16, 16, 1], np.uint8), "label": np.arange(16) % 2})
    tfds.dataset_builders.store_as_tfds_dataset(
        name="there",
        version="1.0.0",
        features=features,
        data_dir=str(tmp_path / "some where"),
        split_datasets={"train": images, "test": images},
    )
    main("train", "--data=there", f"--data_dir={tmp_path}/some where", *SMALL, "--evaluations=none", f"--workdir={tmp_path}/run")
    words = printed(capsys, "evaluate it")
    assert f"--data_dir={tmp_path}/some where" in words and not (tmp_path / "run" / "evaluation.json").exists()
    main(*words)
    found = read(tmp_path, "run", "measured", "evaluation.json")
    assert (found["row"], found["method"], found["model"], found["rows"][0]["count"]) == ("run", "cross_entropy", "mlp", 16)
    main(*words, f"--workdir={tmp_path}/elsewhere")
    assert read(tmp_path, "elsewhere", "evaluation.json")["rows"] == found["rows"]
