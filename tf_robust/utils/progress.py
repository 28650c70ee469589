"""Progress of long work: a line that is rewritten on a terminal, few lines or none elsewhere; durations as text.

Lines and notes go through the logger "tf_robust": `logging.getLogger("tf_robust").setLevel("WARNING")` leaves the notes, "ERROR" nothing.
Importing this module does not import TensorFlow.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
import typing
from collections.abc import Callable, Iterator

if typing.TYPE_CHECKING:
    import tensorflow as tf

LONG = 20  # seconds of work whose time is estimated
_logger = logging.getLogger("tf_robust")
NOTED: set[str] = set()  # texts of the notes that were printed
_WIDTH = 100  # characters
_INTERVALS = {True: 0.1, False: 10}  # seconds between lines, on a terminal or not


class _StandardOutput(logging.Handler):
    """Prints at once to what is the standard output at the time, also to a file or a pipe."""

    def emit(self, record):
        print(self.format(record), flush=True)


if not _logger.handlers:  # the user has not configured it
    _logger.addHandler(_StandardOutput())
    _logger.setLevel(logging.INFO)
    _logger.propagate = False


class Estimate:
    """How long work in equal parts takes, from the parts that are done, and how far the first estimate was from it.

    Args:
        total: number of parts.
    """

    def __init__(self, total: int):
        self.total, self._begin, self._first = total, time.monotonic(), 0.0

    def left(self, done: int) -> float:
        """Returns the seconds that are left; `done`: number of parts, >= 1. The first call makes the first estimate, of the whole time."""
        seconds = max(time.monotonic() - self._begin, 1e-6)
        self._first = self._first or seconds * self.total / done
        return (self.total - done) * seconds / done

    def left_text(self, done: int) -> str:
        """Returns `left` as text, of long work with the first estimate if that turns out wrong by more than a factor of 2."""
        left = self.left(done)
        whole = time.monotonic() - self._begin + left
        is_wrong = max(whole, self._first) > max(2 * min(whole, self._first), LONG)
        return f"{duration(left)} left" + (f", of {duration(whole)} in all (first estimate {duration(self._first)})" if is_wrong else "")

    def comparison(self) -> str:
        """Returns the time of long work and its first estimate as text: 90 s (first estimate 75 s); otherwise an empty text."""
        seconds = time.monotonic() - self._begin
        return f"{duration(seconds)} (first estimate {duration(self._first)})" if seconds >= LONG and self._first else ""


class Progress:
    """Prints how much is done, at which rate, and how long the rest will take.

    On a terminal one line is rewritten; elsewhere a line is printed every 10 seconds, for the first step and for the last.

    Args:
        total: number of steps; None: unknown.
        unit: name of a step, in the plural.
        stream: text file to write to; None: standard output.
        leave: keep the last line on a terminal.
    """

    def __init__(self, total: int | None, unit: str, stream: typing.TextIO | None = None, leave: bool = True):
        self.total, self.unit, self.stream, self.leave = total, unit, stream or sys.stdout, leave
        self.terminal = self.stream.isatty()
        self._done, self._start, self._printed, self._estimate = 0, time.monotonic(), -float("inf"), Estimate(total or 1)

    def step(self, count: int, description: str) -> None:
        """Counts further steps; `description` belongs to the latest one."""
        self._done += count
        now, last = time.monotonic(), self.total is not None and self._done >= self.total
        if not last and now - self._printed < _INTERVALS[self.terminal]:
            return
        self._printed, seconds = now, max(now - self._start, 1e-6)
        rate = f"{self._done / seconds:,.0f} {self.unit}/s"
        if self.total is None:
            line = f"  {self._done} {self.unit}  {description}  {rate}"
        else:
            took = f"took {self._estimate.comparison() or duration(seconds)}"
            left = took if last else self._estimate.left_text(max(self._done, 1))
            line = f"  {100 * self._done // max(self.total, 1):3d} %  {description}  {rate}  {left}"
        text = f"\r{line:<{_WIDTH}}" + "\n" * (last and self.leave) if self.terminal else f"{line}\n"
        print(text, end="", file=self.stream, flush=True)

    def clear(self) -> None:
        """Removes the line from a terminal."""
        if self.terminal:
            print(f"\r{'':<{_WIDTH}}\r", end="", file=self.stream, flush=True)


def at_intervals(log: Callable[[str], object], seconds: float, always: tuple[str, ...] = ()) -> Callable[[str], None]:
    """Returns a function that passes a line to `log` unless it did so less than `seconds` ago, or if it begins with one of `always`."""
    last = -float("inf")

    def log_line(line: str) -> None:
        nonlocal last
        important = line.startswith(always)
        if important or time.monotonic() - last >= seconds:
            last = last if important else time.monotonic()
            log(line)

    return log_line


@contextlib.contextmanager
def repeated(line: Callable[[], str], log: Callable[[str], object], seconds: float = 10.0) -> Iterator[None]:
    """Context that calls `log` with a line every `seconds` until it ends."""
    ended = threading.Event()

    def repeat():
        while not ended.wait(seconds):
            log(line())

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def batches(dataset: tf.data.Dataset, name: str) -> Iterator:
    """Yields the batches of a dataset. On a terminal, standard error shows the progress under a name meanwhile."""
    if not sys.stderr.isatty():
        yield from dataset
        return
    total = int(dataset.cardinality())
    progress = Progress(total if total >= 0 else None, "batches", sys.stderr, leave=False)
    try:
        for batch in dataset:
            yield batch
            progress.step(1, name)
    finally:
        progress.clear()


def duration(seconds: float) -> str:
    """Returns a duration as text: 40 s, 12 min, 3.5 h."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def print_note(text: str, repeat: bool = False) -> None:
    """Prints a note, as a warning of the logger: once per text, unless `repeat`."""
    if repeat or text not in NOTED:
        NOTED.add(text)
        _logger.warning("  Note: %s", text)


def print_line(text: str) -> None:
    """Prints a line, as information of the logger: the default of `log` arguments."""
    _logger.info("%s", text)
