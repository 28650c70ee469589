"""The frontier of clean accuracy against the target: interpolations of the best trials with the initial model, and their mean (a soup)."""

import dataclasses
from collections.abc import Callable

import numpy as np

from tf_robust.hardening.choice import Point, line_of
from tf_robust.hardening.interpolation import greedy_soup, interpolate
from tf_robust.hardening.search import Search

COEFFICIENTS = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)
SOUP = 3  # maximum number of members

Weights = list[np.ndarray]


class Allowance:
    """Whether the budget allows a further evaluation, which is counted; of a finished frontier as many as before.

    Args:
        search: has the budget.

    Attributes:
        used: number of evaluations that were allowed.
    """

    def __init__(self, search: Search):
        self.search, self.used, self._recorded = search, 0, search.store.frontier_evaluations

    def __call__(self) -> bool:
        allowed = self._in_time() if self._recorded is None else self.used < self._recorded
        self.used += allowed
        return allowed

    def _in_time(self):
        budget = self.search.budget
        return budget.in_steps or self.search.clock.seconds + self.search.seconds_of_evaluation < budget.amount


class Frontier:
    """Points of the frontier and their weights.

    Args:
        search: a finished or interrupted search.

    Attributes:
        points: with their outcomes on the validation images.
    """

    def __init__(self, search: Search):
        self.search, self.start = search, search.trainers.start
        self.points: list[Point] = []
        self._ends: dict[str, Weights] = {}  # {line: the fine-tuned model}
        self._reestimated: dict[Point, Weights] = {}

    def weights(self, point: Point) -> Weights:
        """Returns the weights of a point."""
        if point.reestimated:
            return self._reestimated[point]
        return interpolate(self.start, self._ends[line_of(point.members)], point.coefficient) if point.members else list(self.start)

    def build(self, reestimate: Callable[[Weights], Weights] | None, in_time: Callable[[], bool]) -> None:
        """Evaluates points in the order of their promise.

        Args:
            reestimate: returns weights with moving averages estimated anew; None: the model has no batch normalization.
            in_time: whether there is time for a further evaluation; the trials' own points need none.
        """
        trials = [trial for trial in self.search.finalists() if not trial.diverged]
        lines = []
        for trial in trials:
            lines.append(trial.points[-1].members)
            self._ends[line_of(lines[-1])] = self.search.store.weights(trial)
            self.points += trial.points
        ranked = self.search.ranked(trials)[:SOUP]
        soup = self._soup([trial.points[-1] for trial in ranked]) if len(ranked) > 1 and in_time() else ()
        ordered = [(members, self._ordered_coefficients(members)) for members in [*([soup] if soup else []), *lines]]
        for number in range(len(COEFFICIENTS)):
            for members, coefficients in ordered:
                if not self._is_known(members, coefficients[number]) and in_time():
                    self._add(Point(self.search.start.outcome, coefficients[number], members))
        if reestimate and self.points and in_time():
            for point in (max(self.points, key=self.search.value), self.search.start):
                self._add(dataclasses.replace(point, reestimated=True), reestimate(self.weights(point)))

    def _ordered_coefficients(self, members):
        """The coefficients nearest to the best allowed one first, as far as known."""
        points = [point for point in self.points if point.members == members]
        best = self.search.attainable(points)[1] if points else 1.0
        return sorted(COEFFICIENTS, key=lambda coefficient: (abs(coefficient - best), -coefficient))

    def _soup(self, ends):
        """The members of the greedy soup of fine-tuned models; none if the first is better alone."""

        def score(weights):
            return self.search.value(Point(self.search.evaluate(weights)))

        models = [self._ends[line_of(point.members)] for point in ends]
        members, weights, _ = greedy_soup(models, score, self.search.value(ends[0]))
        if len(members) < 2:
            return ()
        soup = tuple(member for i in members for member in ends[i].members)
        self._ends[line_of(soup)] = weights
        return soup

    def _is_known(self, members, coefficient):
        return any(point.members == members and point.coefficient == coefficient for point in self.points)

    def _add(self, point, weights=None):
        """Evaluates a point and adds it."""
        point = dataclasses.replace(point, outcome=self.search.evaluate(self.weights(point) if weights is None else weights))
        if weights is not None:
            self._reestimated[point] = weights
        self.points.append(point)
