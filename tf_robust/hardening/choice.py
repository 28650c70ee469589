"""Points of the frontier of clean accuracy against the target, and the choice among them on validation images."""

import dataclasses
import itertools
import math
import typing
from collections.abc import Sequence

import numpy as np

from tf_robust.hardening.candidates import Candidate
from tf_robust.hardening.target import Outcome
from tf_robust.metrics.paired import PairedDifference, paired_difference, selected_difference

ROUNDING = 1e-9


class Member(typing.NamedTuple):
    """A fine-tuned model: a candidate after a number of steps, in a rung from 0, in which no other trial has the same candidate."""

    candidate: Candidate
    steps: int
    rung: int


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """A model on the frontier: the initial model, moved towards a fine-tuned model or towards the mean of several.

    Attributes:
        outcome: on the validation images.
        coefficient: of the weight interpolation; 0: the initial model, 1: the fine-tuned model.
        members: the fine-tuned models; empty for the initial model.
        reestimated: whether batch norm's moving averages were estimated anew on AugMix images.
    """

    outcome: Outcome
    coefficient: float = 0.0
    members: tuple[Member, ...] = ()
    reestimated: bool = False

    @property
    def clean(self) -> float:
        return float(np.mean(self.outcome.clean))

    @property
    def target(self) -> float:
        return float(np.mean(self.outcome.target))

    @property
    def line(self) -> str:
        """The fine-tuned model's name, which all of its interpolations share."""
        return line_of(self.members)

    @property
    def name(self) -> str:
        """A name for tables and messages."""
        statistics = ", batch norm re-estimated" * self.reestimated
        weights = f", interpolation coefficient {self.coefficient:g}" if 0 < self.coefficient < 1 else ""
        return f"{self.line}{weights}{statistics}"


def line_of(members: Sequence[Member]) -> str:
    """Returns the name of the mean of fine-tuned models, which no other mean has; of none, the initial model."""
    names = [f"{candidate.name} (rung {rung + 1}, {steps:,} steps)" for candidate, steps, rung in members]
    return f"mean of {' and '.join(names)}" if len(names) > 1 else names[0] if names else "start"


@dataclasses.dataclass(frozen=True)
class Choice:
    """The chosen point and how sure it is.

    Attributes:
        point: the chosen model.
        clean: paired difference of the clean accuracy to the initial model.
        target: paired difference of the target to the initial model, with the interval of the best of all compared models.
        helps: whether the target is better than the initial model's, outside the interval.
        images_needed: validation images with which the interval would decide whether the target is better; 0: these do.
        compared: number of models among which the point is the best.
    """

    point: Point
    clean: PairedDifference
    target: PairedDifference
    helps: bool
    images_needed: int
    compared: int = 1


def choose(start: Point, points: Sequence[Point], max_clean_loss: float, tried: Sequence[Point] = ()) -> Choice | None:
    """Returns the point with the best target among those that lose at most `max_clean_loss` of clean accuracy; None: there is none.

    Args:
        start: the model as it was given.
        points: the others.
        max_clean_loss: as a fraction.
        tried: further models by whose outcome on the same images the search went on, such as the points of its trials. The interval
            allows for the choice among `points` and these: what was found by a search for the best is larger by chance.
    """
    allowed = [point for point in points if point.clean - start.clean >= -max_clean_loss - ROUNDING]
    if not allowed:
        return None
    best = max(allowed, key=lambda point: (point.target, point.clean))
    clean = paired_difference(best.outcome.clean, start.outcome.clean)
    compared = distinct([*points, *tried])
    target = gain(best, start, compared)
    helps = target["low"] is not None and target["low"] > 0
    return Choice(best, clean, target, helps, 0 if helps else _images_needed(target), len(compared))


def distinct(points: Sequence[Point]) -> list[Point]:
    """Returns the points without repetitions: some of a search's trials are on the frontier too."""
    return list({id(point): point for point in points}.values())


def gain(best: Point, other: Point, compared: Sequence[Point]) -> PairedDifference:
    """Returns the target of the best of several points minus that of another, with an interval that allows for the selection.

    Args:
        best: the selected point.
        other: such as the initial model.
        compared: all points among which it was selected.
    """
    return selected_difference(best.outcome.target, other.outcome.target, [point.outcome.target for point in compared])


def attainable(start: Point, points: Sequence[Point], max_clean_loss: float) -> tuple[float, float]:
    """Returns the best (target, coefficient) on the line from the initial model through interpolations, where the clean accuracy is
    allowed.

    Args:
        start: the model as it was given.
        points: interpolations of one fine-tuned model, between which clean accuracy and target are taken as linear.
        max_clean_loss: as in `choose`.
    """
    floor, best = start.clean - max_clean_loss - ROUNDING, (start.target, 0.0)
    for one, other in itertools.pairwise([start, *sorted(points, key=lambda point: point.coefficient)]):
        if other.clean >= floor:
            best = max(best, (other.target, other.coefficient))
        elif one.clean >= floor:
            part = (one.clean - floor) / (one.clean - other.clean)
            coefficient = one.coefficient + part * (other.coefficient - one.coefficient)
            best = max(best, (one.target + part * (other.target - one.target), coefficient))
    return best


def merit(start: Point, point: Point, max_clean_loss: float) -> tuple[float, float]:
    """Returns the attainable target of an interpolation; where two are equal, its own target minus what it loses beyond the allowed.

    Args:
        start: the model as it was given.
        point: an interpolation.
        max_clean_loss: as in `choose`.
    """
    return attainable(start, [point], max_clean_loss)[0], point.target - max(0.0, start.clean - max_clean_loss - point.clean)


def best_point(start: Point, points: Sequence[Point], max_clean_loss: float) -> Point:
    """Returns the interpolation of a trial that is shown for it, that of the highest `merit`; arguments as there."""
    return max(points, key=lambda point: merit(start, point, max_clean_loss))


def _images_needed(difference):
    """The number of images whose interval would end at 0, if difference and variance stayed as they are."""
    mean, low, count = difference["mean"], difference["low"], difference["count"]
    return math.ceil(count * ((mean - low) / mean) ** 2) if low is not None and mean > 0 else 0
