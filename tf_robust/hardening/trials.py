"""Trials of a search, and their files, from which an interrupted search resumes."""

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tf_robust.hardening.candidates import Candidate
from tf_robust.hardening.choice import Member, Point
from tf_robust.hardening.target import Outcome
from tf_robust.utils.files import atomic_file, read_json, storable, write_json

_ARGUMENTS, _FRONTIER = "arguments.json", "frontier.json"


@dataclasses.dataclass(frozen=True)
class Trial:
    """A candidate, fine-tuned for a number of steps.

    Attributes:
        candidate: the recipe with its settings.
        rung: from 0.
        steps: of training.
        seconds: of training and evaluation.
        points: the fine-tuned model, and interpolations with the initial model.
        diverged: whether training diverged; the points are the initial model then.
    """

    candidate: Candidate
    rung: int
    steps: int
    seconds: float
    points: tuple[Point, ...]
    diverged: bool = False


class TrialStore:
    """Trials on disk: outcomes and weights of each in own files.

    Args:
        folder: of the files; created.
        arguments: of the search, by name.

    Raises:
        ValueError: the folder has trials of a search with other arguments.
    """

    def __init__(self, folder: str, arguments: Mapping[str, object]):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, _ARGUMENTS)
        recorded = read_json(path) if os.path.exists(path) else None
        if recorded is not None and recorded != dict(arguments) and self.finished():
            different = [name for name in arguments if recorded.get(name) != arguments[name]]
            raise ValueError(
                f"Expected the arguments of the search in {folder}: {_text(recorded, different)}. Received: {_text(arguments, different)}. "
                "Try: another --workdir, so that this search and its model are kept"
            )
        if recorded != dict(arguments):
            write_json(path, dict(arguments))

    @property
    def seconds(self) -> float:
        """Seconds of the search up to the latest stored trial."""
        return max((read_json(os.path.join(self.folder, name))["search_seconds"] for name in self.finished()), default=0.0)

    @property
    def frontier_evaluations(self) -> int | None:
        """The number of evaluations of the finished frontier; None: it is not finished."""
        path = os.path.join(self.folder, _FRONTIER)
        return read_json(path)["evaluations"] if os.path.exists(path) else None

    def finish(self, frontier_evaluations: int) -> None:
        """Records that the frontier is finished, after a number of evaluations."""
        write_json(os.path.join(self.folder, _FRONTIER), {"evaluations": frontier_evaluations})

    def discard(self) -> None:
        """Deletes the arguments of a search without trials, and the folder and the one above if nothing is left in them."""
        os.remove(os.path.join(self.folder, _ARGUMENTS))
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)
            os.rmdir(os.path.dirname(os.path.abspath(self.folder)))

    def finished(self) -> list[str]:
        """Returns the names of the files of finished trials."""
        return sorted(name for name in os.listdir(self.folder) if name.endswith(".json") and name not in (_ARGUMENTS, _FRONTIER))

    def read(self, candidate: Candidate, rung: int) -> Trial | None:
        """Returns the stored trial of a candidate in a rung, or None."""
        path = self._path(candidate, rung)
        if not os.path.exists(path + ".json"):
            return None
        content = read_json(path + ".json")
        steps = content["steps"]
        with np.load(path + ".npz") as file:
            points = tuple(
                Point(Outcome(file[f"clean_{i}"], file[f"target_{i}"]), coefficient, (Member(candidate, steps, rung),))
                for i, coefficient in enumerate(content["coefficients"])
            )
        return Trial(candidate, rung, steps, content["seconds"], points, content["diverged"])

    def write(self, trial: Trial, weights: Sequence[np.ndarray], search_seconds: float) -> None:
        """Stores a trial.

        Args:
            trial: to store.
            weights: of the fine-tuned model.
            search_seconds: of the search so far.
        """
        path = self._path(trial.candidate, trial.rung)
        outcomes = {f"clean_{i}": point.outcome.clean for i, point in enumerate(trial.points)}
        outcomes |= {f"target_{i}": point.outcome.target for i, point in enumerate(trial.points)}
        _save(path + ".npz", outcomes)
        _save(path + ".weights.npz", {f"{i:05}": storable(weight) for i, weight in enumerate(weights)})
        write_json(
            path + ".json",
            {
                "candidate": trial.candidate.name,
                "steps": trial.steps,
                "seconds": trial.seconds,
                "search_seconds": search_seconds,
                "diverged": trial.diverged,
                "coefficients": [point.coefficient for point in trial.points],
            },
        )

    def weights(self, trial: Trial) -> list[np.ndarray]:
        """Returns the weights of a stored trial, unless they were deleted."""
        with np.load(self._path(trial.candidate, trial.rung) + ".weights.npz") as file:
            return [file[name] for name in sorted(file.files)]

    def delete_weights_except(self, trials: Iterable[Trial]) -> None:
        """Deletes the weights of all other trials."""
        kept = {os.path.basename(self._path(trial.candidate, trial.rung)) + ".weights.npz" for trial in trials}
        for name in os.listdir(self.folder):
            if name.endswith(".weights.npz") and name not in kept:
                os.remove(os.path.join(self.folder, name))

    def _path(self, candidate, rung):
        return os.path.join(self.folder, f"{rung + 1}-{re.sub('[^A-Za-z0-9.]+', '_', candidate.name)}")


def _save(path, arrays):
    with atomic_file(path, "wb") as file:
        np.savez(file, **arrays)


def _text(arguments, names):
    return ", ".join(f"{name}={arguments.get(name)}" for name in names)
