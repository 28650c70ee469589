"""What methods, attacks and corruptions of users return is checked: a mistake there would give a wrong number."""

import numpy as np
import pytest
import tensorflow as tf

from tests.methods.test_keras_fit import X, Y, fit_of, functional
from tf_robust import attacks, methods
from tf_robust.corruptions import Corruption
from tf_robust.ops.draws import Draws

IMAGES = np.random.RandomState(0).uniform(0.3, 0.7, [6, 8, 8, 3]).astype(np.float32)
LABELS = np.zeros(6, int)


def logits(images):
    mean = tf.reduce_mean(images, axis=[1, 2, 3])
    return tf.stack([mean, 1 - mean + 0.05], axis=1)


class Shift(attacks.Attack):
    """Adds a number to all values."""

    def __init__(self, shift, norm=None, radius=None):
        super().__init__(skip_misclassified=False)
        self.shift, self.norm, self.radius = shift, norm, radius

    def perturb(self, predict, images, criterion, seed, indices):
        return images + self.shift


@pytest.mark.parametrize(
    "attack, message",
    [
        (Shift(0.5), r"Expected images in \[0, 1\] from Shift.perturb. Received: from 0.\d+ to 1.1"),
        (Shift(np.nan), "Received: from nan to nan"),
        (Shift(0.2, "linf", 0.1), "Expected images within radius=0.1 from Shift.perturb. Received: one at 0.2"),
        (Shift(0.2, attacks.norms.L2, 0.1), "Received: one at 2.77"),
        (Shift(0.0, "linf", -1.0), "Expected a radius"),
        (Shift(0.0, "linf", 7), "Expected a radius"),
    ],
)
def test_results_of_attacks_are_in_range_and_within_the_radius(attack, message):
    with pytest.raises(ValueError, match=message):
        attack(logits, IMAGES, LABELS)


def test_an_attack_within_its_radius_is_taken_as_it_is():
    attacked = Shift(0.1, "linf", 0.1)(logits, IMAGES, LABELS)
    np.testing.assert_allclose(attacked, IMAGES + 0.1, rtol=0, atol=1e-7)
    assert Shift(0.2)(logits, IMAGES, LABELS).shape == IMAGES.shape  # no radius: the size is free


class Penalty(methods.CrossEntropy):
    """Cross-entropy and a penalty on the squared logits."""

    term_names = ("cross_entropy", "penalty")
    penalty = staticmethod(lambda outputs: tf.reduce_mean(outputs**2, axis=1))

    def loss_terms(self, batch, training):
        terms, outputs = super().loss_terms(batch, training)
        return {**terms, "penalty": self.penalty(outputs)}, outputs


def test_terms_of_a_method_are_those_that_it_names():
    class Forgotten(Penalty):
        term_names = ("cross_entropy",)

    class Misnamed(Penalty):
        term_names = ("cross_entropy", "penalties")

    class Matrix(Penalty):
        penalty = staticmethod(lambda outputs: outputs**2)

    fit_of(Penalty(functional()), X, Y)
    for method in (Forgotten, Misnamed):
        with pytest.raises(ValueError, match=rf"term_names of {method.__name__}, .* Received: \('cross_entropy', 'penalty'\)"):
            fit_of(method(functional()), X, Y)
    with pytest.raises(ValueError, match=r"Expected a term \[N\] or a scalar from Matrix.loss_terms. Received: shape \(.*, 3\)"):
        fit_of(Matrix(functional()), X, Y)


LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5)


@pytest.mark.parametrize(
    "apply, options, message",
    [
        (lambda images, level: images * np.nan, {}, "images of the corruption mine"),
        (lambda images, level: images + level, {"clip": False}, r"Expected images in \[0, 1\] from the corruption mine, or clip=True"),
        (lambda images, level: images[:, :4], {}, "Expected images .* from the corruption mine. Received: .*4, 8, 3"),
    ],
)
def test_images_of_a_corruption_are_checked(apply, options, message):
    corruption = Corruption("mine", apply, levels=LEVELS, **options)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=message):
        corruption(tf.constant(IMAGES), 5)


def test_images_of_a_corruption_are_clipped():
    corrupted = Corruption("mine", lambda images, level: images + level, levels=LEVELS)(tf.constant(IMAGES), 5)
    np.testing.assert_allclose(corrupted, np.minimum(IMAGES + 0.5, 1), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "name, levels", [("mine", LEVELS[:4]), ("mine", (*LEVELS, 0.6)), ("mean15", LEVELS), ("noise", LEVELS), ("a/b", LEVELS)]
)
def test_a_corruption_has_five_levels_and_a_name_of_its_own(name, levels):
    with pytest.raises(ValueError, match="Expected levels of severities 1 to 5|Expected the name of a corruption"):
        Corruption(name, lambda images, level: images, levels=levels)


def test_draws_of_an_own_corruption_follow_its_indices():
    def drawn(draws: Draws, shape, level):
        return {"shift": draws.uniform([], -level, level)}

    mine = Corruption("mine", lambda images, level, shift: images + shift[:, None, None, None], drawn, levels=LEVELS)
    both, last = mine(tf.constant(IMAGES), 2, seed=3), mine(tf.constant(IMAGES[5:]), 2, seed=3, indices=[5])
    np.testing.assert_array_equal(both[5:], last)
    assert len(np.unique((both.numpy() - IMAGES).mean(axis=(1, 2, 3)).round(5))) == 6
