"""Balanced sampling: class frequencies, how often each image occurs, and the same order after a resume."""

import numpy as np
import pytest

from tests.data.image_files import write
from tf_robust import data
from tf_robust.data.source import Source, balanced_order


@pytest.mark.parametrize("counts", [(40, 7, 3), (5, 5, 5), (1, 99), (0, 4, 13, 2)])
def test_every_class_is_drawn_equally_often_and_its_images_too(counts):
    labels = np.random.RandomState(0).permutation(np.repeat(np.arange(len(counts)), counts))
    for epoch in range(3):
        order = balanced_order(labels, 5, epoch).numpy()
        assert len(order) == len(labels)
        drawn = np.bincount(labels[order], minlength=len(counts))[np.array(counts) > 0]
        assert drawn.max() - drawn.min() <= 1
        times = np.bincount(order, minlength=len(labels))
        for label, count in enumerate(counts):
            if count:
                assert np.ptp(times[labels == label]) <= 1


def test_the_order_is_random_and_a_function_of_seed_and_epoch():
    labels = np.repeat([0, 1], [60, 20])
    first = balanced_order(labels, 5, 0).numpy()
    np.testing.assert_array_equal(first, balanced_order(labels, 5, 0).numpy())
    others = [balanced_order(labels, 5, 1).numpy(), balanced_order(labels, 6, 0).numpy()]
    assert all((first != other).mean() > 0.5 for other in others)
    assert {*first[labels[first] == 0]} != {*others[0][labels[others[0]] == 0]}  # another part of the frequent class
    halves = labels[first][:40].mean(), labels[first][40:].mean()
    assert max(halves) < 0.8  # the classes are mixed


def test_batches_after_a_resume_are_the_same(source):
    imbalanced = data.balanced(source().subset(np.flatnonzero((np.arange(48) % 3 != 1) | (np.arange(48) < 12))))

    def read(step, count):
        return [(b.positions.numpy(), b.views[0].numpy()) for b in data.training_batches(imbalanced, 5, seed=3, step=step).take(count)]

    uninterrupted = read(0, 14)
    for step in (4, 9):  # in the first and in the second epoch, of 7 steps
        for (a, x), (b, y) in zip(uninterrupted[step:], read(step, 14 - step), strict=True):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(x, y)


def test_copies_of_an_image_in_an_epoch_have_crops_of_their_own(tmp_path):
    write(tmp_path, {"a": 12, "b": 1})
    balanced = data.balanced(data.open_source(f"folder:{tmp_path}", "all", image_size=32))
    whole, rest = (list(balanced.epoch(5, 0, 1, skip_batches=skip).as_numpy_iterator()) for skip in (0, 6))
    copies = [image for images, labels, _ in whole for image in images[labels == 1]]
    assert len(copies) >= 6 and len({image.tobytes() for image in copies}) == len(copies)
    np.testing.assert_array_equal([images for images, *_ in whole[6:]], [images for images, *_ in rest])


def test_streams_are_refused():
    with pytest.raises(ValueError, match="streamed, which is read as a stream"):
        data.balanced(Source("streamed", "train", ("a", "b"), (8, 8, 3), 9))
