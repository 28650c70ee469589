"""The commands that are printed at the end of a run can be copied: they carry every flag that they need."""

import contextlib
import io
import os
import re
import shlex

import numpy as np
import pytest

from tests.command_line import main
from tests.small_runs import eagerly, main_without_charts, read, without_charts, write_images  # noqa: F401

pytestmark = pytest.mark.usefixtures("eagerly")

SMALL = ["--model=mlp", "--epochs=1", "--batch_size=8", "--evaluations=clean"]


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """Data whose images and labels depend on many flags, in a folder whose name has to be quoted."""
    root = tmp_path_factory.mktemp("some data")
    levels = {"dark": range(40, 60), "light": range(200, 220)}
    images = {label: [np.full((20 + level % 3, 18, 3), level, np.uint8) for level in grays] for label, grays in levels.items()}
    write_images(root / "images", images)
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


@pytest.fixture(scope="module")
def trained(flags, tmp_path_factory):
    """The workdir of a run and what it printed."""
    folder, text = str(tmp_path_factory.mktemp("trained") / "a run"), io.StringIO()
    with contextlib.redirect_stdout(text):
        main_without_charts(*flags, *SMALL, f"--workdir={folder}")
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
    words = [trained[0] if word == "MODEL" else word for word in printed(capsys, "evaluate a model on it")]
    words.append(f"--workdir={tmp_path}/measured")
    main(*words, "--require=corruptions/contrast>=0")
    found = read(tmp_path, "measured", "evaluation.json")
    contrast = {"corruptions/contrast", *(f"corruptions/contrast/{severity}" for severity in range(1, 6))}
    assert {"clean", *contrast} <= {row["metric"] for row in found["rows"]} and found["rows"][0]["count"] == 6
    with pytest.raises(SystemExit, match="corruptions/contrast is .*, required <= 0"):
        main(*words, "--require=corruptions/contrast<=0")


def test_a_corrupted_set_of_a_folder_without_splits_has_all_images(flags, tmp_path):
    main("corrupt", flags[0], "--image_size=16", "--corruptions=contrast", f"--workdir={tmp_path}")
    assert {"contrast.npy", "labels.npy", "card.json", "sheet.png"} <= {*os.listdir(tmp_path)}
    assert np.load(tmp_path / "contrast.npy").shape == (5 * 40, 16, 16, 3)


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

    place = tmp_path / "some where"
    features = {"image": tfds.features.Image(shape=(16, 16, 1)), "label": tfds.features.ClassLabel(num_classes=2)}
    images = tf.data.Dataset.from_tensor_slices({"image": np.zeros([16, 16, 16, 1], np.uint8), "label": np.arange(16) % 2})
    tfds.dataset_builders.store_as_tfds_dataset(
        name="there",
        version="1.0.0",
        features=tfds.features.FeaturesDict(features),
        data_dir=str(place),
        split_datasets={"train": images, "test": images},
    )
    main("train", "--data=there", f"--data_dir={place}", *SMALL, "--evaluations=none", f"--workdir={tmp_path}/run")
    words = printed(capsys, "evaluate it")
    assert f"--data_dir={place}" in words and not (tmp_path / "run" / "evaluation.json").exists()
    main(*words)
    found = read(tmp_path, "run", "measured", "evaluation.json")
    assert (found["row"], found["method"], found["model"], found["rows"][0]["count"]) == ("run", "cross_entropy", "mlp", 16)
    main(*words, f"--workdir={tmp_path}/elsewhere")
    assert read(tmp_path, "elsewhere", "evaluation.json")["rows"] == found["rows"]
