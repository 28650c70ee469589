"""Builds the network of a SavedModel that this package exported again, from its card and weights."""

import keras

from tf_robust import models


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
