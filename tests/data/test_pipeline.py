import numpy as np
import pytest
import tensorflow as tf

from tf_robust.data import Batch, evaluation_batches, first_batch, training_batches
from tf_robust.data.augment import clean, crop_flip, patch_gaussian
from tf_robust.data.source import ArraySource

SIZE, BATCH = 14, 4  # three full batches per epoch


def noise(images, seed):
    return tf.random.stateless_uniform(tf.shape(images), seed)


AUGMENTATIONS = (noise, lambda images, seed: images + noise(images, seed))


@pytest.fixture
def source():
    """Images of random pixels; image i has label i."""
    images = np.random.RandomState(0).randint(256, size=(SIZE, 6, 5, 3), dtype=np.uint8)
    return ArraySource.of("synthetic", "train", images, np.arange(SIZE), map(str, range(SIZE)))


def epoch_of(source, *, seed=0, epoch=0, skip=0, **options):
    return list(training_batches(source, BATCH, seed=seed, step=3 * epoch + skip, **options).take(3 - skip))


def assert_equal_batches(first, second):
    assert len(first) == len(second)
    for a, b in zip(first, second):
        for x, y in zip(tf.nest.flatten(a), tf.nest.flatten(b)):
            np.testing.assert_array_equal(x, y)


def test_a_batch_holds_views_labels_and_the_global_step(source):
    for step, batch in enumerate(epoch_of(source, epoch=2), start=2 * 3):
        assert isinstance(batch, Batch) and isinstance(batch.views, tuple)
        assert batch.views[0].dtype == tf.float32 and batch.labels.dtype == batch.step.dtype == tf.int64
        np.testing.assert_allclose(batch.views[0], source.images[batch.labels] / 255, rtol=1e-6)
        np.testing.assert_array_equal(batch.step, [step] * BATCH)


def test_epochs_are_concatenated_and_skipping_resumes_within_an_epoch(source):
    epochs = [epoch_of(source, seed=5, epoch=epoch, augmentations=AUGMENTATIONS) for epoch in range(3)]
    batches = list(training_batches(source, BATCH, seed=5, step=1, augmentations=AUGMENTATIONS).take(6))
    assert_equal_batches(batches, sum(epochs, [])[1:7])
    for skip in (1, 2, 3):
        assert_equal_batches(epoch_of(source, seed=5, epoch=1, augmentations=AUGMENTATIONS, skip=skip), epochs[1][skip:])


@pytest.mark.parametrize("step", [0, 4])
def test_the_first_batch_alone_is_that_of_the_pipeline(source, step):
    pipeline = {"seed": 5, "step": step, "augmentations": [crop_flip], "views": [clean, patch_gaussian]}
    for found, expected in zip(
        tf.nest.flatten(first_batch(source, 6, **pipeline)), tf.nest.flatten(next(iter(training_batches(source, 6, **pipeline))))
    ):
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_an_epoch_does_not_depend_on_the_global_seed(source):
    tf.random.set_seed(1)
    first = epoch_of(source, augmentations=AUGMENTATIONS)
    tf.random.set_seed(2)
    assert_equal_batches(epoch_of(source, augmentations=AUGMENTATIONS), first)


@pytest.mark.parametrize("other", [{"seed": 1}, {"epoch": 1}])
def test_order_differs_by_seed_and_epoch(source, other):
    assert (epoch_of(source)[0].labels != epoch_of(source, **other)[0].labels).numpy().any()


def test_augmentations_apply_in_the_given_order(source):
    halve, square = (lambda images, _: images / 2), (lambda images, _: images**2)
    halved_first, squared_first = (epoch_of(source, augmentations=order)[0].views[0] for order in ((halve, square), (square, halve)))
    pixels = epoch_of(source)[0].views[0]
    np.testing.assert_allclose(halved_first, (pixels / 2) ** 2, rtol=1e-6)
    np.testing.assert_allclose(squared_first, pixels**2 / 2, rtol=1e-6)


def test_views_of_the_augmented_image_have_independent_draws(source):
    plain = epoch_of(source, augmentations=[noise])[0].views[0]
    unchanged, one, other = epoch_of(source, augmentations=[noise], views=[clean, noise, noise])[0].views
    np.testing.assert_array_equal(unchanged, plain)
    assert not np.isclose(one, other, atol=0.01).all() and not np.isclose(one, plain, atol=0.01).all()
    (halved,) = epoch_of(source, augmentations=[noise], views=[lambda images, _: images / 2])[0].views
    np.testing.assert_allclose(halved, plain / 2)


def test_draws_differ_by_step_epoch_seed_and_position_of_the_augmentation(source):
    def draws(**options):
        return [batch.views[0].numpy().tobytes() for batch in epoch_of(source, **options)]

    second = (lambda images, _: images, noise)
    results = draws(augmentations=[noise]) + draws(augmentations=second) + draws(augmentations=[noise], epoch=1)
    results += draws(augmentations=[noise], seed=1)
    assert len(set(results)) == 4 * 3


def test_evaluation_batches_hold_every_example_in_order(source):
    (first, labels), (last, _) = evaluation_batches(source, 10)
    assert first.dtype == tf.float32 and len(last) == 4
    np.testing.assert_allclose(np.concatenate([first, last]), source.images / 255, rtol=1e-6)
    np.testing.assert_array_equal(labels, source.labels[:10])


@pytest.mark.parametrize("batch_size", [0, SIZE + 1])
def test_invalid_batch_sizes_are_rejected(source, batch_size):
    with pytest.raises(ValueError, match=f"batch_size in 1..{SIZE}"):
        training_batches(source, batch_size, seed=0)
