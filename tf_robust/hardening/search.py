"""Successive halving over candidates (Jamieson and Talwalkar, 2016), and the frontier by weight interpolation.

In each rung every remaining candidate is fine-tuned from the start's weights for an equal part of the rung's budget; the better
third goes on. The trials of the last two rungs, interpolated with the start, and the greedy soup of the best are the frontier.
"""

import dataclasses
import os
import re
import typing
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from tf_robust import methods
from tf_robust.data.source import Source
from tf_robust.hardening.budget import Budget, Clock
from tf_robust.hardening.candidates import Candidate
from tf_robust.hardening.choice import Choice, Point, choose
from tf_robust.hardening.interpolation import greedy_soup, interpolate
from tf_robust.hardening.target import Outcome, ValidationSet
from tf_robust.hardening.training import Trainer
from tf_robust.training.loop import TrainingDiverged
from tf_robust.utils.files import atomic_file, read_json, write_json
from tf_robust.utils.progress import duration

RUNGS = (0.35, 0.25, 0.3)  # fractions of the budget; the rest is for the frontier
KEPT = 3  # of this many candidates, one goes on to the next rung
MINIMUM_STEPS = 20
MINIMUM_CANDIDATES = 3
COEFFICIENTS = (0.25, 0.5, 0.625, 0.75, 0.875, 1.0)
QUICK_COEFFICIENTS = (0.5, 1.0)  # between rungs
SOUP = 3  # maximum number of members


@dataclasses.dataclass
class Trial:
    """A candidate, fine-tuned for a number of steps.

    Attributes:
        candidate: the recipe.
        rung: from 0.
        steps: of training.
        seconds: of training and evaluation.
        weights: after training.
        points: interpolated with the start by `QUICK_COEFFICIENTS`.
    """

    candidate: Candidate
    rung: int
    steps: int
    seconds: float
    weights: list[np.ndarray]
    points: list[Point]


@dataclasses.dataclass
class SearchResult:
    """Result of a search.

    Attributes:
        start: the model as it was given.
        trials: all, in their order.
        frontier: points of the last two rungs and of soups.
        choice: the best point; None: none of them keeps the clean accuracy.
        weights: of the choice; those of the start if nothing helps.
        seconds: of the search.
    """

    start: Point
    trials: list[Trial]
    frontier: list[Point]
    choice: Choice | None
    weights: list[np.ndarray]
    seconds: float


class Search:
    """Searches a more robust model among fine-tuned ones.

    Args:
        model: the classifier, trained in place; its weights at construction are the start, and are restored at the end.
        options: `input_range` and `from_logits` of the methods.
        source: training images.
        validation: validation images.
        candidates: the recipes, the most promising first.
        budget: of the search.
        max_clean_loss: of the choice.
        batch_size: examples per step.
        seed: of training.
        folder: where finished trials are kept; a search with the same arguments resumes from them. Empty: nowhere.
        log: called with a line after each trial.
    """

    def __init__(
        self,
        model: keras.Model,
        options: Mapping[str, typing.Any],
        source: Source,
        validation: ValidationSet,
        candidates: Sequence[Candidate],
        *,
        budget: Budget,
        max_clean_loss: float,
        batch_size: int = 64,
        seed: int = 0,
        folder: str = "",
        log: Callable[[str], object] = print,
    ):
        self.model, self.options, self.source, self.validation = model, dict(options), source, validation
        self.candidates, self.budget, self.max_clean_loss = list(candidates), budget, max_clean_loss
        self.batch_size, self.seed, self.log = batch_size, seed, log
        self.store = TrialStore(folder)
        self.start_weights = model.get_weights()
        self._network: tf.types.experimental.GenericFunction | None = None
        self._trainers: dict[str, Trainer] = {}
        self.clock = Clock(self.store.seconds)
        self.start = Point("start", 0.0, self._evaluate(self.start_weights))

    def run(self) -> SearchResult:
        """Runs the search, or what is left of it. Ctrl-C ends it with the best model so far.

        Raises:
            ValueError: the budget is too small for three candidates in the first rung.
        """
        self.trials: list[Trial] = []
        try:
            self._halve()
        except KeyboardInterrupt:
            self.log("Interrupted: the best model so far follows. The same command resumes the search.")
        frontier, weights_of = self._frontier()
        choice = choose(self.start, frontier, self.max_clean_loss)
        weights = weights_of(choice.point) if choice and choice.helps else self.start_weights
        self.model.set_weights(self.start_weights)
        return SearchResult(self.start, self.trials, frontier, choice, weights, self.clock.seconds)

    def _halve(self):
        remaining, end = self.candidates, 0.0
        for rung, fraction in enumerate(RUNGS):
            end += fraction
            trials = []
            for number, candidate in enumerate(remaining):
                if rung == 0 and number and self._too_many(trials, remaining):
                    break
                trials.append(self._trial(candidate, rung, self._share(fraction, end, len(remaining) - number, len(remaining))))
            controls = [trial.candidate for trial in trials if trial.candidate.control]
            others = sorted((t for t in trials if not t.candidate.control and t.candidate.learning_rate), key=self._score, reverse=True)
            kept = max(1, len(others) // KEPT)
            remaining = [*controls, *(trial.candidate for trial in others[:kept])]

    def _share(self, fraction, end, trials_left, trials):
        """The seconds or steps of the next trial of a rung that ends at a fraction of the budget."""
        if self.budget.in_steps:
            return fraction * self.budget.amount / trials
        return (end * self.budget.amount - self.clock.seconds) / trials_left

    def _too_many(self, trials, remaining):
        """Whether the first rung has no time for a further candidate; at least three are tried."""
        if self.budget.in_steps:
            return (len(trials) + 1) * MINIMUM_STEPS > RUNGS[0] * self.budget.amount
        longest = max(trial.seconds for trial in trials)
        if len(trials) < MINIMUM_CANDIDATES:
            needed = MINIMUM_CANDIDATES * longest / RUNGS[0]
            if needed > 1.5 * self.budget.amount:
                raise ValueError(
                    f"Expected a budget in which {MINIMUM_CANDIDATES} candidates can be tried. Received: "
                    f"{duration(self.budget.amount)}; one takes {duration(longest)} here. Try: a budget of at least {duration(needed)}"
                )
            return False
        return self.clock.seconds + longest / 2 > RUNGS[0] * self.budget.amount

    def _trial(self, candidate, rung, share):
        """Trains and evaluates a candidate within a share of the budget, or reads the finished trial."""
        if stored := self.store.read(candidate, rung):
            self.trials.append(stored)
            return stored
        begin = self.clock.seconds
        trainer = self._trainer(candidate)
        if self.budget.in_steps or not candidate.learning_rate:
            steps = max(MINIMUM_STEPS, round(share)) if candidate.learning_rate else MINIMUM_STEPS
        else:
            if not trainer.seconds_per_step:
                trainer.train(self.start_weights, MINIMUM_STEPS)
            left = share - (self.clock.seconds - begin) - len(QUICK_COEFFICIENTS) * self._seconds_of_evaluation
            steps = max(MINIMUM_STEPS, int(left / trainer.seconds_per_step))
        try:
            weights = trainer.train(self.start_weights, steps)
        except TrainingDiverged:
            self.log(f"{candidate.name}: training diverged.")
            weights = self.start_weights
        coefficients = QUICK_COEFFICIENTS if candidate.learning_rate else (1.0,)
        points = [self._point(candidate, weights, coefficient) for coefficient in coefficients]
        trial = Trial(candidate, rung, steps, self.clock.seconds - begin, weights, points)
        self.store.write(trial, self.clock.seconds)
        self.trials.append(trial)
        best = max(points, key=self._value)
        self.log(
            f"{duration(self.clock.seconds)}  rung {rung + 1}  {candidate.name}: {steps} steps, clean {best.clean:.3f} "
            f"({best.clean - self.start.clean:+.3f}), target {best.target:.3f} ({best.target - self.start.target:+.3f})"
        )
        return trial

    def _trainer(self, candidate):
        if candidate.name not in self._trainers:
            options = {"batch_size": self.batch_size, "seed": self.seed, **self.options}
            self._trainers[candidate.name] = Trainer(self.model, candidate, self.source, **options)
        return self._trainers[candidate.name]

    def _frontier(self):
        """Returns the points of the last two rungs and of the soup, and a function from a point to its weights."""
        last = max((trial.rung for trial in self.trials), default=0)
        chosen = [t for t in self.trials if t.rung >= last - 1 or not t.candidate.learning_rate]
        weights = {f"{trial.candidate.name}, {trial.steps} steps": trial.weights for trial in chosen}
        points = []
        for trial in chosen:
            name = f"{trial.candidate.name}, {trial.steps} steps"
            coefficients = COEFFICIENTS if trial.candidate.learning_rate else (1.0,)
            points += [self._point(trial.candidate, trial.weights, c, name, trial.points) for c in coefficients]
        ranked = sorted((t for t in chosen if not t.candidate.control and t.candidate.learning_rate), key=self._score, reverse=True)[:SOUP]
        if len(ranked) > 1:
            members, soup, _ = greedy_soup([t.weights for t in ranked], self._soup_value, self._soup_value(ranked[0].weights))
            if len(members) > 1:
                name = "mean of " + " and ".join(f"{ranked[i].candidate.name}, {ranked[i].steps} steps" for i in members)
                weights[name] = soup
                points += [Point(name, c, self._evaluate(interpolate(self.start_weights, soup, c))) for c in COEFFICIENTS]
        return points, lambda point: interpolate(self.start_weights, weights[point.name], point.coefficient)

    def _point(self, candidate, weights, coefficient, name="", known=()):
        for point in known:
            if point.coefficient == coefficient:
                return dataclasses.replace(point, name=name or point.name)
        outcome = self._evaluate(interpolate(self.start_weights, weights, coefficient))
        return Point(name or candidate.name, coefficient, outcome, candidate.control)

    def _value(self, point):
        """The target, reduced by what the clean accuracy exceeds its allowed loss by."""
        return point.target - max(0.0, self.start.clean - self.max_clean_loss - point.clean)

    def _score(self, trial):
        return max(self._value(point) for point in trial.points)

    def _soup_value(self, weights):
        return self._value(Point("", 1.0, self._evaluate(weights)))

    def _evaluate(self, weights) -> Outcome:
        self.model.set_weights(weights)
        if self._network is None:
            network = methods.METHODS["cross_entropy"](self.model, **self.options).network
            self._network = tf.function(lambda images: network(images, training=False)["logits"], reduce_retracing=True)
        begin = self.clock.seconds
        outcome = self.validation.evaluate(self._network)
        self._seconds_of_evaluation = self.clock.seconds - begin
        return outcome


class TrialStore:
    """Finished trials on disk, a file each.

    Args:
        folder: of the files; empty: nothing is stored.
    """

    def __init__(self, folder: str):
        self.folder = folder
        if folder:
            os.makedirs(folder, exist_ok=True)

    @property
    def seconds(self) -> float:
        """Seconds of the search up to the last stored trial."""
        if not self.folder:
            return 0.0
        files = [os.path.join(self.folder, name) for name in os.listdir(self.folder) if name.endswith(".json")]
        return max((read_json(file)["search_seconds"] for file in files), default=0.0)

    def read(self, candidate: Candidate, rung: int) -> Trial | None:
        """Returns the stored trial of a candidate in a rung, or None."""
        path = self._path(candidate, rung)
        if not self.folder or not os.path.exists(path + ".json"):
            return None
        content = read_json(path + ".json")
        with np.load(path + ".npz") as file:
            weights = [file[f"weight_{i}"] for i in range(content["weights"])]
            outcomes = [Outcome(file[f"clean_{i}"], file[f"target_{i}"]) for i in range(len(content["coefficients"]))]
        points = [Point(candidate.name, c, o, candidate.control) for c, o in zip(content["coefficients"], outcomes)]
        return Trial(candidate, rung, content["steps"], content["seconds"], weights, points)

    def write(self, trial: Trial, search_seconds: float) -> None:
        """Stores a trial. search_seconds: of the search so far."""
        if not self.folder:
            return
        path = self._path(trial.candidate, trial.rung)
        arrays = {f"weight_{i}": weight for i, weight in enumerate(trial.weights)}
        for i, point in enumerate(trial.points):
            arrays |= {f"clean_{i}": point.outcome.clean, f"target_{i}": point.outcome.target}
        with atomic_file(path + ".npz", "wb") as file:
            np.savez(file, **arrays)
        content = {"steps": trial.steps, "seconds": trial.seconds, "search_seconds": search_seconds, "weights": len(trial.weights)}
        write_json(path + ".json", {**content, "coefficients": [point.coefficient for point in trial.points]})

    def _path(self, candidate, rung):
        return os.path.join(self.folder, f"{rung}-{re.sub('[^A-Za-z0-9.]+', '_', candidate.name)}")
