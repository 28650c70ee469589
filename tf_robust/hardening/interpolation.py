"""Weights between models: WiSE-FT (Wortsman et al., 2022a) and greedy soups (Wortsman et al., 2022b).

Weights are lists of arrays in the order of `keras.Model.get_weights`, which include batch norm's moving averages: these are interpolated
as well. Integers, such as the states of random generators, are those of the first model.
"""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

Weights = Sequence[np.ndarray]


def interpolate(start: Weights, end: Weights, coefficient: float) -> list[np.ndarray]:
    """Returns (1 - coefficient) * start + coefficient * end (WiSE-FT, section 3).

    Args:
        start: of the first model.
        end: of the second model, with the same shapes.
        coefficient: 0 gives the first model, 1 the second.

    Raises:
        ValueError: different shapes.
    """
    return average([start, end], [1.0 - coefficient, coefficient])


def average(models: Sequence[Weights], fractions: Sequence[float] | None = None) -> list[np.ndarray]:
    """Returns the weighted mean of the weights of models of one architecture.

    Args:
        models: the weights of each.
        fractions: one number per model, with sum 1; None: equal ones.

    Raises:
        ValueError: different shapes, or other numbers of fractions.
    """
    fractions = [1.0 / len(models)] * len(models) if fractions is None else fractions
    if len(fractions) != len(models):
        raise ValueError(f"Expected {len(models)} fractions. Received: {len(fractions)}")
    for weights in models[1:]:
        if [np.shape(x) for x in weights] != [np.shape(x) for x in models[0]]:
            raise ValueError("Expected models of one architecture. Received: weights of different shapes")
    return [_mean(values, fractions) for values in zip(*models)]


def greedy_soup(models: Sequence[Weights], score: Callable[[Weights], float], best: float) -> tuple[list[int], list[np.ndarray], float]:
    """Returns the greedy soup of models (Wortsman et al., 2022b, recipe 1).

    Args:
        models: the weights of each, the best model first.
        score: of weights, on validation images; larger is better.
        best: the score of the first model.

    Returns:
        (positions of the members, their mean weights, its score)
    """
    members, soup = [0], list(models[0])
    for position in range(1, len(models)):
        tried = average([models[i] for i in (*members, position)])
        if (value := score(tried)) >= best:
            members, soup, best = [*members, position], tried, value
    return members, soup, best


def _mean(values, fractions):
    first = np.asarray(values[0])
    if not tf.as_dtype(first.dtype).is_floating:  # also of bfloat16
        return first
    return sum(fraction * np.asarray(value, np.float64) for fraction, value in zip(fractions, values)).astype(first.dtype)
