"""Models by name: `zoo:NAME`, `applications:NAME`, `keras_hub:PRESET`, and `module:function` of the user's own code.

The first three take images in [0, 1]: the preprocessing that belongs to the weights is part of the signature.
"""

import keras
import tensorflow as tf

from tf_robust.models.named import application_family, model_of_function
from tf_robust.saved_models import zoo
from tf_robust.saved_models.formats.keras_files import keras_signature
from tf_robust.saved_models.formats.reading import import_extra, readable
from tf_robust.saved_models.signatures import Signature

__all__ = ["model_of_function", "read_application", "read_preset", "read_pretrained"]


def read_pretrained(name: str, trust: bool) -> tuple[dict[str, Signature], object]:
    """Loads a pretrained model of this package.

    Args:
        name: one of `zoo.names()`.
        trust: not used: there is no Python code to run.

    Raises:
        ValueError: there is no such model.
    """
    model = zoo.load(name)
    return {"serving_default": keras_signature(model)}, model


def read_application(name: str, trust: bool) -> tuple[dict[str, Signature], object]:
    """Builds a model of `keras.applications` with its ImageNet weights, which Keras downloads once.

    Args:
        name: of the model, such as MobileNetV2.
        trust: not used: there is no Python code to run.

    Raises:
        ValueError: there is no such model, or its weights cannot be downloaded.
    """
    family = application_family(name)
    with readable(f"applications:{name}", "Try: connect to the internet once: Keras downloads the ImageNet weights to ~/.keras/models."):
        model = getattr(keras.applications, name)(weights="imagenet", classifier_activation=None)
    images = keras.Input(model.input_shape[1:], name="images")
    complete = keras.Model(images, model(family.preprocess_input(255 * images)), name=model.name)
    return {"serving_default": keras_signature(complete)}, complete


def read_preset(name: str, trust: bool) -> tuple[dict[str, Signature], object]:
    """Builds an image classifier of keras_hub.

    Args:
        name: of a preset, or the path of its folder.
        trust: not used: a preset contains no Python code.

    Raises:
        ImportError: keras_hub is not installed.
        ValueError: there is no such preset, or it is no image classifier.
    """
    hub = import_extra("keras_hub", "keras_hub")
    with readable(name, "Try: the name of an image classifier of keras_hub, or the folder of model.save_to_preset(FOLDER)."):
        model = hub.models.ImageClassifier.from_preset(name)
    converter = getattr(model.preprocessor, "image_converter", None)
    signature = _preprocessed(model, (lambda images: converter(255 * images)) if converter else None)
    if converter is not None and converter.image_size:  # it resizes
        (spec,) = signature.inputs.values()
        signature.inputs["images"] = tf.TensorSpec([None, None, None, spec.shape[3]], spec.dtype, "images")
    return {"serving_default": signature}, model


def _preprocessed(model, preprocess):
    """The signature of a Keras model behind its preprocessing; None: there is none."""
    signature = keras_signature(model)
    ((name, spec),) = signature.inputs.items()
    if preprocess is None:
        return Signature(lambda images: signature.call(**{name: images}), {"images": spec}, signature.outputs)
    function = tf.function(lambda images: signature.call(**{name: tf.cast(preprocess(images), spec.dtype)}))
    return Signature(function, {"images": tf.TensorSpec(spec.shape, tf.float32, "images")}, signature.outputs)
