"""Pretrained models that are part of the package, each a folder with `card.json` and `weights.npz` (float16).

    model = load("cifar10/resnet20_noisymix")   # keras.Model: images [N, 32, 32, 3] in [0, 1] -> {"logits", "embedding"}
    card("cifar10/resnet20_noisymix")["training"], names()

`research/zoo` writes them. Importing this module does not import TensorFlow.
"""

import glob
import hashlib
import json
import os
import typing

from tf_robust.utils.errors import unknown

if typing.TYPE_CHECKING:
    import keras

__all__ = ["card", "load", "names"]

FOLDER = os.path.dirname(os.path.abspath(__file__))


def names() -> list[str]:
    """Returns the names of the pretrained models, DATA/MODEL_METHOD.

    Examples:
        >>> from tf_robust.saved_models import zoo
        >>> [name for name in zoo.names() if name.startswith("digits/")]
        ['digits/lenet_augmix', 'digits/lenet_cross_entropy']
    """
    return sorted(os.path.relpath(os.path.dirname(file), FOLDER) for file in glob.glob(os.path.join(FOLDER, "*", "*", "card.json")))


def folder_of(name: str) -> str:
    """Returns the folder of a pretrained model; raises ValueError if the name is not one of `names()`."""
    if name not in names():
        raise unknown("pretrained model", name, names())
    return os.path.join(FOLDER, name)


def card(name: str) -> dict[str, typing.Any]:
    """Returns the card of a pretrained model: data, classes, training flags, versions, weights (hash), and its evaluation.

    Examples:
        >>> from tf_robust.saved_models import zoo
        >>> card = zoo.card("digits/lenet_augmix")
        >>> card["data"], card["input"]["shape"], card["weights"]["parameters"]
        ('digits', [None, 28, 28, 1], 61706)
    """
    with open(os.path.join(folder_of(name), "card.json"), encoding="utf-8") as file:
        return json.load(file)


def load(name: str) -> "keras.Model":
    """Returns a pretrained model: float32 [N, H, W, C] in [0, 1] -> {"logits": [N, classes], "embedding": [N, E]}.

    Raises ValueError if the name is not one of `saved_models.zoo.names()`, as `tf-robust list zoo` prints them, or for weights that are not
    those of the card.

    Examples:
        >>> from tf_robust.saved_models import zoo
        >>> network = zoo.load("digits/lenet_augmix")
        >>> images, _ = tfr.images(2, data="digits")
        >>> {name: one.shape.as_list() for name, one in network(images).items()}
        {'logits': [2, 10], 'embedding': [2, 84]}
    """
    description, folder = card(name), folder_of(name)
    if digest(folder) != description["weights"]["sha256"]:
        raise ValueError(f"Expected the weights of {name} that its card describes. Received: {folder} with another SHA-256")
    return rebuild(description, folder)


def rebuild(card: dict, folder: str) -> "keras.Model":
    """Returns the network of a model that this package wrote, with its layers, from its card and the weights in its folder.

    Raises ValueError if the weights are not those of the network that the card names.
    """
    from tf_robust import models

    flags = card.get("flags", {})
    shape, classes = card["input"]["shape"][1:], len(card["classes"])
    network = models.build(card["model"], shape, classes, resize=int(flags.get("resize", 0)))
    if width := int(flags.get(f"{card.get('method')}_head_width", 0)):
        network = models.with_hidden_layer(network, width)
    models.load_encoder(network, folder, head=True)
    return network


def digest(folder: str) -> str:
    """Returns the SHA-256 of the weights in a folder, hexadecimal."""
    with open(os.path.join(folder, "weights.npz"), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
