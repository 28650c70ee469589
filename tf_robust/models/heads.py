"""Parts of all models: normalization at the input, named stages, a named embedding and logits at the output."""

from collections.abc import Sequence

import keras
import numpy as np

PerChannel = float | Sequence[float]  # a number, or one per channel


def normalized_input(
    input_shape: Sequence[int],
    mean: PerChannel,
    std: PerChannel,
    minimum_size: int,
    name: str,
    resize: int = 0,
    layer: str = "normalization",
) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """Returns the input of a model, images in [0, 1], and its normalized form (x - mean) / std.

    Gray images become three equal channels if mean and std have three numbers, or with `resize`, to fit weights trained on color images of
    another size.

    Args:
        input_shape, mean, std, resize: as in `tf_robust.models`; resizing is bilinear and antialiased.
        minimum_size: minimum side of the images (after resizing) in pixels.
        name: of the model, for messages.
        layer: name of the layer that normalizes; the output of `normalization` is stage 0 of the model, see `stages`.

    Raises:
        ValueError: the images are smaller than the model allows.
    """
    height, width, channels = input_shape
    if resize:
        height = width = resize
    if min(height, width) < minimum_size:
        raise ValueError(f"Expected images of at least {minimum_size}x{minimum_size} for {name}. Received: {height}x{width}")
    images = keras.Input(input_shape, name="images")
    means, stds = np.asarray(mean), np.asarray(std)
    scaling = keras.layers.Rescaling((1.0 / stds).tolist(), offset=(-means / stds).tolist(), name=layer)
    to_color = channels == 1 and (resize or max(means.size, stds.size) == 3)
    color = keras.ops.repeat(images, 3, axis=-1) if to_color else images
    return images, scaling(_resized(color, resize, resize) if resize else color)


def _resized(images, height, width):
    """Resizes images [N, H, W, C] -> [N, height, width, C], as `tf.image.resize(antialias=True)`.

    Two matrix products: unlike TensorFlow's operations they have derivatives of every order, which the input-gradient penalty
    needs. `keras.layers.Resizing` would make the model run in training mode by default.
    """
    rows, columns = _resizing_matrix(images.shape[1], height), _resizing_matrix(images.shape[2], width)
    return keras.ops.einsum("bw,nawc->nabc", columns, keras.ops.einsum("ah,nhwc->nawc", rows, images))


def _resizing_matrix(old_size, new_size):
    """Returns the weights of old pixels in new ones, float32 [new, old]: a triangular filter as wide as the coarser grid."""
    step = old_size / new_size
    centers = (np.arange(new_size) + 0.5) * step - 0.5
    weights = np.maximum(0.0, 1.0 - np.abs(np.arange(old_size) - centers[:, None]) / max(1.0, step))
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def stages(classifier: keras.Model) -> list[keras.Model]:
    """Returns a classifier in pieces, which share its layers.

    Stage 0 is the output of the layer `normalization`, the normalized (and possibly resized) image, or of a model without one the image
    in [-1, 1], whatever its own preprocessing; stage i is the output of the layer named `stage_i`.

    Args:
        classifier: images in [0, 1] -> {"logits", "embedding"}.

    Returns:
        [images -> stage 0, stage 0 -> stage 1, ..., last stage -> {"logits", "embedding"}], keras.Models
    """
    names = [layer.name for layer in classifier.layers]
    ends = [name for name in ("normalization", *(f"stage_{i}" for i in range(1, len(names)))) if name in names]
    cuts = [classifier.input, *(classifier.get_layer(name).output for name in ends), classifier.output]
    own = [keras.Model(start, end, name=f"piece_{i}") for i, (start, end) in enumerate(zip(cuts, cuts[1:]))]
    return own if "normalization" in names else [*in_centered_images(own[0]), *own[1:]]


def in_centered_images(model: keras.Model) -> list[keras.Model]:
    """Returns a model of images in [0, 1] in two pieces: images -> images in [-1, 1], and these -> its output."""
    images = keras.Input(model.input.shape[1:], name="images", dtype=output_dtype())
    centered = keras.layers.Rescaling(2.0, offset=-1.0, dtype=output_dtype())(images)
    uncentered = keras.layers.Rescaling(0.5, offset=0.5, dtype=output_dtype())(images)
    return [keras.Model(images, centered, name="piece_0"), keras.Model(images, model(uncentered), name="piece_1")]


def projection(width: int, layers: int, output: int, name: str, *, batch_norm: bool = True) -> keras.Sequential:
    """Returns the head of a contrastive method: [N, width] -> float32 [N, output], not normalized to length 1.

    Its `layers` >= 1 have the embedding's width and ReLU, except for the last one, of width `output` >= 1. batch_norm: after every layer,
    including the last one (which then has no bias), as in SimCLR.
    """
    if layers < 1 or output < 1:
        raise ValueError(f"Expected layers >= 1 and output >= 1 of a projection head. Received: {layers}, {output}")
    head = keras.Sequential([keras.Input([width])], name=name)
    for layer in range(1, layers + 1):
        last = layer == layers
        head.add(keras.layers.Dense(output if last else width, use_bias=not (last and batch_norm), name=f"dense_{layer}"))
        if batch_norm:
            head.add(keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"batch_norm_{layer}"))
        head.add(keras.layers.Activation("linear" if last else "relu", dtype=output_dtype() if last else None, name=f"output_{layer}"))
    return head


def from_backbone(backbone: keras.Model, num_classes: int, *, mean: PerChannel = 0.0, std: PerChannel = 1.0) -> keras.Model:
    """Returns a classifier on any Keras or keras-cv backbone with its weights, for fine-tuning.

    Args:
        backbone: keras.Model with a known input shape, images [N, H, W, C] -> features [N, E], tokens [N, T, E] as vision
            transformers return them, or feature maps [N, h, w, E]. Tokens and maps are averaged, including a class token.
        num_classes: number of logits.
        mean: of the backbone's normalization (x - mean) / std for x in [0, 1]; a number, or one per channel.
        std: see mean.

    Returns:
        keras.Model: float32 [N, H, W, C] in [0, 1] -> {"logits": [N, num_classes], "embedding": [N, E]}

    Examples:
        >>> layers = [keras.Input([32, 32, 3]), keras.layers.Conv2D(8, 3, activation="relu")]
        >>> classifier = tfr.models.from_backbone(keras.Sequential(layers), num_classes=5, mean=0.5, std=0.5)
        >>> {name: tuple(one.shape) for name, one in classifier.output.items()}
        {'logits': (None, 5), 'embedding': (None, 8)}
    """
    given, returned = backbone.input_shape, backbone.output_shape
    if not isinstance(given, tuple) or len(given) != 4 or None in given[1:]:
        raise ValueError(
            f"Expected a backbone with one input [N, H, W, C] of known size. Received: {backbone.name} with input_shape={given}. "
            "Try: construct it with an explicit input or image shape"
        )
    if not isinstance(returned, tuple) or len(returned) not in (2, 3, 4):
        raise ValueError(
            "Expected a backbone with one output: features [N, E], tokens [N, T, E] or feature maps [N, h, w, E]. "
            f"Received: {backbone.name} with output_shape={returned}. Try: keras.Model(backbone.input, the output of one of its layers)"
        )
    images, x = normalized_input(given[1:], mean, std, 1, backbone.name, layer="preprocessing")
    return classifier(images, pooled(backbone(x)), num_classes, f"{backbone.name}_classifier")


def pooled(features: keras.KerasTensor) -> keras.KerasTensor:
    """Returns features [N, E]: the mean over tokens [N, T, E] or feature maps [N, h, w, E], or features as they are."""
    if len(features.shape) == 3:
        return keras.layers.GlobalAveragePooling1D()(features)
    return keras.layers.GlobalAveragePooling2D()(features) if len(features.shape) == 4 else features


HEAD_LAYERS = ("hidden", "logits")  # layers after the embedding


def with_hidden_layer(model: keras.Model, width: int) -> keras.Model:
    """Returns a classifier with a hidden layer with ReLU between embedding and logits; it shares the model's encoder."""
    embedding, classes = model.output["embedding"], model.output["logits"].shape[-1]
    hidden = keras.layers.Dense(width, activation="relu", dtype=output_dtype(), name="hidden")(embedding)
    logits = keras.layers.Dense(classes, dtype=output_dtype(), name="logits")(hidden)
    return keras.Model(model.input, {"logits": logits, "embedding": embedding}, name=model.name)


def classifier(images: keras.KerasTensor, embedding: keras.KerasTensor, num_classes: int, name: str, **initializers) -> keras.Model:
    """Returns a model with outputs {"logits": [N, num_classes], "embedding": [N, E]}, both float32 also in mixed precision.

    Args:
        images: the input.
        embedding: [N, E].
        num_classes: number of logits.
        name: of the model.
        **initializers: arguments of the logits' Dense layer.
    """
    embedding = keras.layers.Activation("linear", dtype=output_dtype(), name="embedding")(embedding)
    logits = keras.layers.Dense(num_classes, dtype=output_dtype(), name="logits", **initializers)(embedding)
    return keras.Model(images, {"logits": logits, "embedding": embedding}, name=name)


def output_dtype() -> str:
    """Returns the dtype of the weights: losses are computed in float32 also where the network computes in bfloat16."""
    return keras.config.dtype_policy().variable_dtype
