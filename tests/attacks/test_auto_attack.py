"""AutoAttack against its members one after the other, closed forms on linear classifiers, and masked gradients."""

import numpy as np
import pytest
import tensorflow as tf

from tests.attacks.oracles import SHAPE, Linear, Waves, median_radius, sample_images, sizes, wrong
from tf_robust.attacks.auto_attack import AutoAttack
from tf_robust.attacks.auto_pgd import AutoProjectedGradientDescent, TargetedAutoPGD
from tf_robust.attacks.criterion import Criterion
from tf_robust.attacks.fast_adaptive_boundary import FastAdaptiveBoundary
from tf_robust.attacks.square import Square


@pytest.mark.slow
@pytest.mark.parametrize("norm, classes", [("l2", 4), ("linf", 2)])
def test_result_is_the_worst_of_members_run_in_turn(norm, classes):
    model, radius = Waves(classes), {"linf": 0.02, "l2": 0.06}[norm]
    images = np.random.RandomState(1).uniform(0.1, 0.9, (40, *SHAPE)).astype(np.float32)
    labels, indices = np.argmax(model(images), axis=1), np.arange(100, 140)
    labels[:3] = (labels[:3] + 1) % classes  # misclassified already
    attack = AutoAttack(norm=norm, radius=radius, seed=3, queries=20, steps=5)
    counts, active = [], np.arange(40)
    expected, best = images.copy(), np.full(40, -np.inf)
    for member in attack.members(classes).values():  # whose graphs are traced once for both
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


def test_on_a_linear_classifier_it_succeeds_where_possible():
    model = Linear(classes=4)
    images, labels, distances, radius = median_radius(model, "linf", 48)
    attacked = AutoAttack(radius=radius, queries=200)(model, images, labels).numpy()
    assert sizes(attacked - images, "linf").max() <= radius * (1 + 1e-5)
    broken = wrong(model, attacked, labels)
    assert not broken[distances > radius].any() and broken[distances < 0.93 * radius].all()


def test_square_breaks_a_model_whose_gradient_points_the_wrong_way():
    model = Linear()
    images, labels = sample_images(model, count=20)
    radius = float(2 * model.distances(images, labels, np.inf).max())

    def masked(x):
        return model(2 * tf.stop_gradient(x) - x)  # the same values, the opposite gradient

    attack = AutoAttack(radius=radius, queries=100, steps=20)
    assert wrong(model, attack.members(2)["apgd_ce"](masked, images, labels), labels).mean() < 0.9
    assert wrong(model, attack(masked, images, labels), labels).all()


MEMBERS = {"apgd_ce": AutoProjectedGradientDescent, "apgd_t": TargetedAutoPGD, "fab_t": FastAdaptiveBoundary, "square": Square}


def test_arguments_reach_every_member():
    attack = AutoAttack(batch_size=3, seed=5, norm="l2", radius=0.25)
    for classes in (2, 3, 4, 1000):
        members = attack.members(classes)
        assert {name: type(member) for name, member in members.items()} == MEMBERS and list(members) == list(MEMBERS)
        for member in members.values():
            assert (member.batch_size, member.seed, member.restarts, member.norm.name, member.radius) == (3, 5, 1, "l2", 0.25)
        assert [members[name].attempts(classes, False) for name in members] == [1, min(9, classes - 1), min(9, classes - 1), 1]
        assert members["apgd_ce"].loss == "cross_entropy"
        assert members["apgd_t"].loss == ("margin" if classes < 4 else "difference_of_logits_ratio")
        assert [member.steps for member in members.values()] == [100, 100, 100, 5000]
    assert [member.steps for member in AutoAttack(steps=5, queries=20).members(4).values()] == [5, 5, 5, 20]
    with pytest.raises(ValueError, match="steps"):
        AutoAttack(queries=0)
