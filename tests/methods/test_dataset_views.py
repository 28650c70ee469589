"""The views that `data.views` makes in a dataset are those of the training step with the same seed."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.methods.users_models import X, Y, assert_equal, assert_equal_histories, batches, cheap_views, darkened, functional
from tf_robust import data, methods


def brighter(images, seed):
    return tf.minimum(images + tf.random.stateless_uniform([], seed), 1.0)


def of_steps(method, dataset, steps):
    """The views that the method makes of the first batches, one step for each."""
    method.compile("sgd", run_eagerly=True)
    method.optimizer.build(method.trainable_variables)
    made = []
    for batch in dataset.repeat().take(steps):
        made.append(method.to_batch(batch)[0].views)
        method.optimizer.iterations.assign_add(1)
    return made


@pytest.mark.parametrize("scale, named", [(1, "patch_gaussian"), (255, "crop_flip")])
def test_views_equal_those_of_the_step_in_every_epoch(scale, named):
    input_range = (0, scale)
    dataset = tf.data.Dataset.from_tensor_slices(((X * scale).astype("float32"), Y)).batch(24)
    method = methods.NoisyMix(functional(scale=scale > 1), views=("clean", named, brighter), seed=3, input_range=input_range)
    made = list(data.views(dataset, method.views, seed=3, input_range=input_range).take(4))
    for (views, _), expected in zip(made, of_steps(method, dataset, 4), strict=True):
        for view, wanted in zip(views, expected, strict=True):
            np.testing.assert_allclose(view / scale, wanted, atol=1e-6)
    np.testing.assert_array_equal(made[2][0][0], made[0][0][0])  # the same images
    assert np.abs(made[2][0][2] - made[0][0][2]).max() / scale > 0.01  # drawn anew in the second epoch
    np.testing.assert_array_equal(made[3][1], Y[24:])


def test_training_on_views_of_a_dataset_equals_training_on_images():
    dataset = tf.data.Dataset.from_tensor_slices((X[:32], Y[:32], np.linspace(0, 2, 32, dtype=np.float32))).batch(16)
    views = cheap_views("noisymix")
    options = {"views": views, "stages": ("first",), "seed": 1}
    in_step, in_dataset = (methods.NoisyMix(functional(), **options) for _ in range(2))
    histories = []
    for method, options in (
        (in_step, {"x": dataset}),
        (in_dataset, {"x": data.views(dataset, in_dataset.views, seed=1), "steps_per_epoch": 2}),
    ):
        method.compile(keras.optimizers.SGD(0.1), metrics=["accuracy"], run_eagerly=True)
        histories.append(method.fit(epochs=2, validation_data=(X, Y), verbose=0, **options).history)
    assert_equal(in_step.classifier, in_dataset.classifier, atol=1e-5)
    assert_equal_histories(histories[1], histories[0])


def fit_on(views):
    method = methods.NoisyMix(functional())
    method.compile("sgd")
    method.fit(data.views(tf.data.Dataset.from_tensor_slices((X, Y)).batch(16), views), steps_per_epoch=1, verbose=0)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: data.views(tf.data.Dataset.from_tensor_slices((X, Y)), ["clean"]), r"batches \(images \[N, H, W, C\]"),
        (lambda: data.views(tf.data.Dataset.from_tensor_slices(X).batch(2), ["clean"]), "labels"),
        (lambda: data.views(tf.data.Dataset.from_tensor_slices((X, Y)).batch(2), ["augmiks"]), "augmix"),
        (lambda: data.views(batches().map(lambda x, y: (tf.cast(x, tf.uint8), y)), ["clean"]), r"input_range=\(0, 255\)"),
        (lambda: fit_on(["clean", darkened("augmix")]), "Expected 3 views: .*augmix.* Received: a tuple of 2"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
