"""The function of a SavedModel as a keras.Model, whose weights are the SavedModel's variables."""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from tf_robust.saved_models.loading import Classifier

_OF_EMBEDDING = ("fcl",)  # methods with a loss of the embedding
_OF_COPY = ("similarity",)  # methods that copy the layers
_OF_IMAGE_GRADIENT = ("fcl", "input_gradient", "adversarial", "trades")  # methods that differentiate by the images
_SECOND_ORDER = ("input_gradient",)  # methods that train on a gradient


class _Function(keras.layers.Layer):
    """The function of a SavedModel in inference mode: images -> {"logits", "embedding"}; its weights are the SavedModel's variables."""

    def __init__(self, classifier, variables):
        super().__init__(name="saved_model", dtype="float32")
        self.classifier, self.built = classifier, True
        self.of_function = [
            keras.Variable(variable, trainable=variable.trainable, dtype=variable.dtype.name, name=_name(variable, number))
            for number, variable in enumerate(variables)
        ]

    def call(self, images):
        outputs = self.classifier.outputs(0.5 * images + 0.5)
        return {"logits": outputs["logits"], "embedding": outputs["embedding"] if _has_embedding(outputs) else outputs["logits"]}


def function_of(classifier: Classifier, shape: Sequence[int]) -> tuple[keras.Model, tuple[str, ...]]:
    """Returns the function of a SavedModel, images in [0, 1] -> {"logits", "embedding"}, and the names of methods that do not suit it.

    It computes as in inference mode. Its weights are the variables of `classifier.loaded`.

    Args:
        classifier: loaded from a SavedModel.
        shape: (H, W, C) of the images.

    Raises:
        ValueError: no gradient reaches its variables.
    """
    function = tf.function(classifier.outputs).get_concrete_function(tf.TensorSpec([None, *shape]))
    variables = _in_order(function)
    trained = [variable for variable in variables if variable.trainable]
    images = tf.constant(np.random.default_rng(0).random((1, *shape), np.float32))
    by_images = _reaches(lambda: classifier(images), [images])
    if not _reaches(lambda: classifier(images), trained):
        received = "no gradient reaches its variables" if variables else "it has no variables: its weights are constants"
        raise ValueError(
            f"Expected a SavedModel with variables that can be trained. Received: {classifier.path}: {received}. "
            "Try: the Keras model from which it was exported, as .keras"
        )
    skip = {
        *_OF_COPY,
        *(() if _has_embedding(function.structured_outputs) else _OF_EMBEDDING),
        *(() if by_images else _OF_IMAGE_GRADIENT),
        *(() if by_images and _reaches(lambda: _image_gradient(classifier, images), trained) else _SECOND_ORDER),
    }
    inputs = keras.Input(shape, name="images")
    x = keras.layers.Rescaling(2.0, -1.0, name="normalization")(inputs)  # in [-1, 1], where methods add noise
    return keras.Model(inputs, _Function(classifier, variables)(x)), tuple(sorted(skip))


def _in_order(function):
    """The numeric variables of a traced function, in the order of their use, which is that of every process."""
    captured = [id(tensor) for tensor in function.captured_inputs]
    variables = [variable for variable in function.variables if variable.dtype.is_floating or variable.dtype.is_integer]
    return sorted(variables, key=lambda variable: captured.index(id(variable.handle)))


def _reaches(compute, sources):
    """Whether a gradient of a computed tensor reaches one of the sources."""
    try:
        with tf.GradientTape() as tape:
            tape.watch(sources)
            result = compute()
        return any(gradient is not None for gradient in tape.gradient(result, sources))
    except LookupError:  # an operation has no gradient
        return False


def _image_gradient(classifier, images):
    with tf.GradientTape() as tape:
        tape.watch(images)
        squares = classifier(images) ** 2
    return tape.gradient(squares, images)


def _has_embedding(outputs):
    return "embedding" in outputs and outputs["embedding"].shape.rank == 2


def _name(variable, number):
    return f"{number:04d}_{variable.name.removesuffix(':0').replace('/', '_')}"
