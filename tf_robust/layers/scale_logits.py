"""Calibration of logits as a Keras layer, for the end of a model."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np


@keras.saving.register_keras_serializable("tf_robust")
class ScaleLogits(keras.layers.Layer):
    """Logits [N, C] -> logits * scale + bias: temperature scaling (scale = 1 / temperature) or vector scaling.

    Args:
        scale: > 0, a number or one for each class.
        bias: a number or one for each class.
        **kwargs: of `keras.layers.Layer`.

    Examples:
        >>> logits, labels = np.array([[4.0, 0.0]] * 4), np.array([0, 0, 0, 1])  # three of four predictions are right
        >>> layer = tfr.layers.ScaleLogits(1 / tfr.metrics.fit_temperature(logits, labels))
        >>> tf.nn.softmax(layer(logits))[0].numpy().round(2)
        array([0.75, 0.25], dtype=float32)
        >>> network = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(2)])
        >>> keras.Sequential([network, layer]).output_shape  # as the last layer of a model
        (None, 2)
    """

    def __init__(self, scale: float | Sequence[float] = 1.0, bias: float | Sequence[float] = 0.0, **kwargs: Any):
        super().__init__(**{"dtype": "float32", **kwargs})
        self.scale, self.bias = (np.asarray(values, np.float32) for values in (scale, bias))
        if not (np.isfinite(self.scale).all() and (self.scale > 0).all() and np.isfinite(self.bias).all()):
            raise ValueError(f"Expected finite scales > 0 and finite biases. Received: scale={scale}, bias={bias}")
        if self.scale.ndim > 1 or self.bias.ndim > 1:
            raise ValueError(f"Expected a number or one for each class. Received shapes: {self.scale.shape}, {self.bias.shape}")
        self.built = True

    def call(self, logits: Any) -> Any:
        for values in (self.scale, self.bias):
            if values.ndim and logits.shape[-1] != len(values):
                raise ValueError(f"Expected logits of {len(values)} classes. Received shape: {tuple(logits.shape)}")
        return keras.ops.cast(logits, self.compute_dtype) * self.scale + self.bias

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        return tuple(input_shape)

    def get_config(self) -> dict:
        return {**super().get_config(), "scale": self.scale.tolist(), "bias": self.bias.tolist()}
