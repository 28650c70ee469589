"""Search for a more robust model within a budget: successive halving (Jamieson and Talwalkar, 2016) over recipes, then over their settings.

In each rung every candidate is fine-tuned from the initial model's weights for an equal part of the rung's budget: first all recipes for a
short time, then variations of the best two, then the best two settings for long, beside plain fine-tuning as the control. The frontier of
clean accuracy against the target consists of interpolations of the best trials with the initial model, and of their mean (a soup).
"""

import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy as np

from tf_robust.hardening.candidates import Candidate, variations
from tf_robust.hardening.config import Budget
from tf_robust.hardening.target import Outcome
from tf_robust.hardening.training import Trainers, Weights, greedy_soup, interpolate
from tf_robust.hardening.trials import Member, Point, Trial, TrialStore, attainable, best_point, line_of, merit
from tf_robust.training.loop import TrainingDiverged
from tf_robust.utils.progress import duration

RUNGS = (0.25, 0.25, 0.4)  # fractions of the budget; the rest is for the frontier
FINALISTS = 2  # candidates of the last rung, besides the control
LONGER = 1.5  # a trial of the second rung is at least this times as long as one of the first
MINIMUM_STEPS = 20
MINIMUM_CANDIDATES = 3
QUICK_COEFFICIENTS = (0.5, 1.0)  # interpolations of every trial
MAX_CONTROL_LOSS = 0.04  # of clean accuracy by plain fine-tuning: above it the learning rate is lowered
LOWER_RATES = 2  # how often
COEFFICIENTS = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)  # interpolations of the frontier
SOUP = 3  # maximum number of members


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


@dataclasses.dataclass(eq=False)
class Search:
    """Trains candidates on the training images and ranks them on the validation images."""

    trainers: Trainers
    evaluate: Callable[[Weights], Outcome]  # on the validation images
    candidates: Sequence[Candidate]  # the control, then recipes, the most promising first
    _: dataclasses.KW_ONLY
    budget: Budget
    max_clean_loss: float  # what a candidate loses more counts against it
    store: TrialStore
    clock: Clock
    has_batch_norm: bool = True  # whether the model has batch normalization that is trained
    has_layers: bool = True  # whether its layers can be frozen one by one
    log: Callable[[str], object] = print

    def __post_init__(self):
        self._most_candidates()  # raises if the budget is too small, before anything is measured
        self.evaluate(self.trainers.start)  # builds its graph
        begin = self.clock.seconds
        self.start = Point(self.evaluate(self.trainers.start))  # the initial model
        self.seconds_of_evaluation = self.clock.seconds - begin
        self.trials: list[Trial] = []  # finished ones, in their order

    def check_budget(self) -> None:
        """Trains for some steps, which changes the weights of the model; raises ValueError if there is no time for three candidates."""
        if self.budget.in_steps or self.store.finished():
            return
        begin = self.clock.seconds
        try:
            per_step = self.trainers.seconds_per_step(self.candidates[1])
        except (ValueError, TrainingDiverged):  # the model does not suit the method, or its training diverges
            per_step = self.trainers.seconds_per_step(self.candidates[0])
        seconds = self.clock.seconds - begin + MINIMUM_STEPS * per_step + len(QUICK_COEFFICIENTS) * self.seconds_of_evaluation
        needed = MINIMUM_CANDIDATES * seconds / RUNGS[0]
        if needed > 1.5 * self.budget.amount:
            raise ValueError(
                f"Expected a budget for at least {MINIMUM_CANDIDATES} candidates in the first rung, which has {RUNGS[0]:.0%} of it. "
                f"Received: {duration(self.budget.amount)}; one candidate takes {seconds:.1f} s. "
                f"Try: a budget of at least {int(np.ceil(needed))}s"
            )

    def run(self) -> None:
        """Runs the search, or what is left of it; raises ValueError if the model suits none of the recipes."""
        most = self._most_candidates() - 1
        count = f"{most} recipes" if self.budget.in_steps else f"as many of {most} recipes as there is time for"
        self.log(f"Rung 1 of 3 (successive halving): plain fine-tuning and {count}, each for a short time.")
        recipes = self._first_rung()
        self.log("Rung 2 of 3: the best two recipes and variations of them.")
        settings = self._rung(1, self._settings(self.ranked(recipes)[:2], recipes))
        self.log("Rung 3 of 3: plain fine-tuning as the control, and the best two of these, for longer.")
        control = max((trial for trial in recipes if trial.candidate.control), key=self._rank).candidate  # at its own best rate
        self._rung(2, [control, *(trial.candidate for trial in self.ranked(settings)[:FINALISTS])])

    def ranked(self, trials: Sequence[Trial]) -> list[Trial]:
        """Returns trials without controls, the best first."""
        return sorted((trial for trial in trials if not trial.candidate.control), key=self._rank, reverse=True)

    def finalists(self) -> list[Trial]:
        """Returns the best trials of the latest rung and of the one before, and the latest control; weights of others are deleted."""
        last = max((trial.rung for trial in self.trials), default=0)
        of_rung = [[trial for trial in self.trials if trial.rung == rung] for rung in (last, last - 1)]
        controls = [trial for trial in self.trials if trial.candidate.control][-1:]
        return [*(trial for trials in of_rung for trial in self.ranked(trials)[:FINALISTS]), *controls]

    def score(self, trial: Trial) -> float:
        """Returns the target that a trial attains without losing more clean accuracy than allowed."""
        return self.attainable(trial.points)[0]

    def _rank(self, trial):
        return self.score(trial), max(merit(self.start, point, self.max_clean_loss) for point in trial.points)

    def value(self, point: Point) -> float:
        """Returns the target that is attained on the straight line from the initial model to a point."""
        return self.attainable([point])[0]

    def attainable(self, points: Sequence[Point]) -> tuple[float, float]:
        """Returns the best (target, coefficient) within the allowed clean loss; see `trials.attainable`."""
        return attainable(self.start, points, self.max_clean_loss)

    def _first_rung(self):
        """Trains the control, at a lower learning rate if it harms the model, and as many recipes as the rung has time for."""
        control, *recipes = self.candidates[: self._most_candidates()]
        share = self._shares(0, len(recipes) + 1)
        trials = [self._trial(control, 0, share(0))]
        for _ in range(LOWER_RATES):
            if not self._harms(trials[-1]):
                break
            rate = trials[-1].candidate.learning_rate / 4
            self.log(f"Plain fine-tuning at learning rate {trials[-1].candidate.learning_rate:g} harms the model: recipes have {rate:g}.")
            control = dataclasses.replace(control, learning_rate=rate, variation=f"learning rate {rate:g}")
            trials.append(self._trial(control, 0, share(0)))
        for number, recipe in enumerate(recipes, start=1):
            candidate = dataclasses.replace(recipe, learning_rate=control.learning_rate)
            if number >= MINIMUM_CANDIDATES and self._is_over(0) and not self.store.read(candidate, 0):
                break
            trials += self._suitable_trial(candidate, 0, share(number))
        if trials[-1].candidate.control:
            raise ValueError("Expected a model that one of the recipes can train. Received: one that suits none, as stated above")
        return trials

    def _rung(self, rung, candidates):
        share, trials = self._shares(rung, len(candidates)), []
        for number, candidate in enumerate(candidates):
            trials += self._suitable_trial(candidate, rung, share(number))
        return trials

    def _suitable_trial(self, candidate, rung, share):
        """The trial of a candidate; none if the model does not suit it, such as frozen batch norm if it trains nothing else."""
        try:
            return [self._trial(candidate, rung, share)]
        except ValueError as error:
            self.log(f"{candidate.name} is left out: {error}")
            return []

    def _settings(self, best, recipes):
        """The candidates of the second rung: the best recipes as they are and with variations, all of the best and one of the second."""
        options = {"has_batch_norm": self.has_batch_norm, "has_layers": self.has_layers}
        pools = [[trial.candidate, *variations(trial.candidate, **options)] for trial in best]
        pools = [pool[:2] if number else pool for number, pool in enumerate(pools)]
        merged = [pools[0].pop(0), *([pools[1].pop(0)] if len(pools) > 1 else [])]
        while any(pools):
            for pool, count in zip(pools, (2, 1)):
                merged += [pool.pop(0) for _ in range(min(count, len(pool)))]
        lengths = [trial.steps if self.budget.in_steps else trial.seconds for trial in recipes]
        return merged[: max(2, int(RUNGS[1] * self.budget.amount / (LONGER * float(np.mean(lengths)))))]

    def _most_candidates(self):
        """The number of candidates in the first rung of a budget in steps."""
        most = int(RUNGS[0] * self.budget.amount / MINIMUM_STEPS) if self.budget.in_steps else len(self.candidates)
        if most < MINIMUM_CANDIDATES:
            raise ValueError(
                f"Expected a budget in which {MINIMUM_CANDIDATES} candidates can be tried. Received: {self.budget.amount:g}steps. "
                f"Try: at least {int(np.ceil(MINIMUM_CANDIDATES * MINIMUM_STEPS / RUNGS[0]))}steps"
            )
        return most

    def _shares(self, rung, count):
        """A function from a trial's number to the seconds or steps it may take, so that the rung ends in time."""
        end = sum(RUNGS[: rung + 1]) * self.budget.amount
        if self.budget.in_steps:
            return lambda number: RUNGS[rung] * self.budget.amount / count
        return lambda number: max(0.0, end - self.clock.seconds) / max(1, count - number)

    def _is_over(self, rung):
        return not self.budget.in_steps and self.clock.seconds > sum(RUNGS[: rung + 1]) * self.budget.amount

    def _harms(self, trial):
        return trial.diverged or self.start.clean - trial.points[-1].clean > MAX_CONTROL_LOSS

    def _trial(self, candidate, rung, share):
        """Trains and evaluates a candidate within a fraction of the budget, or reads the finished trial."""
        if stored := self.store.read(candidate, rung):
            self.trials.append(stored)
            return stored
        self.trials.append(self._new_trial(candidate, rung, share))
        self.store.delete_weights_except(self.finalists())
        return self.trials[-1]

    def _new_trial(self, candidate, rung, share):
        begin, steps, diverged = self.clock.seconds, 0, False
        try:
            steps = self._steps(candidate, share)
            weights = self.trainers.train(candidate, steps)
        except TrainingDiverged:
            weights, diverged = list(self.trainers.start), True
        members = (Member(candidate, steps, rung),)
        points = tuple(Point(self.evaluate(interpolate(self.trainers.start, weights, c)), c, members) for c in QUICK_COEFFICIENTS)
        trial = Trial(candidate, rung, steps, self.clock.seconds - begin, points, diverged)
        self.store.write(trial, weights, self.clock.seconds)
        minutes, seconds = divmod(int(self.clock.seconds), 60)
        self.log(f"{minutes:>4}:{seconds:02}  {candidate.name}: {self._outcome(trial)}")
        return trial

    def _steps(self, candidate, share):
        """The number of steps that fit into a fraction of the budget; at least half of a fraction in time is for training."""
        if self.budget.in_steps:
            return max(MINIMUM_STEPS, round(share))
        begin = self.clock.seconds
        per_step = self.trainers.seconds_per_step(candidate)
        left = share - (self.clock.seconds - begin) - len(QUICK_COEFFICIENTS) * self.seconds_of_evaluation
        return max(MINIMUM_STEPS, int(max(left, share / 2) / per_step))

    def _outcome(self, trial):
        if trial.diverged:
            return "training diverged"
        best, score = best_point(self.start, trial.points, self.max_clean_loss), self.score(trial)
        leads = score > max((self.score(one) for one in self.trials), default=self.start.target) and score > self.start.target
        weights = f", interpolation coefficient {best.coefficient:g}" if best.coefficient < 1 else ""
        allowed = f"; about {score - self.start.target:+.3f} at the allowed clean loss" if abs(score - best.target) > 5e-4 else ""
        return (
            f"{trial.steps} steps{weights}, clean {best.clean:.3f} ({best.clean - self.start.clean:+.3f}), "
            f"target {best.target:.3f} ({best.target - self.start.target:+.3f}{allowed}){'; the best so far' * leads}"
        )


class Frontier:
    """Points of the frontier of a finished or interrupted search, with their outcomes on the validation images, and their weights."""

    def __init__(self, search: Search):
        self.search, self.start = search, search.trainers.start
        self.points: list[Point] = []
        self._ends: dict[str, Weights] = {}  # {line: the fine-tuned model}
        self._reestimated: dict[Point, Weights] = {}
        self._evaluations = 0

    def weights(self, point: Point) -> Weights:
        """Returns the weights of a point."""
        if point.reestimated:
            return self._reestimated[point]
        return interpolate(self.start, self._ends[line_of(point.members)], point.coefficient) if point.members else list(self.start)

    def add_trials(self) -> list[Trial]:
        """Adds the points of the trials, which need no further evaluation, and returns the trials."""
        trials = [trial for trial in self.search.finalists() if not trial.diverged]
        for trial in trials:
            self._ends[trial.points[-1].line] = self.search.store.weights(trial)
            self.points += trial.points
        return trials

    def build(self, reestimate: Callable[[Weights], Weights] | None) -> None:
        """Adds the points of the trials, and others in the order of their promise while there is time.

        `reestimate` returns weights with moving averages estimated anew; None: the model has no batch normalization.
        """
        trials = self.add_trials()
        recorded = self.search.store.frontier_evaluations
        ranked = self.search.ranked(trials)[:SOUP]
        soup = self._soup([trial.points[-1] for trial in ranked]) if len(ranked) > 1 and self._in_time(recorded) else ()
        lines = [*([soup] if soup else []), *(trial.points[-1].members for trial in trials)]
        ordered = [(members, self._ordered_coefficients(members)) for members in lines]
        for number in range(len(COEFFICIENTS)):
            for members, coefficients in ordered:
                known = any(point.members == members and point.coefficient == coefficients[number] for point in self.points)
                if not known and self._in_time(recorded):
                    self._add(Point(self.search.start.outcome, coefficients[number], members))
        if reestimate and self.points and self._in_time(recorded):
            for point in (max(self.points, key=self.search.value), self.search.start):
                self._add(dataclasses.replace(point, reestimated=True), reestimate(self.weights(point)))
        self.search.store.finish(self._evaluations)

    def _in_time(self, recorded):
        """Whether the budget allows a further evaluation, which is counted; of a finished frontier as many as were recorded."""
        search = self.search
        in_time = search.budget.in_steps or search.clock.seconds + search.seconds_of_evaluation < search.budget.amount
        allowed = in_time if recorded is None else self._evaluations < recorded
        self._evaluations += allowed
        return allowed

    def _ordered_coefficients(self, members):
        """The coefficients nearest to the best allowed one first, as far as known."""
        points = [point for point in self.points if point.members == members]
        best = self.search.attainable(points)[1] if points else 1.0
        return sorted(COEFFICIENTS, key=lambda coefficient: (abs(coefficient - best), -coefficient))

    def _soup(self, ends):
        """The members of the greedy soup of fine-tuned models; none if the first is better alone."""

        def score(weights):
            return self.search.value(Point(self.search.evaluate(weights)))

        members, weights = greedy_soup([self._ends[point.line] for point in ends], score, self.search.value(ends[0]))
        if len(members) < 2:
            return ()
        soup = tuple(member for i in members for member in ends[i].members)
        self._ends[line_of(soup)] = weights
        return soup

    def _add(self, point, weights=None):
        """Evaluates a point and adds it."""
        point = dataclasses.replace(point, outcome=self.search.evaluate(self.weights(point) if weights is None else weights))
        if weights is not None:
            self._reestimated[point] = weights
        self.points.append(point)
