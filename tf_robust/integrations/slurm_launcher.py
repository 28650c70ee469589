"""Tasks as Slurm jobs by submitit (extra `[slurm]`)."""

import os
import shutil
import time
import typing
from collections.abc import Callable, Mapping, Sequence

os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")  # or it adds handlers to the root of logging
import submitit

from tf_robust.integrations.tasks import Outcome, call
from tf_robust.utils.errors import message_of

_POLL_SECONDS = 0.5
_MINUTES = 24 * 60


class SlurmLauncher:
    """Calls functions as Slurm jobs.

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

    def submit(self, function: Callable[[], dict | None], log: str) -> submitit.Job:
        """See `launchers.Launcher`."""
        return self._executor.submit(call, function, log, os.getcwd())

    def ended(self, handles: Sequence[submitit.Job], seconds: float) -> list[submitit.Job]:
        """See `launchers.Launcher`."""
        end = time.monotonic() + seconds
        while not (done := [job for job in handles if job.done()]) and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        return done

    def outcome(self, handle: submitit.Job) -> Outcome:
        """See `launchers.Launcher`."""
        try:
            return handle.result()
        except (submitit.core.utils.UncompletedJobError, submitit.core.utils.FailedJobError) as error:
            return Outcome(None, f"the job {handle.job_id} was lost ({message_of(error)}). Its log: {handle.paths.stderr}")

    def cancel(self, handles: Sequence[submitit.Job]) -> None:
        """See `launchers.Launcher`."""
        for job in handles:
            job.cancel()
