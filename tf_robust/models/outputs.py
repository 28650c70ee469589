"""Logits and embeddings of any model, and checks that the logits can be used."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_robust import data

# images float32 [N, H, W, C] in [0, 1] -> a tensor, or a dictionary with "logits" and "embedding": a keras.Model, a
# reloaded SavedModel, a function
Model = Callable[[Any], Any]
PROBABILITY_TOLERANCE = 2.0**-7  # of the sum of probabilities that are computed in half precision: bfloat16 has 8 bits


def output(model: Model, images: tf.Tensor, key: str) -> tf.Tensor:
    """Returns a model's output for images, or the entry `key` of it where it is a dictionary; Keras models run in inference mode.

    Without the argument, Keras runs a whole model in training mode if one of its layers does so by default, such as Resizing.
    """
    outputs = model(images, training=False) if isinstance(model, keras.layers.Layer) else model(images)
    return outputs[key] if isinstance(outputs, dict) else outputs


def are_probabilities(scores: npt.ArrayLike) -> bool:
    """Returns whether scores [N, C] are probabilities that sum to 1 up to rounding."""
    scores = np.asarray(scores, np.float64)
    return bool((scores >= 0).all() and (np.abs(scores.sum(axis=-1) - 1) <= PROBABILITY_TOLERANCE).all())


def checked_logits(logits: npt.ArrayLike, labels: Sequence[int] | np.ndarray, where: str) -> np.ndarray:
    """Returns logits as an array [N, C]; raises ValueError for another shape, NaN, +infinity, or labels, int [N], without a logit.

    -infinity is allowed (a class that is masked out), but not in all classes of an image. where: which images these are, for the message.
    """
    logits = np.asarray(logits)
    if logits.ndim != 2 or len(logits) != len(labels):
        raise ValueError(f"Expected logits [{len(labels)}, classes] in {where}. Received shape: {logits.shape}")
    if np.isnan(logits).any() or np.isposinf(logits).any() or not np.isfinite(logits).any(axis=1).all():
        raise ValueError(f"Expected finite logits in {where}. Received: NaN or infinity")
    data.check_labels(labels, logits.shape[1], f"{where}, by the columns of the logits")
    return logits
