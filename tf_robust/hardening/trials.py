"""Trials of a search, from whose files it resumes, the points between the initial and the fine-tuned models, and the choice among them."""

import dataclasses
import itertools
import math
import os
import re
import typing
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import scipy.stats

from tf_robust.hardening.candidates import Candidate
from tf_robust.hardening.target import Outcome
from tf_robust.hardening.training import State
from tf_robust.metrics.paired import PairedDifference, paired_difference, selected_difference
from tf_robust.utils.files import atomic_file, read_json, storable, write_json

ROUNDING = 1e-9
_ARGUMENTS, _FRONTIER, _PLAN, _WEIGHTS = "arguments.json", "frontier.json", "plan.json", ".weights.npz"
_KINDS = ("weights", "others")  # fields of a state


class Member(typing.NamedTuple):
    """A fine-tuned model: a candidate after a rung (from 0); a rung has one trial of each candidate."""

    candidate: Candidate
    parts: tuple[int, ...]  # steps of the rungs in which it was trained; in each the learning rate falls from its peak
    rung: int

    @property
    def steps(self) -> int:
        return sum(self.parts)


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """A model on the frontier: the initial model, moved towards a fine-tuned model or towards the mean of several (`members`)."""

    outcome: Outcome  # on the validation images
    coefficient: float = 0.0  # of the weight interpolation; 0: the initial model, 1: the fine-tuned model
    members: tuple[Member, ...] = ()
    reestimated: bool = False  # whether batch norm's moving averages were estimated anew on unchanged and changed images

    @property
    def clean(self) -> float:
        return float(np.mean(self.outcome.clean))

    @property
    def target(self) -> float:
        return float(np.mean(self.outcome.target))

    @property
    def values(self) -> dict[str, float]:
        return {"clean": self.clean, "target": self.target, "coefficient": self.coefficient}

    @property
    def line(self) -> str:
        """The unique name of the fine-tuned model, or of the mean of several, which all interpolations share."""
        names = [f"{one.candidate.name} (rung {one.rung + 1}, {one.steps:,} steps)" for one in self.members]
        return f"mean of {' and '.join(names)}" if len(names) > 1 else names[0] if names else "initial model"

    @property
    def is_control(self) -> bool:
        """Whether plain fine-tuning alone made it."""
        return bool(self.members) and all(member.candidate.control for member in self.members)

    @property
    def name(self) -> str:
        """A name for tables and messages."""
        weights = f", interpolation coefficient {self.coefficient:g}" if 0 < self.coefficient < 1 else ""
        return f"{self.line}{weights}{', batch norm re-estimated' * self.reestimated}"


@dataclasses.dataclass(frozen=True)
class Choice:
    """The chosen point, and paired differences of its clean accuracy and its target to the initial model."""

    point: Point
    clean: PairedDifference
    target: PairedDifference  # with the interval of the best of all compared models
    helps: bool  # whether the target is significantly better than the initial model's
    images_needed: int  # validation images with which the interval would decide whether the target is better; 0: these do
    compared: int  # number of models among which the point is the best


class SliceChange(typing.NamedTuple):
    """Change of the clean accuracy of one class or group, with a 95 % t interval that holds for all at once (Bonferroni's)."""

    value: typing.Any
    mean: float
    low: float | None  # None with one image
    high: float | None
    num_images: int


def worst_slice(start: Point, point: Point, values: np.ndarray) -> SliceChange:
    """Returns the class or group whose clean accuracy falls most from the initial model's to a point's; `values`: [N]."""
    slices, found = np.unique(values), []
    for value in slices:
        change = (point.outcome.clean.astype(np.float64) - start.outcome.clean)[values == value]
        count, mean = len(change), float(change.mean())
        half = scipy.stats.t.ppf(1 - 0.025 / len(slices), count - 1) * change.std(ddof=1) / np.sqrt(count) if count > 1 else None
        low, high = (None, None) if half is None else (float(mean - half), float(mean + half))
        found.append(SliceChange(value, mean, low, high, count))
    return min(found, key=lambda one: one.mean)


def choose(
    start: Point,
    points: Sequence[Point],
    max_clean_loss: float,
    tried: Sequence[Point] = (),
    *,
    slices: Sequence[np.ndarray] = (),
    max_class_loss: float = 1.0,
) -> Choice | None:
    """Returns the point with the best target among those that lose at most `max_clean_loss` of clean accuracy; None: there is none.

    `tried` are further models by whose outcome on the same images the search went on, such as the points of its trials. The interval
    allows for the choice among `points` and these: the best of many models gains by chance. No slice of the unchanged images (`slices`: the
    labels, groups, each [N]) may lose more than `max_class_loss` of its accuracy either.
    """
    allowed = [point for point in points if point.clean - start.clean >= -max_clean_loss - ROUNDING]
    for values in slices if max_class_loss < 1.0 else ():
        allowed = [point for point in allowed if worst_slice(start, point, values).mean >= -max_class_loss - ROUNDING]
    if not allowed:
        return None
    best = max(allowed, key=lambda point: (point.target, point.clean))
    target = gain(best, start, [*points, *tried])
    mean, low = target["mean"], target["low"]
    helps = low is not None and low > 0
    # whose interval would end at 0, if difference and variance stayed as they are
    needed = math.ceil(target["count"] * ((mean - low) / mean) ** 2) if low is not None and mean > 0 and not helps else 0
    clean = paired_difference(best.outcome.clean, start.outcome.clean)
    return Choice(best, clean, target, helps, needed, len({id(point) for point in (*points, *tried)}))


def gain(best: Point, other: Point, compared: Sequence[Point]) -> PairedDifference:
    """Returns the target of a point minus the target of another, with an interval that allows for its selection among `compared`.

    Points may be repeated: some of a search's trials are on the frontier too.
    """
    distinct = {id(point): point.outcome.target for point in compared}
    return selected_difference(best.outcome.target, other.outcome.target, [*distinct.values()])


def attainable(start: Point, points: Sequence[Point], max_clean_loss: float) -> tuple[float, float]:
    """Returns the best (target, coefficient) with an allowed clean accuracy on the line from the initial model to a fine-tuned model.

    `points` are interpolations on this line, between which both accuracies are taken as linear.
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
    """Returns the attainable target of an interpolation; where two are equal, its own target minus what it loses beyond the allowed."""
    return attainable(start, [point], max_clean_loss)[0], point.target - max(0.0, start.clean - max_clean_loss - point.clean)


def best_point(start: Point, points: Sequence[Point], max_clean_loss: float) -> Point:
    """Returns the interpolation of a trial that is shown for it, with the highest `merit`."""
    return max(points, key=lambda point: merit(start, point, max_clean_loss))


@dataclasses.dataclass(frozen=True)
class Trial:
    """A candidate, fine-tuned in a rung (from 0), and before in earlier ones, whose trial it continues."""

    candidate: Candidate
    rung: int
    parts: tuple[int, ...]  # steps of each rung in which it was trained
    seconds: float  # of training and evaluation, with earlier rungs
    points: tuple[Point, ...]  # the fine-tuned model and interpolations with the initial model
    diverged: bool = False  # then the points are the initial model

    @property
    def steps(self) -> int:
        return sum(self.parts)


class TrialStore:
    """Trials on disk: outcomes and weights of each in own files of a folder, which is created with the first.

    `plan`, for JSON, is written with the first trial; an interrupted search has the plan with which it began. Raises ValueError if the
    folder has trials of a search with other arguments.
    """

    def __init__(self, folder: str, arguments: Mapping[str, object]):
        self.folder, self._arguments = folder, dict(arguments)
        recorded = self._read(_ARGUMENTS) if self.finished() else self._arguments
        self.plan: dict = self._read(_PLAN) if self.finished() else {}
        if recorded != self._arguments:
            different = [name for name in arguments if recorded.get(name) != arguments[name]]
            then, now = (", ".join(f"{name}={values.get(name)}" for name in different) for values in (recorded, arguments))
            raise ValueError(
                f"Expected the arguments of the search in {folder}: {then}. Received: {now}. "
                "Try: another --workdir, so that this search and its model are kept"
            )

    @property
    def seconds(self) -> float:
        """Seconds of the search up to the latest stored trial."""
        return max((self._read(name)["search_seconds"] for name in self.finished()), default=0.0)

    @property
    def frontier_evaluations(self) -> int | None:
        """The number of evaluations of the finished frontier; None: it is not finished."""
        return self._read(_FRONTIER)["evaluations"] if os.path.exists(os.path.join(self.folder, _FRONTIER)) else None

    def finish(self, frontier_evaluations: int) -> None:
        """Records that the frontier is finished, after a number of evaluations."""
        write_json(os.path.join(self.folder, _FRONTIER), {"evaluations": frontier_evaluations})

    def finished(self) -> list[str]:
        """Returns the names of the files of finished trials."""
        names = os.listdir(self.folder) if os.path.isdir(self.folder) else []
        return sorted(name for name in names if name.endswith(".json") and name not in (_ARGUMENTS, _FRONTIER, _PLAN))

    def read(self, candidate: Candidate, rung: int) -> Trial | None:
        """Returns the stored trial of a candidate in a rung, or None."""
        path = self._path(candidate, rung)
        if not os.path.exists(path + ".json"):
            return None
        content = read_json(path + ".json")
        parts = tuple(content["parts"])
        members = (Member(candidate, parts, rung),)
        with np.load(path + ".npz") as file:
            outcomes = map(Outcome, file["clean"], file["target"])
            points = tuple(Point(outcome, one, members) for outcome, one in zip(outcomes, content["coefficients"]))
        return Trial(candidate, rung, parts, content["seconds"], points, content["diverged"])

    def write(self, trial: Trial, state: State, search_seconds: float) -> None:
        """Stores a trial, the state in which it ended, and the seconds of the search so far."""
        if not self.finished():
            write_json(os.path.join(self.folder, _ARGUMENTS), self._arguments)
            write_json(os.path.join(self.folder, _PLAN), self.plan)
        path = self._path(trial.candidate, trial.rung)
        outcomes = {name: np.array([getattr(point.outcome, name) for point in trial.points]) for name in ("clean", "target")}
        weights, others = ({f"{kind}{i:05}": storable(one) for i, one in enumerate(getattr(state, kind))} for kind in _KINDS)
        for suffix, arrays in ((".npz", outcomes), (_WEIGHTS, weights | others)):
            with atomic_file(path + suffix, "wb") as file:
                np.savez(file, **arrays)
        content = {name: getattr(trial, name) for name in ("parts", "seconds", "diverged")}
        coefficients = [point.coefficient for point in trial.points]
        content |= {"candidate": trial.candidate.name, "search_seconds": search_seconds, "coefficients": coefficients}
        write_json(path + ".json", content)  # last: it marks the trial as finished

    def has_state(self, trial: Trial) -> bool:
        """Returns whether the state in which a stored trial ended was kept."""
        return os.path.exists(self._path(trial.candidate, trial.rung) + _WEIGHTS)

    def state(self, trial: Trial) -> State:
        """Returns the state in which a stored trial ended, which must have been kept."""
        with np.load(self._path(trial.candidate, trial.rung) + _WEIGHTS) as file:
            weights, others = ([file[name] for name in sorted(file.files) if name.startswith(kind)] for kind in _KINDS)
            return State(weights, others, trial.steps)

    def weights(self, trial: Trial) -> list[np.ndarray]:
        """Returns the weights of `state` alone."""
        with np.load(self._path(trial.candidate, trial.rung) + _WEIGHTS) as file:
            return [file[name] for name in sorted(file.files) if name.startswith(_KINDS[0])]

    def delete_weights_except(self, trials: Iterable[Trial]) -> None:
        """Deletes the states of all other trials."""
        kept = {os.path.basename(self._path(trial.candidate, trial.rung)) + _WEIGHTS for trial in trials}
        for name in os.listdir(self.folder):
            if name.endswith(_WEIGHTS) and name not in kept:
                os.remove(os.path.join(self.folder, name))

    def _path(self, candidate, rung):
        return os.path.join(self.folder, f"{rung + 1}-{re.sub('[^A-Za-z0-9.]+', '_', candidate.name)}")

    def _read(self, name):
        return read_json(os.path.join(self.folder, name))
