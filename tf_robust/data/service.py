"""Batches that other processes make: tf.data service, one server an address.

With n servers each makes every n-th batch, and they are read in turn: the batches and their order are those of no server at all.
"""

import contextlib
import os
import socket
import sys
import threading

import tensorflow as tf

_PATIENCE = 5.0  # seconds to wait for an answer, and between two looks


class Server:
    """Makes batches for whoever asks, as long as the object lives.

    Args:
        address: HOST:PORT, under which those who ask can reach this machine.

    Raises:
        ValueError: it is no such address, or its port is taken.
    """

    def __init__(self, address):
        host, port = divided(address)
        with socket.socket() as probe:  # the server itself would share a port that is taken
            try:
                probe.bind(("", port))
            except OSError as error:
                raise ValueError(f"Expected a port of this machine that is free. Received: {address} ({error})") from error
        self._dispatcher = tf.data.experimental.service.DispatchServer(tf.data.experimental.service.DispatcherConfig(port=port))
        self._worker = tf.data.experimental.service.WorkerServer(tf.data.experimental.service.WorkerConfig(
            dispatcher_address=f"localhost:{port}", worker_address=f"{host}:%port%"))


def divided(address):
    """(host, port) of HOST:PORT, or a ValueError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ValueError(f"Expected --data_service=HOST:PORT, several with commas between. Received: {address!r}")
    return host, int(port)


def made_by(address, batches):
    """A dataset that a server makes."""
    return batches.apply(tf.data.experimental.service.distribute("parallel_epochs", f"grpc://{address}", compression=None)).prefetch(2)


def in_turn(datasets):
    """The first element of each dataset, then the second of each, ..., to the end of the first that ends."""
    return tf.data.Dataset.choose_from_datasets(datasets, tf.data.Dataset.range(len(datasets)).repeat(), stop_on_empty_dataset=True)


def check(addresses):
    """Raises ConnectionError unless all servers answer."""
    for address in addresses:
        try:
            socket.create_connection(divided(address), timeout=_PATIENCE).close()
        except OSError as error:
            raise ConnectionError(f"{address} does not answer ({error}). Start its server again, python run_experiment.py "
                                  f"--mode=serve --data_service={address}, and then this command, or leave --data_service out: "
                                  f"training goes on from the last checkpoint") from error


@contextlib.contextmanager
def watched(addresses):
    """While open, the process ends with a word when a server does not answer: TensorFlow would wait for it for an hour."""
    check(addresses)
    closed = threading.Event()

    def watch():
        while not closed.wait(_PATIENCE):
            try:
                check(addresses)
            except ConnectionError as error:
                print(f"Error: {error}", file=sys.stderr, flush=True)
                os._exit(1)  # the main thread waits inside TensorFlow, where no exception reaches it
    if addresses:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        closed.set()
