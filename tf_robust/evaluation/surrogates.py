"""Surrogates: differentiable models on which attacks are computed that another model is then evaluated on."""

import dataclasses
import os
from collections.abc import Callable

import keras

from tf_robust import evaluation
from tf_robust.data.source import Source
from tf_robust.evaluation.model_checks import with_checked_batches, with_checked_inputs
from tf_robust.saved_models import loading
from tf_robust.utils.progress import print_note

_IMAGES = 50  # whose outputs tell probabilities from logits


def load_surrogate(
    model: loading.Classifier | str | os.PathLike | keras.Model | Callable, source: Source, trust: bool = False
) -> loading.Classifier:
    """Returns a surrogate for images of a source.

    Its interface is found: probabilities are recognized by their sums, the pixel scale is that of its card or the one with which
    it classifies most images correctly, and images are resized to its input size in front of it.

    Args:
        model: path or name of a model, a keras.Model or a callable; or a model whose interface is known.
        source: the images to attack.
        trust: run the Python code in a Keras file.

    Raises:
        ValueError: it has no gradients, takes other images or has another number of classes.
    """
    if isinstance(model, loading.Classifier):
        return _checked(model, source)
    interface = loading.ModelInterface(input_range="auto", trust=trust)
    size = loading.image_size_of(_load(model, interface))
    if size and size != tuple(source.image_shape[:2]) and size[0] == size[1]:
        interface = dataclasses.replace(interface, input_size=size[0])
    return _checked(_load(model, interface), source)


def _checked(surrogate, source):
    """A surrogate with the interface that suits it, if it has gradients and takes these images."""
    surrogate.check_images_match(source.image_shape)
    if surrogate.num_classes and not source.has_columns_of(surrogate.num_classes):
        raise ValueError(
            f"Expected a surrogate with the {source.num_classes} classes of {source.name}. Received: {surrogate.path} with "
            f"{surrogate.num_classes} classes"
        )
    if not surrogate.has_gradients(source.image_shape):
        raise ValueError(f"Expected a surrogate with gradients. Received: {surrogate.path}, {surrogate.why_no_gradients()}")
    images, labels = evaluation.first_images(source, _IMAGES)
    scaled = with_checked_inputs(with_checked_batches(surrogate.with_known_outputs(images), images), source)
    accuracy = float((scaled(images).numpy().argmax(axis=1) == labels).mean())
    print_note(
        f"attacks are transferred from {scaled.path} (input_range={scaled.interface.input_range}, outputs={scaled.interface.outputs}), "
        f"which classifies {accuracy:.0%} of {len(labels)} images correctly."
    )
    return scaled


def _load(model, interface):
    if isinstance(model, (str, os.PathLike)):
        return loading.load_classifier(model, interface)
    return loading.classifier_of(model, interface)
