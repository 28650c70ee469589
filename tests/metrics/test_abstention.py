"""Thresholds of abstention: numbers of examples, and their guarantee in simulation."""

import itertools

import numpy as np
import pytest
import scipy.stats

from tf_robust import metrics


def _outcomes(count, seed, calibration=1.0):
    """(confidences, correct) of a model whose accuracy at confidence c is c^calibration."""
    random = np.random.default_rng(seed)
    confidences = random.beta(4, 1, size=count)
    return confidences, random.random(count) < confidences**calibration


def _true_accuracy(threshold):
    grid = np.linspace(threshold, 1, 20001)
    return np.average(grid, weights=scipy.stats.beta.pdf(grid, 4, 1))


def test_examples_needed_are_the_fewest():
    for accuracy, expected in ((0.95, 59), (0.9, 29), (0.99, 299), (0.5, 5)):
        count = metrics.examples_needed(accuracy)
        assert count == expected
        assert metrics.clopper_pearson_lower(count, count) >= accuracy > metrics.clopper_pearson_lower(count - 1, count - 1)


def test_threshold_is_the_last_certified_one_of_a_loop():
    first, second = _outcomes(2000, 1), _outcomes(2000, 2)
    found = metrics.accuracy_threshold(first, second, 0.9)
    candidates = sorted(set(np.quantile(first[0], np.arange(200) / 200, method="higher")), reverse=True)

    def p_value(outcomes, threshold):
        count, correct = _counts(outcomes, threshold)
        return scipy.stats.binomtest(correct, count, 0.9, alternative="greater").pvalue

    best = np.argmin([p_value(first, threshold) for threshold in candidates])
    *_, expected = itertools.takewhile(lambda threshold: p_value(second, threshold) <= 0.05, candidates[best:])
    assert found.value == expected
    assert (found.answered, found.correct) == _counts(second, expected) == metrics.answered(*second, expected)
    assert found.low >= 0.9


def _counts(outcomes, threshold):
    above = outcomes[0] >= threshold
    return int(above.sum()), int(outcomes[1][above].sum())


@pytest.mark.parametrize("constant", [False, True])
def test_guarantee_holds_in_simulation(constant):
    """Where all thresholds have an accuracy slightly too low, any that is found is a failure."""
    trials, failures, found = 400, 0, 0
    for seed in range(trials):
        parts = [_constant(150, part) if constant else _outcomes(150, part) for part in (2 * seed, 2 * seed + 1)]
        try:
            threshold = metrics.accuracy_threshold(*parts, 0.85)
        except ValueError:
            continue  # abstains always
        found += 1
        failures += constant or _true_accuracy(threshold.value) < 0.85
    assert constant or found > trials / 2
    assert 0 < failures <= scipy.stats.binom.ppf(0.999, trials, 0.05)


def _constant(count, seed):
    """Outcomes whose confidences carry no information."""
    random = np.random.default_rng(seed)
    return random.random(count), random.random(count) < 0.8499


def test_the_simulation_notices_an_invalid_choice():
    """Any threshold that passes its own test, without a correction for how many are tested."""
    trials, failures = 200, 0
    for seed in range(trials):
        confidences, correct = _constant(300, seed)
        hits = np.cumsum(correct[np.argsort(-confidences)])
        failures += bool((metrics.clopper_pearson_lower(hits, np.arange(1, 301)) >= 0.85).any())
    assert failures > scipy.stats.binom.ppf(0.999, trials, 0.05)


def test_too_few_examples_and_unreachable_accuracies_are_named():
    with pytest.raises(ValueError, match="at least 118 .* Received: 100"):
        metrics.accuracy_threshold(_outcomes(50, 0), _outcomes(50, 1), 0.95)
    first, second = _outcomes(1000, 0, 3.0), _outcomes(1000, 1, 3.0)
    with pytest.raises(ValueError, match=r"the highest that is met is 0\.\d{3}") as error:
        metrics.accuracy_threshold(first, second, 0.99)
    highest = float(str(error.value).partition("met is ")[2][:5])
    assert metrics.accuracy_threshold(first, second, highest).low >= highest
    with pytest.raises(ValueError):
        metrics.accuracy_threshold(first, second, highest + 0.001)
    with pytest.raises(ValueError, match=r"accuracy in \(0, 1\)"):
        metrics.accuracy_threshold(first, second, 1.0)
