"""The embeddings of a loaded model, if it has any."""

import keras

from tf_robust.saved_models.classifier import Classifier
from tf_robust.saved_models.loading import classifier_of


def with_embedding(classifier: Classifier) -> Classifier | None:
    """Returns a model whose `outputs` have logits and `embedding` [N, E].

    Args:
        classifier: a model with the output `embedding`, or a Keras model, whose embedding is the input of its last dense layer.

    Returns:
        The model, or None: it has no embedding.
    """
    if classifier.has_embedding:
        return classifier
    loaded = classifier.loaded
    dense = [layer for layer in getattr(loaded, "layers", ()) if isinstance(layer, keras.layers.Dense)]
    if not isinstance(loaded, keras.Model) or not dense or len(getattr(loaded, "outputs", None) or ()) != 1:
        return None
    outputs = {classifier.interface.outputs: loaded.outputs[0], "embedding": dense[-1].input}
    extended = classifier_of(keras.Model(loaded.inputs, outputs), classifier.interface)
    return extended if extended.has_embedding else None
