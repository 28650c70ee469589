import numpy as np
import pytest

from tf_robust import data
from tf_robust.data.subsets import stratified_order


def arrays(dataset):
    """Returns all batches of a Dataset of (images, labels, ...) as arrays."""
    return [np.concatenate(parts) for parts in zip(*dataset.as_numpy_iterator())]


def numbered(size, num_classes=1):
    """Returns a source whose image i is the pixel i."""
    numbers, class_names = np.arange(size), map(str, range(num_classes))
    images = numbers.astype(np.uint8).reshape(size, 1, 1, 1)
    return data.ArraySource.of("synthetic", "train", images, numbers % num_classes, class_names)


def epoch_order(source, *arguments):
    return arrays(source.epoch(*arguments))[0].ravel().tolist()


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("name, classes", [("digits", 10), ("synthetic_digits", 15)])
def test_embedded_sources(name, classes, split):
    source = data.open_source(name, split)
    images, labels = arrays(source.ordered(500))
    assert images.shape == (len(source), 28, 28, 1) and images.dtype == np.uint8 and labels.dtype == np.int64
    assert source.num_classes == classes and set(labels) == set(range(classes))
    assert (images.max(axis=(1, 2, 3)) > 128).all()  # none is empty


def test_load_gives_single_examples_in_the_fixed_order():
    loaded, source = data.load("digits", "test"), data.open_source("digits", "test")
    assert [(s.shape.as_list(), s.dtype.name) for s in loaded.element_spec] == [([28, 28, 1], "uint8"), ([], "int64")]
    for i, (image, label) in enumerate(loaded.take(5)):
        np.testing.assert_array_equal(image, source.images[i])
        assert label == source.labels[i]


def test_an_epoch_is_a_permutation_by_seed_and_epoch():
    source = numbered(12)
    orders = [epoch_order(source, seed, epoch, 4) for seed in range(3) for epoch in range(3)]
    assert all(sorted(order) == list(range(12)) for order in orders)
    assert len(set(map(tuple, orders))) == 9
    assert epoch_order(numbered(12), 2, 2, 4) == orders[-1]


def test_an_epoch_has_full_batches_and_matching_labels():
    images, labels, positions = arrays(numbered(14, num_classes=5).epoch(0, 0, 4))
    np.testing.assert_array_equal(positions, images.ravel())
    assert len(np.unique(images)) == 12
    np.testing.assert_array_equal(labels, images.ravel() % 5)


def test_every_prefix_of_the_stratified_order_has_the_class_frequencies():
    labels = np.random.RandomState(0).permutation(np.repeat([0, 1, 2], [60, 25, 15]))
    order = stratified_order(labels)
    assert sorted(order) == list(range(100))
    for length in range(1, 101):
        for label, frequency in enumerate([0.60, 0.25, 0.15]):
            assert abs(np.sum(labels[order[:length]] == label) - frequency * length) < 1 + 3 * frequency


def test_subsets_are_nested_stratified_and_in_the_fixed_order():
    full, large, small = (data.open_source("digits", "train", examples=count) for count in (0, 400, 100))
    position = {image.tobytes(): i for i, image in enumerate(full.images)}
    large_positions, small_positions = ([position[image.tobytes()] for image in part.images] for part in (large, small))
    assert set(small_positions) < set(large_positions) and len(set(large_positions)) == 400
    assert large_positions == sorted(large_positions) and small_positions == sorted(small_positions)
    np.testing.assert_array_less(np.abs(np.bincount(small.labels) - 10), 3)
    np.testing.assert_array_equal(small.labels, full.labels[small_positions])


def test_labelled_fractions_are_stratified_nested_and_depend_on_the_seed():
    source = data.open_source("digits", "train")

    def positions(fraction, seed):
        return {*data.labelled_fraction(source, fraction, seed).positions}

    tenth, hundredth = positions(0.1, 0), positions(0.02, 0)
    assert len(tenth) == round(0.1 * len(source)) and hundredth < tenth
    fractions = np.bincount(source.labels[sorted(tenth)]) / np.bincount(source.labels)
    np.testing.assert_allclose(fractions, 0.1, atol=0.02)
    assert positions(0.1, 0) == tenth and len(positions(0.1, 1) & tenth) < 0.3 * len(tenth)
    assert data.labelled_fraction(source, 1.0, 3) is source
    for fraction in (0.0, 0.005, 1.1):  # 0.005 leaves some classes without examples
        with pytest.raises(ValueError, match=f"label_fraction .* Received: {fraction}"):
            data.labelled_fraction(source, fraction, 0)


@pytest.mark.parametrize("name, near", [("Digits", "digits"), ("cifar1", "cifar10")])
def test_an_unknown_name_is_rejected_with_suggestions(name, near, tmp_path):
    with pytest.raises(ValueError, match=f"'{name}'. Did you mean .*'{near}'.* Known: digits"):
        data.open_source(name, "train", str(tmp_path))


def test_an_unknown_split_is_rejected():
    with pytest.raises(ValueError, match="'valid'"):
        data.load("digits", "valid")


def test_missing_data_are_rejected_with_advice(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"'mnist'.*{tmp_path}.*tfds build mnist --data_dir={tmp_path}"):
        data.open_source("mnist", "train", str(tmp_path))


def test_array_sources_are_in_memory_and_have_random_access():
    source = numbered(9, num_classes=3)
    assert source.in_memory and source.random_access and not source.sorted_by_class and source.paths is None
    np.testing.assert_array_equal(source.read_labels(), source.labels)
    for changed in (source, source.resized((2, 3), "stretch")):
        images, labels = changed.read_range(2, 6)
        expected = arrays(changed.ordered(4))
        np.testing.assert_array_equal(images, expected[0][2:6])
        np.testing.assert_array_equal(labels, expected[1][2:6])


@pytest.mark.parametrize("bad", [-1, 3])
def test_labels_out_of_range_are_rejected(bad):
    labels = np.array([0, 1, bad, 2, bad])
    with pytest.raises(ValueError, match=rf"labels in 0..2 in synthetic \(test\). Received: {bad} at index 2 \(2 labels"):
        data.ArraySource.of("synthetic", "test", np.zeros([5, 1, 1, 1], np.uint8), labels, "abc")


@pytest.mark.parametrize("options", [{"examples": 10_000}, {"examples": -5}, {"validation_fraction": 1.0}, {"validation_fraction": -0.1}])
def test_invalid_arguments_are_rejected(options):
    ((name, value),) = options.items()
    with pytest.raises(ValueError, match=f"{name}.* Received: {value}"):
        data.open_source("digits", "train", **options)
