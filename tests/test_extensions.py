"""What methods, attacks and corruptions of users return is checked: a mistake there would give a wrong number."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_robust as tfr
from tests.methods.users_models import X, Y, fit_of, functional
from tf_robust import attacks, corruptions, methods
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


@pytest.fixture(scope="module")
def brightness_model():
    """Two classes: dark and bright images."""
    inputs = keras.Input([8, 8, 3])
    mean = keras.layers.Flatten()(keras.layers.AveragePooling2D(8)(inputs))
    outputs = keras.layers.Dense(2)(mean)
    model = keras.Model(inputs, outputs)
    model.layers[-1].set_weights([np.array([[-10.0, 10.0]] * 3, np.float32), np.array([15.0, -15.0], np.float32)])
    return model


DATA = np.concatenate([np.full([20, 8, 8, 3], 0.3), np.full([20, 8, 8, 3], 0.7)]).astype(np.float32), np.repeat([0, 1], 20)


def darkened(amount):
    return lambda images, level: images * (1 - amount * level)


def test_a_changed_corruption_is_evaluated_again(brightness_model, monkeypatch):
    """The evaluations of one model and data share records, by the name of the corruption and its code."""

    def accuracy(amount, levels=LEVELS):
        monkeypatch.setitem(corruptions.CORRUPTIONS, "mine", Corruption("mine", darkened(amount), levels=levels))
        options = {"evaluations": ("clean", "corruptions"), "corruptions": ("mine",), "severities": (5,)}
        result = tfr.evaluate(brightness_model, DATA, **options)
        assert result.values["clean"] == 1
        return result.values["corruptions/mine/5"], result.evaluation["card"]["corruptions"]["user_code"]["mine"]

    (none, first), (half, second), (again, third) = accuracy(0.0), accuracy(1.0), accuracy(0.0)
    (levels, fourth) = accuracy(1.0, (0.0, 0.0, 0.0, 0.0, 0.0))
    assert (none, half, again, levels) == (1.0, 0.5, 1.0, 1.0) and first == third and len({first, second, fourth}) == 3


def test_a_replaced_corruption_of_the_package_is_evaluated_again(brightness_model, monkeypatch):
    options = {"evaluations": "corruptions", "corruptions": ("contrast", "pixelate"), "severities": (5,)}
    before = tfr.evaluate(brightness_model, DATA, **options)
    monkeypatch.setitem(corruptions.CORRUPTIONS, "contrast", Corruption("contrast", lambda images, level: images * 0, levels=LEVELS))
    after = tfr.evaluate(brightness_model, DATA, **options)
    assert before.values["corruptions/contrast/5"] == 1 and after.values["corruptions/contrast/5"] == 0.5
    assert before.values["corruptions/pixelate/5"] == after.values["corruptions/pixelate/5"] == 1
    assert "user_code" not in before.evaluation["card"]["corruptions"]


class Darken(attacks.Attack):
    """Subtracts the radius from all values."""

    def __init__(self, *, norm="linf", radius=0.1, **kwargs):
        super().__init__(**kwargs)
        self.norm, self.radius = attacks.norms.norm(norm, ("linf",)), radius

    def perturb(self, predict, images, criterion, seed, indices):
        return tf.maximum(images - self.radius, 0.0)


def test_an_own_attack_is_evaluated_by_its_name(brightness_model, tmp_path, monkeypatch):
    options = {"evaluations": ("clean", "adversarial"), "attack_radii": ("linf_0.1", "linf_0.25")}
    with pytest.raises(
        ValueError, match="Unknown attack: 'darken'.* Known: auto_pgd, auto_pgd_targeted, autoattack, fab, fgsm, pgd, .*square"
    ):
        tfr.evaluate(brightness_model, DATA, attack="darken", **options)
    monkeypatch.setitem(attacks.ATTACKS, "darken", Darken)
    result = tfr.evaluate(brightness_model, DATA, attack=("darken", "auto_pgd"), **options)
    assert {name: value for name, value in result.values.items() if name.startswith("robust/")} == {
        "robust/darken/linf_0.1": 1.0,
        "robust/darken/linf_0.25": 0.5,
        "robust/auto_pgd/linf_0.1": 1.0,
        "robust/auto_pgd/linf_0.25": 0.0,
    }
    result.report(str(tmp_path / "report.html"))
    assert "Darken attack, L∞ radius 0.25" in (tmp_path / "report.html").read_text()
    card = result.evaluation["card"]["robust_by"]
    assert card["auto_pgd"] == {"attack": "auto_pgd", "seed": card["darken"]["seed"]} and len(card["darken"]["user_code"]) == 16
    with pytest.raises(ValueError, match="Expected norm linf|Unknown norm"):
        tfr.evaluate(brightness_model, DATA, attack="darken", evaluations="adversarial", attack_radii="l2_0.5")
