"""Errors that a user can correct end with a message and without a traceback."""

import errno
import os
import shutil
import sys
from unittest import mock

import pytest
import tensorflow as tf

from tests.command_line import main
from tests.small_runs import CLEAN, eagerly, evaluated, without_charts  # noqa: F401
from tf_robust.cli import commands
from tf_robust.evaluation import recording
from tf_robust.runs.run import Run
from tf_robust.training import loop
from tf_robust.utils import errors, files
from tf_robust.utils.errors import RunFailed

pytestmark = pytest.mark.usefixtures("eagerly")


def said(*arguments):
    """The message that the command line ends with."""
    with pytest.raises(SystemExit) as ended, commands.friendly_errors():
        main(*arguments)
    assert ended.value.code in (1, 2, "training began")
    return str(ended.value)


@pytest.mark.parametrize(
    "error, code",
    [
        (ValueError("Expected"), 2),
        (FileNotFoundError("none"), 2),
        (ImportError("none"), 2),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 1),
        (RunFailed("1 of 2 runs failed."), 1),
        (loop.TrainingDiverged("Not finite"), 1),
        (tf.errors.ResourceExhaustedError(None, None, "memory"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(error, code, capsys):
    with pytest.raises(SystemExit) as ended, commands.friendly_errors():
        raise error
    assert ended.value.code == code and bool(capsys.readouterr().err) == (code != 130)


@pytest.mark.parametrize(
    "line, message",
    [
        ("--epoks=3", "Unknown flag --epoks"),
        ("--epochs=x", "Received: 'x' (in "),
        ("--schedule=x", "schedule: 'x'. Known: constant, cosine, exponential, steps (in "),
        ("--dataset_format=x", "Unknown flag --dataset_format (in "),
        ("--flagfile=nowhere", "Unable to open flagfile"),
        ("--flagfile=a\0", "null byte"),
        ("data=digits", "Unrecognized argument 'data=digits'. Expected --flag=value"),
    ],
)
def test_invalid_flagfiles_are_named(line, message, tmp_path):
    (tmp_path / "row.flags").write_text(line)
    for arguments in (["suite", f"{tmp_path}"], [f"--flagfile={tmp_path}/row.flags"]):
        found = said(*arguments, "--workdir=w")
        assert message in found and str(tmp_path) in found


def test_flags_after_two_dashes_are_refused(tmp_path):
    (tmp_path / "row.flags").write_text("--data=digits\n--")
    found = said(f"--flagfile={tmp_path}/row.flags", "--workdir=w")
    assert f"--workdir=w after it (in {tmp_path}/row.flags)" in found


@pytest.mark.parametrize(
    "line, message",
    [
        ("--epoks=3", "Unknown flag --epoks (in "),
        ("--epochs=x", "Received: 'x' (in "),
        ("--nonsense", "Expected lines --NAME=VALUE in "),
    ],
)
def test_invalid_recorded_flags_are_named(line, message, tmp_path):
    (tmp_path / "flags.txt").write_text(line)
    assert f"{message}{tmp_path}/flags.txt" in said("evaluate", f"{tmp_path}")


def test_evaluating_another_model_does_not_overwrite_a_run(tmp_path):
    (tmp_path / "flags.txt").write_text("--data=digits\n")
    (tmp_path / "model").mkdir()
    found = said("evaluate", "--data=digits", f"{tmp_path}/model", f"--workdir={tmp_path}")
    assert "--workdir already holds a run; evaluating into it would overwrite" in found and f"Received: {tmp_path}" in found


def test_the_evaluation_of_another_model_does_not_complete_a_run(evaluated, tmp_path, monkeypatch):
    found = files.read_json(f"{evaluated}/evaluation.json")
    files.write_json(f"{tmp_path}/evaluation.json", {name: found[name] for name in found if name != "training"})
    monkeypatch.setattr(Run, "train", lambda *_: sys.exit("training began"))
    assert said(*CLEAN, f"--workdir={tmp_path}") == "training began"


@pytest.mark.parametrize("arguments", [["corrupt"], ["report", "{run}"], ["evaluate", "{run}/saved_model"]])
def test_an_unwritable_workdir_gives_advice(arguments, evaluated, tmp_path):
    (tmp_path / "file").write_text("")
    arguments = [argument.format(run=evaluated) for argument in arguments]
    data = [] if "report" in arguments else ["--data=digits"]
    found = said(*arguments, *data, f"--workdir={tmp_path}/file/inner")
    assert f"Error: Not a directory: {tmp_path}/file" in found and os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENAMETOOLONG, errno.ENOENT])
def test_system_errors_give_advice(number):
    assert errors.message_of(OSError(number, os.strerror(number), "a/b")).startswith(f"{os.strerror(number)}: a/b. Try: ")
    assert errors.message_of(FileNotFoundError("Expected x. Received y")) == "Expected x. Received y"
    assert errors.message_of(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")) == "Connection refused"


def test_a_full_disk_while_a_record_is_written_gives_advice(evaluated, tmp_path, monkeypatch):
    monkeypatch.setattr(recording.os, "fsync", mock.Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    found = said("evaluate", f"{evaluated}/saved_model", "--data=digits", "--evaluations=clean", "--subset=60", f"--workdir={tmp_path}")
    assert found.startswith("Error: No space left on device. The disk is full.")


def test_training_without_checkpoints_reports_a_restart(evaluated, tmp_path, capsys):
    run = shutil.copytree(evaluated, tmp_path / "run")
    command = ["train", *CLEAN, "--evaluations=none", f"--workdir={run}"]
    main(*command)
    assert "restarts" not in capsys.readouterr().out
    shutil.rmtree(run / "checkpoints")
    main(*command)
    assert "already trained" in capsys.readouterr().out  # the model is whole
    shutil.rmtree(run / "saved_model")
    main(*command)
    assert f"No checkpoint in {run}/checkpoints: training restarts." in capsys.readouterr().out
    main("train", *CLEAN, "--evaluations=none", f"--workdir={tmp_path}/other")
    assert "restarts" not in capsys.readouterr().out
