"""Batches that two server processes make are those of none, in the same order; a server that is gone is named."""

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

from tests.test_cli import main
from tf_robust import cli, data
from tf_robust.data import augment, service

COMMAND = [sys.executable, os.path.join(cli.ROOT, "run_experiment.py"), "--mode=serve"]


@pytest.fixture(scope="module")
def servers():
    """Two processes that serve: {address: Popen}."""
    started = {}
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        started[address] = subprocess.Popen([*COMMAND, f"--data_service={address}"], stdout=subprocess.PIPE, text=True)
    for address, process in started.items():
        assert f"--data_service={address}; Ctrl-C ends it" in process.stdout.readline()
    yield started
    for process in started.values():
        process.terminate()  # not SIGINT, which processes started in the background ignore
    assert {process.wait(30) for process in started.values()} <= {-signal.SIGTERM, -signal.SIGKILL}


def test_two_servers_make_the_batches_of_none_in_the_same_order(servers, source):
    told = {"seed": 3, "step": 2, "augmentations": [augment.crop_flip], "views": [augment.clean, augment.VIEWS["augmix"]]}
    alone, served = (data.training_batches(source(40), 12, servers=addresses, **told).take(7) for addresses in ((), tuple(servers)))
    alone, served = list(alone), list(served)
    assert len(alone) == len(served) == 7
    for one, other in zip(alone, served):
        for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other)):
            np.testing.assert_array_equal(a, b)


def test_a_training_is_the_same_and_ends_with_a_word_where_a_server_does(servers, tmp_path):
    told = ["--mode=train", "--data=digits", "--train_examples=64", "--batch_size=32", "--augmentations=crop_flip"]
    addresses = f"--data_service={','.join(servers)}"
    main(*told, "--epochs=2", f"--workdir={tmp_path}/alone")
    main(*told, "--epochs=2", f"--workdir={tmp_path}/served", addresses)
    alone, served = (np.load(tmp_path / name / "saved_model" / "weights.npz") for name in ("alone", "served"))
    for a, b in zip(sorted(alone.files), sorted(served.files), strict=True):
        np.testing.assert_array_equal(alone[a], served[b])
    training = subprocess.Popen([*COMMAND[:2], *told, "--epochs=100000", f"--workdir={tmp_path}/lost", addresses],
                                stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("lost/checkpoints/*.npz")):
        assert training.poll() is None
        time.sleep(0.2)
    lost, process = list(servers.items())[1]
    process.kill()
    said = training.communicate(timeout=60)[1]
    assert training.returncode == 1 and f"{lost} does not answer" in said and "goes on from the last checkpoint" in said
    with pytest.raises(ConnectionError, match=f"{lost} does not answer"):
        main(*told, "--epochs=3", f"--workdir={tmp_path}/served2", addresses)


@pytest.mark.parametrize("address", ["", "nohost", "host:", ":80", "host:0", "host:99999", "host:ten"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ValueError, match="Expected --data_service=HOST:PORT"):
        service.divided(address)


def test_a_port_that_is_taken_is_refused():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        with pytest.raises(ValueError, match="Expected a port of this machine that is free. Received: " + re.escape("localhost:")):
            service.Server(f"localhost:{taken.getsockname()[1]}")


def test_a_server_has_one_address():
    with pytest.raises(ValueError, match="Expected --data_service=HOST:PORT, under which .* Received: a:1,b:2"):
        main("--mode=serve", "--data_service=a:1,b:2")
