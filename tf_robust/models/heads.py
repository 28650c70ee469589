"""What all models share: normalization at the input, a named embedding and logits at the output."""

import keras


def normalized_input(input_shape, mean, std, minimum_size, name):
    """The input [H, W, C] in [0, 1] and its normalized form (x - mean) / std.

    Raises:
        ValueError: the pictures are smaller than the model allows.
    """
    height, width, _ = input_shape
    if min(height, width) < minimum_size:
        raise ValueError(f"Expected pictures of at least {minimum_size}x{minimum_size} for {name}. "
                         f"Received: {height}x{width}")
    images = keras.Input(input_shape, name="images")
    return images, keras.layers.Rescaling(1.0 / std, offset=-mean / std, name="normalization")(images)


def classifier(images, embedding, num_classes, name):
    """Ends a network: {"logits": [N, num_classes], "embedding": [N, E]}, both float32 also in mixed precision."""
    embedding = keras.layers.Activation("linear", dtype="float32", name="embedding")(embedding)
    logits = keras.layers.Dense(num_classes, dtype="float32", name="logits")(embedding)
    return keras.Model(images, {"logits": logits, "embedding": embedding}, name=name)
