"""Test-time adaptation: batch normalization by the statistics of the test batch instead of the moving averages.

Prediction-time batch normalization (Nado et al., 2020; Schneider et al., 2020). Predictions then depend on the other images of the batch.
"""

import contextlib
from collections.abc import Iterator, Sequence

import keras
import tensorflow as tf

from tf_robust.saved_models.classifier import Classifier
from tf_robust.saved_models.exported import rebuild
from tf_robust.saved_models.formats.keras_files import keras_signature


def with_batch_statistics(classifier: Classifier) -> Classifier:
    """Returns a classifier whose batch normalization uses mean and variance of each batch; all else remains in inference mode.

    The model itself does not change.

    Args:
        classifier: of a Keras model in memory, a `.keras` or `.h5` file, `zoo:NAME`, `applications:NAME`, or a run's SavedModel.

    Raises:
        ValueError: the model has no batch normalization, or a format in which it cannot be reached.
    """
    model = rebuild(classifier.card, classifier.path) if classifier.is_exported else classifier.loaded
    if not isinstance(model, keras.Model) or not getattr(model, "inputs", None) or getattr(model, "preprocessor", None):
        raise ValueError(
            "Expected a model whose batch normalization can be reached, with adaptation=batch_norm: a run, a Keras model, a .keras "
            f"or .h5 file, zoo:NAME or applications:NAME. Received: {classifier.path}. Try: the Keras file that it was exported from, or "
            "adaptation=none"
        )
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    if not layers:
        raise ValueError(
            f"Expected a model with batch normalization layers, with adaptation=batch_norm. Received: {classifier.path}, which has none. "
            "Try: adaptation=none"
        )
    with _batch_statistics(layers):
        signature = keras_signature(model)  # traces the model
    return Classifier(signature.channels_last(), classifier.interface, path=classifier.path, loaded=model)


@contextlib.contextmanager
def _batch_statistics(layers: Sequence[keras.layers.BatchNormalization]) -> Iterator[None]:
    """Lets layers normalize by the batch's statistics, also frozen ones; moving averages do not change."""
    before = {id(layer): vars(layer).get("call") for layer in layers}
    for layer in layers:
        layer.call = _normalization(layer)
    try:
        yield
    finally:
        for layer in layers:
            own = before[id(layer)]
            if own is None:
                del layer.call
            else:
                layer.call = own


def _normalization(layer):
    """Returns the replacement of a layer's `call`."""

    def call(inputs, training=None, mask=None):
        axis = layer.axis % inputs.shape.rank
        values = tf.cast(inputs, tf.float32)
        mean, variance = tf.nn.moments(values, [other for other in range(inputs.shape.rank) if other != axis])
        gamma, beta = layer.gamma if layer.scale else None, layer.beta if layer.center else None
        normalized = keras.ops.batch_normalization(values, mean, variance, axis, beta, gamma, layer.epsilon)
        return tf.cast(normalized, layer.compute_dtype)

    return call
