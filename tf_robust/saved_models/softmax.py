"""Keras models whose last operation is a softmax, without it."""

import dataclasses

import keras

from tf_robust.saved_models.classifier import Classifier
from tf_robust.saved_models.loading import classifier_of


def without_softmax(classifier: Classifier) -> Classifier:
    """Returns a model that gives the logits before its last softmax, if that is a Keras layer of its own or the activation of a Dense
    layer; otherwise the model itself, whose logits are the logarithms of its probabilities.

    The softmax of both is the same. In integers they differ: 8 bits resolve probabilities in steps of 1/256, and logits in as many steps
    over their whole range.

    Args:
        classifier: a loaded model of any format.
    """
    model = classifier.loaded
    if classifier.interface.outputs != "probabilities" or not isinstance(model, keras.Model) or len(getattr(model, "outputs", ())) != 1:
        return classifier
    layer = model.outputs[0]._keras_history.operation
    if not _is_softmax(layer) or len(layer._inbound_nodes) != 1:
        return classifier
    logits = layer.input
    if isinstance(layer, keras.layers.Dense):
        linear = keras.layers.Dense.from_config({**layer.get_config(), "activation": "linear"})
        logits = linear(logits)
        linear.set_weights(layer.get_weights())
    interface = dataclasses.replace(classifier.interface, outputs="logits")
    return classifier_of(keras.Model(model.inputs, logits, name=model.name), interface, classifier.path)


def _is_softmax(layer):
    if isinstance(layer, keras.layers.Softmax):
        return layer.axis == -1
    return type(layer) in (keras.layers.Dense, keras.layers.Activation) and layer.activation is keras.activations.softmax
