"""A second set of batch normalization layers for a classifier, and instance normalization alongside batch normalization."""

import keras

from tf_robust.models.torch_layers import batch_norm


def with_own_batch_norm(classifier: keras.Model) -> keras.Model:
    """Returns a classifier that shares every layer with another one, except for batch normalization, of which it has a copy.

    Both compute the same until one of them is trained; each has its own moving averages, scale and offset.

    Args:
        classifier: Functional or Sequential keras.Model, nested ones included.

    Raises:
        ValueError: a layer contains batch normalization that cannot be copied separately.
    """
    try:
        copy = keras.models.clone_model(classifier, clone_function=_own_batch_norm, recursive=True)
    except ValueError as error:
        raise ValueError(
            f"Expected a Functional or Sequential model. Received: {type(classifier).__name__} "
            f"{classifier.name}. Try: augmax_dual_batch_norm=false"
        ) from error
    originals = {id(variable) for variable in classifier.variables}
    shared = [variable.path for variable in copy.variables if variable.name == "moving_mean" and id(variable) in originals]
    if shared:
        raise ValueError(
            "Expected batch normalization as layers of Functional or Sequential models, so that it can be copied. "
            f"Received: {', '.join(shared[:3])}, inside another kind of layer. Try: augmax_dual_batch_norm=false"
        )
    copy.set_weights(classifier.get_weights())
    return copy


def _own_batch_norm(layer):
    return type(layer).from_config(layer.get_config()) if isinstance(layer, keras.layers.BatchNormalization) else layer


def instance_batch_norm(x: keras.KerasTensor) -> keras.KerasTensor:
    """Applies instance normalization to the first half of the channels, batch normalization to the others (Pan et al., 2018, IBN-a).

    Both have epsilon 1e-5, and a scale and an offset per channel.

    Args:
        x: [N, H, W, C], C even.
    """
    half = x.shape[-1] // 2
    instance = keras.layers.GroupNormalization(groups=-1, epsilon=1e-5)(x[..., :half])
    return keras.layers.Concatenate()([instance, batch_norm(x[..., half:])])
