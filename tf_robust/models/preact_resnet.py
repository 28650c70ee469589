"""PreActResNet-18 for CIFAR (He et al., 2016b), as the NoisyMix paper trains it."""

import functools
from collections.abc import Sequence

import keras

from tf_robust.models import heads
from tf_robust.models.batch_norms import instance_batch_norm
from tf_robust.models.torch_layers import batch_norm, convolution, logits_initializers, relu


def preact_resnet18(
    input_shape: Sequence[int], num_classes: int, *, instance_norm: bool = False, mean: heads.PerChannel = 0.5, std: heads.PerChannel = 0.5
) -> keras.Model:
    """Builds PreActResNet-18: four stages of two pre-activation blocks with 64, 128, 256 and 512 filters, strides 1, 2, 2, 2.

    As in the published code: identity shortcuts carry relu(bn(x)), not x, and the last stage is not normalized before
    the pooling; PyTorch's initialization.

    Args:
        input_shape: (H, W, C), at least 8 pixels per side.
        num_classes: number of logits.
        instance_norm: normalize half of the channels per image at the start of each block, except in the last stage: the
            instance normalization of AugMax's DuBIN (Wang et al., 2021); `AugMax` adds the second batch norm.
        mean: of the normalization inside the model, on the [0, 1] scale; a number, or one per channel.
        std: of the normalization inside the model; a number, or one per channel.

    Returns:
        keras.Model: float32 [N, H, W, C] in [0, 1] -> {"logits": [N, num_classes], "embedding": [N, 512]}
    """
    name = "preact_resnet18_ibn" if instance_norm else "preact_resnet18"
    images, x = heads.normalized_input(input_shape, mean, std, 8, name)
    x = convolution(x, 64, 3)
    for stage, (filters, stride) in enumerate(((64, 1), (128, 2), (256, 2), (512, 2)), start=1):
        first_norm = instance_batch_norm if instance_norm and stage < 4 else batch_norm
        x = _block(x, filters, stride, first_norm)
        x = _block(x, filters, 1, first_norm, f"stage_{stage}")
    embedding = keras.layers.GlobalAveragePooling2D()(x)
    return heads.classifier(images, embedding, num_classes, name, **logits_initializers(512))


preact_resnet18_ibn = functools.partial(preact_resnet18, instance_norm=True)


def _block(x, filters, stride, first_norm, name=None):
    activated = relu(first_norm(x))
    shortcut = activated
    if stride != 1 or x.shape[-1] != filters:
        shortcut = convolution(activated, filters, 1, stride)
    x = convolution(activated, filters, 3, stride)
    x = convolution(relu(batch_norm(x)), filters, 3)
    return keras.layers.Add(name=name)([x, shortcut])
