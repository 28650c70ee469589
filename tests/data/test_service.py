"""Batches of two server processes equal those without servers, in the same order; a dead server is named."""

import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from tests.command_line import main
from tests.conftest import ROOT
from tf_robust import data
from tf_robust.data import augment, pipeline

COMMAND = [sys.executable, os.path.join(ROOT, "run_experiment.py"), "serve"]


@pytest.fixture(scope="module")
def servers():
    """Starts two server processes: {address: Popen}."""
    started = {}
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        started[address] = subprocess.Popen([*COMMAND, f"--data_service={address}"], stdout=subprocess.PIPE, text=True)
    for address, process in started.items():
        assert f"--data_service={address}; Ctrl-C stops the server" in process.stdout.readline()
    yield started
    for process in started.values():
        process.terminate()  # not SIGINT, which processes started in the background ignore
    assert {process.wait(30) for process in started.values()} <= {-signal.SIGTERM, -signal.SIGKILL}


@pytest.mark.slow
def test_two_servers_give_the_batches_of_none(servers, source):
    options = {"seed": 3, "step": 2, "augmentations": [augment.crop_flip], "views": [augment.clean, augment.VIEWS["augmix"]]}
    local, served = (data.training_batches(source(40), 12, servers=addresses, **options).take(7) for addresses in ((), tuple(servers)))
    local, served = list(local), list(served)
    assert len(local) == len(served) == 7
    for one, other in zip(local, served):
        for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other)):
            np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_training_ends_with_a_message_when_a_server_dies(servers, tmp_path):
    options = ["train", "--evaluations=none", "--data=digits", "--train_examples=64", "--batch_size=32", "--augmentations=crop_flip"]
    addresses = f"--data_service={','.join(servers)}"
    training = subprocess.Popen(
        [*COMMAND[:2], *options, "--epochs=100000", f"--workdir={tmp_path}/killed", addresses], stderr=subprocess.PIPE, text=True
    )
    while not list(tmp_path.glob("killed/checkpoints/*.npz")):
        assert training.poll() is None
        time.sleep(0.2)
    address, process = list(servers.items())[1]
    process.kill()
    message = training.communicate(timeout=60)[1]
    assert training.returncode == 1 and f"{address} does not answer" in message
    with pytest.raises(ConnectionError, match=f"{address} does not answer"):
        main(*options, "--epochs=3", f"--workdir={tmp_path}/refused", addresses)


@pytest.mark.parametrize("address", ["", "nohost", "host:", ":80", "host:0", "host:99999", "host:ten"])
def test_an_invalid_address_is_rejected(address):
    with pytest.raises(ValueError, match="HOST:PORT"):
        pipeline.parse_address(address)


def test_a_port_in_use_is_rejected():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        with pytest.raises(ValueError, match="free port"):
            pipeline.Server(f"localhost:{taken.getsockname()[1]}")


def test_a_server_has_one_address():
    with pytest.raises(ValueError, match="a:1,b:2"):
        main("serve", "--data_service=a:1,b:2")
