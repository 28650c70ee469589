"""Keras models whose last operation is a softmax, or of one output a sigmoid, without it."""

import dataclasses

import keras

from tf_robust.saved_models.classifier import Classifier
from tf_robust.saved_models.loading import classifier_of


def without_softmax(classifier: Classifier) -> Classifier:
    """Returns a model that gives the logits before its last softmax, if that is a Keras layer of its own or the activation of a Dense
    layer; otherwise the model itself, whose logits are the logarithms of its probabilities. The same holds for the sigmoid of a model with
    one output, whose logit is the difference of those of both classes.

    The softmax of both is the same. In integers they differ: 8 bits resolve probabilities in steps of 1/256, and logits in as many steps
    over their whole range.

    Args:
        classifier: a loaded model of any format.
    """
    model = classifier.loaded
    if classifier.interface.outputs != "probabilities" or not isinstance(model, keras.Model) or len(getattr(model, "outputs", ())) != 1:
        return classifier
    layer = model.outputs[0]._keras_history.operation
    if not _gives_probabilities(layer, model.outputs[0].shape[-1] == 1) or len(layer._inbound_nodes) != 1:
        return classifier
    logits = layer.input
    if isinstance(layer, keras.layers.Dense):
        linear = keras.layers.Dense.from_config({**layer.get_config(), "activation": "linear"})
        logits = linear(logits)
        linear.set_weights(layer.get_weights())
    interface = dataclasses.replace(classifier.interface, outputs="logits")
    return classifier_of(keras.Model(model.inputs, logits, name=model.name), interface, classifier.path)


def _gives_probabilities(layer, one_output):
    if isinstance(layer, keras.layers.Softmax):
        return layer.axis == -1 and not one_output
    activation = keras.activations.sigmoid if one_output else keras.activations.softmax
    return type(layer) in (keras.layers.Dense, keras.layers.Activation) and layer.activation is activation
