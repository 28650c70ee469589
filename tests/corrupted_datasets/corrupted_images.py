"""Clean images, their corrupted versions, and a folder like CIFAR-10-C, for the tests of corrupted sets."""

import numpy as np
import pytest

from tf_robust import data

SIZE, SHAPE, CLASSES = 9, (32, 32, 3), 10


def clean(size=SIZE, order=None):
    """Returns a source in which every pixel of image i is i; labels are random."""
    order = np.arange(size) if order is None else order
    images = np.zeros((size, *SHAPE), np.uint8) + np.arange(size)[order][:, None, None, None].astype(np.uint8)
    labels = np.random.RandomState(0).randint(0, CLASSES, size)[order]
    return data.ArraySource.of("clean", "test", images, labels, [f"class {i}" for i in range(CLASSES)])


def corrupted(source, severity):
    """Returns the images at a severity s: every pixel of image i is 20 * s + i."""
    return source.images + np.uint8(20 * severity)


def read(source, batch_size=4):
    images, labels = (np.concatenate(parts) for parts in zip(*source.ordered(batch_size).as_numpy_iterator()))
    assert images.dtype == np.uint8 and labels.dtype == np.int64
    return images, labels


def assert_is(source, images, labels):
    actual_images, actual_labels = read(source)
    np.testing.assert_array_equal(actual_images, images)
    np.testing.assert_array_equal(actual_labels, labels)
    assert len(source) == len(images) and source.image_shape == images.shape[1:] and source.random_access
    np.testing.assert_array_equal(source.read_labels(), labels)
    first, last = len(images) // 3, len(images)
    np.testing.assert_array_equal(source.read_range(first, last)[0], images[first:last])


@pytest.fixture
def arrays(tmp_path):
    """Returns a folder like CIFAR-10-C."""
    source = clean()
    for name in ("fog", "glass_blur"):
        np.save(tmp_path / f"{name}.npy", np.concatenate([corrupted(source, severity) for severity in range(1, 6)]))
    np.save(tmp_path / "labels.npy", np.tile(source.labels, 5))
    return tmp_path
