"""Several workers train as one process does, and end with a word where one of them is gone."""

import glob
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

import run_experiment
from tests.test_run_experiment import main
from tf_robust import devices, suites

ARGUMENTS = ["--mode=train", "--data=digits", "--train_examples=60", "--image_size=16", "--model=lenet", "--batch_size=12",
             "--optimizer=sgd", "--learning_rate=0.05", "--steps_per_execution=2"]


def two_workers(*arguments):
    """Two processes of one command on this machine: list of Popen."""
    sockets = [socket.socket() for _ in range(2)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    command = [sys.executable, os.path.join(run_experiment.HERE, "run_experiment.py"), *ARGUMENTS, *arguments, "--strategy=multi_worker"]
    configs = [json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}) for index in range(2)]
    return [subprocess.Popen(command, env={**os.environ, "TF_CONFIG": config}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for config in configs]


def check_weights(tmp_path):
    """Those that two workers exported are those of one process."""
    one, two = (np.load(f"{tmp_path}/{name}/saved_model/weights.npz") for name in ("one", "two"))
    for name, other in zip(sorted(one.files), sorted(two.files), strict=True):  # layers' names differ between processes
        np.testing.assert_allclose(two[other], one[name], atol=1e-5)


def test_two_workers_train_as_one_process_and_the_first_alone_writes(tmp_path):
    """MoCo, whose queue takes the keys of all workers."""
    moco = ["--method=moco", "--views=clean,crop_flip", "--moco_queue=24", "--epochs=1"]
    workers = two_workers(*moco, f"--workdir={tmp_path}/two")
    main(*ARGUMENTS, *moco, f"--workdir={tmp_path}/one")
    said = [worker.communicate(timeout=300)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], said
    assert "Model:" in said[0] and "Model:" not in said[1]
    check_weights(tmp_path)
    checkpoints = [np.load(glob.glob(f"{tmp_path}/{name}/checkpoints/*.npz")[0]) for name in ("one", "two")]
    for name in checkpoints[0].files:
        if checkpoints[0][name].ndim:  # the queue and the key encoder too; metrics are sums over replicas
            np.testing.assert_allclose(checkpoints[1][name], checkpoints[0][name], atol=1e-5)
    histories = [json.load(open(f"{tmp_path}/{name}/history.json"))[0] for name in ("one", "two")]
    assert histories[1] == pytest.approx(histories[0], abs=1e-4)


def test_where_a_worker_is_gone_the_other_ends_and_started_again_they_train_as_one_process(tmp_path):
    epochs = "--epochs=40"
    first, second = two_workers(epochs, f"--workdir={tmp_path}/two")
    while not glob.glob(f"{tmp_path}/two/checkpoints/*.npz"):
        assert first.poll() is None and second.poll() is None
        time.sleep(0.02)
    second.send_signal(signal.SIGKILL)
    said = first.communicate(timeout=120)[0]
    second.communicate()
    assert first.returncode == 1 and "Another worker has ended. Start all workers again with the same command" in said
    workers = two_workers(epochs, f"--workdir={tmp_path}/two")
    main(*ARGUMENTS, epochs, f"--workdir={tmp_path}/one")
    said = [worker.communicate(timeout=300)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], said
    assert all(0 < int(re.search(r"Resumed at step (\d+) of 200", text)[1]) < 200 for text in said), said
    check_weights(tmp_path)


@pytest.mark.parametrize("text", ["", "{", '{"cluster": {"worker": ["a:1", "b:2"]}}',
                                  '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}',
                                  '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 2}}'])
def test_a_cluster_that_is_not_told_is_asked_for(text):
    with pytest.raises(ValueError, match="Expected for strategy=multi_worker, in every worker, .*TF_CONFIG"):
        devices.check_cluster(text)


def test_one_device_cannot_be_mirrored(monkeypatch):
    one = tf.config.list_logical_devices("CPU")[:1]
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: one if kind == "CPU" else [])
    with pytest.raises(ValueError, match="Expected several devices for strategy=mirrored. Received .*CPU:0 alone"):
        devices.strategy("mirrored")


def test_workers_take_one_run_at_a_time():
    runs = [type("Run", (), {"settings": type("Settings", (), {"strategy": "multi_worker"})})] * 2
    with pytest.raises(ValueError, match="Expected one run at a time with strategy=multi_worker"):
        suites.run_all(runs, None)
