"""Losses against sums in NumPy, closed forms and finite differences."""

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import tensorflow as tf

from tf_robust import losses

N, E = 5, 4
WEIGHTS = np.array([0.0, 0.25, 1.0, 3.0, 0.0])


@pytest.fixture
def embeddings():
    """Returns anchors, positives and negatives, float64 [3, N, E]."""
    return np.random.RandomState(0).randn(3, N, E)


def cosine(a, b):
    return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))


def softmax_form(anchors, positives, negatives, temperature, weights):
    """Returns eq. 5, pair by pair; the own negative counts `weights[i]` times."""
    values = []
    for i, anchor in enumerate(anchors):
        positive = np.exp(cosine(anchor, positives[i]) / temperature)
        negative = sum(np.exp(cosine(anchor, other) / temperature) for j, other in enumerate(anchors) if j != i)
        if negatives is not None:
            negative += weights[i] * np.exp(cosine(anchor, negatives[i]) / temperature)
        values.append(-np.log(positive / (positive + negative)))
    return values


def margin_form(anchors, positives, negatives, margin, weights):
    """Returns eq. 4, pair by pair; the own negative counts `weights[i]` times."""
    values = []
    for i, anchor in enumerate(anchors):
        hinges = [max(0.0, margin - (1 - cosine(anchor, z))) ** 2 for j, z in enumerate(anchors) if j != i]
        if negatives is not None:
            hinges.append(weights[i] * max(0.0, margin - (1 - cosine(anchor, negatives[i]))) ** 2)
        values.append((1 - cosine(anchor, positives[i])) ** 2 + sum(hinges))
    return values


FORMS = [
    (losses.feature_contrastive, softmax_form, 0.1),
    (losses.feature_contrastive, softmax_form, 2.0),
    (losses.feature_contrastive_margin, margin_form, 0.7),
    (losses.feature_contrastive_margin, margin_form, 1.8),
]
losses_only = pytest.mark.parametrize("loss", [losses.feature_contrastive, losses.feature_contrastive_margin])


@pytest.mark.parametrize("loss, oracle, parameter", FORMS)
def test_equals_the_papers_sums(loss, oracle, parameter, embeddings):
    result = loss(*embeddings, parameter)
    assert result.shape == (N,)
    np.testing.assert_allclose(result, oracle(*embeddings, parameter, np.ones(N)))
    weighted = loss(*embeddings, parameter, negative_weights=WEIGHTS)  # the own negatives
    np.testing.assert_allclose(weighted, oracle(*embeddings, parameter, WEIGHTS))
    without = oracle(*embeddings[:2], None, parameter, None)
    np.testing.assert_allclose(loss(*embeddings[:2], None, parameter), without)
    np.testing.assert_allclose(loss(*embeddings, parameter, negative_weights=np.zeros(N)), without)


def test_identical_embeddings_have_a_closed_form():
    equal = np.ones([N, E], np.float32)
    np.testing.assert_allclose(losses.feature_contrastive(equal, equal, equal, 0.1), np.log(N + 1.0), rtol=1e-5)
    np.testing.assert_allclose(losses.feature_contrastive(equal, equal, None, 0.1), np.log(N), rtol=1e-5)
    np.testing.assert_allclose(losses.feature_contrastive_margin(equal, equal, equal, 0.5), 0.5**2 * N, rtol=1e-5)
    np.testing.assert_allclose(losses.feature_contrastive_margin(equal, equal, None, 0.5), 0.5**2 * (N - 1), rtol=1e-5)


def test_a_single_image_has_no_negatives():
    assert losses.feature_contrastive(np.ones([1, E]), -np.ones([1, E])).numpy() == [0.0]


@losses_only
def test_losses_are_invariant_to_the_length_of_embeddings(loss, embeddings):
    lengths = 10.0 ** np.random.RandomState(1).uniform(-3, 3, size=[3, N, 1])
    np.testing.assert_allclose(loss(*(lengths * embeddings)), loss(*embeddings))


@losses_only
def test_gradient_equals_finite_differences(loss, embeddings):
    point = tf.constant(embeddings)
    with tf.GradientTape() as tape:
        tape.watch(point)
        total = tf.reduce_sum(loss(*tf.unstack(point), 0.9, WEIGHTS))
    expected = scipy.optimize.approx_fprime(
        embeddings.ravel(), lambda flat: np.sum(loss(*flat.reshape(embeddings.shape), 0.9, WEIGHTS)), 1e-7
    )
    np.testing.assert_allclose(np.ravel(tape.gradient(total, point)), expected, atol=1e-5)


def value_and_gradients(loss, points, parameter):
    points = [tf.constant(p, tf.float32) for p in points]
    with tf.GradientTape() as tape:
        tape.watch(points)
        values = loss(*points, parameter, WEIGHTS)
    return values, tape.gradient(values, points)


@losses_only
@pytest.mark.parametrize("position", range(3))
def test_a_zero_embedding_keeps_everything_finite(loss, position, embeddings):
    embeddings[position, 2] = 0.0
    values, gradients = value_and_gradients(loss, embeddings, 0.5)
    assert np.isfinite(values).all() and np.isfinite(gradients).all()


def test_a_zero_embedding_has_similarity_0():
    anchors = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    np.testing.assert_allclose(losses.feature_contrastive(anchors, anchors, anchors)[0], np.log(4.0))
    np.testing.assert_allclose(losses.feature_contrastive_margin(anchors, anchors, anchors, 1.5)[0], 1 + 3 * 0.5**2)


def test_extreme_similarities_at_a_low_temperature():
    anchors = np.tile([[1.0, 0.0]], [N, 1])
    worst, gradients = value_and_gradients(losses.feature_contrastive, [anchors, -anchors, anchors], 0.01)
    expected = 200.0 + np.log(N - 1 + WEIGHTS)  # s = -1 against N - 1 + w times s = 1
    np.testing.assert_allclose(worst, expected, rtol=1e-6)
    assert np.isfinite(gradients).all()
    best, gradients = value_and_gradients(losses.feature_contrastive, [np.eye(N), np.eye(N), -np.eye(N)], 0.01)
    np.testing.assert_allclose(best, 0.0, atol=1e-5)
    assert np.isfinite(gradients).all()


def test_nt_xent_equals_eq_1_of_the_contrastive_paper():
    a, b, temperature = *np.random.RandomState(0).randn(2, 5, 7), 0.5
    z = np.stack([a, b], axis=1).reshape(10, 7)  # x_1, x_1', x_2, x_2', ...: 2k - 1 and 2k are the views of image k
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    s = z @ z.T

    def loss(i, j):
        return -np.log(np.exp(s[i, j] / temperature) / sum(np.exp(s[i, k] / temperature) for k in range(10) if k != i))

    expected = [(loss(2 * k, 2 * k + 1) + loss(2 * k + 1, 2 * k)) / 2 for k in range(5)]
    np.testing.assert_allclose(losses.nt_xent(a, b, temperature), expected, rtol=1e-10)
    np.testing.assert_allclose(losses.nt_xent(b, 3 * a, temperature), expected, rtol=1e-10)


def test_nt_xent_of_equal_embeddings_and_invalid_input():
    equal = tf.ones([6, 3])
    np.testing.assert_allclose(losses.nt_xent(equal, equal, 0.1), np.full(6, np.log(11)), rtol=1e-5)
    np.testing.assert_allclose(losses.nt_xent(equal[:1], -equal[:1], 0.1), [0.0], atol=1e-5)  # no negatives at all
    for temperature in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="temperature > 0"):
            losses.nt_xent(equal, equal, temperature)
    with pytest.raises(ValueError, match=r"two views \[N, E\]"):
        losses.nt_xent(equal, equal[:2], 0.1)


@pytest.mark.parametrize("weights", [None, [0.5, 0.2, 0.3]])
def test_jensen_shannon_equals_the_sum_of_divergences(weights):
    p = scipy.special.softmax(np.random.RandomState(0).randn(3, N, E), axis=-1)
    w = np.full(3, 1 / 3) if weights is None else np.array(weights)
    mixture = np.einsum("k,kne->ne", w, p)
    expected = sum(w_k * (p_k * np.log(p_k / mixture)).sum(axis=1) for w_k, p_k in zip(w, p))
    np.testing.assert_allclose(losses.jensen_shannon(list(p), weights), expected, rtol=1e-6)


def test_jensen_shannon_of_one_hot_distributions_is_finite():
    first, second = tf.eye(3), tf.roll(tf.eye(3), 1, axis=1)
    with tf.GradientTape() as tape:
        tape.watch(first)
        divergence = losses.jensen_shannon([first, second])
    np.testing.assert_allclose(divergence, np.full(3, np.log(2)), rtol=1e-5)  # the entropy of the weights
    assert np.isfinite(tape.gradient(divergence, first)).all()
    for distributions, weights, message in (([first], None, "at least 2"), ([first, second], [0.5, 0.6], "with sum 1")):
        with pytest.raises(ValueError, match=message):
            losses.jensen_shannon(distributions, weights)


def test_similarity_is_the_frobenius_norm_with_gradient_0_at_0():
    features, frozen = np.random.RandomState(0).randn(2, 4, 3)
    difference = np.array([[f @ g - p @ q for g, q in zip(features, frozen)] for f, p in zip(features, frozen)])
    assert float(losses.similarity(features, frozen)) == pytest.approx(np.linalg.norm(difference, "fro"))
    assert float(losses.similarity(features, frozen, mean_squared=True)) == pytest.approx(np.mean(difference**2))
    variable = tf.Variable(frozen)
    with tf.GradientTape() as tape:
        loss = losses.similarity(variable, frozen)
    assert float(loss) == 0.0
    np.testing.assert_array_equal(tape.gradient(loss, variable), np.zeros_like(frozen))
    rotation = np.linalg.qr(np.random.RandomState(1).randn(3, 3))[0]  # keeps every similarity
    assert float(losses.similarity(frozen @ rotation, frozen)) == pytest.approx(0.0, abs=1e-12)


def test_cross_entropy_of_probabilities():
    labels, logits = np.random.dirichlet([1.0] * 4, 6), np.random.randn(6, 4)
    shifted = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(losses.cross_entropy(labels, logits), -(labels * shifted).sum(axis=1), rtol=1e-6)
    indices = np.arange(6) % 4
    np.testing.assert_allclose(losses.cross_entropy(np.eye(4)[indices], logits), losses.cross_entropy(indices, logits), rtol=1e-6)
    np.testing.assert_array_equal(losses.class_indices(np.eye(4)[indices]), indices)
