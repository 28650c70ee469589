"""CIFAR ResNets and PreActResNet-18 for 32 pixels in PyTorch, with the same layers as ours: the peers of our networks in benchmarks."""

import functools

import torch
from torch import nn


class Block(nn.Module):
    """Two 3x3 convolutions, each followed by batch norm; a 1x1 convolution with batch norm where the shape changes."""

    def __init__(self, channels, filters, stride):
        super().__init__()
        self.body = nn.Sequential(
            convolution(channels, filters, 3, stride), norm(filters), nn.ReLU(), convolution(filters, filters, 3), norm(filters)
        )
        changes = stride != 1 or channels != filters
        self.shortcut = nn.Sequential(convolution(channels, filters, 1, stride), norm(filters)) if changes else nn.Identity()

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


class PreActivationBlock(nn.Module):
    """Batch norm and ReLU before each convolution; the shortcut takes the output of the first ReLU."""

    def __init__(self, channels, filters, stride):
        super().__init__()
        self.first = nn.Sequential(norm(channels), nn.ReLU())
        self.body = nn.Sequential(convolution(channels, filters, 3, stride), norm(filters), nn.ReLU(), convolution(filters, filters, 3))
        changes = stride != 1 or channels != filters
        self.shortcut = convolution(channels, filters, 1, stride) if changes else nn.Identity()

    def forward(self, x):
        x = self.first(x)
        return self.body(x) + self.shortcut(x)


def convolution(channels, filters, size, stride=1):
    return nn.Conv2d(channels, filters, size, stride, padding=size // 2, bias=False)


def norm(channels):
    return nn.BatchNorm2d(channels)


def ending(channels, classes):
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)


def cifar_resnet(classes, blocks):
    layers, channels = [convolution(3, 16, 3), norm(16), nn.ReLU()], 16
    for filters, stride in ((16, 1), (32, 2), (64, 2)):
        for block in range(blocks):
            layers.append(Block(channels, filters, stride if block == 0 else 1))
            channels = filters
    return nn.Sequential(*layers, *ending(64, classes))


def preact_resnet18(classes):
    layers, channels = [convolution(3, 64, 3)], 64
    for filters, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for block in range(2):
            layers.append(PreActivationBlock(channels, filters, stride if block == 0 else 1))
            channels = filters
    return nn.Sequential(*layers, *ending(512, classes))


def carry_over(network, convolutions, norms, dense):
    """Loads weights of Keras layers, in the order in which the network makes its own, and pads strided convolutions as Keras does.

    Args:
        network: a network of this module.
        convolutions: kernels [height, width, input channels, filters].
        norms: (gamma, beta, moving mean, moving variance) of each.
        dense: (kernel [inputs, classes], bias).
    """
    layers = list(network.modules())
    with torch.no_grad():
        for layer, kernel in zip([layer for layer in layers if isinstance(layer, nn.Conv2d)], convolutions, strict=True):
            layer.weight.copy_(torch.from_numpy(kernel.transpose(3, 2, 0, 1)))
            if layer.stride[0] == 2 and layer.kernel_size[0] == 3:  # Keras pads even sides at their ends alone
                layer.padding = (0, 0)
                layer.register_forward_pre_hook(lambda _, inputs: nn.functional.pad(inputs[0], (0, 1, 0, 1)))
        for layer, values in zip([layer for layer in layers if isinstance(layer, nn.BatchNorm2d)], norms, strict=True):
            for parameter, value in zip((layer.weight, layer.bias, layer.running_mean, layer.running_var), values, strict=True):
                parameter.copy_(torch.from_numpy(value))
        layers[-1].weight.copy_(torch.from_numpy(dense[0].T))
        layers[-1].bias.copy_(torch.from_numpy(dense[1]))


NETWORKS = {
    "resnet8": functools.partial(cifar_resnet, blocks=1),
    "resnet20": functools.partial(cifar_resnet, blocks=3),
    "preact_resnet18": preact_resnet18,
}
