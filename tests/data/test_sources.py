import inspect

import numpy as np
import pytest

from tf_robust import data
from tf_robust.data.source import stratified_order

EMBEDDED = {"digits": 10, "synthetic_digits": 15}
SPLITS = ("train", "validation", "test")
each_split = pytest.mark.parametrize("name, split", [(name, split) for name in EMBEDDED for split in SPLITS])


def arrays(dataset):
    """All batches of a Dataset of (images, labels, ...) as arrays."""
    return [np.concatenate(parts) for parts in zip(*dataset.as_numpy_iterator())]


def numbered(size, num_classes=1):
    """Image i is the pixel i."""
    numbers, class_names = np.arange(size), map(str, range(num_classes))
    images = numbers.astype(np.uint8).reshape(size, 1, 1, 1)
    return data.ArraySource.of("made-up", "train", images, numbers % num_classes, class_names)


def epoch_order(source, *arguments):
    return arrays(source.epoch(*arguments))[0].ravel().tolist()


@each_split
def test_embedded_sources(name, split):
    source = data.open_source(name, split)
    images, labels = arrays(source.ordered(500))
    assert images.shape == (len(source), 28, 28, 1) and images.dtype == np.uint8 and labels.dtype == np.int64
    assert source.num_classes == EMBEDDED[name] and set(labels) == set(range(EMBEDDED[name]))
    again = arrays(data.open_source(name, split).ordered(300))
    np.testing.assert_array_equal(images, again[0])
    np.testing.assert_array_equal(labels, again[1])
    assert (images.max(axis=(1, 2, 3)) > 128).all()  # none is empty


@each_split
def test_load_gives_single_examples_in_the_fixed_order(name, split):
    loaded, source = data.load(name, split), data.open_source(name, split)
    assert [(s.shape.as_list(), s.dtype.name) for s in loaded.element_spec] == [([28, 28, 1], "uint8"), ([], "int64")]
    for i, (image, label) in enumerate(loaded.take(5)):
        np.testing.assert_array_equal(image, source.images[i])
        assert label == source.labels[i]


def test_load_has_the_documented_signature():
    assert list(inspect.signature(data.load).parameters)[:3] == ["name", "split", "data_dir"]


def test_an_epoch_is_a_permutation_that_seed_and_epoch_decide():
    source = numbered(12)
    orders = [epoch_order(source, seed, epoch, 4) for seed in range(3) for epoch in range(3)]
    assert all(sorted(order) == list(range(12)) for order in orders)
    assert len(set(map(tuple, orders))) == 9
    assert epoch_order(numbered(12), 2, 2, 4) == orders[-1]


def test_an_epoch_holds_whole_batches_and_its_own_labels():
    images, labels, positions = arrays(numbered(14, num_classes=5).epoch(0, 0, 4))
    np.testing.assert_array_equal(positions, images.ravel())
    assert len(np.unique(images)) == 12
    np.testing.assert_array_equal(labels, images.ravel() % 5)


def test_skipping_batches_drops_the_first():
    whole = epoch_order(numbered(12), 0, 0, 4)
    assert [epoch_order(numbered(12), 0, 0, 4, skip) for skip in (1, 2)] == [whole[4:], whole[8:]]


def test_every_prefix_of_the_stratified_order_holds_each_class_in_its_share():
    labels = np.random.RandomState(0).permutation(np.repeat([0, 1, 2], [60, 25, 15]))
    order = stratified_order(labels)
    assert sorted(order) == list(range(100))
    for length in range(1, 101):
        for label, share in enumerate([0.60, 0.25, 0.15]):
            assert abs(np.sum(labels[order[:length]] == label) - share * length) < 1 + 3 * share


def test_subsets_are_nested_stratified_and_in_the_fixed_order():
    whole, large, small = (data.open_source("digits", "train", examples=count) for count in (0, 400, 100))
    place = {image.tobytes(): i for i, image in enumerate(whole.images)}
    large_places, small_places = ([place[image.tobytes()] for image in part.images] for part in (large, small))
    assert set(small_places) < set(large_places) and len(set(large_places)) == 400
    assert large_places == sorted(large_places) and small_places == sorted(small_places)
    np.testing.assert_array_less(np.abs(np.bincount(small.labels) - 10), 3)
    np.testing.assert_array_equal(small.labels, whole.labels[small_places])


def test_labelled_shares_are_stratified_nested_and_each_seeds_own():
    source = data.open_source("digits", "train")
    place = {image.tobytes(): i for i, image in enumerate(source.images)}

    def places(fraction, seed):
        return {place[image.tobytes()] for image in data.labelled_fraction(source, fraction, seed).images}
    tenth, hundredth = places(0.1, 0), places(0.02, 0)
    assert len(tenth) == round(0.1 * len(source)) and hundredth < tenth
    shares = np.bincount(source.labels[sorted(tenth)]) / np.bincount(source.labels)
    np.testing.assert_allclose(shares, 0.1, atol=0.02)
    assert places(0.1, 0) == tenth and len(places(0.1, 1) & tenth) < 0.3 * len(tenth)
    assert data.labelled_fraction(source, 1.0, 3) is source
    with pytest.raises(ValueError, match="leaves examples of every class. Received: 0.005, 6 examples, none of"):
        data.labelled_fraction(source, 0.005, 0)
    for fraction in (0.0, 1.1):
        with pytest.raises(ValueError, match="label_fraction in"):
            data.labelled_fraction(source, fraction, 0)


@pytest.mark.parametrize("name, near", [("synthetic_digit", "synthetic_digits"), ("Digits", "digits"),
                                        ("synthetic-digits", "synthetic_digits"), ("cifar1", "cifar10")])
def test_an_unknown_name_is_refused_with_the_nearest_ones(name, near, tmp_path):
    with pytest.raises(ValueError, match=f"Unknown data set: '{name}'. Did you mean .*'{near}'.* Known: digits"):
        data.open_source(name, "train", str(tmp_path))


def test_an_unknown_split_is_refused_with_the_nearest_one():
    with pytest.raises(ValueError, match="Unknown split: 'valid'. Did you mean 'validation'"):
        data.load("digits", "valid")


def test_missing_data_say_where_they_were_looked_for_and_what_fetches_them(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        data.open_source("mnist", "train", str(tmp_path))
    for part in ("'mnist'", f"Looked in {tmp_path}", "--download", f"tfds build mnist --data_dir={tmp_path}"):
        assert part in str(error.value)


@pytest.mark.parametrize("bad", [-1, 3])
def test_labels_out_of_range_are_refused(bad):
    labels = np.array([0, 1, bad, 2, bad])
    with pytest.raises(ValueError, match=rf"labels in 0..2 in made-up \(test\). Received {bad} at index 2 \(2 labels"):
        data.ArraySource.of("made-up", "test", np.zeros([5, 1, 1, 1], np.uint8), labels, "abc")


@pytest.mark.parametrize("options, message", [
    ({"examples": 10_000}, r"at most \d+ examples, the size of digits \(train\). Received: 10000"),
    ({"examples": -5}, "examples.* Received: -5"),
    ({"validation_fraction": 1.0}, r"validation_fraction in \[0, 1\). Received: 1.0"),
    ({"validation_fraction": -0.1}, r"validation_fraction in \[0, 1\). Received: -0.1"),
])
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        data.open_source("digits", "train", **options)
