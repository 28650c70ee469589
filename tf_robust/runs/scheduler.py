"""Completes the runs of a table: here, or as tasks of a launcher."""

import functools
import graphlib
import os
import time
import typing
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tf_robust.integrations.launchers import LOG, Launcher
from tf_robust.runs.run import Run
from tf_robust.runs.suite import check_images_match
from tf_robust.training import loop
from tf_robust.utils import environment
from tf_robust.utils.errors import RunFailed, message_of, unknown
from tf_robust.utils.files import last_line
from tf_robust.utils.locks import WorkdirLocked
from tf_robust.utils.progress import duration, print_line, print_note

_POLL_SECONDS = 10.0  # until a run that another process holds is tried again
_SKIPPED_SECONDS = 2  # runs that take less were already complete
_STATUS_SECONDS = 60.0  # between two lines on what the tasks do, and between two reports on those that ended


def run_all(
    runs: Sequence[Run],
    folder_of: Callable[[Run], str],
    launcher: Launcher | None = None,
    show: Callable[[list[dict]], object] = lambda evaluations: None,
) -> tuple[list[dict], list[str]]:
    """Completes all runs of one table, as tasks of a launcher or one after the other, and continues after failures.

    Returns the evaluations in the order of the runs (none in workers other than the chief), and messages about the runs that failed. Runs
    from which others start come first. Processes with the same command share the work: a run that another process holds is skipped, and
    waited for at the end. `show` is called from time to time with the evaluations of the tasks that ended, while others go on.
    """
    if len(runs) > 1 and any(run.config.train.strategy == "multi_worker" for run in runs):
        raise ValueError(f"Expected one run with strategy=multi_worker: one row, and one seed in seeds. Received: {len(runs)} runs")
    check_images_match(runs)
    tasks = _Tasks(runs, folder_of)
    pending = tasks.order()
    if launcher:
        _complete_by(launcher, tasks, pending, show)
        pending = []
    while pending:
        later = []
        for number in pending:
            if not tasks.is_ready(number):
                later += [] if number in tasks.failures else [number]
                continue
            run, began = runs[number], time.monotonic()
            try:
                evaluation = run.complete(folder_of(run), begin=functools.partial(tasks.announce, number))
                tasks.end(number, evaluation, time.monotonic() - began)
            except WorkdirLocked as error:
                tasks.wait(number, error)
                later.append(number)
            except (ValueError, OSError, ImportError, tf.errors.OpError, loop.TrainingDiverged) as error:
                if len(runs) == 1:
                    raise
                tasks.fail(number, message_of(error))
        pending = later
        if pending:
            time.sleep(_POLL_SECONDS)
    return tasks.complete(), [tasks.failures[number] for number in sorted(tasks.failures)]


class _Tasks:
    """The runs of a table and what became of them, by number."""

    def __init__(self, runs, folder_of):
        self.runs, self.folder_of = runs, folder_of
        several = len({run.row for run in runs}) > 1
        starting = [number for number, run in enumerate(runs) if several and run.config.train.init_from_row]
        self.predecessors = {number: _predecessor(runs[number], runs) for number in starting}
        self.evaluations: dict[int, dict | None] = {}
        self.failures: dict[int, str] = {}
        self.waiting: set[int] = set()  # another process holds them
        self._times: list[float] = []
        self._announced: int | None = None  # the run whose header was printed last

    def order(self):
        """The numbers of the runs by seed, each after its predecessor."""
        sorter = graphlib.TopologicalSorter(dict.fromkeys(range(len(self.runs)), ()))
        for number, predecessor in self.predecessors.items():
            sorter.add(number, predecessor)
        try:
            return sorted(sorter.static_order(), key=lambda number: self.runs[number].seed)
        except graphlib.CycleError:
            raise ValueError("Expected init_from_row flags without a cycle. Received rows that start from each other in a cycle") from None

    def is_ready(self, number):
        """Whether a run can begin; a run fails whose predecessor has failed."""
        run, predecessor = self.runs[number], self.predecessors.get(number)
        if predecessor in self.failures:
            self.failures[number] = f"{run.row}, seed {run.seed}: the row from which it starts, {self.runs[predecessor].row}, failed"
            return False
        if predecessor is not None:
            if predecessor not in self.evaluations:
                return False
            run.init_path = self.folder_of(self.runs[predecessor])
        return True

    def announce(self, number):
        run, self._announced = self.runs[number], number
        left = f", {duration(np.mean(self._times) * self._open())} left" if self._times else ""
        print_line(f"[{number + 1}/{len(self.runs)}] {run.row}, seed {run.seed}: {self.folder_of(run)}{left}")

    def _open(self):
        return len(self.runs) - len(self.evaluations.keys() | self.failures.keys())

    def complete(self):
        return [evaluation for _, evaluation in sorted(self.evaluations.items()) if evaluation]

    def end(self, number, evaluation, seconds=0.0):
        self.evaluations[number] = evaluation
        self._times += [seconds] if seconds > _SKIPPED_SECONDS else []

    def fail(self, number, message):
        run = self.runs[number]
        self.failures[number] = f"{run.row}, seed {run.seed}, failed: {message}"
        if number != self._announced:
            self.announce(number)
        print_line(f"  FAILED: {message}")

    def wait(self, number, message):
        if number not in self.waiting:
            self.announce(number)
            print_line(f"  {message}. {'Skipped for now' if self._open() > 1 else 'Waiting for it; Ctrl-C ends the waiting'}.")
        self.waiting.add(number)


def _predecessor(run, runs):
    """The number of the run from which a run starts: its `init_from_row`, with the same seed."""
    name = run.config.train.init_from_row
    for number, other in enumerate(runs):
        if (other.row, other.seed) == (name, run.seed) and other is not run:
            return number
    raise unknown("row to start from", name, sorted({other.row for other in runs} - {run.row}))


def _complete_by(launcher, tasks, pending, show):
    """Completes runs as tasks of a launcher."""
    handles: dict[typing.Any, int] = {}
    locked_until: dict[int, float] = {}
    shown, reported_at = 0, time.monotonic()
    try:
        while pending or handles:
            for number in list(pending):
                if time.monotonic() >= locked_until.get(number, 0.0) and tasks.is_ready(number):
                    folder = os.path.abspath(tasks.folder_of(tasks.runs[number]))
                    function = functools.partial(tasks.runs[number].complete, folder)
                    handles[launcher.submit(function, os.path.join(folder, LOG))] = number
                    pending.remove(number)
            pending = [number for number in pending if number not in tasks.failures]
            for handle in launcher.ended([*handles], _POLL_SECONDS) if handles else []:
                number = handles.pop(handle)
                outcome = _outcome(launcher, handle)
                if outcome.locked:
                    tasks.wait(number, outcome.failure)
                    locked_until[number] = time.monotonic() + _POLL_SECONDS
                    pending.append(number)
                elif outcome.failure:
                    tasks.fail(number, f"{outcome.failure} (output: {os.path.join(tasks.folder_of(tasks.runs[number]), LOG)})")
                else:
                    tasks.announce(number)
                    tasks.end(number, outcome.evaluation)
                print_line(f"  {len(tasks.evaluations)} of {len(tasks.runs)} complete, {len(handles)} submitted")
            if handles and time.monotonic() - reported_at > _STATUS_SECONDS:
                for run in (tasks.runs[number] for number in handles.values()):
                    line = last_line(os.path.join(tasks.folder_of(run), LOG))
                    print_line(f"  {run.row}, seed {run.seed}: {line or 'not begun'}")
                if len(tasks.evaluations) > shown:
                    try:
                        show(tasks.complete())
                    except (ValueError, OSError) as error:  # the tasks go on, and the last report shows it again
                        print_line(f"  No report: {message_of(error)}")
                shown, reported_at = len(tasks.evaluations), time.monotonic()
            if pending and not handles:
                time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        launcher.cancel([*handles])
        raise


def _outcome(launcher, handle):
    outcome, own = launcher.outcome(handle), environment.thread_count()
    if outcome.threads not in (0, own):
        print_note(f"tasks have {outcome.threads} threads, this command {own}, so that results can differ in rounding")
    return outcome


def share(launcher: Launcher, function: Callable[[], None], folder: str) -> None:
    """Calls a function in several tasks, which share its work by locks, and waits until one is done; their output is in `folder`.

    Raises ValueError if the number of tasks is unknown, or all failed.
    """
    if launcher.tasks < 1:
        raise ValueError("Expected --launcher_options=tasks=N, the number of jobs that share the sets of an evaluation. Received: none")
    logs = [os.path.join(os.path.abspath(folder), f"task_{number}.log") for number in range(launcher.tasks)]
    handles = {launcher.submit(function, path): path for path in logs}
    print_line(f"  {len(handles)} tasks, output: {os.path.join(folder, 'task_*.log')}")
    failures, reported_at = [], time.monotonic()
    try:
        while handles:
            for handle in launcher.ended([*handles], _POLL_SECONDS):
                path, outcome = handles.pop(handle), _outcome(launcher, handle)
                if not outcome.failure:
                    return
                failures.append(f"{outcome.failure} (output: {path})")
                print_line(f"  FAILED: {failures[-1]}")
            if time.monotonic() - reported_at > _STATUS_SECONDS:
                for path in handles.values():
                    print_line(f"  {os.path.basename(path)}: {last_line(path) or 'not begun'}")
                reported_at = time.monotonic()
    finally:
        launcher.cancel([*handles])
    raise RunFailed("\n".join(["All tasks failed.", *failures]))
