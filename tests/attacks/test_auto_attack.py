"""AutoAttack against its members one after the other, closed forms on linear classifiers, and masked gradients."""

import numpy as np
import pytest
import tensorflow as tf

from tests.attacks.oracles import ORDERS, SHAPE, Linear, sample_images, sizes, wrong
from tf_robust.attacks.auto_attack import AutoAttack
from tf_robust.attacks.auto_pgd import AutoProjectedGradientDescent, TargetedAutoPGD
from tf_robust.attacks.criterion import Criterion
from tf_robust.attacks.fast_adaptive_boundary import FastAdaptiveBoundary
from tf_robust.attacks.square import Square


class Waves:
    """A smooth model on which the members differ: logits V sin(W x)."""

    def __init__(self, classes=4):
        random = np.random.RandomState(0)
        self.weights, self.values = (random.randn(*shape).astype(np.float32) for shape in ((16, 12), (12, classes)))

    def __call__(self, images):
        return tf.sin(3.0 * tf.reshape(images, [-1, 16]) @ self.weights) @ self.values


@pytest.mark.slow
@pytest.mark.parametrize("norm, classes, second", [("l2", 4, "difference_of_logits_ratio"), ("linf", 2, "margin")])
def test_result_is_the_worst_of_members_run_in_turn(norm, classes, second):
    model, radius = Waves(classes), {"linf": 0.02, "l2": 0.06}[norm]
    images = np.random.RandomState(1).uniform(0.1, 0.9, (40, *SHAPE)).astype(np.float32)
    labels, indices = np.argmax(model(images), axis=1), np.arange(100, 140)
    labels[:3] = (labels[:3] + 1) % classes  # misclassified already
    ball = {"norm": norm, "radius": radius, "seed": 3}
    members = [
        AutoProjectedGradientDescent(steps=5, **ball),
        TargetedAutoPGD(steps=5, loss=second, **ball),
        FastAdaptiveBoundary(steps=5, **ball),
        Square(steps=20, **ball),
    ]
    attack = AutoAttack(queries=20, steps=5, **ball)
    own = list(attack.members(classes).values())  # whose graphs are traced once for both
    for one, member in zip(own, members, strict=True):
        assert type(one) is type(member) and {**vars(one), "_compiled": None} == {**vars(member), "_compiled": None}
    counts, active = [], np.arange(40)
    expected, best = images.copy(), np.full(40, -np.inf)
    for member in own:
        attacked = member(model, images[active], labels[active], indices=indices[active]).numpy()
        margins = Criterion(tf.constant(labels[active])).margin(model(attacked)).numpy()
        better = margins > best[active]
        expected[active[better]], best[active] = attacked[better], np.maximum(margins, best[active])
        counts.append(len(active))
        active = active[~wrong(model, attacked, labels[active])]
    assert 40 == counts[0] > counts[1] >= counts[2] >= counts[3] > 0
    attacked = attack(model, images, labels, indices=indices).numpy()
    np.testing.assert_allclose(attacked, expected, atol=1e-6)
    np.testing.assert_array_equal(attacked[:3], images[:3])


@pytest.mark.parametrize("norm, classes", [("linf", 4), ("l2", 2)])  # each traces four members
def test_on_a_linear_classifier_it_succeeds_exactly_where_possible(norm, classes):
    model = Linear(classes=classes)
    images, labels = sample_images(model, count=48)
    distances = model.distances(images, labels, ORDERS[norm])
    radius = float(np.median(distances))
    attacked = AutoAttack(norm=norm, radius=radius, queries=200)(model, images, labels).numpy()
    assert sizes(attacked - images, norm).max() <= radius * (1 + 1e-5)
    broken = wrong(model, attacked, labels)
    assert not broken[distances > radius].any()
    assert broken[distances < (0.99 if classes == 2 else 0.93) * radius].all()


def test_targets_are_reached():
    for classes in (2, 3):  # 4 in `test_attacks`
        model = Linear(classes=classes)
        images, labels = sample_images(model, count=8)
        targets = (labels + 1) % classes
        attacked = AutoAttack(norm="l2", radius=1.5, queries=20)(model, images, labels, targets=targets)
        np.testing.assert_array_equal(np.argmax(model(attacked), axis=1), targets)


def test_square_breaks_a_model_whose_gradient_points_the_wrong_way():
    model = Linear()
    images, labels = sample_images(model, count=20)
    radius = float(2 * model.distances(images, labels, np.inf).max())

    def masked(x):
        return model(2 * tf.stop_gradient(x) - x)  # the same values, the opposite gradient

    misled = AutoProjectedGradientDescent(radius=radius, steps=20)(masked, images, labels).numpy()
    assert wrong(model, misled, labels).mean() < 0.9
    assert wrong(model, AutoAttack(radius=radius, queries=100, steps=20)(masked, images, labels).numpy(), labels).all()


def test_arguments_reach_every_member():
    attack = AutoAttack(batch_size=3, seed=5, norm="l2", radius=0.25)
    for classes in (2, 3, 4, 1000):
        members = attack.members(classes)
        assert list(members) == ["apgd_ce", "apgd_t", "fab_t", "square"]
        for member in members.values():
            assert (member.batch_size, member.seed, member.restarts, member.radius) == (3, 5, 1, 0.25)
        assert [members[name].attempts(classes, False) for name in members] == [1, min(9, classes - 1), min(9, classes - 1), 1]
        assert members["apgd_t"].loss == ("margin" if classes < 4 else "difference_of_logits_ratio")
        assert [member.steps for member in members.values()] == [100, 100, 100, 5000]
    with pytest.raises(ValueError, match="steps"):
        AutoAttack(queries=0)
