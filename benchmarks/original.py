"""Patches of the original corruption code, so that it runs with the current versions of what it imports, at the best speed available."""

import functools

import cv2
import numba
import numpy as np

GLASS = ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2))  # sigma, reach, repetitions at each severity


def repair(package):
    """Patches `imagecorruptions` or `imagenet_c` in memory, its glass blur compiled; returns the glass blur as released."""
    module, released_gaussian = package.corruptions, package.corruptions.gaussian

    # fog: "`np.float_` was removed in the NumPy 2.0 release"
    np.float_ = np.float64

    # glass_blur, gaussian_blur: "gaussian() got an unexpected keyword argument 'multichannel'", now channel_axis
    def gaussian(image, sigma, *others, multichannel=False, **options):
        return released_gaussian(image, sigma, *others, channel_axis=-1 if multichannel else None, **options)

    module.gaussian = gaussian

    # motion_blur, snow: "The binary mode of fromstring is removed, use frombuffer instead"
    np.fromstring = np.frombuffer

    # glass_blur: no failure, but a loop over pixels in Python; the peer's repository now compiles it with Numba
    def compiled_glass(sample_image, severity):
        sigma, reach, times = GLASS[severity - 1]
        levels = np.uint8(gaussian(np.array(sample_image) / 255.0, sigma, multichannel=True) * 255)
        mix_pixels(levels, reach, times)
        return np.clip(gaussian(levels / 255.0, sigma, multichannel=True), 0, 1) * 255

    package.corruption_dict["glass_blur"] = compiled_glass

    # frost: no failure, but it reads a photograph from disk for each image
    cv2.imread = functools.lru_cache(cv2.imread)
    return module.glass_blur


@numba.njit
def mix_pixels(levels, reach, times):
    for _ in range(times):
        for row in range(levels.shape[0] - reach, reach, -1):
            for column in range(levels.shape[1] - reach, reach, -1):
                right, down = np.random.randint(-reach, reach), np.random.randint(-reach, reach)
                levels[row, column] = levels[row + down, column + right]  # the peer's exchange, which is a copy
