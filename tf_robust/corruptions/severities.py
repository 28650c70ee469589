"""The constants of CIFAR-10-C, Tiny-ImageNet-C and ImageNet-C: five severities each (Hendrycks and Dietterich, 2019).

The function of the same name explains the numbers of a corruption. An entry of several numbers is a tuple.
"""

import math

SETS = {"cifar": 32, "tiny_imagenet": 64, "imagenet": 224}  # the side, in pixels, of the images that the constants were made for

_BRIGHTER = (.1, .2, .3, .4, .5)
_CIFAR_ZOOM = ((1.06, .01), (1.11, .01), (1.16, .01), (1.21, .01), (1.26, .01))


def _of_side(side, *fractions):
    return tuple(tuple(side * fraction for fraction in severity) for severity in fractions)


CONSTANTS: dict[str, dict[str, tuple]] = {
    "gaussian_noise": {
        "cifar": (.04, .06, .08, .09, .10), "tiny_imagenet": (.04, .08, .12, .15, .18),
        "imagenet": (.08, .12, .18, .26, .38)},
    "shot_noise": {
        "cifar": (500, 250, 100, 75, 50), "tiny_imagenet": (250, 100, 50, 30, 15), "imagenet": (60, 25, 12, 5, 3)},
    "impulse_noise": {
        "cifar": (.01, .02, .03, .05, .07), "tiny_imagenet": (.01, .02, .05, .08, .14),
        "imagenet": (.03, .06, .09, .17, .27)},
    "defocus_blur": {
        "cifar": ((.3, .4), (.4, .5), (.5, .6), (1, .2), (1.5, .1)),
        "tiny_imagenet": ((.5, .6), (1, .1), (1.5, .1), (2.5, .01), (3, .1)),
        "imagenet": ((3, .1), (4, .5), (6, .5), (8, .5), (10, .5))},
    "glass_blur": {
        "cifar": ((.05, 1, 1), (.25, 1, 1), (.4, 1, 1), (.25, 1, 2), (.4, 1, 2)),
        "tiny_imagenet": ((.1, 1, 1), (.5, 1, 1), (.6, 1, 2), (.7, 2, 1), (.9, 2, 2)),
        "imagenet": ((.7, 1, 2), (.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2))},
    "motion_blur": {
        "cifar": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        "tiny_imagenet": ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
        "imagenet": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))},
    "zoom_blur": {
        "cifar": _CIFAR_ZOOM, "tiny_imagenet": _CIFAR_ZOOM,
        "imagenet": ((1.11, .01), (1.16, .01), (1.21, .02), (1.26, .02), (1.31, .03))},
    "snow": {
        "cifar": ((.1, .2, 1, .6, 8, 3, .95), (.1, .2, 1, .5, 10, 4, .9), (.15, .3, 1.75, .55, 10, 4, .9),
                  (.25, .3, 2.25, .6, 12, 6, .85), (.3, .3, 1.25, .65, 14, 12, .8)),
        "tiny_imagenet": ((.1, .2, 1, .6, 8, 3, .8), (.1, .2, 1, .5, 10, 4, .8), (.15, .3, 1.75, .55, 10, 4, .7),
                          (.25, .3, 2.25, .6, 12, 6, .65), (.3, .3, 1.25, .65, 14, 12, .6)),
        "imagenet": ((.1, .3, 3, .5, 10, 4, .8), (.2, .3, 2, .5, 12, 4, .7), (.55, .3, 4, .9, 12, 8, .7),
                     (.55, .3, 4.5, .85, 12, 8, .65), (.55, .3, 2.5, .85, 12, 12, .55))},
    "frost": {
        "cifar": ((1, .2), (1, .3), (.9, .4), (.85, .4), (.75, .45)),
        "tiny_imagenet": ((1, .3), (.9, .4), (.8, .45), (.75, .5), (.7, .55)),
        "imagenet": ((1, .4), (.8, .6), (.7, .7), (.65, .7), (.6, .75))},
    "fog": {
        "cifar": ((.2, 3), (.5, 3), (.75, 2.5), (1, 2), (1.5, 1.75)),
        "tiny_imagenet": ((.4, 3), (.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
        "imagenet": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4))},
    "brightness": {"cifar": (.05, .1, .15, .2, .3), "tiny_imagenet": _BRIGHTER, "imagenet": _BRIGHTER},
    "contrast": {
        "cifar": (.75, .5, .4, .3, .15), "tiny_imagenet": (.4, .3, .2, .1, .05), "imagenet": (.4, .3, .2, .1, .05)},
    "elastic_transform": {
        "cifar": _of_side(32, (0, 0, .08), (.05, .2, .07), (.08, .06, .06), (.1, .04, .05), (.1, .03, .03)),
        "tiny_imagenet": _of_side(64, (0, 0, .08), (.05, .3, .06), (.1, .08, .06), (.1, .03, .03), (.16, .03, .02)),
        "imagenet": _of_side(244, (2, .7, .1), (2, .08, .2), (.05, .01, .02), (.07, .01, .02), (.12, .01, .02))},  # 244: sic
    "pixelate": {
        "cifar": (.95, .9, .85, .75, .65), "tiny_imagenet": (.9, .8, .7, .6, .5), "imagenet": (.6, .5, .4, .3, .25)},
    "jpeg_compression": {
        "cifar": (80, 65, 58, 50, 40), "tiny_imagenet": (65, 58, 50, 40, 25), "imagenet": (25, 18, 15, 10, 7)},
    "speckle_noise": {
        "cifar": (.06, .1, .12, .16, .2), "tiny_imagenet": (.15, .2, .25, .3, .35), "imagenet": (.15, .2, .35, .45, .6)},
    "gaussian_blur": {
        "cifar": (.4, .6, .7, .8, 1), "tiny_imagenet": (.5, .75, 1, 1.25, 1.5), "imagenet": (1, 2, 3, 4, 6)},
    "spatter": {
        "cifar": ((.62, .1, .7, .7, .5, 0), (.65, .1, .8, .7, .5, 0), (.65, .3, 1, .69, .5, 0), (.65, .1, .7, .69, .6, 1),
                  (.65, .1, .5, .68, .6, 1)),
        "tiny_imagenet": ((.62, .1, .7, .7, .6, 0), (.65, .1, .8, .7, .6, 0), (.65, .3, 1, .69, .6, 0),
                          (.65, .1, .7, .68, .6, 1), (.65, .1, .5, .67, .6, 1)),
        "imagenet": ((.65, .3, 4, .69, .6, 0), (.65, .3, 3, .68, .6, 0), (.65, .3, 2, .68, .5, 0), (.65, .3, 1, .65, 1.5, 1),
                     (.67, .4, 1, .65, 1.5, 1))},
    "saturate": {
        "cifar": ((.3, 0), (.1, 0), (1.5, 0), (2, .1), (2.5, .2)),
        "tiny_imagenet": ((.3, 0), (.1, 0), (2, 0), (5, .1), (30, .2)),
        "imagenet": ((.3, 0), (.1, 0), (2, 0), (5, .1), (20, .2))},
}


def nearest_set(height: int, width: int) -> str:
    """Returns the set whose side is nearest, as a ratio, to the geometric mean of an image's height and width."""
    side = math.sqrt(height * width)
    return min(SETS, key=lambda name: abs(math.log(side / SETS[name])))


def constants_of(name: str, severity: int, constants: str) -> tuple[float, ...]:
    """Returns the constants of one corruption at one severity (1 to 5) of the set `constants`, as a tuple."""
    entry = CONSTANTS[name][constants][severity - 1]
    return entry if isinstance(entry, tuple) else (entry,)
