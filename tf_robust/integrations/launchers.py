"""Launchers: where the runs of a suite or a grid are completed, and the sets of an evaluation measured. `local` is this process; Ray and
Slurm (extras) run tasks.

Every machine must see the workdir, and the folder of the command, under the same paths. The output of a task goes to a file in the workdir.
Files are those of `local`, so that any launcher resumes what another began. Importing this module does not import TensorFlow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import socket
import sys
import time
import traceback
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence

from tf_robust.utils import plugins
from tf_robust.utils.errors import message_of
from tf_robust.utils.locks import WorkdirLocked
from tf_robust.utils.progress import print_line, print_note

if typing.TYPE_CHECKING:
    import ray
    import submitit

os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")  # or submitit, when it is imported, adds handlers to the root of logging

LOG = "task.log"
REPEATS = 5  # of a task whose process or machine died
_ANSWER_SECONDS = 10.0  # until a cluster of Ray answers
_POLL_SECONDS = 0.5
_MINUTES = 24 * 60  # of a Slurm job


class Outcome(typing.NamedTuple):
    """Outcome of a task."""

    evaluation: dict | None  # what the function of the task returned; None after a failure
    failure: str = ""  # the message of an error; empty: none
    locked: bool = False  # whether another process works on the run
    threads: int = 0  # of the process in which the function was called; 0 after a failure


class Launcher(typing.Protocol):
    """Calls functions as tasks, on other machines or on this one."""

    tasks: int  # that can run at once; 0: unknown

    def submit(self, function: Callable[[], dict | None], log: str) -> typing.Any:
        """Begins a task that calls a function, with output to a file, and returns its handle."""

    def ended(self, handles: Sequence[typing.Any], seconds: float) -> list[typing.Any]:
        """Waits for a task to end, up to some seconds, and returns the handles of those that did."""

    def outcome(self, handle: typing.Any) -> Outcome:
        """Returns the outcome of a task that ended. A task whose machine or process died has been repeated, or is a failure."""

    def cancel(self, handles: Sequence[typing.Any]) -> None:
        """Interrupts tasks, as Ctrl-C does: trainings save a checkpoint."""


def launcher_of(name: str, options: Sequence[str], workdir: str) -> Launcher | None:
    """Returns a launcher of `LAUNCHERS`; None for `local`.

    `options`: NAME=VALUE, as the launcher takes them; `workdir`: where Slurm's scripts are written.
    Raises ValueError for an option without a value, or that the engine does not take, and ConnectionError if there is no cluster.
    """
    if name == "local":
        return None
    values: dict[str, typing.Any] = {}
    for text in options:
        key, separator, value = text.partition("=")
        if not key or not separator:
            raise ValueError(f"Expected --launcher_options=NAME=VALUE,... Received: {text!r}. Try: --launcher_options=num_cpus=2 (ray)")
        values[key] = value
        for kind in (float, int):
            with contextlib.suppress(ValueError):
                values[key] = kind(value)
    return LAUNCHERS[name](values, workdir)


def call(function: Callable[[], dict | None], log: str, folder: str, modules: Sequence[str]) -> Outcome:
    """Calls the function of a task, in the folder of the command and with its plugins; its output is appended to a file."""
    with _output_to(log):
        from tf_robust.utils import environment  # imports TensorFlow

        try:
            os.chdir(folder)
            plugins.load(modules)
            return Outcome(function(), threads=environment.thread_count())
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


class RayLauncher:
    """Calls functions as tasks of the Ray cluster that RAY_ADDRESS names (extra `[ray]`), which `ray start` makes; without it, of one on
    this machine. Each is in a process of its own; a task is repeated if its process or node dies.

    `options`: arguments of `ray.remote`, such as num_cpus and num_gpus.
    """

    def __init__(self, options: Mapping[str, typing.Any], workdir: str):
        import ray

        address = os.environ.get("RAY_ADDRESS", "")
        host, separator, port = address.rpartition(":")
        try:
            if separator and port.isdigit():  # for a cluster that does not answer Ray waits up to nine minutes
                socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS).close()
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
        wanted = {"CPU": options.get("num_cpus", 1), "GPU": options.get("num_gpus", 0), **options.get("resources", {})}
        self.tasks = max(1, int(ray.cluster_resources().get("CPU", 1) // max(1, wanted["CPU"])))
        if not address:
            print_line("  Ray on this machine alone. RAY_ADDRESS=HOST:6379 names a cluster.")
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in nodes):
            missing = ", ".join(f"{name}={amount}" for name, amount in wanted.items() if amount)
            if not address:
                raise ValueError(
                    f"Expected --launcher_options with resources of this machine. Received: {missing}, which it lacks. Try: fewer, or "
                    "RAY_ADDRESS=HOST:6379, the address of a cluster"
                )
            print_note(f"no node of the Ray cluster has {missing}: tasks wait until one joins.", repeat=True)

    def submit(self, function: Callable[[], dict | None], log: str) -> ray.ObjectRef:
        return self._task.remote(function, log, os.getcwd(), [*plugins.named])

    def ended(self, handles: Sequence[ray.ObjectRef], seconds: float) -> list[ray.ObjectRef]:
        import ray

        return ray.wait(list(handles), num_returns=1, timeout=seconds)[0]

    def outcome(self, handle: ray.ObjectRef) -> Outcome:
        import ray

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
        import ray

        for handle in handles:
            ray.cancel(handle)


@dataclasses.dataclass(eq=False)
class _Task:
    """A call with some arguments, the job that makes it, the remaining repeats, and the outcome."""

    arguments: tuple
    job: submitit.Job
    repeats: int = REPEATS
    outcome: Outcome | None = None


class SlurmLauncher:
    """Calls functions as Slurm jobs by submitit (extra `[slurm]`); a job is submitted again if it is preempted or cancelled, or if its
    process or node dies. Scripts and logs of the jobs are in the folder `slurm` of the workdir.

    `options`: arguments of submitit's `update_parameters`, such as cpus_per_task, timeout_min and slurm_partition; `cluster`: `local` for
    processes of this machine; `tasks`: number of jobs of an evaluation.
    """

    def __init__(self, options: Mapping[str, typing.Any], workdir: str):
        import submitit

        parameters = dict(options)
        cluster, self.tasks = parameters.pop("cluster", "slurm"), int(parameters.pop("tasks", 0))
        if cluster == "slurm" and not shutil.which("srun"):
            raise ConnectionError(
                "Expected Slurm's commands (srun, sbatch) on this machine. Not found. Try: the login node of the cluster, or "
                "--launcher_options=cluster=local for processes of this machine"
            )
        self._executor = submitit.AutoExecutor(folder=os.path.join(os.path.abspath(workdir), "slurm"), cluster=str(cluster))
        try:
            self._executor.update_parameters(**{"timeout_min": _MINUTES, "name": "tf_robust", **parameters})
        except (NameError, TypeError, ValueError, AssertionError) as error:
            raise ValueError(f"Expected --launcher_options of submitit. Received: {parameters} ({message_of(error)})") from error

    def submit(self, function: Callable[[], dict | None], log: str) -> _Task:
        arguments = (function, log, os.getcwd(), [*plugins.named])
        return _Task(arguments, self._executor.submit(call, *arguments))

    def ended(self, handles: Sequence[_Task], seconds: float) -> list[_Task]:
        end = time.monotonic() + seconds
        while not (done := [task for task in handles if self._has_ended(task)]) and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        return done

    def _has_ended(self, task):
        from submitit.core.utils import FailedJobError, UncompletedJobError

        from tf_robust.utils.files import last_line  # imports TensorFlow

        job = task.job
        if job.done():
            try:
                task.outcome = job.result()
            except FailedJobError as error:
                task.outcome = Outcome(None, f"the job {job.job_id} failed ({message_of(error)}). Its log: {job.paths.stderr}")
            except UncompletedJobError:
                pass
        elif job.get_info(mode="cache").get("State") != "PREEMPTED":  # submitit waits for Slurm to submit it again, which may never be
            return False
        if task.outcome:
            return True
        job.cancel(check=False)
        lost = f"the job {job.job_id} was lost ({': '.join(filter(None, (job.state, last_line(str(job.paths.stderr)))))})"
        if not task.repeats:
            task.outcome = Outcome(None, f"{lost}, as were {REPEATS} before it. Its log: {job.paths.stderr}")
            return True
        print_note(f"{lost}. It is submitted again.", repeat=True)
        task.job, task.repeats = self._executor.submit(call, *task.arguments), task.repeats - 1
        return False

    def outcome(self, handle: _Task) -> Outcome:
        assert handle.outcome
        return handle.outcome

    def cancel(self, handles: Sequence[_Task]) -> None:
        for task in handles:
            task.job.cancel()


# (options, workdir) -> Launcher; plugins may add to it
LAUNCHERS: dict[str, Callable[[Mapping[str, typing.Any], str], Launcher]] = {"ray": RayLauncher, "slurm": SlurmLauncher}
