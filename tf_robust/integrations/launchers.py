"""Launchers: where the runs of a suite or a grid are completed, and the sets of an evaluation measured. `local` is this process; Ray and
Slurm (extras) run tasks.

Every machine must see the workdir, and the folder of the command, under the same paths. The output of a task goes to a file in the workdir.
Files are those of `local`, so that any launcher resumes what another began.
"""

import contextlib
import typing
from collections.abc import Callable, Sequence

from tf_robust.integrations.tasks import Outcome

LAUNCHERS = ("local", "ray", "slurm")
LOG = "task.log"


class Launcher(typing.Protocol):
    """Calls functions as tasks, on other machines or on this one."""

    tasks: int  # that can run at once; 0: unknown

    def submit(self, function: Callable[[], dict | None], log: str) -> typing.Any:
        """Begins a task that calls a function, with output to a file, and returns its handle."""

    def ended(self, handles: Sequence[typing.Any], seconds: float) -> list[typing.Any]:
        """Waits for a task to end, up to some seconds, and returns the handles of those that did."""

    def outcome(self, handle: typing.Any) -> Outcome:
        """Returns what became of a task that ended. A task whose machine or process died has been repeated, or is a failure."""

    def cancel(self, handles: Sequence[typing.Any]) -> None:
        """Interrupts tasks, as Ctrl-C does: trainings save a checkpoint."""


def launcher_of(name: str, options: Sequence[str], workdir: str) -> Launcher | None:
    """Returns a launcher; None for `local`.

    Args:
        name: one of `LAUNCHERS`.
        options: NAME=VALUE, resources of a task: arguments of `ray.remote`, or of submitit's `update_parameters`.
        workdir: of the suite, where Slurm's scripts are written.

    Raises:
        ValueError: an option without a value, or that the engine does not take.
        ConnectionError: the cluster cannot be reached.
    """
    if name == "local":
        return None
    values = dict(_option(text) for text in options)
    if name == "ray":
        from tf_robust.integrations.ray_launcher import RayLauncher  # of an extra

        return RayLauncher(values)
    from tf_robust.integrations.slurm_launcher import SlurmLauncher  # of an extra

    return SlurmLauncher(values, workdir)


def _option(text):
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise ValueError(f"Expected --launcher_options=NAME=VALUE,... Received: {text!r}. Try: --launcher_options=num_cpus=2 (ray)")
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return name, kind(value)
    return name, value
