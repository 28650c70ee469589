"""What `fit` and `evaluate` of a method check before the first step: the pixel scale, the labels, the scope; and what a saved model has."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import tiny_network, tiny_source
from tests.methods.users_models import X, Y, assert_equal, sequential
from tf_robust import methods
from tf_robust.training import loop


class Sequence(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.x[12 * index : 12 * index + 12], self.y[12 * index : 12 * index + 12]


class Loader:
    """As a data loader of another framework: an iterable with a length."""

    def __init__(self, x, y):
        self.batches = Sequence(x, y)

    def __iter__(self):
        return iter([[*self.batches[index]] for index in range(4)])


def generator(x, y):
    yield from (Sequence(x, y)[index] for index in range(4))


def dataset(x, y):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(12)


def views(x, y):
    return dataset(x, y).map(lambda x, y: ((x,), y))


def bfloat16(x, y):
    return dataset(tf.cast(x, tf.bfloat16), y)


def compiled(**options):
    method = methods.CrossEntropy(sequential(), **options)
    method.compile("sgd", run_eagerly=True)
    return method


@pytest.mark.parametrize("made", [generator, Sequence, dataset, views, Loader, bfloat16])
def test_the_pixel_scale_of_every_kind_of_data_is_checked_at_the_first_batch(made):
    for x, input_range in ((X, (0, 255)), (X * 255, (0, 1)), (2 * X - 1, (0, 1))):
        method = compiled(input_range=input_range)
        start = method.classifier.get_weights()
        with pytest.raises(ValueError, match=r"Expected images in .*Received: images in .*CrossEntropy\(model, input_range="):
            method.fit(made(x, Y), verbose=0)
        for before, after in zip(start, method.classifier.get_weights()):
            np.testing.assert_array_equal(before, after)


def test_integers_of_another_scale_are_refused():
    for levels in (1, 16):
        with pytest.raises(ValueError, match=r"\[0, 255\]. Received: images in \[0, 1"):
            compiled(input_range=(0, 255)).fit(np.round(levels * X).astype(np.uint8), Y, verbose=0)


def normalization():
    layer = keras.layers.Normalization(mean=[127.0], variance=[64.0**2])
    layer.build([None, *X.shape[1:]])
    return layer


@pytest.mark.parametrize(
    "first",
    [
        lambda: [keras.layers.Rescaling(1 / 255)],
        lambda: [keras.Sequential([keras.layers.RandomFlip()]), keras.layers.Rescaling(1 / 127.5, offset=-1)],
        lambda: [normalization()],
    ],
)
def test_a_model_that_scales_down_images_needs_their_range(first):
    model = keras.Sequential([keras.Input(X.shape[1:]), *first(), keras.layers.Flatten(), keras.layers.Dense(3)])
    with pytest.raises(ValueError, match=r"Try: input_range=\(0, 255\)"):
        methods.AugMix(model)
    methods.AugMix(model, input_range=(0, 255))


def test_a_generator_gives_fit_all_of_its_batches():
    by_generator, by_dataset = compiled(), compiled()
    by_generator.fit(generator(X, Y), verbose=0)
    by_dataset.fit(dataset(X, Y), verbose=0)
    assert_equal(by_generator.classifier, by_dataset.classifier)


@pytest.mark.parametrize("made", [lambda x, y: (x, y), lambda x, y: [[x], y], dataset, Sequence, generator])
def test_validation_data_are_checked_before_training_and_in_evaluate(made):
    method = compiled(input_range=(0, 255))
    for data in (lambda: made(X, Y), lambda: made(X * 255, Y + 1)):
        with pytest.raises(ValueError, match="Expected validation images in|Expected labels 0 to 2"):
            method.fit(X * 255, Y, validation_data=data(), verbose=0)
        given = data()
        with pytest.raises(ValueError, match="Expected validation images in|Expected labels 0 to 2"):
            method.evaluate(*given, verbose=0) if isinstance(given, tuple | list) else method.evaluate(given, verbose=0)
    assert int(method.optimizer.iterations) == 0
    noisy = X * 255 + np.random.RandomState(0).normal(size=X.shape) * 50  # such images may be evaluated
    method.fit(X * 255, Y, validation_data=made(noisy, Y), verbose=0)
    np.testing.assert_allclose(method.evaluate(X * 255, Y, 12, verbose=0), method.evaluate(dataset(X * 255, Y), verbose=0), rtol=1e-5)


def test_labels_that_the_model_has_not_are_named():
    for labels, advice in (
        (Y + 1, "Try: labels - 1"),
        (Y - 1, "-1 to 1"),
        ((Y + 2).astype(np.float32), "2 to 4"),
        (Y[:, None] + 1, "1 to 3"),
    ):
        with pytest.raises(ValueError, match=rf"Expected labels 0 to 2, .* Received: labels .*{advice}"):
            compiled().fit(X, labels, verbose=0)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize(
    "late_images, late_labels, message",
    [
        (255 * X[36:], np.eye(3)[Y[36:]], "Try: input_range"),
        (X[36:], np.eye(3)[Y[36:]] + 1, "that sum to 1"),
        (X[36:], Y[36:] + 1, "Expected labels 0 to 2"),
    ],
)
def test_values_out_of_range_after_the_first_batch_stop_the_training(late_images, late_labels, message, jit_compile):
    labels = Y[:36] if late_labels.ndim == 1 else np.eye(3)[Y[:36]]
    method = methods.CrossEntropy(sequential())
    method.compile("sgd", jit_compile=jit_compile)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        method.fit(dataset(np.concatenate([X[:36], late_images]), np.concatenate([labels, late_labels])), verbose=0)
    assert np.isfinite(method.classifier.get_weights()[0]).all() and int(method.optimizer.iterations) == 3


def test_a_source_with_more_classes_than_the_model_is_refused():
    method = methods.CrossEntropy(tiny_network())
    method.compile("sgd")
    with pytest.raises(ValueError, match="4 classes .* 3 outputs"):
        loop.fit(method, tiny_source(classes=4), epochs=1, batch_size=12)


def test_model_and_method_of_different_scopes_are_refused(two_replicas):
    with two_replicas.scope():
        inside = sequential()
    outside = sequential()
    with pytest.raises(ValueError, match=r"strategy.scope\(\)"):
        methods.CrossEntropy(inside)
    with two_replicas.scope(), pytest.raises(ValueError, match=r"strategy.scope\(\)"):
        methods.CrossEntropy(outside)


@keras.saving.register_keras_serializable("tests")
class Halved(keras.optimizers.schedules.LearningRateSchedule):
    """A user's own schedule."""

    def __call__(self, step):
        return 0.01 * 0.5 ** tf.cast(step, tf.float32)

    def get_config(self):
        return {}


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.SGD(0.01, momentum=0.9),
        lambda: keras.optimizers.Adam(Halved()),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01, momentum=0.9)),
    ],
)
def test_a_compiled_model_keeps_its_loss_and_metrics_and_gets_a_new_optimizer(optimizer, tmp_path):
    model = sequential()
    model.compile(optimizer(), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"], run_eagerly=True)
    model.fit(X, Y, batch_size=48, verbose=0)
    assert any(np.abs(v.numpy()).max() > 0 for v in model.optimizer.variables[2:])
    settings = model.optimizer.get_config()
    method = methods.CrossEntropy(model)
    method.compile(keras.optimizers.SGD(0.1, momentum=0.9), run_eagerly=True)
    method.fit(X, Y, batch_size=48, verbose=0)
    method.classifier.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert int(loaded.optimizer.iterations) == 0 and loaded.optimizer.get_config().keys() == settings.keys()
    new = type(loaded.optimizer).from_config(loaded.optimizer.get_config())
    new.build(loaded.trainable_variables)
    for value, expected in zip(loaded.optimizer.variables, new.variables, strict=True):
        np.testing.assert_array_equal(value, expected)
    loss, accuracy = loaded.evaluate(X, Y, batch_size=48, verbose=0)
    assert accuracy == pytest.approx(np.mean(np.argmax(model(X), axis=1) == Y)) and loss > 0
    model.fit(X, Y, batch_size=48, verbose=0)  # the plain training may go on
    assert int(model.optimizer.iterations) == 1
