"""What the tests of corrupted sets share: clean images, what a severity makes of them, a folder like CIFAR-10-C."""

import numpy as np
import pytest

from tf_robust import data

SIZE, SHAPE, CLASSES = 9, (32, 32, 3), 10


def clean(size=SIZE, order=None):
    """Image i has the value i all over; labels in no order, of few classes."""
    order = np.arange(size) if order is None else order
    images = np.zeros((size, *SHAPE), np.uint8) + np.arange(size)[order][:, None, None, None].astype(np.uint8)
    labels = np.random.RandomState(0).randint(0, CLASSES, size)[order]
    return data.ArraySource.of("clean", "test", images, labels, [f"class {i}" for i in range(CLASSES)])


def corrupted(source, severity):
    """What severity s stands for here: image i has the value 20 * s + i."""
    return source.images + np.uint8(20 * severity)


def read(source, batch_size=4):
    images, labels = (np.concatenate(parts) for parts in zip(*source.ordered(batch_size).as_numpy_iterator()))
    assert images.dtype == np.uint8 and labels.dtype == np.int64
    return images, labels


def assert_is(there, images, labels):
    found = read(there)
    np.testing.assert_array_equal(found[0], images)
    np.testing.assert_array_equal(found[1], labels)
    assert len(there) == len(images) and there.image_shape == images.shape[1:]


@pytest.fixture
def arrays(tmp_path):
    """A folder like CIFAR-10-C."""
    source = clean()
    for name in ("fog", "glass_blur"):
        np.save(tmp_path / f"{name}.npy", np.concatenate([corrupted(source, severity) for severity in range(1, 6)]))
    np.save(tmp_path / "labels.npy", np.tile(source.labels, 5))
    return tmp_path
