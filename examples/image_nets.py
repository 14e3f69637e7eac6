"""AlexNet and VGG-19 as lists of layers, as `torchvision.models` has them.

Written out because the torchvision on PyPI does not load beside a CPU build of torch. With
torchvision installed, `[*net.features, net.avgpool, nn.Flatten(), *net.classifier]` is the same.
"""

from __future__ import annotations

from torch import nn

# Channels of VGG-19's convolutions; 0: halve the image.
_VGG19 = (64, 64, 0, 128, 128, 0, *(256,) * 4, 0, *(512,) * 4, 0, *(512,) * 4, 0)


def alexnet_layers(num_classes: int, *, narrower: int = 1) -> list[nn.Module]:
    """AlexNet for images from 63 x 63 on.

    Args:
        num_classes: scores it gives.
        narrower: divides the number of channels and of hidden units.
    """
    c64, c192, c384, c256 = (channels // narrower for channels in (64, 192, 384, 256))
    return [
        nn.Conv2d(3, c64, kernel_size=11, stride=4, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(kernel_size=3, stride=2),
        nn.Conv2d(c64, c192, kernel_size=5, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(kernel_size=3, stride=2),
        nn.Conv2d(c192, c384, kernel_size=3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(c384, c256, kernel_size=3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(c256, c256, kernel_size=3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(kernel_size=3, stride=2),
        nn.AdaptiveAvgPool2d(6),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(c256 * 6 * 6, 4096 // narrower),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096 // narrower, 4096 // narrower),
        nn.ReLU(inplace=True),
        nn.Linear(4096 // narrower, num_classes),
    ]


def vgg19_layers(num_classes: int, *, narrower: int = 1) -> list[nn.Module]:
    """VGG-19 for images from 32 x 32 on; the arguments are AlexNet's."""
    layers: list[nn.Module] = []
    channels = 3
    for full_width in _VGG19:
        if full_width == 0:
            layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
            continue
        width = full_width // narrower
        layers += [nn.Conv2d(channels, width, kernel_size=3, padding=1), nn.ReLU(inplace=True)]
        channels = width
    hidden = 4096 // narrower
    return [
        *layers,
        nn.AdaptiveAvgPool2d(7),
        nn.Flatten(),
        nn.Linear(channels * 7 * 7, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(hidden, num_classes),
    ]
