"""Properties of every attack: ball and cube, dependence on seed and index, targets, and argument checks."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.attacks.oracles import SHAPE, SHORT, Linear, Waves, sample_images, wrong
from tests.conftest import sweep
from tf_robust.attacks import ATTACKS
from tf_robust.attacks.attack import at_radii

LONGER = {"square": {"steps": 300}, "pgd_distance": {"rounds": 4, "steps": 10}, "fab": {"steps": 20}}  # so that targets are reached
REFUSED = {
    "pgd": [({"loss": "hinge"}, "loss"), ({"norm": "l1"}, "norm"), ({"steps": 0}, "steps")],
    "auto_pgd": [({"steps": 0}, "steps"), ({"loss": "hinge"}, "loss")],
    "square": [({"steps": 0}, "steps")],
    "fab": [({"steps": 0}, "steps"), ({"target_classes": 0}, "target_classes")],
    "plb": [
        *[({"initial": "gausian"}, "gausian"), ({"outer_steps": 0}, "outer_steps"), ({"starts": 0}, "starts")],
        *[({"step_size": 0.0}, "step_size"), ({"barrier_decay": 1.5}, "barrier_decay"), ({"backtracking": 1.0}, "backtracking")],
        ({"candidates": np.full((1, *SHAPE), 2.0, np.float32)}, "0, 1"),
    ],
}
MINIMAL = ("pgd_distance", "plb")  # minimize the perturbation; the others have a radius
RADII = {"linf": 0.05, "l2": 0.25}


def build(name, norm="l2", radius=None, **config):
    ball = {} if name in MINIMAL else {"radius": radius or RADII[norm]}
    return ATTACKS[name](norm=norm, **ball, **{**SHORT.get(name, {}), **config})


@pytest.mark.parametrize("name", ATTACKS)
def test_targets_are_reached_and_misclassified_images_unchanged(name):
    model = Linear(classes=2 if name == "fgsm" else 4)
    images, labels = sample_images(model, count=8)
    targets = (labels + 1) % model.weights.shape[1]
    attack = build(name, radius=1.0, **LONGER.get(name, {}))
    attacked = attack(model, images, labels, targets=targets).numpy()
    np.testing.assert_array_equal(np.argmax(model(attacked), axis=1), targets)
    partly_wrong = np.where(np.arange(8) < 4, labels, targets)
    partly_attacked = attack(model, images, partly_wrong).numpy()
    np.testing.assert_array_equal(partly_attacked[4:], images[4:])
    assert wrong(model, partly_attacked, partly_wrong).all() and np.abs(partly_attacked[:4] - images[:4]).max(axis=(1, 2, 3)).min() > 0


@pytest.mark.parametrize("name", sweep([name for name in ATTACKS if name not in MINIMAL], ("pgd", "square")))
def test_attacks_at_several_radii_are_those_of_each_radius_on_one_graph(name):
    model, traces = Linear(classes=4), []
    images, labels = sample_images(model, count=8)

    def traced(batch):
        traces.append(tf.executing_eagerly())
        return model(batch)

    options, radii = {"norm": "l2", "restarts": 2, **SHORT.get(name, {})}, (RADII["l2"], 2 * RADII["l2"])
    shared = at_radii(ATTACKS[name], radii, **options)
    found = [(one(traced, images, labels).numpy(), traces.count(False)) for one in shared]
    assert found[0][1] == found[1][1] > 0 and [one.radius for one in shared] == [*radii]
    np.testing.assert_allclose(found[1][0], ATTACKS[name](radius=radii[1], **options)(model, images, labels), atol=1e-5)


def test_a_subclass_is_built_for_each_radius():
    """It may compute with the radius when it is built."""

    class Twice(ATTACKS["fgsm"]):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.step = 0.5 * self.radius

        def perturb(self, predict, images, criterion, seed, indices):
            return tf.clip_by_value(images + self.step, 0.0, 1.0)

    model = Linear()
    images, labels = sample_images(model, count=3)
    for attack, radius in zip(at_radii(Twice, (0.1, 0.2)), (0.1, 0.2)):
        np.testing.assert_allclose(attack(model, images, labels), images + radius / 2, atol=1e-6)


@pytest.mark.parametrize("name", ATTACKS)
def test_invalid_arguments_raise(name):
    model, attack = Linear(), build(name)
    images, labels = sample_images(model, count=4)
    for arguments, message in (
        ((images * 255, labels), r"\[0, 1\]"),
        ((images, [0, 1, 2, 0]), "labels"),
        ((images, labels[:2]), "labels"),
        ((images, np.eye(2)[labels]), "class indices"),
        ((images, labels[:, None]), "class indices"),
    ):
        with pytest.raises(ValueError, match=message):
            attack(model, *arguments)
    with pytest.raises(ValueError, match="at least two classes"):
        attack(lambda images: tf.reduce_mean(images, axis=(1, 2))[:, :1], images, np.zeros(len(images), int))
    with pytest.raises(ValueError, match="targets"):
        attack(model, images, labels, targets=[0, 1, 5, 0])
    with pytest.raises(ValueError, match="finite logits"):
        attack(lambda x: model(x) * np.nan, images, labels)
    if name != "square":
        with pytest.raises(ValueError, match="differentiable"):
            attack(lambda x: model(tf.stop_gradient(x)), images, labels)
    for config, message in (
        *(({"norm": "l3"}, "norm"), ({"restarts": 0}, "restarts"), ({"batch_size": -1}, "batch_size")),
        *REFUSED.get(name, ()),
    ):
        with pytest.raises(ValueError, match=message):
            ATTACKS[name](**config)
    for norm, radius in () if name in MINIMAL else (("linf", -0.1), ("linf", 1.5), ("l2", 4.5), ("l2", np.nan)):
        with pytest.raises(ValueError, match="radius"):
            build(name, norm, radius)(model, images, labels)
    assert attack(model, np.zeros([0, *SHAPE], np.float32), np.zeros(0, int)).shape == (0, *SHAPE)


@pytest.mark.parametrize("name, queries", [("pgd", 20), ("auto_pgd", 21), ("square", 21)])  # PGD does not query its last points
def test_only_unsuccessful_images_are_queried_again_and_the_first_success_is_returned(name, queries):
    model, active, counts = Waves(), np.arange(40), []
    images = np.random.RandomState(1).uniform(0.2, 0.8, (40, *SHAPE)).astype(np.float32)
    labels = np.argmax(model(images), axis=1)
    model.queries.clear()
    attacked = ATTACKS[name](radius=0.02, steps=20)(model, images, labels).numpy()
    for points in model.queries[1:]:
        assert len(points) == len(active)
        reached = wrong(model, points, labels[active])
        np.testing.assert_array_equal(attacked[active[reached]], points[reached])
        active = active[~reached]
        counts.append(len(active))
    assert len(counts) == queries and 0 < counts[-1] < 35
    assert name == "pgd" or not wrong(model, attacked, labels)[active].any()


@pytest.mark.parametrize("name", ["pgd", "square", "plb"])
def test_nan_logits_during_the_attack_raise_with_its_name(name):
    model = Linear()
    images, labels = sample_images(model, count=1)

    def breaks(x):  # only away from the original image
        return tf.where(tf.reduce_any(tf.abs(x - images) > 0.01), np.float32(np.nan), 1.0) * model(x)

    with pytest.raises(ValueError, match=f"during {ATTACKS[name].__name__}"):
        build(name)(breaks, images, labels)


def test_keras_models_are_attacked_in_inference_mode():
    """Also with layers that Keras runs in training mode by default, and the rest of the model with them."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Resizing(4, 4), keras.layers.RandomFlip(), keras.layers.Flatten(), keras.layers.BatchNormalization()]
    model = keras.Sequential([keras.Input(SHAPE), *layers, keras.layers.Dropout(0.5), keras.layers.Dense(2)])
    images, labels = sample_images(lambda x: model(x, training=False), count=8)
    before = [variable.numpy() for variable in model.variables]
    attacked, expected = (build("pgd")(classify, images, labels) for classify in (model, lambda x: model(x, training=False)))
    np.testing.assert_array_equal(attacked, expected)
    for variable, value in zip(model.variables, before):
        np.testing.assert_array_equal(variable, value)


MASKED = [("pgd", True), ("fab", False), ("square", False), ("plb", False)]  # each family has its own targets
MASKED += [pytest.param(name, name in ("fab", "plb"), marks=pytest.mark.slow) for name in ("fab", "plb", "auto_pgd_targeted", "autoattack")]


@pytest.mark.parametrize("name, targeted", MASKED)
def test_masked_classes_are_as_if_the_model_did_not_have_them(name, targeted):
    columns = (0, 2, 3, 5, 6) if targeted else (1, 3, 4)
    masked, removed = Linear(classes=7), Linear(classes=7)
    masked.offset[np.setdiff1d(np.arange(7), columns)] = -np.inf
    removed.weights, removed.offset = removed.weights[:, columns], removed.offset[list(columns)]
    images, labels = sample_images(masked, count=8)
    attack = build(name, **{"target_classes": 9} if name in ("auto_pgd_targeted", "fab", "autoattack") else {})
    remaining = np.searchsorted(columns, labels)
    targets = (remaining + 1) % len(columns)
    attacked = attack(masked, images, labels, targets=np.array(columns)[targets] if targeted else None).numpy()
    assert np.isfinite(attacked).all()
    np.testing.assert_allclose(attacked, attack(removed, images, remaining, targets=targets if targeted else None).numpy(), atol=1e-6)


def test_logits_of_half_precision_are_attacked():
    model = Linear(classes=5)
    images, labels = sample_images(model, count=6)
    attacked = build("plb")(lambda x: tf.cast(model(x), tf.float16), images, labels).numpy()
    assert np.isfinite(attacked).all() and wrong(model, attacked, labels).mean() >= 0.5


def test_batches_of_large_images_are_smaller():
    attack = ATTACKS["fgsm"]()
    assert [attack.images_per_batch((side, side, 3)) for side in (32, 64, 224, 2000)] == [256, 256, 20, 1]
    assert ATTACKS["fgsm"](batch_size=50).images_per_batch((224, 224, 3)) == 50
