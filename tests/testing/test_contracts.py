"""Every method, corruption, attack and format keeps the contract of its kind; broken ones are noticed."""

import contextlib
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.attacks.oracles import SHORT
from tests.conftest import sweep
from tests.methods.common import DISTINCT
from tests.rounding import tolerance
from tf_robust import attacks, corruptions, methods, testing
from tf_robust.corruptions import Corruption
from tf_robust.saved_models import formats
from tf_robust.saved_models.signatures import Signature

UNEVEN = ("elastic_transform", "saturate", "spatter")  # their severities differ in kind
DISPLACED = ("elastic_transform", "caustic_refraction", "pinch_and_twirl", "ripple")  # a filter of 24 taps displaces by up to 24 pixels
DETERMINISTIC = (
    *("cross_entropy", "input_gradient", "sam", "asam", "simclr"),
    *("linear_probe", "finetune", "l2_sp", "similarity"),
)


QUICK = (  # of each kind: noise, filters, displacements, pasted textures, colors, compression
    *("gaussian_noise", "impulse_noise", "defocus_blur", "glass_blur", "frost", "brightness", "elastic_transform", "pixelate"),
    *("jpeg_compression", "saturate", "ripple", "checkerboard_cutout", "perlin_noise"),
)


@pytest.mark.parametrize("name", sweep(DISTINCT, quick=("fcl", "moco", "finetune", "sam")))
def test_methods(name):
    options = {"fcl": {"k": 20}, "moco": {"queue": 30}}.get(name, {})
    testing.check_method(methods.METHODS[name], random=name not in DETERMINISTIC, **options)


@pytest.mark.parametrize("name", sweep(corruptions.CORRUPTIONS, QUICK))
def test_corruptions(name):
    atol = {"atol": tolerance(64, size=24)} if name in DISPLACED else {}
    testing.check_corruption(corruptions.CORRUPTIONS[name], increasing=name not in UNEVEN, **atol)


@pytest.mark.parametrize("name", sweep(attacks.ATTACKS, quick=("fgsm", "pgd", "auto_pgd", "square", "fab")))
def test_attacks(name):
    random = None if name == "autoattack" else name not in ("fgsm", "fab")  # AutoAttack's members have seeds of their own
    testing.check_attack(attacks.ATTACKS[name], random=random, **SHORT.get(name, {}))


@pytest.mark.parametrize("name", formats.FORMATS)
def test_formats(name, tmp_path):
    entry = formats.FORMATS[name]
    for package in entry.packages:
        pytest.importorskip(package)
    if entry.writer is not None:
        testing.check_format(entry)
    elif name == "hdf5":
        keras.Sequential([keras.Input([8, 8, 1]), keras.layers.Flatten(), keras.layers.Dense(3)]).save(tmp_path / "model.h5")
        testing.check_format(entry, tmp_path / "model.h5")
    elif name == "zoo":
        testing.check_format(entry, "digits/lenet_augmix")
    else:
        pytest.skip("a model of the format is downloaded or made by its package")


class GlobalDraws(methods.CrossEntropy):
    """Adds noise from the global generator."""

    def loss_terms(self, batch, training):
        terms, logits = super().loss_terms(batch, training)
        return {name: term * tf.random.uniform([]) for name, term in terms.items()}, logits


class HiddenState(methods.CrossEntropy):
    """Counts its steps where no checkpoint finds it."""

    steps = 0

    def train_step(self, data):
        self.steps += 1
        return super().train_step(data)

    def loss_terms(self, batch, training):
        terms, logits = super().loss_terms(batch, training)
        return {name: term * self.steps for name, term in terms.items()}, logits


class Undocumented(methods.CrossEntropy):
    """A method whose flag would have no help."""

    def __init__(self, classifier, *, factor: float = 0.5, **kwargs):
        super().__init__(classifier, **kwargs)


class Diverges(methods.CrossEntropy):
    """A loss without gradient, then NaN."""

    def train_step(self, data):
        logs = super().train_step(data)
        self.trackers["cross_entropy"].update_state(np.nan)
        return logs


@pytest.mark.parametrize(
    "broken, message",
    [
        (GlobalDraws, "weights of GlobalDraws that do not depend on global generators"),
        (HiddenState, "gradients|resumed training of HiddenState"),
        (Undocumented, r"a line under Args: .* Received: none for \['factor'\]"),
        (Diverges, "finite logs of Diverges"),
    ],
)
def test_broken_methods_are_noticed(broken, message):
    with pytest.raises(AssertionError, match=message):
        testing.check_method(broken)


def test_a_method_that_should_draw_and_does_not_is_noticed():
    with pytest.raises(AssertionError, match="weights of CrossEntropy that differ by seed"):
        testing.check_method(methods.CrossEntropy, random=True)


LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5)


def shifted(images, level, shift=0.0):
    return images + level * tf.reshape(shift, [-1, 1, 1, 1])


@pytest.mark.parametrize(
    "apply, draw, message",
    [
        (shifted, lambda draws, shape, level: {"shift": tf.random.uniform(tf.shape(draws.indices))}, "the same images from mine alone"),
        (shifted, lambda draws, shape, level: {"shift": np.random.uniform(size=1).astype("float32")}, r"global generator of \['NumPy'\]"),
        (shifted, lambda draws, shape, level: {"shift": 1.0}, "draws of mine that differ by index"),
        (
            shifted,
            lambda draws, shape, level: {"shift": tf.cast(draws.indices % 7 + 1, tf.float32) / 7},
            "draws of mine that differ by seed",
        ),
        (
            shifted,
            lambda draws, shape, level: {"shift": tf.linspace(0.1, 1.0, tf.shape(draws.indices)[0])},
            "the same images from mine alone as in a batch",
        ),
        (lambda images, level: images * (1 - level * tf.reduce_mean(images)), None, "the same images from mine alone as in a batch"),
        (lambda images, level: images, None, "images that mine changes"),
        (lambda images, level: images * (0.9 + level), None, "severity 5 of mine to change images more|images that mine changes"),
    ],
)
def test_broken_corruptions_are_noticed(apply, draw, message):
    with pytest.raises(AssertionError, match=message):
        testing.check_corruption(Corruption("mine", apply, draw, levels=LEVELS))


def test_a_corruption_that_changes_the_shape_is_noticed():
    mine = Corruption("mine", lambda images, level: images[:, ::2], levels=LEVELS)
    with pytest.raises((AssertionError, ValueError), match="Expected images .* from the corruption mine"):
        testing.check_corruption(mine)


class Step(attacks.Attack):
    """One step of the sign of the gradient, or what is left of it."""

    def __init__(self, *, norm: str = "linf", radius: float = 0.05, **kwargs):
        super().__init__(**kwargs)
        self.norm, self.radius = attacks.norms.norm(norm, ("linf",)), radius

    def step(self, signs, images, indices):
        return signs

    def perturb(self, predict, images, criterion, seed, indices):
        _, gradient, _ = attacks.attack.loss_and_gradient(predict, images, criterion.cross_entropy)
        return tf.clip_by_value(images + self.radius * self.step(tf.sign(gradient), images, indices), 0.0, 1.0)


class Descends(Step):
    def step(self, signs, images, indices):
        return -signs


class Timid(Step):
    def step(self, signs, images, indices):
        return 0.3 * signs


class Leaves(Step):
    def step(self, signs, images, indices):
        return 1.5 * signs


class ByPosition(Step):
    def step(self, signs, images, indices):
        return signs * tf.reshape(tf.linspace(0.2, 1.0, tf.shape(signs)[0]), [-1, 1, 1, 1])


class GlobalSigns(Step):
    def step(self, signs, images, indices):
        return tf.where(tf.random.uniform(tf.shape(signs)) < 0.2, -signs, signs)


class ByNumPy(Step):
    def step(self, signs, images, indices):
        return signs * np.sign(np.random.uniform(-0.1, 1, size=[16, 16, 1]))


def test_an_attack_of_ones_own_passes():
    testing.check_attack(Step, random=False)


@pytest.mark.parametrize(
    "broken, message",
    [
        (Leaves, "within radius=0.05 from Leaves.perturb"),
        (Descends, "a loss that Descends raises"),
        (Timid, "that use the radius"),
        (ByPosition, "depend on seed and index alone"),
        (GlobalSigns, "depend on seed and index alone"),
        (ByNumPy, r"global generator of \['NumPy'\]"),
    ],
)
def test_broken_attacks_are_noticed(broken, message):
    with pytest.raises((AssertionError, ValueError), match=message):
        testing.check_attack(broken)


def flat(images, matrix):
    return tf.reshape(images, [-1, 192]) @ matrix


@pytest.mark.parametrize(
    "call, options, message",
    [
        (flat, {}, None),
        (lambda images, matrix: tf.stop_gradient(flat(images, matrix)), {}, "gradients of mine"),
        (
            lambda images, matrix: flat(images, matrix) - tf.reduce_mean(images),
            {"gradients": False},
            "the same scores of images in mine alone",
        ),
        (lambda images, matrix: flat(images, matrix) * tf.random.uniform([]), {}, "the same scores of images in mine again"),
        (lambda images, matrix: tf.reshape(flat(images, matrix), [-1]), {}, r"scores \[N, classes\] of mine"),
    ],
)
def test_a_format_of_ones_own_is_checked(call, options, message, tmp_path, monkeypatch):
    def read(path, trust):
        matrix = tf.constant(np.load(path))
        images, scores = tf.TensorSpec([None, 8, 8, 3], tf.float32), tf.TensorSpec([None, 3], tf.float32)
        return {
            "serving_default": Signature(lambda images: {"scores": call(images, matrix)}, {"images": images}, {"scores": scores})
        }, matrix

    monkeypatch.setitem(formats.FORMATS, "mine", formats.Format(read, suffixes=(".npy",), **options))
    np.save(path := os.path.join(tmp_path, "model.npy"), np.random.RandomState(0).normal(size=(192, 3)).astype(np.float32))
    with pytest.raises(AssertionError, match=message) if message else contextlib.nullcontext():
        testing.check_format(formats.FORMATS["mine"], path)
