"""What all models share: normalization at the input, named stages, a named embedding and logits at the output."""

import keras
import numpy as np


def normalized_input(input_shape, mean, std, minimum_size, name, resize=0):
    """The input [H, W, C] in [0, 1] and its normalized form (x - mean) / std; mean and std: numbers, or one a channel.

    Args:
        resize: side in pixels to which images are resized first (bilinear, antialiased), and gray ones to three equal channels,
            so that they fit what was trained on larger or smaller images in color; 0: as they are.

    Raises:
        ValueError: the images are smaller than the model allows.
    """
    height, width, channels = input_shape
    if resize:
        height = width = resize
    if min(height, width) < minimum_size:
        raise ValueError(f"Expected images of at least {minimum_size}x{minimum_size} for {name}. "
                         f"Received: {height}x{width}")
    images = keras.Input(input_shape, name="images")
    mean, std = np.asarray(mean), np.asarray(std)
    scaling = keras.layers.Rescaling((1.0 / std).tolist(), offset=(-mean / std).tolist(), name="normalization")
    if not resize:
        return images, scaling(images)
    color = keras.ops.repeat(images, 3, axis=-1) if channels == 1 else images
    return images, scaling(_resized(color, resize, resize))


def _resized(images, height, width):
    """[N, H, W, C] -> [N, height, width, C], as `tf.image.resize(antialias=True)`.

    Two products of matrices: unlike TensorFlow's operations they have derivatives of every order, which the input-gradient penalty
    needs. No `keras.layers.Resizing`, which makes a whole model run in training mode by default.
    """
    rows, columns = _resizing_matrix(images.shape[1], height), _resizing_matrix(images.shape[2], width)
    return keras.ops.einsum("bw,nawc->nabc", columns, keras.ops.einsum("ah,nhwc->nawc", rows, images))


def _resizing_matrix(before, after):
    """float32 [after, before]: the weights of old pixels in new ones, of a triangular filter that is as wide as the coarser grid."""
    step = before / after
    centers = (np.arange(after) + 0.5) * step - 0.5
    weights = np.maximum(0.0, 1.0 - np.abs(np.arange(before) - centers[:, None]) / max(1.0, step))
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def stages(classifier):
    """A classifier in pieces, which share its layers.

    Stage 0 is the normalized (and, if asked for, resized) image; stage i is what the layer named `stage_i` gives.

    Args:
        classifier: a model of this package.

    Returns:
        [images -> stage 0, stage 0 -> stage 1, ..., last stage -> {"logits", "embedding"}], keras.Models
    """
    names = [layer.name for layer in classifier.layers]
    ends = ["normalization", *(f"stage_{i}" for i in range(1, len(names)) if f"stage_{i}" in names)]
    cuts = [classifier.input, *(classifier.get_layer(name).output for name in ends), classifier.output]
    return [keras.Model(start, end, name=f"piece_{i}") for i, (start, end) in enumerate(zip(cuts, cuts[1:]))]


def projection(width, layers, output, name, *, batch_norm=True):
    """The head of a contrastive method: layers of the embedding's width with ReLU, then one to `output` without.

    Args:
        width: of the embedding. layers: >= 1, the last one included. output: width of what comes out.
        batch_norm: after every layer, the last one included (which then has no bias), as SimCLR has it.

    Returns:
        keras.Sequential: [N, width] -> float32 [N, output], not of length 1
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


def from_backbone(backbone, num_classes, *, mean=0.0, std=1.0):
    """A classifier on any Keras or keras-cv backbone, with the weights that it has, as a start for fine-tuning.

    Args:
        backbone: keras.Model with a known input shape, images [N, H, W, C] -> features [N, E], tokens [N, T, E] as vision
            transformers return them, or feature maps [N, h, w, E]. Tokens and maps are averaged, a class token included.
        mean, std: what it wants its images to be: (x - mean) / std for x in [0, 1]; numbers, or one a channel.

    Returns:
        keras.Model: float32 [N, H, W, C] in [0, 1] -> {"logits": [N, num_classes], "embedding": [N, E]}

    Raises:
        ValueError: the backbone does not have one input of known size and one output of rank 2 to 4.
    """
    if not isinstance(backbone.input_shape, tuple) or len(backbone.input_shape) != 4 or None in backbone.input_shape[1:]:
        raise ValueError(f"Expected a backbone with one input [N, H, W, C] of known size. Received: {backbone.name} with input_shape="
                         f"{backbone.input_shape}. Try: construct it with an explicit input or image shape")
    if not isinstance(backbone.output_shape, tuple) or len(backbone.output_shape) not in (2, 3, 4):
        raise ValueError(f"Expected a backbone with one output: features [N, E], tokens [N, T, E] or feature maps [N, h, w, E]. "
                         f"Received: {backbone.name} with output_shape={backbone.output_shape}. Try: keras.Model(backbone.input, "
                         "the output of one of its layers)")
    images, x = normalized_input(backbone.input_shape[1:], mean, std, 1, backbone.name)
    features = backbone(x)
    if len(features.shape) == 3:
        features = keras.layers.GlobalAveragePooling1D()(features)
    if len(features.shape) == 4:
        features = keras.layers.GlobalAveragePooling2D()(features)
    return classifier(images, features, num_classes, f"{backbone.name}_classifier")


HEAD_LAYERS = ("hidden", "logits")  # what comes behind the embedding


def with_hidden_layer(model, width):
    """A classifier whose logits see a hidden layer with ReLU on the embedding; its encoder's layers are the model's own."""
    embedding, classes = model.output["embedding"], model.output["logits"].shape[-1]
    hidden = keras.layers.Dense(width, activation="relu", dtype=output_dtype(), name="hidden")(embedding)
    logits = keras.layers.Dense(classes, dtype=output_dtype(), name="logits")(hidden)
    return keras.Model(model.input, {"logits": logits, "embedding": embedding}, name=model.name)


def classifier(images, embedding, num_classes, name, **initializers):
    """Ends a network: {"logits": [N, num_classes], "embedding": [N, E]}, both float32 also in mixed precision.

    Args:
        **initializers: of the logits' layer, as `keras.layers.Dense` takes them.
    """
    embedding = keras.layers.Activation("linear", dtype=output_dtype(), name="embedding")(embedding)
    logits = keras.layers.Dense(num_classes, dtype=output_dtype(), name="logits", **initializers)(embedding)
    return keras.Model(images, {"logits": logits, "embedding": embedding}, name=name)


def output_dtype():
    """That of the weights: losses are computed in float32 also where the network computes in bfloat16."""
    return keras.config.dtype_policy().variable_dtype
