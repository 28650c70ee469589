import numpy as np
import pytest
import scipy.stats

from tf_robust.hardening.candidates import Candidate
from tf_robust.hardening.choice import Member, Point, best_point, choose, merit
from tf_robust.hardening.target import Outcome

NAMES = {name: Candidate(name, "cross_entropy") for name in "abc"}


def _point(clean, target, name="", images=400, seed=0):
    """A point with these accuracies on the same random order of images."""
    order = np.random.default_rng(seed).permutation(images)
    values = [order < clean * images, (order < target * images).astype(np.float64)]
    return Point(Outcome(*values), 0.5 if name else 0.0, (Member(NAMES[name], 10, 0),) if name else ())


def test_the_best_target_within_the_allowed_loss_is_chosen():
    start = _point(0.8, 0.5)
    points = [_point(0.75, 0.9, "a"), _point(0.79, 0.7, "b"), _point(0.82, 0.6, "c")]
    assert choose(start, points, 0.01).point is points[1]
    assert choose(start, points, 0.0).point is points[2]
    assert choose(start, points, 0.05).point is points[0]
    assert choose(start, points[:1], 0.0) is None


def test_a_small_gain_is_not_outside_the_interval_and_needs_more_images():
    random = np.random.default_rng(3)
    before, after = (random.random(200) < 0.5).astype(float), np.empty(200)
    after[:] = before
    after[:12], before[:12] = 1.0, 0.0
    after[12:20], before[12:20] = 0.0, 1.0
    clean = np.ones(200, bool)
    choice = choose(Point(Outcome(clean, before)), [Point(Outcome(clean, after), 1.0, (Member(NAMES["a"], 1, 0),))], 0.0)
    differences = after - before
    half = scipy.stats.t.ppf(0.975, 199) * differences.std(ddof=1) / np.sqrt(200)
    assert choice.target["low"] == pytest.approx(differences.mean() - half)
    assert not choice.helps and choice.target["mean"] == pytest.approx(0.02)
    repeated = np.tile(differences, 100)[: choice.images_needed]
    assert scipy.stats.t.ppf(0.975, len(repeated) - 1) * differences.std(ddof=1) / np.sqrt(len(repeated)) == pytest.approx(0.02, rel=0.02)


def test_a_clear_gain_helps():
    choice = choose(_point(0.8, 0.5), [_point(0.8, 0.7, "a")], 0.0)
    assert choice.helps and not choice.images_needed
    assert choice.target["mean"] == pytest.approx(0.2) and choice.clean["mean"] == 0.0


def test_names():
    members = (Member(NAMES["a"], 1200, 2), Member(NAMES["b"], 30, 0))
    outcome = Outcome(np.ones(1, bool), np.ones(1))
    assert Point(outcome).name == "start"
    assert Point(outcome, 0.75, members[:1]).name == "a (rung 3, 1,200 steps), interpolation coefficient 0.75"
    assert Point(outcome, 1.0, members, True).name == "mean of a (rung 3, 1,200 steps) and b (rung 1, 30 steps), batch norm re-estimated"


def test_points_that_attain_nothing_are_ordered_by_what_they_lose_too_much():
    """Clean 0.8, target 0.5: of two that lose too much at once, the one with the smaller excess for its target is the better."""
    order = (np.arange(1000) + 0.5) / 1000

    def point(clean, target, coefficient):
        return Point(Outcome(order < clean, (order < target).astype(float)), coefficient)

    start, costly, costlier = point(0.8, 0.5, 0.0), point(0.7, 0.49, 0.5), point(0.6, 0.48, 1.0)
    assert merit(start, costly, 0.01) == pytest.approx((0.5, 0.49 - 0.09))
    assert best_point(start, [costlier, costly], 0.01) is costly
    assert best_point(start, [point(0.8, 0.6, 0.5), costly], 0.01).target == pytest.approx(0.6)
