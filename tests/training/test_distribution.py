"""Several workers train as one process does, and fail with a message if one of them ends."""

import glob
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import types

import numpy as np
import pytest
import tensorflow as tf

from tests.command_line import main
from tests.conftest import ROOT
from tests.methods import replicas
from tf_robust import methods
from tf_robust.runs import scheduler
from tf_robust.training import distribution

ARGUMENTS = [
    *("train", "--evaluations=none", "--data=digits", "--train_examples=60", "--model=lenet", "--batch_size=12", "--epochs=20"),
    *("--optimizer=sgd", "--learning_rate=0.05", "--steps_per_execution=2"),
]


def two_workers(*command):
    """Starts two processes of one command on this machine; returns [Popen, Popen]."""
    sockets = [socket.socket() for _ in range(2)]
    for sock in sockets:
        sock.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{sock.getsockname()[1]}" for sock in sockets]
    for sock in sockets:
        sock.close()
    configs = [json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}) for index in range(2)]
    options = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return [subprocess.Popen([sys.executable, *command], env={**os.environ, "TF_CONFIG": config}, **options) for config in configs]


def outputs_of(workers):
    """Waits for two workers, which must succeed; returns their outputs."""
    outputs = [worker.communicate(timeout=600)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    return outputs


@pytest.mark.slow
def test_two_workers_take_the_steps_of_one_process(tmp_path, two_replicas, float64):
    """Including queues, key encoders and statistics; methods that mix examples are compared with two devices.

    Two methods; all: METHODS=all python -m pytest tests/training/test_distribution.py -k take_the_steps
    """
    names = [*methods.METHODS] if os.environ.get("METHODS") == "all" else ["moco", "noisymix"]
    workers = two_workers("-m", "tests.training.worker_steps", str(tmp_path), ",".join(names))
    expected = {
        name: replicas.trained(name, tf.distribute.get_strategy() if name in replicas.SYNCHRONIZED else two_replicas) for name in names
    }
    outputs_of(workers)
    for name, method in expected.items():
        arrays = np.load(tmp_path / f"{name}.npz")
        for one, two in zip(replicas.state(method), arrays.values(), strict=True):
            assert two.dtype == (np.int64 if name == "moco" and one.dtype.kind == "i" else np.float64)  # MoCo's position in its queue
            np.testing.assert_allclose(two, one, rtol=0, atol=1e-8)


@pytest.mark.slow
def test_a_lost_worker_ends_the_other_and_restarted_they_train_as_one_process(tmp_path):
    """Only the first one writes."""
    command = [os.path.join(ROOT, "run_experiment.py"), *ARGUMENTS, f"--workdir={tmp_path}/two", "--strategy=multi_worker"]
    first, second = two_workers(*command)
    while not glob.glob(f"{tmp_path}/two/checkpoints/*.npz"):
        assert first.poll() is None and second.poll() is None
        time.sleep(0.02)
    second.send_signal(signal.SIGKILL)
    output = first.communicate(timeout=120)[0]
    second.communicate()
    assert first.returncode == 1 and "Another worker has ended. Try: start all workers again with the same command" in output
    workers = two_workers(*command)
    main(*ARGUMENTS, f"--workdir={tmp_path}/one")
    outputs = outputs_of(workers)
    assert all(0 < int(re.search(r"Resumed at step (\d+) of 100", text)[1]) < 100 for text in outputs), outputs
    assert "Model:" in outputs[0] and "Model:" not in outputs[1]
    for files in ("saved_model/weights.npz", "checkpoints/step_000000100.npz"):
        one, two = (np.load(f"{tmp_path}/{name}/{files}") for name in ("one", "two"))
        for name, other in zip(sorted(one.files), sorted(two.files), strict=True):  # layers' names differ between processes
            if one[name].ndim:  # metrics are sums over replicas
                rounding = 100 * 2**-23 * max(1.0, np.abs(one[name]).max())  # float32, a unit in each of the 100 steps
                np.testing.assert_allclose(two[other], one[name], rtol=0, atol=rounding)
    histories = [json.load(open(f"{tmp_path}/{name}/history.json"))[-1] for name in ("one", "two")]
    assert histories[1] == pytest.approx(histories[0], abs=1e-4)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"cluster": {"worker": ["a:1", "b:2"]}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 2}}',
    ],
)
def test_a_cluster_that_is_not_told_is_asked_for(text):
    with pytest.raises(ValueError, match="TF_CONFIG"):
        distribution.check_cluster(text)


def test_two_workers_are_a_cluster():
    for index in range(2):
        distribution.check_cluster(f'{{"cluster": {{"worker": ["a:1", "b:2"]}}, "task": {{"type": "worker", "index": {index}}}}}')


def test_one_device_cannot_be_mirrored(monkeypatch):
    one = tf.config.list_logical_devices("CPU")[:1]
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: one if kind == "CPU" else [])
    with pytest.raises(ValueError, match="strategy=mirrored.*CPU:0"):
        distribution.strategy("mirrored")


def test_workers_take_one_run_at_a_time():
    runs = [types.SimpleNamespace(config=types.SimpleNamespace(train=types.SimpleNamespace(strategy="multi_worker")))] * 2
    with pytest.raises(ValueError, match="strategy=multi_worker"):
        scheduler.run_all(runs, None)
