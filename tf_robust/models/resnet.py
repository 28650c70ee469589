"""Residual networks: depth 6n + 2 for CIFAR and ResNet-50 (He et al., 2016a), ResNet-v2-50 and PreActResNet-18 (2016b), wide ones
(Zagoruyko, 2016). Arguments and outputs as in `tf_robust.models`."""

import functools
from collections.abc import Sequence

import keras

from tf_robust.models import heads
from tf_robust.models.torch_layers import Dropout, batch_norm, convolution, instance_batch_norm, logits_initializers, relu


def _convolution(x, filters, size, stride=1):
    return keras.layers.Conv2D(filters, size, stride, padding="same", use_bias=False, kernel_initializer="he_normal")(x)


def _block(x, filters, stride, first_norm, name=None):
    shortcut = x
    x = relu(first_norm(_convolution(x, filters, 3, stride)))
    x = batch_norm(_convolution(x, filters, 3))
    if stride != 1 or shortcut.shape[-1] != filters:
        shortcut = batch_norm(_convolution(shortcut, filters, 1, stride))
    return relu(keras.layers.Add()([x, shortcut]), name)


def cifar_resnet(
    input_shape: Sequence[int],
    num_classes: int,
    *,
    depth: int,
    instance_norm: bool = False,
    mean: heads.PerChannel = 0.5,
    std: heads.PerChannel = 0.5,
    resize: int = 0,
) -> keras.Model:
    """Builds a CIFAR ResNet: three stages of n = (depth - 2) / 6 blocks with 16, 32 and 64 filters, strides 1, 2, 2 (FCL, appendix B).

    Where the resolution changes the shortcut is a 1x1 convolution with batch norm. The embedding has 64 numbers. With `instance_norm` half
    of the channels are normalized per image in the first norm of each block, except in the last stage: the instance normalization of
    AugMax's DuBIN (Wang et al., 2021); `AugMax` adds the second batch norm.
    """
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"Expected depth = 6n + 2 (8, 14, 20, ...). Received: {depth}")
    name = f"resnet{depth}_ibn" if instance_norm else f"resnet{depth}"
    images, x = heads.normalized_input(input_shape, mean, std, 8, name, resize)
    x = relu(batch_norm(_convolution(x, 16, 3)))
    blocks = (depth - 2) // 6
    for stage, (filters, stride) in enumerate(((16, 1), (32, 2), (64, 2)), start=1):
        first_norm = instance_batch_norm if instance_norm and stage < 3 else batch_norm
        for block in range(1, blocks + 1):
            x = _block(x, filters, stride if block == 1 else 1, first_norm, f"stage_{stage}" if block == blocks else None)
    return heads.classifier(images, keras.layers.GlobalAveragePooling2D()(x), num_classes, name)


resnet8, resnet20, resnet56 = (functools.partial(cifar_resnet, depth=depth) for depth in (8, 20, 56))
resnet20_ibn = functools.partial(resnet20, instance_norm=True)


def resnet50_v2(
    input_shape: Sequence[int], num_classes: int, *, mean: heads.PerChannel = 0.5, std: heads.PerChannel = 0.5, resize: int = 0
) -> keras.Model:
    """Builds ResNet-v2-50, of keras-cv, with a 2048-wide embedding and the stages of FCL's appendix B, for at least 32 pixels per side."""
    try:
        import keras_cv  # slow to import, and needed only here
    except ModuleNotFoundError as error:
        raise ValueError(f"Expected keras-cv for model=resnet50_v2. Try: pip install keras-cv ({error})") from error
    images, x = heads.normalized_input(input_shape, mean, std, 32, "resnet50_v2", resize)
    backbone = keras_cv.models.ResNetV2Backbone(
        stackwise_filters=[64, 128, 256, 512],
        stackwise_blocks=[3, 4, 6, 3],
        stackwise_strides=[1, 2, 2, 2],
        include_rescaling=False,
        input_shape=x.shape[1:],
    )
    ends = list(backbone.pyramid_level_inputs.values())  # the names of the stages' last layers
    cuts = [backbone.input, *(backbone.get_layer(end).output for end in ends), backbone.output]
    for stage, (start, end) in enumerate(zip(cuts, cuts[1:]), start=1):
        x = keras.Model(start, end, name=f"backbone_{stage}")(x)
        x = keras.layers.Identity(name=f"stage_{stage}")(x) if stage <= len(ends) else x
    return heads.classifier(images, keras.layers.GlobalAveragePooling2D()(x), num_classes, "resnet50_v2")


def preact_resnet18(
    input_shape: Sequence[int], num_classes: int, *, instance_norm: bool = False, mean: heads.PerChannel = 0.5, std: heads.PerChannel = 0.5
) -> keras.Model:
    """Builds PreActResNet-18: four stages of two pre-activation blocks with 64, 128, 256 and 512 filters, strides 1, 2, 2, 2.

    As in the published code: identity shortcuts carry relu(bn(x)), not x, and the last stage is not normalized before
    the pooling; PyTorch's initialization. The embedding has 512 numbers. instance_norm: as in `cifar_resnet`.
    """
    name = "preact_resnet18_ibn" if instance_norm else "preact_resnet18"
    images, x = heads.normalized_input(input_shape, mean, std, 8, name)
    x = convolution(x, 64, 3)
    for stage, (filters, stride) in enumerate(((64, 1), (128, 2), (256, 2), (512, 2)), start=1):
        first_norm = instance_batch_norm if instance_norm and stage < 4 else batch_norm
        x = _pre_activation_block(x, filters, stride, first_norm)
        x = _pre_activation_block(x, filters, 1, first_norm, f"stage_{stage}")
    embedding = keras.layers.GlobalAveragePooling2D()(x)
    return heads.classifier(images, embedding, num_classes, name, **logits_initializers(512))


preact_resnet18_ibn = functools.partial(preact_resnet18, instance_norm=True)


def _pre_activation_block(x, filters, stride, first_norm, name=None):
    activated = relu(first_norm(x))
    shortcut = activated
    if stride != 1 or x.shape[-1] != filters:
        shortcut = convolution(activated, filters, 1, stride)
    x = convolution(activated, filters, 3, stride)
    x = convolution(relu(batch_norm(x)), filters, 3)
    return keras.layers.Add(name=name)([x, shortcut])


def wide_resnet28(
    input_shape: Sequence[int],
    num_classes: int,
    *,
    widening: int,
    dropout: float = 0.1,
    mean: heads.PerChannel = 0.5,
    std: heads.PerChannel = 0.5,
) -> keras.Model:
    """Builds Wide-ResNet-28: three stages of four pre-activation blocks with 16, 32 and 64 filters times `widening`, strides 1, 2, 2.

    As in the published code: convolutions have biases, a block's stride is in its second convolution, the last batch norm
    keeps a tenth of its moving average at each step; PyTorch's initialization. The embedding has 64 * widening numbers.
    dropout: fraction of values dropped between a block's convolutions.
    """
    name, width = f"wide_resnet28_{widening}", 64 * widening
    images, x = heads.normalized_input(input_shape, mean, std, 8, name)
    x = convolution(x, 16, 3, use_bias=True)
    for stage, stride in enumerate((1, 2, 2), start=1):
        for block in range(1, 5):
            x = _wide_block(x, 2 ** (stage + 3) * widening, stride if block == 1 else 1, dropout, f"stage_{stage}" if block == 4 else None)
    x = relu(batch_norm(x, momentum=0.1))
    return heads.classifier(images, keras.layers.GlobalAveragePooling2D()(x), num_classes, name, **logits_initializers(width))


def _wide_block(x, filters, stride, dropout, name):
    shortcut = x
    if stride != 1 or x.shape[-1] != filters:
        shortcut = convolution(x, filters, 1, stride, use_bias=True)
    x = convolution(relu(batch_norm(x)), filters, 3, use_bias=True)
    x = Dropout(dropout)(x)
    x = convolution(relu(batch_norm(x)), filters, 3, stride, use_bias=True)
    return keras.layers.Add(name=name)([x, shortcut])


wide_resnet28_2, wide_resnet28_4 = (functools.partial(wide_resnet28, widening=widening) for widening in (2, 4))


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def resnet50(
    input_shape: Sequence[int],
    num_classes: int,
    *,
    small_images: bool = False,
    mean: heads.PerChannel = IMAGENET_MEAN,
    std: heads.PerChannel = IMAGENET_STD,
    resize: int = 0,
) -> keras.Model:
    """Builds ResNet-50: four stages of 3, 4, 6 and 3 bottleneck blocks; kernels from He et al.'s normal distribution over the fan-out.

    As in PyTorch, the stride is in a block's 3x3 convolution. The embedding has 2048 numbers. Images have at least 32 pixels per side, or
    8 with `small_images`: a first 3x3 convolution of stride 1 without pooling, as for CIFAR (Chen et al., 2020, appendix B.9).
    """
    if input_shape[-1] == 1 and not resize:
        mean, std = (sum(m) / len(m) if isinstance(m, tuple) else m for m in (mean, std))
    name = "resnet50_cifar" if small_images else "resnet50"
    images, x = heads.normalized_input(input_shape, mean, std, 8 if small_images else 32, name, resize)
    if small_images:
        x = relu(batch_norm(_fan_out_convolution(x, 64, 3)))
    else:
        x = relu(batch_norm(_fan_out_convolution(x, 64, 7, 2)))
        x = keras.layers.MaxPooling2D(3, 2)(keras.layers.ZeroPadding2D(1)(x))  # after a ReLU, padding by 0 equals padding by -infinity
    for stage, (filters, blocks, stride) in enumerate(((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)), start=1):
        for block in range(1, blocks + 1):
            x = _bottleneck(x, filters, stride if block == 1 else 1, f"stage_{stage}" if block == blocks else None)
    embedding = keras.layers.GlobalAveragePooling2D()(x)
    return heads.classifier(images, embedding, num_classes, name, **logits_initializers(2048))


resnet50_cifar = functools.partial(resnet50, small_images=True, mean=0.5, std=0.5)


def _bottleneck(x, filters, stride, name):
    shortcut = x
    if stride != 1 or x.shape[-1] != 4 * filters:
        shortcut = batch_norm(_fan_out_convolution(x, 4 * filters, 1, stride))
    x = relu(batch_norm(_fan_out_convolution(x, filters, 1)))
    x = relu(batch_norm(_fan_out_convolution(x, filters, 3, stride)))
    x = batch_norm(_fan_out_convolution(x, 4 * filters, 1))
    return relu(keras.layers.Add()([x, shortcut]), name)


def _fan_out_convolution(x, filters, size, stride=1):
    return convolution(x, filters, size, stride, initializer=keras.initializers.VarianceScaling(2.0, "fan_out", "normal"))
