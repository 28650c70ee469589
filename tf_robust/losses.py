"""Losses as pure functions: inputs [N, ...] -> float32 [N], one value per example, unless documented otherwise."""

from collections.abc import Sequence

import tensorflow as tf


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor, label_smoothing: float = 0.0) -> tf.Tensor:
    """Returns the softmax cross-entropy.

    Its gradient with respect to the logits, softmax(logits) - labels, keeps the part of confident predictions: that sums to 0, so the entry
    of the largest logit is minus the sum of the others. As a difference it would be rounded to 0 where the other probabilities sum to less
    than 6e-8 in float32, which would mislead every method that follows the gradient with respect to the images.

    Args:
        labels: class indices, int [N], or probabilities of the classes, floating point [N, C], which are constants.
        logits: [N, C].
        label_smoothing: in [0, 1), the part of the target that is spread evenly over all C classes, as in Keras.

    Returns:
        [N], in nats.

    Raises:
        ValueError: other labels.

    Examples:
        >>> logits = tf.constant([[0.0, 0.0, 0.0], [0.0, 0.0, 9.0]])
        >>> tfr.losses.cross_entropy([0, 0], logits).numpy().round(4)  # log(3), and 9 + log(1 + 2 exp(-9))
        array([1.0986, 9.0002], dtype=float32)
        >>> tfr.losses.cross_entropy(tf.constant([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]), logits).numpy().round(4)
        array([1.0986, 9.0002], dtype=float32)
    """
    labels, logits = tf.convert_to_tensor(labels), tf.convert_to_tensor(logits)
    if labels.dtype.is_floating and labels.shape.rank == 2:
        targets = tf.cast(labels, logits.dtype)
    elif labels.dtype.is_integer and labels.shape.rank == 1:
        targets = tf.one_hot(labels, tf.shape(logits)[1], dtype=logits.dtype)
    else:
        raise ValueError(
            "Expected labels as class indices, int [N], or probabilities, floating point [N, C]. "
            f"Received: {labels.dtype.name}, shape {labels.shape}"
        )

    @tf.custom_gradient
    def of_logits(logits):
        def gradient(upstream):
            errors = tf.nn.softmax(logits) - targets
            largest = tf.one_hot(tf.argmax(logits, axis=1), tf.shape(logits)[1], on_value=True, off_value=False)
            others = tf.where(largest, tf.zeros_like(errors), errors)
            return upstream[:, None] * tf.where(largest, -tf.reduce_sum(others, axis=1, keepdims=True), errors)

        if labels.dtype.is_integer:
            return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits), gradient
        return tf.nn.softmax_cross_entropy_with_logits(targets, logits), gradient

    loss = of_logits(logits)
    if not label_smoothing:
        return loss
    uniform = tf.reduce_logsumexp(logits, axis=1) - tf.reduce_mean(logits, axis=1)  # to a target with 1 / C for each class
    return (1.0 - label_smoothing) * loss + label_smoothing * uniform


def log_odds(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Returns the logarithm of the odds against the labels, log((1 - p_y) / p_y) = log(sum over j != y of exp(z_j)) - z_y.

    The cross-entropy is its softplus: both have the same order and the same direction of their gradients, but the gradient of the log-odds
    vanishes for no prediction.

    Args:
        labels: class indices, int [N].
        logits: [N, C].

    Examples:
        >>> logits = np.log([[0.25, 0.75]])
        >>> tfr.losses.log_odds([0], logits).numpy().round(4)  # log(0.75 / 0.25) = log(3)
        array([1.0986])
    """
    logits = tf.convert_to_tensor(logits)
    own = tf.one_hot(labels, tf.shape(logits)[1], on_value=True, off_value=False)
    others = tf.reduce_logsumexp(tf.where(own, logits.dtype.min, logits), axis=1)
    return others - tf.reduce_sum(tf.where(own, logits, tf.zeros_like(logits)), axis=1)


def class_indices(labels: tf.Tensor) -> tf.Tensor:
    """Returns the class indices int64 [N] of labels as in `cross_entropy`: of probabilities the most probable class.

    Examples:
        >>> tfr.losses.class_indices([[0.2, 0.8], [0.9, 0.1]]).numpy()
        array([1, 0])
        >>> tfr.losses.class_indices([1, 0]).numpy()
        array([1, 0])
    """
    labels = tf.convert_to_tensor(labels)
    return tf.argmax(labels, axis=1) if labels.shape.rank == 2 else tf.cast(labels, tf.int64)


def kl_divergence(logits: tf.Tensor, other_logits: tf.Tensor) -> tf.Tensor:
    """Returns the Kullback-Leibler divergence KL(softmax(logits) || softmax(other_logits)).

    Args:
        logits: [N, C].
        other_logits: [N, C].

    Returns:
        [N], in nats, >= 0

    Examples:
        >>> p, q = np.log([[0.5, 0.5]]), np.log([[0.25, 0.75]])
        >>> tfr.losses.kl_divergence(p, q).numpy().round(4)  # log(2) / 2 + log(2 / 3) / 2
        array([0.1438])
        >>> tfr.losses.kl_divergence(p, p).numpy()
        array([0.])
    """
    log_p, log_q = tf.nn.log_softmax(logits), tf.nn.log_softmax(other_logits)
    return tf.reduce_sum(tf.exp(log_p) * (log_p - log_q), axis=1)


def jensen_shannon(distributions: Sequence[tf.Tensor], weights: Sequence[float] | None = None) -> tf.Tensor:
    """Returns the Jensen-Shannon divergence sum over k of w_k KL(p_k | sum over j of w_j p_j) (NoisyMix, section 3.2; Lin, 1991).

    Args:
        distributions: list of K arrays [N, C], >= 0, whose rows sum to 1.
        weights: K numbers >= 0 with sum 1; None: 1 / K each.

    Returns:
        [N], in nats, from 0 for equal distributions to the entropy of the weights.

    Raises:
        ValueError: fewer than two distributions, or invalid weights.

    Examples:
        >>> p, q = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
        >>> tfr.losses.jensen_shannon([p, q]).numpy().round(4)  # the largest of two distributions: log(2)
        array([0.6931])
        >>> tfr.losses.jensen_shannon([p, p]).numpy().round(4)
        array([0.])
    """
    if len(distributions) < 2:
        raise ValueError(f"Expected at least 2 distributions. Received: {len(distributions)}")
    weights = [1.0 / len(distributions)] * len(distributions) if weights is None else list(weights)
    if len(weights) != len(distributions) or min(weights) < 0 or abs(sum(weights) - 1.0) > 1e-6:
        raise ValueError(f"Expected {len(distributions)} weights >= 0 with sum 1. Received: {weights}")
    distributions = [tf.convert_to_tensor(p) for p in distributions]

    def log(p):
        return tf.math.log(tf.clip_by_value(p, 1e-7, 1.0))  # p log p tends to 0 with p, but its gradient is unbounded

    mixture = log(tf.add_n([w * p for w, p in zip(weights, distributions)]))
    return tf.add_n([w * tf.reduce_sum(p * (log(p) - mixture), axis=1) for w, p in zip(weights, distributions)])


def feature_contrastive(
    anchors: tf.Tensor,
    positives: tf.Tensor,
    negatives: tf.Tensor | None = None,
    temperature: float = 0.1,
    negative_weights: tf.Tensor | None = None,
) -> tf.Tensor:
    """Returns the softmax form of the feature contrastive loss (FCL, eq. 5), with cosine similarity s = 1 - dist.

    -log exp(s(z_i, z_i+) / t) / (exp(s(z_i, z_i+) / t) + w_i exp(s(z_i, z_i-) / t) + sum over j != i of exp(s(z_i, z_j) / t))

    Args:
        anchors: embeddings z [N, E]; the other samples' anchors are negatives.
        positives: embeddings z+ of the low-utility perturbation [N, E].
        negatives: embeddings z- of the high-utility perturbation [N, E]; None: no such negatives.
        temperature: > 0.
        negative_weights: [N], >= 0, weight of each own negative; 0 drops it. None: all 1.

    Returns:
        [N].

    Examples:
        >>> equal = tf.ones([4, 8])
        >>> tfr.losses.feature_contrastive(equal, equal).numpy().round(4)  # one of four candidates: log(4)
        array([1.3863, 1.3863, 1.3863, 1.3863], dtype=float32)
        >>> tfr.losses.feature_contrastive(equal, equal, negatives=equal).numpy().round(4)  # one of five
        array([1.6094, 1.6094, 1.6094, 1.6094], dtype=float32)
    """
    others, positive, own = _similarities(anchors, positives, negatives)
    others = _with_diagonal(others / temperature, others.dtype.min)  # [N, N], no self-pairs
    candidates = [positive[:, None] / temperature, others]
    if own is not None:
        weights = tf.ones_like(own) if negative_weights is None else tf.cast(negative_weights, own.dtype)
        candidates.append(own[:, None] / temperature + tf.math.log(weights)[:, None])
    return tf.reduce_logsumexp(tf.concat(candidates, axis=1), axis=1) - positive / temperature


def feature_contrastive_margin(
    anchors: tf.Tensor,
    positives: tf.Tensor,
    negatives: tf.Tensor | None = None,
    margin: float = 1.0,
    negative_weights: tf.Tensor | None = None,
) -> tf.Tensor:
    """Returns the margin form of the feature contrastive loss (FCL, eq. 4), with cosine distance.

    dist(z_i, z_i+)^2 + w_i max(0, margin - dist(z_i, z_i-))^2 + sum over j != i of max(0, margin - dist(z_i, z_j))^2

    Args:
        anchors: embeddings z [N, E]; the other samples' anchors are negatives.
        positives: embeddings z+ of the low-utility perturbation [N, E].
        negatives: embeddings z- of the high-utility perturbation [N, E]; None: no such negatives.
        margin: > 0; distances lie in [0, 2].
        negative_weights: [N], >= 0, weight of each own negative; 0 drops it. None: all 1.

    Returns:
        [N].

    Examples:
        >>> orthogonal = tf.eye(3)  # at distance 1, the margin
        >>> tfr.losses.feature_contrastive_margin(orthogonal, orthogonal).numpy().round(4)
        array([0., 0., 0.], dtype=float32)
        >>> tfr.losses.feature_contrastive_margin(orthogonal, orthogonal, negatives=orthogonal).numpy().round(4)
        array([1., 1., 1.], dtype=float32)
    """
    others, positive, own = _similarities(anchors, positives, negatives)

    def hinge(similarity):
        return tf.nn.relu(margin - (1.0 - similarity)) ** 2

    loss = (1.0 - positive) ** 2 + tf.reduce_sum(_with_diagonal(hinge(others), 0.0), axis=1)
    if own is not None:
        loss += hinge(own) * (1.0 if negative_weights is None else tf.cast(negative_weights, own.dtype))
    return loss


def _with_diagonal(matrix, value):
    """A square matrix with a number in its diagonal; XLA cannot compile the gradient of tf.linalg.set_diag for any size."""
    rows = tf.range(tf.shape(matrix)[0])
    return tf.where(rows[:, None] == rows, tf.constant(value, matrix.dtype), matrix)


def nt_xent(view_a: tf.Tensor, view_b: tf.Tensor, temperature: float) -> tf.Tensor:
    """Returns NT-Xent, the normalized temperature-scaled cross-entropy of two views, with cosine similarity.

    Chen et al., 2020; Robustness of Contrastive Learning Models, eq. 1. The mean of l(a_i, b_i) and l(b_i, a_i), where the
    candidates of l are the other 2N - 1 embeddings: self-pairs, which eq. 1 includes in the denominator, are excluded as is
    common practice.

    Args:
        view_a: embeddings of one view of the images [N, E].
        view_b: embeddings of another view of the same images [N, E].
        temperature: > 0.

    Returns:
        [N]; log(2N - 1) if all embeddings are equal.

    Raises:
        ValueError: the temperature is not positive, or the views have different shapes.

    Examples:
        >>> equal = tf.ones([4, 8])
        >>> tfr.losses.nt_xent(equal, equal, temperature=0.5).numpy().round(4)  # log(2 * 4 - 1)
        array([1.9459, 1.9459, 1.9459, 1.9459], dtype=float32)
    """
    if not temperature > 0:
        raise ValueError(f"Expected temperature > 0. Received: {temperature}")
    view_a, view_b = tf.convert_to_tensor(view_a), tf.convert_to_tensor(view_b)
    if not view_a.shape.is_compatible_with(view_b.shape) or view_a.shape.rank != 2:
        raise ValueError(f"Expected two views [N, E]. Received shapes: {view_a.shape}, {view_b.shape}")
    unit = _unit(tf.concat([view_a, view_b], axis=0))
    similarities = tf.matmul(unit, unit, transpose_b=True) / temperature
    candidates = _with_diagonal(similarities, similarities.dtype.min)
    first, second = tf.split(unit, 2)
    positive = tf.reduce_sum(first * second, axis=1) / temperature
    return tf.reduce_mean(tf.reshape(tf.reduce_logsumexp(candidates, axis=1), [2, -1]), axis=0) - positive


def similarity(features: tf.Tensor, frozen_features: tf.Tensor, mean_squared: bool = False) -> tf.Tensor:
    """Returns the change of the similarities between images: the Frobenius norm |S - S*|, S = f f^T (URRL, eq. 4).

    Args:
        features: [N, E], of the encoder.
        frozen_features: [N, E], of the initial encoder.
        mean_squared: return the mean of the squared entries of S - S* instead.

    Returns:
        A scalar; its gradient is 0 where it is 0.

    Examples:
        >>> features = tf.constant([[1.0, 0.0], [0.0, 2.0]])
        >>> float(tfr.losses.similarity(features[:, ::-1], features))  # other features, the same inner products
        0.0
        >>> float(tfr.losses.similarity(2 * features, features, mean_squared=True))  # mean of 3^2, 0, 0, 12^2
        38.25
    """
    features, frozen_features = tf.convert_to_tensor(features), tf.convert_to_tensor(frozen_features)
    difference = tf.matmul(features, features, transpose_b=True) - tf.matmul(frozen_features, frozen_features, transpose_b=True)
    if mean_squared:
        return tf.reduce_mean(difference**2)
    squared = tf.reduce_sum(difference**2)
    nonzero = squared > 0
    return tf.where(nonzero, tf.sqrt(tf.where(nonzero, squared, tf.ones_like(squared))), tf.zeros_like(squared))


def _similarities(anchors, positives, negatives):
    """Returns the cosines of every two anchors [N, N], of anchor and positive [N], of anchor and own negative [N] or None."""
    unit = _unit(anchors)
    others = tf.matmul(unit, unit, transpose_b=True)
    own = None if negatives is None else tf.reduce_sum(unit * _unit(negatives), axis=1)
    return others, tf.reduce_sum(unit * _unit(positives), axis=1), own


def _unit(vectors):
    return tf.math.l2_normalize(vectors, axis=-1)
