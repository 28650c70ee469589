"""Tasks as Slurm jobs by submitit (extra `[slurm]`)."""

import dataclasses
import os
import shutil
import time
import typing
from collections.abc import Callable, Mapping, Sequence

os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")  # or it adds handlers to the root of logging
import submitit

from tf_robust.integrations.tasks import REPEATS, Outcome, call
from tf_robust.utils.errors import message_of
from tf_robust.utils.files import last_line

_POLL_SECONDS = 0.5
_MINUTES = 24 * 60


@dataclasses.dataclass(eq=False)
class _Task:
    """A call with some arguments, the job that makes it, how often that may still be submitted again, and the outcome."""

    arguments: tuple
    job: submitit.Job
    repeats: int = REPEATS
    outcome: Outcome | None = None


class SlurmLauncher:
    """Calls functions as Slurm jobs; a job is submitted again if it is preempted or cancelled, or if its process or node dies.

    Args:
        options: arguments of submitit's `update_parameters`, such as cpus_per_task, timeout_min and slurm_partition; `cluster`: `local` for
            processes of this machine; `tasks`: number of jobs of an evaluation.
        workdir: of the suite; scripts and logs of the jobs are in its folder `slurm`.

    Raises:
        ValueError: an option that submitit does not take.
        ConnectionError: there is no Slurm on this machine.
    """

    def __init__(self, options: Mapping[str, typing.Any], workdir: str):
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
        """See `launchers.Launcher`."""
        arguments = (function, log, os.getcwd())
        return _Task(arguments, self._executor.submit(call, *arguments))

    def ended(self, handles: Sequence[_Task], seconds: float) -> list[_Task]:
        """See `launchers.Launcher`."""
        end = time.monotonic() + seconds
        while not (done := [task for task in handles if self._has_ended(task)]) and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        return done

    def _has_ended(self, task):
        job = task.job
        if job.done():
            try:
                task.outcome = job.result()
                return True
            except submitit.core.utils.FailedJobError as error:
                task.outcome = Outcome(None, f"the job {job.job_id} failed ({message_of(error)}). Its log: {job.paths.stderr}")
                return True
            except submitit.core.utils.UncompletedJobError:
                pass
        elif job.get_info(mode="cache").get("State") != "PREEMPTED":  # submitit waits for Slurm to submit it again, which may never be
            return False
        job.cancel(check=False)
        lost = f"the job {job.job_id} was lost ({': '.join(filter(None, (job.state, last_line(str(job.paths.stderr)))))})"
        if not task.repeats:
            task.outcome = Outcome(None, f"{lost}, as were {REPEATS} before it. Its log: {job.paths.stderr}")
            return True
        print(f"  Note: {lost}. It is submitted again.", flush=True)
        task.job, task.repeats = self._executor.submit(call, *task.arguments), task.repeats - 1
        return False

    def outcome(self, handle: _Task) -> Outcome:
        """See `launchers.Launcher`."""
        assert handle.outcome
        return handle.outcome

    def cancel(self, handles: Sequence[_Task]) -> None:
        """See `launchers.Launcher`."""
        for task in handles:
            task.job.cancel()
