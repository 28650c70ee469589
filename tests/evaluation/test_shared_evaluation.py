"""Processes with the same records file share the evaluation sets, and take over those of a killed process."""

import contextlib
import os
import signal
import time

import pytest

from tests.evaluation.shared import with_one_killed
from tf_robust.evaluation import read_records
from tf_robust.evaluation.recording import SetLocks

MEASURE = """
import json, sys, time
import numpy as np
import tensorflow as tf
from tf_robust import evaluation
def predict(images):
    time.sleep(0.05)
    return tf.one_hot(tf.cast(images[:, 0, 0, 0] * 10, tf.int32), 10)
def tiny_set(number):
    images = np.random.RandomState(number).rand(20, 2, 2, 1).astype(np.float32)
    return evaluation.EvaluationSet(f"set_{number}", lambda: tf.data.Dataset.from_tensors((images, tf.zeros([20], tf.int64))))
records = evaluation.records(predict, [tiny_set(number) for number in range(60)], sys.argv[1], log=lambda line: print(line, flush=True))
print(json.dumps(records))
"""


@pytest.mark.slow
def test_processes_share_the_sets_including_those_of_a_killed_process(tmp_path, monkeypatch):
    lines = with_one_killed(MEASURE, tmp_path, monkeypatch)
    names = [record["set"] for record in read_records(str(tmp_path / "shared" / "measured.jsonl"))]
    assert sorted(names) == sorted(f"set_{number}" for number in range(60))  # each once
    measured = [sum("20 images" in line for line in of_worker) for of_worker in lines]
    assert min(measured) > 0 and sum(measured) in (59, 60)  # one may have been killed between writing and logging


def test_a_set_is_locked_by_one_process_until_it_is_released_or_the_process_ends(tmp_path):
    path = str(tmp_path / "new" / "locks")
    ours = SetLocks(path)
    read, write = os.pipe()
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(ours.try_lock("a"))
        other = os.fork()  # which does nothing but lock files, and imports nothing
        if not other:
            try:
                with SetLocks(path).try_lock("a") as a, SetLocks(path).try_lock("b") as b:
                    os.write(write, f"{a} {b}".encode())
                    time.sleep(60)
            finally:
                os._exit(0)
        try:
            assert first and os.read(read, 100) == b"False True"
            stack.close()
            with ours.try_lock("a") as again, ours.try_lock("b") as theirs:
                assert again and not theirs
        finally:
            os.kill(other, signal.SIGKILL)
            os.waitpid(other, 0)
    with ours.try_lock("b") as freed:
        assert freed
