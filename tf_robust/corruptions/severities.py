"""The constants of CIFAR-10-C, Tiny-ImageNet-C and ImageNet-C: five severities each (Hendrycks and Dietterich, 2019); and those of
CIFAR-10-C-bar and ImageNet-C-bar (Mintun et al., 2021).

The numbers of a corruption are the arguments of its private function, in order: those of `fog` are `strength` and `wibble_decay` of
`weather._fog`. An entry of several numbers is a tuple. The numbers of C-bar are the levels, 0 to 10, of the authors' files
`cifar10_c_bar.csv` and `imagenet_c_bar.csv`; its corruptions have no constants for Tiny-ImageNet, and ten of them only one set.
"""

import math
from collections.abc import Iterable, Sequence

SETS = {"cifar": 32, "tiny_imagenet": 64, "imagenet": 224}  # the side, in pixels, of the images that the constants were made for

_BRIGHTER = (0.1, 0.2, 0.3, 0.4, 0.5)
_CIFAR_ZOOM = ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01))


def _of_side(side, *fractions):
    return tuple(tuple(side * fraction for fraction in severity) for severity in fractions)


CONSTANTS: dict[str, dict[str, tuple]] = {
    "gaussian_noise": {
        "cifar": (0.04, 0.06, 0.08, 0.09, 0.10),
        "tiny_imagenet": (0.04, 0.08, 0.12, 0.15, 0.18),
        "imagenet": (0.08, 0.12, 0.18, 0.26, 0.38),
    },
    "shot_noise": {"cifar": (500, 250, 100, 75, 50), "tiny_imagenet": (250, 100, 50, 30, 15), "imagenet": (60, 25, 12, 5, 3)},
    "impulse_noise": {
        "cifar": (0.01, 0.02, 0.03, 0.05, 0.07),
        "tiny_imagenet": (0.01, 0.02, 0.05, 0.08, 0.14),
        "imagenet": (0.03, 0.06, 0.09, 0.17, 0.27),
    },
    "defocus_blur": {
        "cifar": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        "tiny_imagenet": ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
        "imagenet": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    },
    "glass_blur": {
        "cifar": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        "tiny_imagenet": ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
        "imagenet": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    },
    "motion_blur": {
        "cifar": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        "tiny_imagenet": ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
        "imagenet": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    },
    "zoom_blur": {
        "cifar": _CIFAR_ZOOM,
        "tiny_imagenet": _CIFAR_ZOOM,
        "imagenet": ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    },
    "snow": {
        "cifar": (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        "tiny_imagenet": (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
        ),
        "imagenet": (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
    },
    "frost": {
        "cifar": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        "tiny_imagenet": ((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
        "imagenet": ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    },
    "fog": {
        "cifar": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        "tiny_imagenet": ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
        "imagenet": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    },
    "brightness": {"cifar": (0.05, 0.1, 0.15, 0.2, 0.3), "tiny_imagenet": _BRIGHTER, "imagenet": _BRIGHTER},
    "contrast": {"cifar": (0.75, 0.5, 0.4, 0.3, 0.15), "tiny_imagenet": (0.4, 0.3, 0.2, 0.1, 0.05), "imagenet": (0.4, 0.3, 0.2, 0.1, 0.05)},
    "elastic_transform": {
        "cifar": _of_side(32, (0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
        "tiny_imagenet": _of_side(64, (0, 0, 0.08), (0.05, 0.3, 0.06), (0.1, 0.08, 0.06), (0.1, 0.03, 0.03), (0.16, 0.03, 0.02)),
        "imagenet": _of_side(244, (2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)),
    },  # 244: sic
    "pixelate": {
        "cifar": (0.95, 0.9, 0.85, 0.75, 0.65),
        "tiny_imagenet": (0.9, 0.8, 0.7, 0.6, 0.5),
        "imagenet": (0.6, 0.5, 0.4, 0.3, 0.25),
    },
    "jpeg_compression": {"cifar": (80, 65, 58, 50, 40), "tiny_imagenet": (65, 58, 50, 40, 25), "imagenet": (25, 18, 15, 10, 7)},
    "speckle_noise": {
        "cifar": (0.06, 0.1, 0.12, 0.16, 0.2),
        "tiny_imagenet": (0.15, 0.2, 0.25, 0.3, 0.35),
        "imagenet": (0.15, 0.2, 0.35, 0.45, 0.6),
    },
    "gaussian_blur": {"cifar": (0.4, 0.6, 0.7, 0.8, 1), "tiny_imagenet": (0.5, 0.75, 1, 1.25, 1.5), "imagenet": (1, 2, 3, 4, 6)},
    "spatter": {
        "cifar": (
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
        "tiny_imagenet": (
            (0.62, 0.1, 0.7, 0.7, 0.6, 0),
            (0.65, 0.1, 0.8, 0.7, 0.6, 0),
            (0.65, 0.3, 1, 0.69, 0.6, 0),
            (0.65, 0.1, 0.7, 0.68, 0.6, 1),
            (0.65, 0.1, 0.5, 0.67, 0.6, 1),
        ),
        "imagenet": (
            (0.65, 0.3, 4, 0.69, 0.6, 0),
            (0.65, 0.3, 3, 0.68, 0.6, 0),
            (0.65, 0.3, 2, 0.68, 0.5, 0),
            (0.65, 0.3, 1, 0.65, 1.5, 1),
            (0.67, 0.4, 1, 0.65, 1.5, 1),
        ),
    },
    "saturate": {
        "cifar": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
        "tiny_imagenet": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)),
        "imagenet": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
    },
    # C-bar
    "blue_noise_sample": {"cifar": (0.7, 1.4, 2.1, 3.5, 4.2), "imagenet": (0.8, 1.6, 2.4, 4, 5.6)},
    "brownish_noise": {"cifar": (2.5, 4, 5.5, 6.5, 7), "imagenet": (1, 2, 3, 4, 5)},
    "checkerboard_cutout": {"cifar": (1, 2, 3, 4, 5), "imagenet": (2, 3, 4, 5, 6)},
    "inverse_sparkles": {"cifar": (1, 1.5, 2.5, 4.5, 5), "imagenet": (1, 2, 4, 9, 10)},
    "sparkles": {"cifar": (0.7, 3.5, 5.6, 6.3, 7), "imagenet": (1, 2, 3, 5, 6)},
    "circular_motion_blur": {"cifar": (2.8, 3.6, 4.4, 5.2, 6)},
    "lines": {"cifar": (0.5, 1, 1.5, 2, 2.5)},
    "pinch_and_twirl": {"cifar": (5.5, 6, 6.5, 8.5, 10)},
    "ripple": {"cifar": (5.5, 6, 6.5, 7.5, 8)},
    "transverse_chromatic_aberration": {"cifar": (1, 2, 5, 9, 10)},
    "caustic_refraction": {"imagenet": (2.35, 3.2, 4.9, 6.6, 9.15)},
    "concentric_sine_waves": {"imagenet": (3, 5, 8, 9, 10)},
    "perlin_noise": {"imagenet": (4.6, 5.2, 5.8, 7.6, 8.8)},
    "plasma_noise": {"imagenet": (4.75, 7, 8.5, 9.25, 10)},
    "single_frequency_grayscale": {"imagenet": (1, 1.5, 2, 4.5, 5)},
}


def side_of(height: int, width: int) -> float:
    """Returns the side, in pixels, of a square image with as many pixels."""
    return math.sqrt(height * width)


def nearest_set(height: int, width: int, sets: Iterable[str] = tuple(SETS)) -> str:
    """Returns the one of `sets` whose side is nearest, as a ratio, to the geometric mean of an image's height and width."""
    return min(sets, key=lambda name: abs(math.log(side_of(height, width) / SETS[name])))


def constants_of(name: str, severity: int, constants: str, levels: Sequence[float | tuple[float, ...]] | None = None) -> tuple[float, ...]:
    """Returns the constants of one corruption at one severity (1 to 5), as a tuple.

    Args:
        name: of the corruption.
        severity: 1 to 5.
        constants: name of a set. A corruption of C-bar without this set has those of the nearest image size.
        levels: of the five severities, for images of all sizes; None: those of `CONSTANTS`.
    """
    sets = {constants: levels} if levels else CONSTANTS[name]
    chosen = constants if constants in sets else nearest_set(SETS[constants], SETS[constants], sets)
    entry = sets[chosen][severity - 1]
    return entry if isinstance(entry, tuple) else (entry,)
