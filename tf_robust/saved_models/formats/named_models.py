"""Models by name: `zoo:NAME`, `applications:NAME` and `keras_hub:PRESET`.

They take images in [0, 1]: the preprocessing that belongs to the weights is part of the signature. There is no Python code to trust.
"""

import keras
import tensorflow as tf

from tf_robust.models.named import application_family
from tf_robust.saved_models import zoo
from tf_robust.saved_models.formats.keras_files import keras_signature
from tf_robust.saved_models.signatures import Signature
from tf_robust.utils.errors import readable
from tf_robust.utils.lazy import import_extra


def read_pretrained(name: str, trust: bool) -> tuple[dict[str, Signature], object]:
    """Loads a pretrained model of this package."""
    model = zoo.load(name)
    return {"serving_default": keras_signature(model)}, model


def read_application(name: str, trust: bool) -> tuple[dict[str, Signature], object]:
    """Builds a model of `keras.applications` with its ImageNet weights, which Keras downloads once."""
    family = application_family(name)
    with readable(f"applications:{name}", "Try: connect to the internet once: Keras downloads the ImageNet weights to ~/.keras/models."):
        model = getattr(keras.applications, name)(weights="imagenet", classifier_activation=None)
    images = keras.Input(model.input_shape[1:], name="images")
    complete = keras.Model(images, model(family.preprocess_input(255 * images)), name=model.name)
    return {"serving_default": keras_signature(complete)}, complete


def read_preset(name: str, trust: bool) -> tuple[dict[str, Signature], object]:
    """Builds an image classifier of keras_hub. name: of a preset, or the path of its folder."""
    hub = import_extra("keras_hub", "keras_hub")
    with readable(name, "Try: the name of an image classifier of keras_hub, or the folder of model.save_to_preset(FOLDER)."):
        model = hub.models.ImageClassifier.from_preset(name)
    converter = getattr(model.preprocessor, "image_converter", None)
    signature = keras_signature(model)
    ((name, spec),) = signature.inputs.items()
    if converter is None:
        return {"serving_default": Signature(lambda images: signature.call(**{name: images}), {"images": spec}, signature.outputs)}, model
    function = tf.function(lambda images: signature.call(**{name: tf.cast(converter(255 * images), spec.dtype)}))
    shape = [None, None, None, spec.shape[3]] if converter.image_size else spec.shape  # with a size it resizes
    return {"serving_default": Signature(function, {"images": tf.TensorSpec(shape, tf.float32, "images")}, signature.outputs)}, model
