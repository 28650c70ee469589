"""ResNet-20 and PreActResNet-18 for 32 pixels in PyTorch, with the same layers as ours: the peers of benchmarks/end_to_end.py."""

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


def resnet20(classes):
    layers, channels = [convolution(3, 16, 3), norm(16), nn.ReLU()], 16
    for filters, stride in ((16, 1), (32, 2), (64, 2)):
        for block in range(3):
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


NETWORKS = {"resnet20": resnet20, "preact_resnet18": preact_resnet18}
