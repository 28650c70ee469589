"""Accuracies and their intervals, and models that do not fit."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tf_robust import evaluation


def dataset(labels, batch=4):
    images = np.zeros((len(labels), 8, 8, 1), np.float32)
    images[:, 0, 0, 0] = np.arange(len(labels)) / 100
    return tf.data.Dataset.from_tensor_slices((images, np.asarray(labels, np.int64))).batch(batch)


def always(column, classes=3):
    return lambda images: tf.one_hot(tf.fill([len(images)], column), classes)


def test_accuracy_and_wilson_interval():
    row, = evaluation.evaluate(always(1), {"clean": dataset([1, 1, 0, 2, 1, 0, 1, 1, 2, 0])})
    assert (row.measure, row.value, row.count) == ("clean", 0.5, 10)
    z = scipy.stats.norm.ppf(0.975)
    centre, half = (0.5 + z * z / 20) / (1 + z * z / 10), z * np.sqrt(0.025 + z * z / 400) / (1 + z * z / 10)
    np.testing.assert_allclose([row.low, row.high], [centre - half, centre + half], rtol=1e-9)


def test_noise_sets_do_not_depend_on_the_batch_and_replace_the_named_share(source, monkeypatch):
    test, train = source(30, split="test"), source(90)
    one = evaluation.evaluation_sets(test, train)
    found = {name: np.concatenate([x for x, _ in batches.as_numpy_iterator()]) for name, batches in one.items()}
    monkeypatch.setattr(evaluation, "BATCH", 7)
    for name, batches in evaluation.evaluation_sets(test, train).items():
        np.testing.assert_array_equal(np.concatenate([x for x, _ in batches.as_numpy_iterator()]), found[name])
    assert set(found) == {"clean", "un", "nun"}
    for name in ("un", "nun"):
        assert abs((found[name] != found["clean"]).mean() - 0.15) < 4 * np.sqrt(0.15 * 0.85 / found[name].size)


@pytest.mark.parametrize("predict, message", [
    (lambda x: tf.zeros([len(x)]), "Expected logits"), (lambda x: tf.fill([len(x), 3], np.nan), "finite"),
    (always(0, classes=2), "labels in 0..1")])
def test_models_that_do_not_fit_are_refused(predict, message):
    with pytest.raises(ValueError, match=message):
        list(evaluation.evaluate(predict, {"clean": dataset([0, 1, 2])}))


def test_an_empty_set_and_an_unknown_evaluation_are_refused(source):
    with pytest.raises(ValueError, match="Received none"):
        list(evaluation.evaluate(always(0), {"clean": dataset([0]).take(0)}))
    with pytest.raises(ValueError, match="Did you mean 'noise'"):
        evaluation.evaluation_sets(source(), source(), ("noises",))
