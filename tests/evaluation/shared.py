"""Images, metrics and processes that several tests of evaluations use."""

import json
import subprocess
import sys
import time

import numpy as np

from tests.attacks.oracles import sample_images
from tests.conftest import ROOT
from tf_robust import data


def by_name(metrics):
    """Returns {name: metric}."""
    return {str(one): one for one in metrics}


def values_of(metrics):
    """Returns {name: value}."""
    return {str(one): one.value for one in metrics}


def source_of(linear, count):
    """Images of 256 levels; every tenth has another label than the prediction of an `oracles.Linear`."""
    levels = np.round(sample_images(linear, count=count)[0] * 255).astype(np.uint8)
    labels, classes = np.argmax(linear(levels / np.float32(255)), axis=1), linear.weights.shape[1]
    labels[::10] = (labels[::10] + 1) % classes
    return data.ArraySource.of("tiny", "test", levels, labels, map(str, range(classes)))


def with_one_killed(script, folder, monkeypatch):
    """Runs a script in three processes on the same records, and kills the first once all have begun.

    The script takes the path of the records, and prints `records` as JSON in its last line, equal to what a process
    computes alone.
    Returns the lines that each process has printed.
    """
    for name in ("shared", "alone"):
        (folder / name).mkdir()
    outputs, workers = [folder / f"output_{worker}" for worker in range(3)], []
    for output in outputs:
        command = [sys.executable, "-c", script, str(folder / "shared" / "measured.jsonl")]
        with open(output, "w") as file:
            workers.append(subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL, cwd=ROOT))
    while not all(output.read_text() for output in outputs):
        assert all(worker.poll() is None for worker in workers)
        time.sleep(0.02)
    workers[0].kill()
    assert [worker.wait(300) for worker in workers][1:] == [0, 0]
    lines = [output.read_text().splitlines() for output in outputs]
    monkeypatch.setattr(sys, "argv", ["script", str(folder / "alone" / "measured.jsonl")])
    exec(script, alone := {})  # in this process
    assert json.loads(lines[1][-1]) == json.loads(lines[2][-1]) == json.loads(json.dumps(alone["records"]))
    return lines
