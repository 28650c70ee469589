"""Tasks of the Ray cluster that RAY_ADDRESS names (extra `[ray]`), which `ray start` makes; without it, of one on this machine."""

import os
import socket
import typing
from collections.abc import Callable, Mapping, Sequence

import ray

from tf_robust.integrations.tasks import REPEATS, Outcome, call
from tf_robust.utils.errors import message_of

_SECONDS = 10.0  # until a cluster answers


class RayLauncher:
    """Calls functions as Ray tasks, each in a process of its own; a task is repeated if its process or node dies.

    Args:
        options: arguments of `ray.remote`, such as num_cpus and num_gpus.

    Raises:
        ValueError: an option that `ray.remote` does not take, or resources that this machine lacks if there is no cluster.
        ConnectionError: RAY_ADDRESS names a cluster that cannot be reached.
    """

    def __init__(self, options: Mapping[str, typing.Any]):
        address = os.environ.get("RAY_ADDRESS", "")
        try:
            _check_answers(address)
            ray.init(  # "local": else it also looks for a cluster that was once started on this machine, and waits nine minutes for it
                address=address or "local", ignore_reinit_error=True, include_dashboard=False, log_to_driver=False, logging_level="error"
            )
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise ConnectionError(
                f"Expected a Ray cluster at RAY_ADDRESS={address}. Received: no connection ({message_of(error)}). "
                "Try: ray start --head on a machine, ray start --address=HOST:6379 on the others, all with the same RAY_AUTH_MODE"
            ) from error
        try:
            self._task = ray.remote(**{"num_cpus": 1, "max_retries": REPEATS, **options, "max_calls": 1})(call)
        except (ValueError, TypeError) as error:
            raise ValueError(f"Expected --launcher_options of ray.remote. Received: {dict(options)} ({message_of(error)})") from error
        self.tasks = max(1, int(ray.cluster_resources().get("CPU", 1) // max(1, options.get("num_cpus", 1))))
        if not address:
            print("  Ray on this machine alone. RAY_ADDRESS=HOST:6379 names a cluster.", flush=True)
        wanted = {"CPU": options.get("num_cpus", 1), "GPU": options.get("num_gpus", 0), **options.get("resources", {})}
        if missing := _missing(wanted, [node["Resources"] for node in ray.nodes() if node["Alive"]]):
            if not address:
                raise ValueError(
                    f"Expected --launcher_options with resources of this machine. Received: {missing}, which it lacks. Try: fewer, or "
                    "RAY_ADDRESS=HOST:6379, the address of a cluster"
                )
            print(f"  Note: no node of the Ray cluster has {missing}: tasks wait until one joins.", flush=True)

    def submit(self, function: Callable[[], dict | None], log: str) -> ray.ObjectRef:
        """See `launchers.Launcher`."""
        return self._task.remote(function, log, os.getcwd())

    def ended(self, handles: Sequence[ray.ObjectRef], seconds: float) -> list[ray.ObjectRef]:
        """See `launchers.Launcher`."""
        return ray.wait(list(handles), num_returns=1, timeout=seconds)[0]

    def outcome(self, handle: ray.ObjectRef) -> Outcome:
        """See `launchers.Launcher`."""
        try:
            return ray.get(handle)
        except ray.exceptions.LocalRayletDiedError as error:
            raise ConnectionError(
                "Expected the Ray node of this command to go on. Received: it died, and with it all tasks of this command. Try: start the "
                "node again, then the same command, which resumes"
            ) from error
        except ray.exceptions.RayError as error:
            return Outcome(None, f"the task was lost ({message_of(error)})")

    def cancel(self, handles: Sequence[ray.ObjectRef]) -> None:
        """See `launchers.Launcher`."""
        for handle in handles:
            ray.cancel(handle)


def _check_answers(address):
    """Raises OSError if nothing listens at HOST:PORT, for which Ray waits up to nine minutes."""
    host, separator, port = address.rpartition(":")
    if separator and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_SECONDS).close()


def _missing(wanted, nodes):
    """The resources of a task as text, if none of the nodes has all of them, which are {resource: amount}; else empty."""
    fits = any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in nodes)
    return "" if fits else ", ".join(f"{name}={amount}" for name, amount in wanted.items() if amount)
