"""SavedModels that this package exported, whose network can be built again from their cards and weights."""

import os

import keras

from tf_robust import models
from tf_robust.models import weights
from tf_robust.saved_models.classifier import Classifier


def is_exported(classifier: Classifier) -> bool:
    """Returns whether a classifier is a SavedModel that this package exported, with its card and weights."""
    files = ("saved_model.pb", weights.FILE)
    return "input" in classifier.card and all(os.path.isfile(os.path.join(classifier.path, name)) for name in files)


def rebuild(card: dict, folder: str) -> keras.Model:
    """Returns the network of an exported model, with its layers.

    Args:
        card: of the model.
        folder: with its weights.

    Raises:
        ValueError: the weights are not those of the network that the card names.
    """
    flags = card.get("flags", {})
    shape, classes = card["input"]["shape"][1:], len(card["classes"])
    network = models.build(card["model"], shape, classes, resize=int(flags.get("resize", 0)))
    if width := int(flags.get(f"{card.get('method')}_head_width", 0)):
        network = models.with_hidden_layer(network, width)
    models.load_encoder(network, folder, head=True)
    return network
