"""Batch normalization's moving averages, estimated anew on training images (Schneider et al., 2020, for other images)."""

from collections.abc import Iterable

import keras
import numpy as np
import tensorflow as tf

from tf_robust.hardening.training import batch_norms

BATCHES = 30


def reestimated(model: keras.Model, network: keras.Model, weights: list[np.ndarray], batches: Iterable[tf.Tensor]) -> list[np.ndarray]:
    """Returns weights whose moving averages are the means of the statistics of batches; all else is unchanged.

    Args:
        model: whose weights they are; it has the new ones afterwards.
        network: calls the model: images in [0, 1] -> outputs.
        weights: as `model.get_weights` returns them.
        batches: of images, float32 [N, H, W, C] in [0, 1], as training saw them.
    """
    model.set_weights(weights)
    layers = batch_norms(model)
    momenta = [layer.momentum for layer in layers]
    try:
        for count, images in enumerate(batches):
            for layer in layers:
                layer.momentum = count / (count + 1)  # the cumulative mean: the first batch replaces the averages
            network(images, training=True)
    finally:
        for layer, momentum in zip(layers, momenta):
            layer.momentum = momentum
    return model.get_weights()
