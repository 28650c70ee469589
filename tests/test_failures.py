"""Failures of the machine: a full disk, deleted files, a clock that runs backwards, concurrent writers."""

import contextlib
import errno
import glob
import itertools
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_robust import methods
from tf_robust.training import loop
from tf_robust.utils import files

OPTIONS = {"epochs": 3, "batch_size": 12}


def build(network):
    method = methods.METHODS["cross_entropy"](network)
    method.compile(optimizer=keras.optimizers.Adam(0.05))
    return method


def weights(method):
    return [v.numpy() for v in method.variables]


def test_a_full_disk_keeps_the_last_checkpoint_and_training_resumes(network, source, tmp_path, monkeypatch):
    folder, flush, calls = str(tmp_path / "checkpoints"), os.fsync, itertools.count()

    def fsync(number):
        if next(calls) == 1:  # the second epoch's
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(number)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="The disk is full.*step_000000008.npz"):
        loop.fit(build(network()), source(), checkpoint_folder=folder, **OPTIONS)
    assert os.listdir(folder) == ["step_000000004.npz"]
    uninterrupted, resumed = build(network()), build(network(seed=1))
    loop.fit(uninterrupted, source(), **OPTIONS)
    loop.fit(resumed, source(), checkpoint_folder=folder, **OPTIONS)
    for a, b in zip(weights(uninterrupted), weights(resumed)):
        np.testing.assert_array_equal(a, b)


def test_an_export_on_a_full_disk_keeps_the_previous_one(tmp_path):
    path = tmp_path / "model"
    for text in ("first", "second"):
        with pytest.raises(OSError, match="The disk is full") if text == "second" else contextlib.nullcontext():
            with files.atomic_folder(str(path)) as folder:
                os.makedirs(folder)
                with open(os.path.join(folder, "file"), "w") as file:
                    file.write(text)
                if text == "second":
                    raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")
    assert (path / "file").read_text() == "first" and os.listdir(tmp_path) == ["model"]


def test_deleted_checkpoints_and_a_clock_that_runs_backwards_do_no_harm(network, source, tmp_path, monkeypatch):
    folder, clock = str(tmp_path / "checkpoints"), itertools.count(0, -1000)
    monkeypatch.setattr(loop.time, "monotonic", lambda: float(next(clock)))
    undisturbed, disturbed = build(network()), build(network())

    class Delete(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            for path in glob.glob(f"{folder}/*"):
                os.remove(path)

    loop.fit(undisturbed, source(), **OPTIONS)
    loop.fit(disturbed, source(), checkpoint_folder=folder, callbacks=[Delete()], **OPTIONS)
    for a, b in zip(weights(undisturbed), weights(disturbed)):
        np.testing.assert_array_equal(a, b)
    assert os.listdir(folder) == ["step_000000012.npz"]


def test_only_temporary_files_of_dead_processes_are_removed(tmp_path):
    path = str(tmp_path / "a.json")
    code = """
import sys, time, types
sys.modules["tensorflow"] = types.ModuleType("tensorflow")  # which takes long to import and is not needed
from tf_robust.utils.files import atomic_file
with atomic_file(sys.argv[1]) as file:
    print("writing", flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "writing\n"
        (held,) = os.listdir(tmp_path)
        assert held.startswith(f"a.json.writing-{other.pid}-")
        for name in ("a.json.writing-2", "ab.json.writing-3-0123abcd"):
            (tmp_path / name).write_text("{")
        with files.atomic_file(path):
            left = {*os.listdir(tmp_path)} - {held, "ab.json.writing-3-0123abcd"}
            assert [name.rpartition("-")[0] for name in left] == [f"a.json.writing-{os.getpid()}"]
        files.clear_unfinished(str(tmp_path))
        assert {*os.listdir(tmp_path)} == {"a.json", held}
        other.kill()
    (tmp_path / "ab.json.writing-3").write_text("{")
    files.write_json(path, {"b": 1})
    assert {*os.listdir(tmp_path)} == {"a.json", "ab.json.writing-3"} and files.read_json(path) == {"b": 1}


def test_an_interrupted_folder_keeps_its_former_content(tmp_path, monkeypatch):
    path, rename, calls = tmp_path / "model", os.rename, []
    path.mkdir()
    (path / "old").write_text("1")

    def interrupted(source, target):
        calls.append(source)
        if len(calls) == 2:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), files.atomic_folder(str(path)) as temporary:
        os.makedirs(temporary)
    assert os.listdir(tmp_path) == ["model"] and os.listdir(path) == ["old"]
    monkeypatch.undo()
    os.rename(path, tmp_path / "model.old-17-0123abcd")  # as a process leaves it that is killed there
    (tmp_path / "model.writing-17-0123abcd").mkdir()
    files.clear_unfinished(str(tmp_path))
    assert os.listdir(tmp_path) == ["model"] and os.listdir(path) == ["old"]


def test_a_reused_temporary_file_is_not_removed(tmp_path, monkeypatch):
    path, temporary, lockf = str(tmp_path / "a.json"), str(tmp_path / "a.json.writing-3"), files.fcntl.lockf

    def finish_and_restart(file, how):  # the other process acts between our opening its file and our locking it
        if file.name == temporary:
            os.replace(temporary, path)
            pathlib.Path(temporary).write_text("the next")
        return lockf(file, how)

    pathlib.Path(temporary).write_text("{}")
    monkeypatch.setattr(files.fcntl, "lockf", finish_and_restart)
    files._remove_unlocked(temporary)
    assert pathlib.Path(temporary).read_text() == "the next"


@pytest.mark.slow
def test_two_processes_that_write_one_file_do_not_disturb_each_other(tmp_path):
    path = str(tmp_path / "a.json")
    script = "import sys; from tf_robust.utils import files\nfor number in range(300): files.write_json(sys.argv[1], {'number': number})"
    processes = [subprocess.Popen([sys.executable, "-c", script, path], stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    assert files.read_json(path) == {"number": 299} and os.listdir(tmp_path) == ["a.json"]
