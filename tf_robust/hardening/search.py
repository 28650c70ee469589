"""Search for a more robust model within a budget: successive halving (Jamieson and Talwalkar, 2016) over recipes, then over their settings.

All recipes are fine-tuned from the initial model's weights for a short time, then the best two and variations of them, then the best two
settings for long, beside plain fine-tuning as the control. A candidate of an earlier rung goes on where it ended, so that all candidates of
a rung have been trained for as long at its end. A budget too short for three rungs has one, with as many recipes as it has time for. The
frontier of clean accuracy against the target consists of interpolations of the best trials with the initial model, and of their mean (a
soup).
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tf_robust.hardening.candidates import Candidate, variations
from tf_robust.hardening.config import Budget
from tf_robust.hardening.target import Outcome
from tf_robust.hardening.training import State, Trainers, Weights, greedy_soup, interpolate
from tf_robust.hardening.trials import Member, Point, Trial, TrialStore, attainable, best_point, merit
from tf_robust.metrics.paired import paired_difference
from tf_robust.training.loop import TrainingDiverged
from tf_robust.utils import progress
from tf_robust.utils.progress import duration

RUNGS = (0.25, 0.25, 0.4)  # fractions of the search; the rest is for the frontier
ONE_RUNG = (0.9,)  # of a search that is too short for three
FINALISTS = 2  # candidates of the last rung, besides the control
LONGER = 1.5  # a trial of the second rung is at least this times as long as one of the first
MINIMUM_STEPS = 20
MINIMUM_CANDIDATES = 3  # in the first of three rungs; in a single one two
ROOM = 2.0  # a trial of a single rung has this times the shortest time, if there are fewer recipes then
QUICK_COEFFICIENTS = (0.5, 1.0)  # interpolations of every trial
MAX_CONTROL_LOSS = 0.04  # of clean accuracy by plain fine-tuning: above it the learning rate is lowered
SLOW = 2.0  # a recipe whose shortest trial takes more than this times its share is tried last; a short trial may take this times its time
LOWER_RATES = 2  # how often; as often before the first trial, if its loss rises at once
COEFFICIENTS = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)  # interpolations of the frontier
SOUP = 3  # maximum number of members


@dataclasses.dataclass(eq=False)
class Search:
    """Trains candidates on the training images and ranks them on the validation images."""

    trainers: Trainers
    evaluate: Callable[[Weights], Outcome]  # on the validation images
    candidates: Sequence[Candidate]  # the control, then recipes, the most promising first
    _: dataclasses.KW_ONLY
    budget: Budget  # its end, on the clock, if it is a time
    begin: float = 0.0  # seconds on the clock when the search began
    shortest: float = MINIMUM_STEPS  # seconds (or steps) of the shortest trial of plain fine-tuning
    max_clean_loss: float  # what a candidate loses more counts against it
    store: TrialStore
    clock: Callable[[], float]  # seconds of the search, including those of interrupted processes
    log: Callable[[str], object]  # called with lines of progress
    record: Callable[[Mapping[str, float], int], object] = lambda values, seconds: None  # called with the accuracies of each trial
    has_batch_norm: bool = True  # whether the model has batch normalization that is trained
    has_layers: bool = True  # whether its layers can be frozen one by one

    def __post_init__(self):
        self.trials: list[Trial] = []  # finished ones, in their order
        self.length = self.budget.amount - self.begin
        trials = RUNGS[0] * self.length / self.shortest  # in the first of three rungs
        self.rungs = RUNGS if trials >= MINIMUM_CANDIDATES else ONE_RUNG
        if self.budget.in_steps and self.rungs is RUNGS:
            self.candidates = self.candidates[: int(trials)]
        if self.rungs is ONE_RUNG:
            cheap = sorted(self.candidates[1:], key=lambda candidate: candidate.cost)
            count = max(1, int(ONE_RUNG[0] * self.length / (ROOM * self.shortest)) - 1)
            self.candidates = [self.candidates[0], *cheap[:count]]
        with self._reporting("evaluating the initial model on the validation images"):
            begin = self.clock()
            self.start = Point(self.evaluate(self.trainers.start))  # the initial model
        self.seconds_of_evaluation = self.clock() - begin

    def run(self) -> None:
        """Runs the search, or what is left of it; raises ValueError if the model suits none of the recipes."""
        count = len(self.candidates) - 1
        trials = f"plain fine-tuning and {count} recipe{'s' * (count > 1)}"
        trials += ", or as many as there is time for" * (count > 1 and not self.budget.in_steps)
        if self.rungs is ONE_RUNG:
            self.log(f"One rung, since the budget is too short for three: {trials}.")
            self._first_rung()
            return
        self.log(f"Rung 1 of 3: {trials}, each for a short time.")
        recipes = self._first_rung()
        self.log("Rung 2 of 3: the best two recipes and variations of them.")
        settings = self._rung(1, self._settings(recipes))
        self.log("Rung 3 of 3: plain fine-tuning as the control, and the best two of these, for longer.")
        control = max((trial for trial in recipes if trial.candidate.control), key=self._rank)  # at its own best rate
        self._rung(2, [trial.candidate for trial in (control, *self.ranked(settings)[:FINALISTS])])  # two of the second rung go on

    def ranked(self, trials: Sequence[Trial]) -> list[Trial]:
        """Returns trials without controls, the best first."""
        return sorted((trial for trial in trials if not trial.candidate.control), key=self._rank, reverse=True)

    def _rank(self, trial):
        return self.score(trial.points), max(merit(self.start, point, self.max_clean_loss) for point in trial.points)

    def finalists(self) -> list[Trial]:
        """Returns the best trials of the latest rung and of the one before, and the latest control; weights of others are deleted."""
        last = max((trial.rung for trial in self.trials), default=0)
        best = [self.ranked([trial for trial in self.trials if trial.rung == rung])[:FINALISTS] for rung in (last, last - 1)]
        return [*best[0], *best[1], *[trial for trial in self.trials if trial.candidate.control][-1:]]

    def attainable(self, points: Sequence[Point]) -> tuple[float, float]:
        """Returns the best (target, coefficient) within the maximum clean loss; see `trials.attainable`."""
        return attainable(self.start, points, self.max_clean_loss)

    def score(self, points: Sequence[Point]) -> float:
        """Returns the target that interpolations of one fine-tuned model attain within the maximum clean loss."""
        return self.attainable(points)[0]

    def _first_rung(self):
        """Trains the control, at a lower learning rate if it harms the model, and as many recipes as the rung has time for."""
        (control, *recipes), end = self.candidates, self.begin + self.rungs[0] * self.length
        with self._reporting("looking for a stable learning rate"):
            for _ in range(LOWER_RATES):
                if self.trainers.is_stable(control):
                    break
                control = self._slower(control)
                self.log(f"The loss of plain fine-tuning rises within a few steps: its learning rate is {control.learning_rate:g}.")
        trials = [self._trial(control, 0, self._share(0, self.candidates))]
        for _ in range(LOWER_RATES):
            if not trials[-1].diverged and not self._is_harmed(trials[-1].points[-1]):
                break
            rate, control = control.learning_rate, self._slower(control)
            self.log(f"Plain fine-tuning at learning rate {rate:g} harms the model: recipes have {control.learning_rate:g}.")
            trials.append(self._trial(control, 0, self._share(0, [control, *recipes])))
        recipes = [dataclasses.replace(recipe, learning_rate=control.learning_rate) for recipe in recipes]
        if not self.budget.in_steps:  # those that take much longer than their share come last, if at all
            shortest = {recipe.name: self._shortest(recipe, control) for recipe in recipes}
            share = self._share(0, recipes)
            recipes.sort(key=lambda recipe: shortest[recipe.name] if shortest[recipe.name] > SLOW * share else 0.0)
        enough = MINIMUM_CANDIDATES - 1 if self.rungs is RUNGS else 1
        for number, recipe in enumerate(recipes):
            is_over = not self.budget.in_steps and self.clock() + shortest[recipe.name] > end
            if number >= enough and is_over and not self.store.read(recipe, 0):
                continue
            trials.append(self._trial(recipe, 0, self._share(0, recipes[number:])))
        trials = [trial for trial in trials if trial]
        if trials[-1].candidate.control:
            raise ValueError("Expected a model that one of the recipes can train. Received: one that suits none, as stated above")
        return trials

    def _is_harmed(self, point):
        """Whether a model has lost clean accuracy, more than a little and significantly: with few images some are lost by chance."""
        change = paired_difference(point.outcome.clean, self.start.outcome.clean)
        return -change["mean"] > MAX_CONTROL_LOSS and change["high"] is not None and change["high"] < 0

    def _shortest(self, candidate, control):
        """Seconds of the shortest trial of a candidate, estimated by a step of plain fine-tuning."""
        step = self.trainers.seconds_per_step(control) * candidate.cost / control.cost
        return MINIMUM_STEPS * step + len(QUICK_COEFFICIENTS) * self.seconds_of_evaluation

    def _slower(self, candidate):
        rate = candidate.learning_rate / 4
        return dataclasses.replace(candidate, learning_rate=rate, variation=f"learning rate {rate:g}")

    def _rung(self, rung, candidates):
        trials = [self._trial(one, rung, self._share(rung, candidates[number:])) for number, one in enumerate(candidates)]
        return [trial for trial in trials if trial]

    def _settings(self, recipes):
        """The candidates of the second rung: the best two recipes as they are, then variations, two of the best for each of the second."""
        chosen = [trial.candidate for trial in self.ranked(recipes)[:2]]
        pools = [variations(one, has_batch_norm=self.has_batch_norm, has_layers=self.has_layers) for one in chosen]
        while any(pools):
            for pool, count in zip(pools, (2, 1)):
                chosen += pool[:count]
                del pool[:count]
        length = float(np.mean([trial.steps if self.budget.in_steps else trial.seconds for trial in recipes]))
        return chosen[: max(2, int(RUNGS[1] * self.length / (LONGER * length)))]

    def _share(self, rung, candidates):
        """The seconds or steps that the next of a rung's candidates may take, so that it ends in time and all are trained for as long."""
        if self.budget.in_steps:
            left = self.rungs[rung] * self.length - sum(trial.parts[-1] for trial in self.trials if trial.rung == rung)
        else:
            left = self.begin + sum(self.rungs[: rung + 1]) * self.length - self.clock()
        earlier = [self._earlier(candidate, rung) for candidate in candidates]
        before = [0.0 if trial is None else trial.steps if self.budget.in_steps else trial.seconds for trial in earlier]
        return max(0.0, (max(0.0, left) + sum(before)) / len(candidates) - before[0])

    def _earlier(self, candidate, rung):
        """The trial that a candidate continues: its latest in an earlier rung; None: there is none."""
        trials = [trial for trial in self.trials if trial.candidate == candidate and trial.rung < rung and not trial.diverged]
        return trials[-1] if trials and self.store.has_state(trials[-1]) else None

    def _trial(self, candidate, rung, share):
        """Reads the finished trial of a candidate, or trains and evaluates it within a part of the budget.

        Returns None if the model does not suit it, such as frozen batch norm if it trains nothing else.
        """
        if stored := self.store.read(candidate, rung):
            self.trials.append(stored)
            return stored
        earlier = self._earlier(candidate, rung)
        before, seconds = (earlier.parts, earlier.seconds) if earlier else ((), 0.0)
        begin, steps, diverged = self.clock(), 0, False
        try:
            with self._reporting(f"building the graph of {candidate.name}"):
                steps, allowed = self._steps(candidate, share)
            with self._reporting(f"training {candidate.name}"):
                state = self.trainers.train(candidate, steps, self.store.state(earlier) if earlier else None, allowed)
                steps = state.steps - sum(before)
        except TrainingDiverged:
            state, diverged = State(self.trainers.start, [], 0), True
        except ValueError as error:
            if candidate.control:
                raise
            self.log(f"{candidate.name} is left out: {error}")
            return None
        members = (Member(candidate, (*before, steps), rung),)
        trained = self.clock()
        with self._reporting(f"evaluating {candidate.name}"):
            models = [interpolate(self.trainers.start, state.weights, coefficient) for coefficient in QUICK_COEFFICIENTS]
            points = tuple(Point(self.evaluate(one), c, members) for one, c in zip(models, QUICK_COEFFICIENTS))
        self.seconds_of_evaluation = (self.clock() - trained) / len(points)
        trial = Trial(candidate, rung, (*before, steps), seconds + self.clock() - begin, points, diverged)
        self.store.write(trial, state, self.clock())
        self.log(f"{self._time()}  {candidate.name}: {self._describe(trial)}")
        self.trials.append(trial)
        best = best_point(self.start, points, self.max_clean_loss)
        values = {"clean": best.clean, "target": best.target, "best target so far": max(self.score(one.points) for one in self.trials)}
        self.record(values, round(self.clock()))
        self.store.delete_weights_except(self.finalists())
        return trial

    def _reporting(self, text):
        """Context in which a line is logged every ten seconds: what runs, what is left, and the best so far."""

        def line():
            left = "" if self.budget.in_steps else f", {duration(max(0.0, self.budget.amount - self.clock()))} left"
            best = f", best target so far {max(map(self.score, [one.points for one in self.trials])):.3f}" if self.trials else ""
            return f"{self._time()}  {text}{left}{best}"

        return progress.repeated(line, self.log)

    def _time(self):
        minutes, seconds = divmod(int(self.clock()), 60)
        return f"{minutes:>4}:{seconds:02}"

    def _steps(self, candidate, share):
        """The number of steps that fit into a part of the budget, at least a few, and the seconds after which training ends."""
        if self.budget.in_steps:
            return max(MINIMUM_STEPS, round(share)), math.inf
        begin = self.clock()
        per_step = self.trainers.seconds_per_step(candidate)
        left = share - (self.clock() - begin) - len(QUICK_COEFFICIENTS) * self.seconds_of_evaluation
        return max(MINIMUM_STEPS, int(left / per_step)), max(left, SLOW * MINIMUM_STEPS * per_step)

    def _describe(self, trial):
        """The text of a line of progress, before the trial is one of `trials`."""
        if trial.diverged:
            return "training diverged"
        best, score, start = best_point(self.start, trial.points, self.max_clean_loss), self.score(trial.points), self.start
        leads = score > max([start.target, *(self.score(one.points) for one in self.trials)])
        weights = f", interpolation coefficient {best.coefficient:g}" if best.coefficient < 1 else ""
        allowed = f"; about {score - start.target:+.3f} at the maximum clean loss" if abs(score - best.target) > 5e-4 else ""
        return (
            f"{trial.steps} steps{weights}, clean {best.clean:.3f} ({best.clean - start.clean:+.3f}), "
            f"target {best.target:.3f} ({best.target - start.target:+.3f}{allowed}){'; the best so far' * leads}"
        )


class Frontier:
    """Points of the frontier of a finished or interrupted search, with their outcomes on the validation images, and their weights.

    It begins with the points of the trials, which need no further evaluation.
    """

    def __init__(self, search: Search):
        self.search, self.start = search, search.trainers.start
        self.trials = [trial for trial in search.finalists() if not trial.diverged]
        self.points: list[Point] = [point for trial in self.trials for point in trial.points]
        self._ends: dict[str, Weights] = {trial.points[-1].line: search.store.weights(trial) for trial in self.trials}  # fine-tuned models
        self._reestimated: dict[Point, Weights] = {}
        self._evaluations, self._recorded = 0, search.store.frontier_evaluations

    def weights(self, point: Point) -> Weights:
        """Returns the weights of a point."""
        if point.reestimated:
            return self._reestimated[point]
        return interpolate(self.start, self._ends[point.line], point.coefficient) if point.members else list(self.start)

    def build(self, reestimate: Callable[[Weights], Weights] | None) -> None:
        """Adds points in the order of their promise while there is time.

        `reestimate` returns weights with moving averages estimated anew; None: the model has no batch normalization.
        """
        with self.search._reporting("evaluating interpolations of the best models"):
            self._build(reestimate)

    def _build(self, reestimate):
        search = self.search
        best = [trial.points[-1] for trial in search.ranked(self.trials)[:SOUP]]
        soup = self._soup(best) if len(best) > 1 and self._in_time() else []
        orders = [(members, self._order(members)) for members in [*soup, *(trial.points[-1].members for trial in self.trials)]]
        for number in range(len(COEFFICIENTS)):
            for members, coefficients in orders:
                known = any(point.members == members and point.coefficient == coefficients[number] for point in self.points)
                if not known and self._in_time():
                    point = Point(search.start.outcome, coefficients[number], members)
                    self.points.append(dataclasses.replace(point, outcome=search.evaluate(self.weights(point))))
        if reestimate and self.points and self._in_time():
            for point in (max(self.points, key=lambda point: search.score([point])), search.start):
                weights = reestimate(self.weights(point))
                self.points.append(dataclasses.replace(point, reestimated=True, outcome=search.evaluate(weights)))
                self._reestimated[self.points[-1]] = weights
        search.store.finish(self._evaluations)

    def _in_time(self):
        """Whether the budget allows a further evaluation, which is counted; of a finished frontier as many as were recorded."""
        search = self.search
        in_time = search.budget.in_steps or search.clock() + search.seconds_of_evaluation < search.budget.amount
        allowed = in_time if self._recorded is None else self._evaluations < self._recorded
        self._evaluations += allowed
        return allowed

    def _order(self, members):
        """The coefficients nearest to the best allowed one first, as far as known."""
        points = [point for point in self.points if point.members == members]
        best = self.search.attainable(points)[1] if points else 1.0
        return sorted(COEFFICIENTS, key=lambda coefficient: (abs(coefficient - best), -coefficient))

    def _soup(self, ends):
        """The members of the greedy soup of fine-tuned models, in a list, which is empty if the first is better alone."""

        def score(weights):
            return self.search.score([Point(self.search.evaluate(weights))])

        positions, weights = greedy_soup([self._ends[point.line] for point in ends], score, self.search.score([ends[0]]))
        if len(positions) < 2:
            return []
        members = tuple(member for i in positions for member in ends[i].members)
        self._ends[Point(ends[0].outcome, 1.0, members).line] = weights
        return [members]
