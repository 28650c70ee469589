"""Models of keras_hub, for tests."""

import pytest


def resnet_backbone(image_shape):
    """Returns a ResNet of two basic blocks, named `backbone`."""
    return pytest.importorskip("keras_hub").models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64, 64],
        stackwise_num_blocks=[1, 1],
        stackwise_num_strides=[1, 2],
        block_type="basic_block",
        image_shape=image_shape,
        name="backbone",
    )
