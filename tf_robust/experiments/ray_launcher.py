"""Runs as tasks of a Ray cluster (extra `[ray]`). `ray start` makes one; without a cluster Ray uses this machine."""

import os
from collections.abc import Mapping, Sequence

import ray

from tf_robust.experiments.launchers import Outcome, complete
from tf_robust.experiments.run import Run
from tf_robust.utils.errors import message_of

_RETRIES = 5  # of a task whose node or process died


class RayLauncher:
    """Completes runs as Ray tasks, each in a process of its own; a task is repeated if its process or node dies.

    Args:
        options: arguments of `ray.remote`, such as num_cpus and num_gpus.

    Raises:
        ValueError: an option that `ray.remote` does not take.
        ConnectionError: RAY_ADDRESS names a cluster that cannot be reached.
    """

    def __init__(self, options: Mapping[str, object]):
        address = os.environ.get("RAY_ADDRESS", "")
        try:
            ray.init(ignore_reinit_error=True, include_dashboard=False, log_to_driver=False, logging_level="error")
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConnectionError(
                f"Expected a Ray cluster at RAY_ADDRESS={address}. Received: no connection ({message_of(error)}). "
                "Try: ray start --head on a machine, ray start --address=HOST:6379 on the others"
            ) from error
        try:
            self._task = ray.remote(**{"num_cpus": 1, "max_retries": _RETRIES, **options, "max_calls": 1})(complete)
        except (ValueError, TypeError) as error:
            raise ValueError(f"Expected --launcher_options of ray.remote. Received: {dict(options)} ({message_of(error)})") from error

    def submit(self, run: Run, folder: str) -> ray.ObjectRef:
        """See `launchers.Launcher`."""
        return self._task.remote(run, folder)

    def ended(self, handles: Sequence[ray.ObjectRef], seconds: float) -> list[ray.ObjectRef]:
        """See `launchers.Launcher`."""
        return ray.wait(list(handles), num_returns=1, timeout=seconds)[0]

    def outcome(self, handle: ray.ObjectRef) -> Outcome:
        """See `launchers.Launcher`."""
        try:
            return ray.get(handle)
        except ray.exceptions.RayError as error:
            return Outcome(None, f"the task was lost ({message_of(error)})")

    def cancel(self, handles: Sequence[ray.ObjectRef]) -> None:
        """See `launchers.Launcher`."""
        for handle in handles:
            ray.cancel(handle)
