"""The embeddings of a loaded model, if it has any."""

from collections.abc import Callable

import keras

from tf_robust.saved_models.classifier import Classifier
from tf_robust.saved_models.loading import classifier_of


def embeddings_of(classifier: Classifier) -> Callable | None:
    """Returns the function images [N, H, W, C] in [0, 1] -> embeddings [N, E] of a model.

    Args:
        classifier: a model with the output `embedding`, or a Keras model, whose embedding is the input of its last dense layer.

    Returns:
        The function, or None: the model has no embedding.
    """
    if classifier.has_embedding:
        return lambda images: classifier.outputs(images)["embedding"]
    loaded = classifier.loaded
    dense = [layer for layer in getattr(loaded, "layers", ()) if isinstance(layer, keras.layers.Dense)]
    if not isinstance(loaded, keras.Model) or not dense or len(getattr(loaded, "outputs", None) or ()) != 1:
        return None
    outputs = {classifier.interface.outputs: loaded.outputs[0], "embedding": dense[-1].input}
    extended = classifier_of(keras.Model(loaded.inputs, outputs), classifier.interface)
    return embeddings_of(extended) if extended.has_embedding else None
