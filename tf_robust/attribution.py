"""Contextual utility and sensitivity: input Jacobians of any differentiable model (FCL, section 2).

A model is a callable from float32 [N, H, W, C] in [0, 1] to logits or embeddings, or to a dictionary of them with the keys
"logits" and "embedding": a Keras model, a reloaded SavedModel, a function.
"""

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_robust import losses
from tf_robust.models.outputs import Model, output
from tf_robust.ops import image_ops, philox


class WithoutGradient(ValueError):
    """The outputs of a model are not differentiable with respect to the input images.

    Examples:
        >>> def model(images):
        ...     return tf.one_hot(tf.cast(images[:, 0, 0, 0] > 0.5, tf.int32), 2)
        >>> tfr.attribution.contextual_utility(model, np.zeros((1, 2, 2, 1)), [0])
        Traceback (most recent call last):
        tf_robust.attribution.WithoutGradient: Expected a model that is differentiable with respect to its images. ...
    """


def contextual_utility(model: Model, images: npt.ArrayLike, labels: npt.ArrayLike) -> tf.Tensor:
    """Returns |d cross-entropy / d x| of each example (Definition 1, eq. 1), in inference mode.

    Args:
        model: images -> logits [N, C], or a dictionary with "logits".
        images: float32 [N, H, W, C] in [0, 1].
        labels: int [N].

    Returns:
        tf.Tensor [N, H, W, C], >= 0, in nats per unit of pixel value.

    Raises:
        ValueError: no images, or images that are not finite or not in [0, 1].
        WithoutGradient: the model is not differentiable.

    Examples:
        >>> def model(images):  # the logits depend on the first pixel alone
        ...     return images[:, 0, 0] * [1.0, -1.0]
        >>> tfr.attribution.contextual_utility(model, np.zeros((1, 2, 2, 1)), [0])[0, :, :, 0].numpy()
        array([[1., 0.],
               [0., 0.]], dtype=float32)
    """
    images = _checked(images)
    with tf.GradientTape() as tape:
        tape.watch(images)
        loss = losses.cross_entropy(labels, output(model, images, "logits"))
    return tf.abs(_gradient(tape, loss, images))


def contextual_sensitivity(encoder: Model, images: npt.ArrayLike, *, memory_limit: int = 2**29) -> tf.Tensor:
    """Returns the norm of the embedding's Jacobian per input value, |d phi / d x_j| (Definition 2, eq. 2); exact.

    Every embedding dimension takes one backward pass; several dimensions are differentiated at once on copies of the
    images, as many as the memory limit allows.

    Args:
        encoder: images -> [N, E], or a dictionary with "embedding".
        images: float32 [N, H, W, C] in [0, 1].
        memory_limit: maximum bytes of the copies and their activations; at least one image and one dimension are computed at once.

    Returns:
        tf.Tensor [N, H, W, C], >= 0.

    Raises:
        ValueError: no images, or images that are not finite or not in [0, 1].
        WithoutGradient: the encoder is not differentiable.

    Examples:
        >>> def encoder(images):  # the embedding depends on the first pixel alone
        ...     return images[:, 0, 0] * [3.0, 4.0]
        >>> tfr.attribution.contextual_sensitivity(encoder, np.zeros((1, 2, 2, 1)))[0, :, :, 0].numpy()
        array([[5., 0.],
               [0., 0.]], dtype=float32)
    """
    images = _checked(images)
    dimensions = output(encoder, images[:1], "embedding").shape[-1]
    at_once = max(1, memory_limit // _bytes_per_image(encoder, images.shape[1:]))
    rows, copies = min(at_once, len(images)), max(1, min(dimensions, at_once // len(images)))

    @tf.function(reduce_retracing=True)
    def squares(part, one_hot):  # [P, H, W, C], one-hot rows [K, E] -> [P, H, W, C]
        count = tf.shape(one_hot)[0]
        repeated = tf.repeat(part, count, axis=0)  # image-major [P * K, ...]
        with tf.GradientTape() as tape:
            tape.watch(repeated)
            selected = tf.reduce_sum(tf.cast(output(encoder, repeated, "embedding"), tf.float32) * tf.tile(one_hot, [tf.shape(part)[0], 1]))
        gradient = _gradient(tape, selected, repeated)
        return tf.reduce_sum(tf.reshape(gradient, tf.concat([[-1, count], tf.shape(part)[1:]], 0)) ** 2, axis=1)

    eye, parts = tf.eye(dimensions), []
    for start in range(0, len(images), rows):
        part = images[start : start + rows]
        parts.append(sum(squares(part, eye[d : d + copies]) for d in range(0, dimensions, copies)))
    return tf.sqrt(tf.concat(parts, axis=0))


def squared_sensitivity_estimate(encoder: Model, images: npt.ArrayLike, *, projections: int = 16, seed: int = 0) -> tf.Tensor:
    """Returns an unbiased estimate of the *squared* contextual sensitivity, for embeddings too wide for the exact one.

    For v with independent signs, E (d (v . phi) / d x_j)^2 = sum over e of (d phi_e / d x_j)^2.

    Args:
        encoder: images -> [N, E], or a dictionary with "embedding".
        images: float32 [N, H, W, C] in [0, 1].
        projections: number of backward passes to average, >= 1.
        seed: of the random signs.

    Returns:
        tf.Tensor [N, H, W, C], >= 0; its root is an estimate of the sensitivity, biased low.

    Raises:
        ValueError: no images, or images that are not finite or not in [0, 1]; projections < 1.
        WithoutGradient: the encoder is not differentiable.

    Examples:
        >>> def encoder(images):  # one pixel for each dimension: the estimate is exact
        ...     return tf.reshape(images, [-1, 4]) * [1.0, 2.0, 3.0, 4.0]
        >>> tfr.attribution.squared_sensitivity_estimate(encoder, np.zeros((1, 2, 2, 1)), projections=2)[0, :, :, 0].numpy()
        array([[ 1.,  4.],
               [ 9., 16.]], dtype=float32)
    """
    if projections < 1:
        raise ValueError(f"Expected projections >= 1. Received: {projections}")
    images = _checked(images)

    @tf.function
    def squared_gradient(projection):
        with tf.GradientTape() as tape:
            tape.watch(images)
            embedding = output(encoder, images, "embedding")
            bits = philox.uniform(tf.shape(embedding), [seed, projection], 0, 2, tf.int32)
            projected = tf.reduce_sum(embedding * tf.cast(2 * bits - 1, embedding.dtype))
        return _gradient(tape, projected, images) ** 2

    return sum(squared_gradient(tf.constant(p)) for p in range(projections)) / projections


def _checked(images):
    images = image_ops.check_images(images)
    if not len(images):
        raise ValueError(f"Expected at least one image. Received: images of shape {images.shape}")
    return tf.constant(images)


def _gradient(tape, target, images):
    try:
        gradient = tape.gradient(target, images)
    except LookupError:  # of an operation without a gradient
        gradient = None
    if gradient is None:
        raise WithoutGradient("Expected a model that is differentiable with respect to its images. Received: a model without gradients")
    return gradient


def _bytes_per_image(encoder, shape):
    """Returns the bytes of one image's activations and their gradients; those of 100 images if the layers are unknown."""
    layers = list(_leaves(encoder))
    if not layers or not all(hasattr(layer, "output") for layer in layers):
        return 100 * 4 * int(np.prod(shape))
    sizes = [np.prod(output.shape[1:]) for layer in layers for output in tf.nest.flatten(layer.output)]
    return int(2 * 4 * sum(sizes))


def _leaves(model):
    """Yields the layers of a Keras model and of the models inside it; nothing for other callables."""
    for layer in getattr(model, "layers", ()):
        if getattr(layer, "layers", ()):
            yield from _leaves(layer)
        else:
            yield layer


def mean_by_class(values: npt.ArrayLike, labels: npt.ArrayLike, modulo: int = 10) -> np.ndarray:
    """Returns the mean over the examples of each class modulo `modulo` (FCL, Figure 4).

    Args:
        values: [N, ...].
        labels: int [N].
        modulo: number of groups of classes.

    Returns:
        np.ndarray [modulo, ...]; zeros for a class without examples.

    Examples:
        >>> tfr.attribution.mean_by_class([1.0, 3.0, 10.0], labels=[0, 2, 1], modulo=2)
        array([ 2., 10.])
    """
    values, groups = np.asarray(values), np.asarray(labels) % modulo
    return np.stack([values[groups == g].mean(axis=0) if (groups == g).any() else np.zeros(values.shape[1:]) for g in range(modulo)])
