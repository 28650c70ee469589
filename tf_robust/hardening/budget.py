"""The budget of a search, in seconds or in training steps."""

import dataclasses
import math
import re
import time

_SECONDS = {"s": 1, "m": 60, "h": 3600}
_STEPS = "steps"


@dataclasses.dataclass(frozen=True)
class Budget:
    """How long a search may take.

    Attributes:
        amount: of `unit`.
        unit: `seconds` or `steps`. A search with a budget in steps is reproducible.
    """

    amount: float
    unit: str

    @property
    def in_steps(self) -> bool:
        return self.unit == _STEPS


def parse_budget(text: str) -> Budget:
    """Returns the budget of a text such as 90s, 30m, 1.5h or 2000steps.

    Raises:
        ValueError: another text, or nothing.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h|steps)", text.strip())
    if not match or not 0 < float(match[1]) < math.inf:
        raise ValueError(f"Expected a budget as a time (90s, 30m, 2h) or as training steps (2000steps). Received: {text!r}")
    amount, unit = float(match[1]), match[2]
    return Budget(amount, _STEPS) if unit == _STEPS else Budget(amount * _SECONDS[unit], "seconds")


class Clock:
    """Counts the seconds of a search, including those of interrupted processes."""

    def __init__(self):
        self._start = time.monotonic()

    def add(self, seconds: float) -> None:
        """Adds the seconds of processes before this one."""
        self._start -= seconds

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start
