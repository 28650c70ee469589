"""Contextual utility and sensitivity: input Jacobians of any differentiable model (FCL, section 2).

A model is a callable from float32 [N, H, W, C] in [0, 1] to logits or embeddings, or to a dictionary that has them under
"logits" and "embedding": a Keras model, a reloaded SavedModel, a function.
"""

import numpy as np
import tensorflow as tf

from tf_robust import losses
from tf_robust.models.outputs import output
from tf_robust.ops import image_ops, philox


class WithoutGradient(ValueError):
    """The outputs of a model have no derivative to its images."""


def contextual_utility(model, images, labels):
    """|d cross-entropy / d x| of each example (Definition 1, eq. 1), in inference mode.

    Args:
        images: float32 [N, H, W, C] in [0, 1]. labels: int [N].

    Returns:
        tf.Tensor [N, H, W, C], >= 0, in nats per unit of pixel value.

    Raises:
        ValueError: images that are not finite or not in [0, 1]. WithoutGradient: the model has none.
    """
    images = tf.constant(image_ops.check_images(images))
    with tf.GradientTape() as tape:
        tape.watch(images)
        loss = losses.cross_entropy(labels, output(model, images, "logits"))
    return tf.abs(_gradient(tape, loss, images))


def contextual_sensitivity(encoder, images, *, memory_limit=2**29):
    """The norm of the embedding's Jacobian per input value, |d phi / d x_j| (Definition 2, eq. 2); exact.

    Every embedding dimension takes one backward pass; several dimensions are differentiated at once on copies of the
    images, as many as the memory limit allows.

    Args:
        encoder: images -> [N, E], or a dictionary with "embedding". images: float32 [N, H, W, C] in [0, 1].
        memory_limit: bytes that the copies and their activations may take; one image and one dimension always fit.

    Returns:
        tf.Tensor [N, H, W, C], >= 0.
    """
    images = tf.constant(image_ops.check_images(images))
    dimensions = output(encoder, images[:1], "embedding").shape[-1]
    at_once = max(1, memory_limit // _bytes_per_image(encoder, images.shape[1:]))
    rows, copies = min(at_once, len(images)), max(1, min(dimensions, at_once // len(images)))

    @tf.function(reduce_retracing=True)
    def squares(part, chosen):  # [P, H, W, C], one-hot rows [K, E] -> [P, H, W, C]
        count = tf.shape(chosen)[0]
        repeated = tf.repeat(part, count, axis=0)  # image-major [P * K, ...]
        with tf.GradientTape() as tape:
            tape.watch(repeated)
            selected = tf.reduce_sum(output(encoder, repeated, "embedding") * tf.tile(chosen, [tf.shape(part)[0], 1]))
        gradient = _gradient(tape, selected, repeated)
        return tf.reduce_sum(tf.reshape(gradient, tf.concat([[-1, count], tf.shape(part)[1:]], 0)) ** 2, axis=1)

    eye, parts = tf.eye(dimensions), []
    for start in range(0, len(images), rows):
        part = images[start:start + rows]
        parts.append(sum(squares(part, eye[d:d + copies]) for d in range(0, dimensions, copies)))
    return tf.sqrt(tf.concat(parts, axis=0))


def squared_sensitivity_estimate(encoder, images, *, projections=16, seed=0):
    """An unbiased estimate of the *squared* contextual sensitivity, for embeddings too wide for the exact one.

    For v with independent signs, E (d (v . phi) / d x_j)^2 = sum over e of (d phi_e / d x_j)^2.

    Args:
        encoder, images: as `contextual_sensitivity`. projections: backward passes to average, >= 1. seed: int.

    Returns:
        tf.Tensor [N, H, W, C], >= 0; take the root for the sensitivity (which is then biased low).
    """
    if projections < 1:
        raise ValueError(f"Expected projections >= 1. Received: {projections}")
    images = tf.constant(image_ops.check_images(images))

    @tf.function
    def one(projection):
        with tf.GradientTape() as tape:
            tape.watch(images)
            embedding = output(encoder, images, "embedding")
            bits = philox.uniform(tf.shape(embedding), [seed, projection], 0, 2, tf.int32)
            projected = tf.reduce_sum(embedding * tf.cast(2 * bits - 1, embedding.dtype))
        return _gradient(tape, projected, images) ** 2

    return sum(one(tf.constant(p)) for p in range(projections)) / projections


def _gradient(tape, target, images):
    try:
        gradient = tape.gradient(target, images)
    except LookupError:  # of an operation that has none
        gradient = None
    if gradient is None:
        raise WithoutGradient("Expected a model that can be differentiated. Received one without a gradient to its images")
    return gradient


def _bytes_per_image(encoder, shape):
    """Activations and their gradients of one image; a guess of 100 images where the layers cannot be seen."""
    layers = list(_leaves(encoder))
    if not layers or not all(hasattr(layer, "output") for layer in layers):
        return 100 * 4 * int(np.prod(shape))
    sizes = [np.prod(output.shape[1:]) for layer in layers for output in tf.nest.flatten(layer.output)]
    return int(2 * 4 * sum(sizes))


def _leaves(model):
    """The layers of a Keras model and of the models in it; none of anything else."""
    for layer in getattr(model, "layers", ()):
        if getattr(layer, "layers", ()):
            yield from _leaves(layer)
        else:
            yield layer


def mean_by_class(values, labels, modulo=10):
    """Mean over the examples of each class modulo `modulo` (FCL, Figure 4).

    Args:
        values: [N, ...]. labels: int [N].

    Returns:
        np.ndarray [modulo, ...]; zeros for a class without examples.
    """
    values, groups = np.asarray(values), np.asarray(labels) % modulo
    return np.stack([values[groups == g].mean(axis=0) if (groups == g).any() else np.zeros(values.shape[1:])
                     for g in range(modulo)])
