"""Batches prepared by other processes through tf.data service, one server per address.

With n servers each prepares every n-th batch and they are read in turn: batches and their order are those without servers.
"""

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence

import tensorflow as tf

_TIMEOUT = 5.0  # seconds to wait for an answer, and between two checks


class Server:
    """Prepares batches for clients, as long as the object lives.

    Args:
        address: HOST:PORT, under which clients can reach this machine.

    Raises:
        ValueError: not a valid address, or its port is in use.
    """

    def __init__(self, address: str) -> None:
        host, port = parse_address(address)
        with socket.socket() as probe:  # the server itself would silently share a port that is in use
            try:
                probe.bind(("", port))
            except OSError as error:
                raise ValueError(f"Expected a free port of this machine. Received: {address} ({error})") from error
        self._dispatcher = tf.data.experimental.service.DispatchServer(tf.data.experimental.service.DispatcherConfig(port=port))
        self._worker = tf.data.experimental.service.WorkerServer(
            tf.data.experimental.service.WorkerConfig(dispatcher_address=f"localhost:{port}", worker_address=f"{host}:%port%")
        )


def parse_address(address: str) -> tuple[str, int]:
    """Returns (host, port) of HOST:PORT.

    Raises:
        ValueError: the address has another form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ValueError(f"Expected data_service=HOST:PORT, or several separated by commas. Received: {address!r}")
    return host, int(port)


def from_server(address: str, batches: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset that is prepared by a server."""
    return batches.apply(tf.data.experimental.service.distribute("parallel_epochs", f"grpc://{address}", compression=None)).prefetch(2)


def round_robin(datasets: Sequence[tf.data.Dataset]) -> tf.data.Dataset:
    """Returns the first element of each dataset, then the second of each, ..., until one of them ends."""
    return tf.data.Dataset.choose_from_datasets(datasets, tf.data.Dataset.range(len(datasets)).repeat(), stop_on_empty_dataset=True)


def check(addresses: Sequence[str]) -> None:
    """Raises ConnectionError unless all servers answer."""
    for address in addresses:
        try:
            socket.create_connection(parse_address(address), timeout=_TIMEOUT).close()
        except OSError as error:
            raise ConnectionError(
                f"{address} does not answer ({error}). Try: restart its server, "
                f"tf-robust serve --data_service={address}, and repeat this command, or omit --data_service: "
                f"training resumes from the last checkpoint"
            ) from error


@contextlib.contextmanager
def watched(addresses: Sequence[str]) -> Iterator[None]:
    """Context in which a server that does not answer ends the process with a message; TensorFlow would wait for an hour."""
    check(addresses)
    closed = threading.Event()

    def watch():
        while not closed.wait(_TIMEOUT):
            try:
                check(addresses)
            except ConnectionError as error:
                print(f"Error: {error}", file=sys.stderr, flush=True)
                os._exit(1)  # the main thread blocks inside TensorFlow, where no exception reaches it

    if addresses:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        closed.set()
