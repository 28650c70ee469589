"""Wide residual networks of depth 28 (Zagoruyko and Komodakis, 2016), as the NoisyMix paper trains them."""

import functools
from collections.abc import Sequence

import keras

from tf_robust.models import heads
from tf_robust.models.torch_layers import Dropout, batch_norm, convolution, logits_initializers, relu


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
    keeps a tenth of its moving average at each step; PyTorch's initialization.

    Args:
        input_shape: (H, W, C), at least 8 pixels per side.
        num_classes: number of logits.
        widening: factor of the filters.
        dropout: fraction of values dropped between a block's convolutions.
        mean: of the normalization inside the model, on the [0, 1] scale; a number, or one per channel.
        std: of the normalization inside the model; a number, or one per channel.

    Returns:
        keras.Model: float32 [N, H, W, C] in [0, 1] -> {"logits": [N, num_classes], "embedding": [N, 64 * widening]}
    """
    name, width = f"wide_resnet28_{widening}", 64 * widening
    images, x = heads.normalized_input(input_shape, mean, std, 8, name)
    x = convolution(x, 16, 3, use_bias=True)
    for stage, stride in enumerate((1, 2, 2), start=1):
        for block in range(1, 5):
            x = _block(x, 2 ** (stage + 3) * widening, stride if block == 1 else 1, dropout, f"stage_{stage}" if block == 4 else None)
    x = relu(batch_norm(x, momentum=0.1))
    return heads.classifier(images, keras.layers.GlobalAveragePooling2D()(x), num_classes, name, **logits_initializers(width))


def _block(x, filters, stride, dropout, name):
    shortcut = x
    if stride != 1 or x.shape[-1] != filters:
        shortcut = convolution(x, filters, 1, stride, use_bias=True)
    x = convolution(relu(batch_norm(x)), filters, 3, use_bias=True)
    x = Dropout(dropout)(x)
    x = convolution(relu(batch_norm(x)), filters, 3, stride, use_bias=True)
    return keras.layers.Add(name=name)([x, shortcut])


wide_resnet28_2, wide_resnet28_4 = (functools.partial(wide_resnet28, widening=widening) for widening in (2, 4))
