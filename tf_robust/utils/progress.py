"""How far long work is: a bar where there is a terminal, few lines or none elsewhere, and how long things take in words."""

import sys
import time

import tqdm

_EVERY = 30  # seconds between lines that stay


class Progress:
    """Tells after each step what is done, at which rate, and how long the rest takes: on a terminal in one line that moves.

    Args:
        total: steps. unit: what a step is, in the plural. stream: file to write to; None: standard output.
    """

    def __init__(self, total, unit, stream=None):
        self.total, self.unit, self.stream = total, unit, stream or sys.stdout
        self.done, self.began, self.told = 0, time.monotonic(), None
        self.moves = self.stream.isatty()

    def step(self, count, what):
        """`count` steps are done, of which `what` says more."""
        self.done += count
        now = time.monotonic()
        last = self.done >= self.total
        if self.moves or last or self.told is None or now - self.told >= _EVERY:
            self.told = now
            line = self.line(now - self.began, what)
            self.stream.write(f"\r{line:<100}" if self.moves else f"{line}\n")
            if self.moves and last:
                self.stream.write("\n")
            self.stream.flush()

    def line(self, seconds, what):
        rate = self.done / max(seconds, 1e-6)
        left = (self.total - self.done) / max(rate, 1e-6)
        share = 100 * self.done // max(self.total, 1)
        ending = f"{duration(left)} left" if self.done < self.total else f"took {duration(seconds)}"
        return f"  {share:3d} %  {what}  {rate:,.0f} {self.unit}/s  {ending}"


def batches(dataset, name):
    """The batches of a dataset, with a bar and the remaining time on a terminal; elsewhere without a word."""
    total = int(dataset.cardinality())
    return tqdm.tqdm(dataset, desc=f"  {name}", total=total if total >= 0 else None, unit="batch", leave=False, disable=None)


def duration(seconds):
    """A time in words: 40 s, 12 min, 3.5 h."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
