import numpy as np
import pytest

from tf_robust.data import corner_digits

PROPORTIONS = {"train": 3, "validation": 1, "test": 2}


def pool(count, seed=0):
    """Returns `count` different images of each digit: 20x20 random pixels inside a margin of 4, as on MNIST's canvas."""
    images = np.zeros([10 * count, 28, 28, 1], np.uint8)
    images[:, 4:24, 4:24] = np.random.RandomState(seed).randint(1, 256, size=(10 * count, 20, 20, 1))
    return images, np.tile(np.arange(10), count)


def keys(images):
    return [image.tobytes() for image in images]


def corner_images(images):
    """Returns [N * 4, 28, 28, 1]: the inner 20x20, averaged over 2x2 blocks, in each corner of an empty canvas."""
    small = images[:, 4:24, 4:24].reshape(-1, 10, 2, 10, 2, 1).mean(axis=(2, 4)).round().astype(np.uint8)
    corners = np.zeros([len(images), 4, 28, 28, 1], np.uint8)
    for corner, (top, left) in enumerate([(0, 0), (0, 18), (18, 0), (18, 18)]):
        corners[:, corner, top : top + 10, left : left + 10] = small
    return corners.reshape(-1, 28, 28, 1)


@pytest.fixture(scope="module")
def built():
    """Returns a pool of 3 images per digit, and 6 images of each class 0-9 and 2 of each class 10-14 built from it."""
    images, labels = pool(3)
    return images, labels, *corner_digits.build(images, labels, 6, 2, salt=0)


def test_each_class_is_divided_in_proportion_into_disjoint_parts():
    images, labels = pool(12)
    label_of, part_keys = dict(zip(keys(images), labels)), []
    for name, (part_images, part_labels) in corner_digits.divide(images, labels, PROPORTIONS).items():
        np.testing.assert_array_equal(np.bincount(part_labels), 12 * PROPORTIONS[name] / 6)
        assert [label_of[key] for key in keys(part_images)] == part_labels.tolist()
        part_keys += keys(part_images)
    assert sorted(part_keys) == sorted(label_of)


def test_the_embedded_pools_are_disjoint_and_complete():
    pools = corner_digits.digit_pools()
    all_keys = [key for images, _ in pools.values() for key in keys(images)]
    assert len(all_keys) == 1797 and len(set(all_keys)) == 1797
    sizes = [len(pools[name][1]) for name in ("train", "validation", "test")]
    np.testing.assert_allclose(sizes, np.array([13, 2, 3]) * 1797 / 18, atol=10)


def test_each_class_has_its_quota(built):
    *_, sample_images, classes = built
    assert sample_images.shape == (70, 28, 28, 1) and sample_images.dtype == np.uint8 and classes.dtype == np.int64
    np.testing.assert_array_equal(np.bincount(classes), [6] * 10 + [2] * 5)
    assert classes.tolist() != sorted(classes)


def test_other_classes_are_the_maximum_of_a_center_and_a_corner_digit(built):
    images, labels, sample_images, classes = built
    corners = corner_images(images)
    for label in range(5, 15):
        possible = np.maximum(images[labels == label % 10][:, None], corners[None]).reshape(-1, 28, 28, 1)
        assert set(keys(sample_images[classes == label])) <= set(keys(possible))
        assert not set(keys(sample_images[classes == label])) & set(keys(images))


def test_all_digits_and_corners_are_drawn():
    images, labels = pool(1)
    sample_images, classes = corner_digits.build(images, labels, 100, 0, salt=0)
    combinations = np.maximum(images[5], corner_images(images))
    counts = [keys(sample_images[classes == 5]).count(key) for key in keys(combinations)]
    assert sum(counts) == 100 and np.count_nonzero(counts) > 30
    assert np.reshape(counts, [10, 4]).sum(axis=0).min() > 10 and np.reshape(counts, [10, 4]).sum(axis=1).min() > 0


def test_centers_repeat_only_if_the_pool_is_too_small():
    images, labels = pool(3)
    for common, times in ((2, 1), (3, 1), (4, 2), (6, 2)):
        sample_images, classes = corner_digits.build(images, labels, common, 0, salt=0)
        counts = np.unique(keys(sample_images[classes == 3]), return_counts=True)[1]
        assert counts.max() == times and counts.sum() == common and len(counts) == min(common, 3)


@pytest.mark.parametrize("shift", [0, 1, 4])
def test_classes_below_5_carry_no_corner_digit_and_centers_move_by_at_most_shift_pixels(shift):
    images, labels = pool(3)
    digits = {image[4:24, 4:24].tobytes(): label for image, label in zip(images, labels)}
    sample_images, classes = corner_digits.build(images, labels, 200, 0, salt=0, shift=shift)
    offsets = set()
    for sample_image, label in zip(sample_images[classes < 5], classes[classes < 5]):
        top, left = (int(np.flatnonzero(sample_image.any(axis=axes))[0]) for axes in ((1, 2), (0, 2)))
        assert digits[sample_image[top : top + 20, left : left + 20].tobytes()] == label
        offsets.add((top - 4 + shift, left - 4 + shift))
    assert offsets == set(np.ndindex(2 * shift + 1, 2 * shift + 1))


def test_all_draws_are_fixed():
    first, again, other = (corner_digits.build(*pool(3), 6, 2, salt=salt)[0] for salt in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    corner_digits.digit_pools.cache_clear()
    before = corner_digits.digit_pools()["train"]
    corner_digits.digit_pools.cache_clear()
    np.testing.assert_array_equal(before[0], corner_digits.digit_pools()["train"][0])
