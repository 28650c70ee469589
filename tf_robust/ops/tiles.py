"""Applies a function to a few images at a time, so that its intermediate results stay in the processor's cache."""

import math
from collections.abc import Callable

import tensorflow as tf


def in_tiles(function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], images: tf.Tensor, indices: tf.Tensor, tile_bytes: int) -> tf.Tensor:
    """Returns `function(images, indices)`, computed for a few images after the other.

    Args:
        function: (images [M, H, W, C], indices [M]) -> [M, H, W, C] of the same type; an image's result does not depend on the others.
        images: [N, H, W, C] with known H, W and C.
        indices: [N].
        tile_bytes: of the images that are processed at a time, >= 1; at least one image is.
    """
    images, indices = tf.convert_to_tensor(images), tf.convert_to_tensor(indices)
    shape = images.shape[1:]
    size = max(1, tile_bytes // (images.dtype.size * math.prod(shape)))
    if images.shape[0] is not None and images.shape[0] <= size:
        return function(images, indices)
    count = tf.shape(images)[0]
    tiles = -(-count // size)
    results = tf.TensorArray(images.dtype, tiles, infer_shape=False, element_shape=[None, *shape])

    def step(i, results):
        tile = slice(i * size, (i + 1) * size)
        return i + 1, results.write(i, function(images[tile], indices[tile]))

    _, results = tf.while_loop(lambda i, _: i < tiles, step, (0, results), parallel_iterations=1)
    return tf.ensure_shape(results.concat(), images.shape)
