"""How far a long piece of work is: one line that moves on a terminal, a line now and then elsewhere."""

import sys
import time

_EVERY = 30  # seconds between lines that stay


class Progress:
    """Tells after each step what is done, at which rate, and how long the rest takes.

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


def duration(seconds):
    """`2 h 05 min`, `3 min 20 s`, `8 s`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
