"""The flags that a sweep varies: lists of values, and ranges that are sampled."""

import dataclasses
import itertools
from collections.abc import Mapping

from tf_robust.utils.errors import unknown

Point = dict[str, str]  # {flag: value as text}
_EXPECTED = "Expected --sweep='NAME=VALUE,VALUE;NAME=LOW..HIGH;NAME=log:LOW..HIGH', every name and value once."


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers of a flag from which points are sampled.

    Attributes:
        low: the smallest.
        high: the largest.
        log: whether the logarithm is sampled uniformly, not the number.
        integer: whether the numbers are integers.
    """

    low: float
    high: float
    log: bool
    integer: bool

    def __str__(self) -> str:
        return f"{'log:' if self.log else ''}{self.low:g}..{self.high:g}"

    def text(self, value: float) -> str:
        """Returns a number as it is written on the command line, with four digits."""
        return str(round(value)) if self.integer else f"{value:.4g}"

    @property
    def middle(self) -> str:
        """The middle of the range, as text."""
        return self.text((self.low * self.high) ** 0.5 if self.log else (self.low + self.high) / 2)


Axis = tuple[str, ...] | Range


def axes_of(text: str, defaults: Mapping[str, object]) -> dict[str, Axis]:
    """Returns what a sweep varies: {flag: its values, or the range of its values}.

    Args:
        text: 'NAME=VALUE,VALUE;NAME=LOW..HIGH;NAME=log:LOW..HIGH;...'.
        defaults: {flag: default} of all flags.

    Raises:
        ValueError: unknown flag, a flag of several values, a value or name twice, a range of a flag that is no number, nothing to vary.
    """
    axes: dict[str, Axis] = {}
    for part in filter(None, text.split(";")):
        name, separator, values = (piece.strip() for piece in part.partition("="))
        if name not in defaults:
            raise unknown("flag to sweep", name, defaults)
        if isinstance(defaults[name], (tuple, list)):
            raise ValueError(f"Expected flags of one value in --sweep, as commas separate the values of a grid. Received: {name}")
        axis = _range(part, values, defaults[name]) if ".." in values else tuple(value.strip() for value in values.split(","))
        if not separator or name in axes or (isinstance(axis, tuple) and (not all(axis) or len(set(axis)) < len(axis))):
            raise ValueError(f"{_EXPECTED} Received: {part!r}")
        axes[name] = axis
    if not axes:
        raise ValueError(f"{_EXPECTED} Received: {text!r}")
    return axes


def _range(part, values, default):
    """The range of a part of a sweep."""
    low, _, high = values.removeprefix("log:").partition("..")
    log, integer = values.startswith("log:"), isinstance(default, int)
    if isinstance(default, bool) or not isinstance(default, (int, float)):
        raise ValueError(f"Expected numbers with a range in --sweep. Received: {part!r}, whose default is {default!r}")
    try:
        first, last = (int(low), int(high)) if integer else (float(low), float(high))
    except ValueError:
        raise ValueError(f"{_EXPECTED} Received: {part!r}, whose ends are no {'integers' if integer else 'numbers'}") from None
    if not (0 if log else -float("inf")) < first < last < float("inf"):
        raise ValueError(f"Expected LOW < HIGH{', both above 0 with log' if log else ''} in --sweep. Received: {part!r}")
    return Range(first, last, log, integer)


def grid(axes: Mapping[str, Axis]) -> list[Point]:
    """Returns the points of a grid; the last flag changes fastest.

    Raises:
        ValueError: a flag has a range.
    """
    if ranges := [name for name, axis in axes.items() if isinstance(axis, Range)]:
        raise ValueError(
            f"Expected lists of values with --sweep_engine=grid. Received: ranges of {', '.join(ranges)}. Try: --sweep_engine=optuna"
        )
    lists = [axis for axis in axes.values() if not isinstance(axis, Range)]
    return [dict(zip(axes, values)) for values in itertools.product(*lists)]


def middle(axes: Mapping[str, Axis]) -> Point:
    """Returns the point with the middle of each range and the first value of each list."""
    return {name: axis.middle if isinstance(axis, Range) else axis[0] for name, axis in axes.items()}


def name_of(point: Point) -> str:
    """Returns the row and folder name of a point: 'NAME=VALUE,NAME=VALUE', with _ for / in values."""
    return ",".join(f"{name}={value.replace('/', '_')}" for name, value in point.items())
