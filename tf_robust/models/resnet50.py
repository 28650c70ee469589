"""ResNet-50 (He et al., 2016a), with the stride in a block's 3x3 convolution as in PyTorch."""

import functools
from collections.abc import Sequence

import keras

from tf_robust.models import heads
from tf_robust.models.torch_layers import batch_norm, convolution, logits_initializers, relu

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, on the [0, 1] scale


def resnet50(
    input_shape: Sequence[int],
    num_classes: int,
    *,
    small_images: bool = False,
    mean: heads.PerChannel = MEAN,
    std: heads.PerChannel = STD,
    resize: int = 0,
) -> keras.Model:
    """Builds ResNet-50: four stages of 3, 4, 6 and 3 bottleneck blocks; kernels from He et al.'s normal distribution over the fan-out.

    Args:
        input_shape: (H, W, C), at least 32 pixels per side, 8 with small_images.
        num_classes: number of logits.
        small_images: start with a 3x3 convolution of stride 1 and no pooling, as for CIFAR (Chen et al., 2020, appendix B.9).
        mean: of the normalization inside the model, on the [0, 1] scale; a number, or one per channel.
        std: of the normalization inside the model; a number, or one per channel.
        resize: side in pixels to which the model resizes images first, gray ones with three equal channels; 0: not resized.

    Returns:
        keras.Model: float32 [N, H, W, C] in [0, 1] -> {"logits": [N, num_classes], "embedding": [N, 2048]}
    """
    if input_shape[-1] == 1 and not resize:
        mean, std = (sum(m) / len(m) if isinstance(m, tuple) else m for m in (mean, std))
    name = "resnet50_cifar" if small_images else "resnet50"
    images, x = heads.normalized_input(input_shape, mean, std, 8 if small_images else 32, name, resize)
    if small_images:
        x = relu(batch_norm(_convolution(x, 64, 3, 1)))
    else:
        x = relu(batch_norm(_convolution(x, 64, 7, 2)))
        x = keras.layers.MaxPooling2D(3, 2)(keras.layers.ZeroPadding2D(1)(x))  # after a ReLU, padding by 0 equals padding by -infinity
    for stage, (filters, blocks, stride) in enumerate(((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)), start=1):
        for block in range(1, blocks + 1):
            x = _block(x, filters, stride if block == 1 else 1, f"stage_{stage}" if block == blocks else None)
    embedding = keras.layers.GlobalAveragePooling2D()(x)
    return heads.classifier(images, embedding, num_classes, name, **logits_initializers(2048))


resnet50_cifar = functools.partial(resnet50, small_images=True, mean=0.5, std=0.5)


def _block(x, filters, stride, name):
    shortcut = x
    if stride != 1 or x.shape[-1] != 4 * filters:
        shortcut = batch_norm(_convolution(x, 4 * filters, 1, stride))
    x = relu(batch_norm(_convolution(x, filters, 1)))
    x = relu(batch_norm(_convolution(x, filters, 3, stride)))
    x = batch_norm(_convolution(x, 4 * filters, 1))
    return relu(keras.layers.Add()([x, shortcut]), name)


def _convolution(x, filters, size, stride=1):
    return convolution(x, filters, size, stride, initializer=keras.initializers.VarianceScaling(2.0, "fan_out", "normal"))
