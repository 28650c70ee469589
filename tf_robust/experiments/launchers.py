"""Launchers: where the runs of a suite or a grid are completed, and the sets of an evaluation measured. `local` is this process; Ray and
Slurm (extras) run tasks.

Every machine must see the workdir, and the folder of the command, under the same paths. The output of a task goes to a file in the workdir.
Files are those of `local`, so that any launcher resumes what another began.
"""

import contextlib
import os
import sys
import traceback
import typing
from collections.abc import Callable, Iterator, Sequence

from absl.flags import FlagValues

from tf_robust.utils.errors import message_of
from tf_robust.utils.locks import WorkdirLocked

LAUNCHERS = ("local", "ray", "slurm")
LOG = "task.log"
_LAUNCHING = ("train", "suite", "sweep", "evaluate", "attack")  # commands with several runs or sets


class Outcome(typing.NamedTuple):
    """Outcome of a task.

    Attributes:
        evaluation: what the function of the task returned; None after a failure.
        failure: the message of an error; empty: none.
        locked: whether another process works on the run.
    """

    evaluation: dict | None
    failure: str = ""
    locked: bool = False


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


def check_launcher(name: str, values: FlagValues) -> None:
    """Checks that a command and its sweep engine can complete runs elsewhere, if --launcher or its options are given.

    Raises:
        ValueError: they cannot.
    """
    if values.launcher == "local":
        if values.launcher_options:
            raise ValueError("--launcher_options are those of --launcher=ray or --launcher=slurm. Received: --launcher=local")
        return
    if name not in _LAUNCHING:
        raise ValueError(f"--launcher={values.launcher} belongs to the commands {', '.join(_LAUNCHING)}. Received: {name}")
    if values.formats:
        raise ValueError(f"Expected --launcher=local with --formats, whose latencies are of this machine. Received: {values.launcher}")
    if "none" in values.evaluations:
        raise ValueError(f"Expected evaluations with --launcher={values.launcher}, whose tasks end with one. Received: --evaluations=none")
    if name == "sweep" and values.sweep_engine == "optuna":
        raise ValueError(
            f"Expected --launcher=local with --sweep_engine=optuna. Received: --launcher={values.launcher}. Try: the same command on each "
            "machine, which share the trials (--sweep_storage)"
        )


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
        from tf_robust.experiments.ray_launcher import RayLauncher  # of an extra

        return RayLauncher(values)
    from tf_robust.experiments.slurm_launcher import SlurmLauncher  # of an extra

    return SlurmLauncher(values, workdir)


def _option(text):
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise ValueError(f"Expected --launcher_options=NAME=VALUE,... Received: {text!r}. Try: --launcher_options=num_cpus=2 (ray)")
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return name, kind(value)
    return name, value


def call(function: Callable[[], dict | None], log: str, folder: str) -> Outcome:
    """Calls the function of a task, in the folder of the command; its output is appended to a file."""
    with _output_to(log):
        try:
            os.chdir(folder)
            return Outcome(function())
        except WorkdirLocked as error:
            return Outcome(None, str(error), locked=True)
        except Exception as error:  # of any kind: the other tasks go on
            traceback.print_exc()
            return Outcome(None, message_of(error))


@contextlib.contextmanager
def _output_to(path: str) -> Iterator[None]:
    """Appends what this process and its libraries print to a file."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for target in (1, 2):
        os.dup2(descriptor, target)
    os.close(descriptor)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for target, old in zip((1, 2), kept):
            os.dup2(old, target)
            os.close(old)
