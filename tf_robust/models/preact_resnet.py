"""PreActResNet-18 for CIFAR (He et al., 2016b), as the NoisyMix paper trains it."""

import keras

from tf_robust.models import heads
from tf_robust.models.torch_layers import batch_norm, convolution, logits_initializers, relu


def preact_resnet18(input_shape, num_classes, *, mean=0.5, std=0.5):
    """Four stages of two pre-activation blocks with 64, 128, 256 and 512 filters, strides 1, 2, 2, 2.

    As in the published code: identity shortcuts carry relu(bn(x)), not x, and nothing normalizes the last stage before
    the pooling; PyTorch's initialization.

    Args:
        input_shape: (H, W, C), at least 8 pixels a side. num_classes: number of logits.
        mean, std: normalization inside the model, on the [0, 1] scale.

    Returns:
        keras.Model: float32 [N, H, W, C] in [0, 1] -> {"logits": [N, num_classes], "embedding": [N, 512]}
    """
    images, x = heads.normalized_input(input_shape, mean, std, 8, "preact_resnet18")
    x = convolution(x, 64, 3)
    for stage, (filters, stride) in enumerate(((64, 1), (128, 2), (256, 2), (512, 2)), start=1):
        x = _block(x, filters, stride)
        x = _block(x, filters, 1, f"stage_{stage}")
    embedding = keras.layers.GlobalAveragePooling2D()(x)
    return heads.classifier(images, embedding, num_classes, "preact_resnet18", **logits_initializers(512))


def _block(x, filters, stride, name=None):
    activated = relu(batch_norm(x))
    shortcut = activated
    if stride != 1 or x.shape[-1] != filters:
        shortcut = convolution(activated, filters, 1, stride)
    x = convolution(activated, filters, 3, stride)
    x = convolution(relu(batch_norm(x)), filters, 3)
    return keras.layers.Add(name=name)([x, shortcut])
