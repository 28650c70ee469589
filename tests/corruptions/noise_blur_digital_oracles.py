"""The oracles of noise, blur and the digital corruptions, as defined in tests/corruptions/oracles.py."""

import colorsys
import io

import numpy as np
import PIL.Image
import scipy.ndimage
import scipy.stats

# Noise


def gaussian_noise(image, constants, normal):
    return image + constants[0] * normal


def speckle_noise(image, constants, normal):
    return image + image * constants[0] * normal


def shot_noise(image, constants, uniform):
    """Poisson counts by inversion of the cumulative distribution."""
    midpoint = uniform.astype(float) + 2.0**-24  # of the interval of a float32 draw: never 0
    return np.maximum(scipy.stats.poisson.ppf(midpoint, image * constants[0]), 0) / constants[0]


def impulse_noise(image, constants, uniform):
    """Each value of each channel independently; the lower tail becomes black, the upper white."""
    half = constants[0] / 2
    return np.where(uniform < half, 0.0, np.where(uniform >= 1 - half, 1.0, image))


# Blur


def gaussian(image, sigma, mode="nearest", truncate=4.0):
    """Each channel of [H, W, C], or [H, W], blurred over rows and columns."""
    return scipy.ndimage.gaussian_filter(image, (sigma, sigma, 0)[: image.ndim], mode=mode, truncate=truncate)


def gaussian_blur(image, constants):
    return gaussian(image, constants[0])


def disk_kernel(radius, alias_sigma):
    """A disk on the integer grid, of sum 1, whose rim is softened by a small Gaussian of 3 or 5 taps."""
    half, taps = (8, 3) if radius <= 8 else (int(radius), 5)
    row, column = np.mgrid[-half : half + 1, -half : half + 1]
    disk = (row**2 + column**2 <= radius**2).astype(float)
    offsets = np.arange(taps) - taps // 2
    weights = np.exp(-(offsets**2) / (2 * alias_sigma**2))
    weights /= weights.sum()
    return scipy.ndimage.correlate(disk / disk.sum(), np.outer(weights, weights), mode="mirror")


def defocus_blur(image, constants):
    kernel = disk_kernel(*constants)
    return scipy.ndimage.correlate(image, kernel[..., None], mode="mirror")


def glass_blur(image, constants, offsets):
    """Pixels take the values of near ones, in turn: the intended swap copies, because both operands are views."""
    sigma, reach, iterations = constants
    height, width = image.shape[:2]
    moved = gaussian(image, sigma)
    for steps in offsets.reshape(iterations, -1, 2):
        steps = iter(steps)
        for row in range(height - reach, reach, -1):
            for column in range(width - reach, reach, -1):
                down, right = next(steps)
                moved[row, column] = moved[row + down, column + right]
    return gaussian(moved, sigma)


def motion(image, radius, sigma, degrees):
    """ImageMagick's motion blur: half a Gaussian laid along a ray from the pixel, its taps on whole pixels."""
    height, width = image.shape[:2]
    taps = np.arange(2 * int(np.ceil(radius)) + 1)
    weights = np.exp(-(taps**2) / (2 * sigma**2))
    weights /= weights.sum()
    downs = np.ceil(taps * np.sin(np.deg2rad(degrees)) - 0.5).astype(int)
    rights = np.ceil(taps * np.cos(np.deg2rad(degrees)) - 0.5).astype(int)
    rows, columns = np.arange(height), np.arange(width)
    blurred = np.zeros_like(image)
    for weight, down, right in zip(weights, downs, rights):
        blurred += weight * image[np.clip(rows + down, 0, height - 1)][:, np.clip(columns + right, 0, width - 1)]
    return blurred


def motion_blur(image, constants, angle):
    return motion(image, *constants, angle)


def zoomed(image, factor):
    """Magnifies the center of [H, W, C] to at least the old size and crops the center."""
    sides = image.shape[:2]
    cut = [int(np.ceil(side / factor)) for side in sides]
    top, left = ((side - part) // 2 for side, part in zip(sides, cut))
    window = image[top : top + cut[0], left : left + cut[1]]
    large = scipy.ndimage.zoom(window, (factor, factor, 1), order=1, mode="nearest")
    top, left = ((new - side) // 2 for new, side in zip(large.shape, sides))
    return large[top : top + sides[0], left : left + sides[1]]


def zoom_blur(image, constants):
    """The mean of the image and its magnifications, among which is the factor 1."""
    factors = np.arange(1, *constants)
    return (image + sum(zoomed(image, factor) for factor in factors)) / (len(factors) + 1)


# Digital


def contrast(image, constants):
    mean = image.mean(axis=(0, 1))
    return (image - mean) * constants[0] + mean


def affine_map(corners, jitter, shape):
    """Returns the 2x3 matrix, over (x, y, 1), that maps three points about the center to their jittered positions."""
    center = np.array(shape[:2]) // 2  # (rows, columns), though used as (x, y)
    reach = min(shape[:2]) // 3
    before = np.array([center + reach, [center[0] + reach, center[1] - reach], center - reach], dtype=float)
    return np.linalg.solve(np.column_stack([before, np.ones(3)]), before + jitter * corners).T


def sampled(image, rows, columns, mode):
    """Bilinear samples of every channel at float [H, W] positions."""
    return np.stack(
        [scipy.ndimage.map_coordinates(channel, [rows, columns], order=1, mode=mode) for channel in np.moveaxis(image, -1, 0)], axis=-1
    )


def elastic_transform(image, constants, corners, displacement):
    alpha, sigma, jitter = constants
    rows, columns = np.mgrid[: image.shape[0], : image.shape[1]].astype(float)
    back = np.linalg.inv(np.vstack([affine_map(corners, jitter, image.shape), [0, 0, 1]]))
    x = back[0, 0] * columns + back[0, 1] * rows + back[0, 2]
    y = back[1, 0] * columns + back[1, 1] * rows + back[1, 2]
    image = sampled(image, y, x, "mirror")
    x, y = (alpha * gaussian(shift.astype(float), sigma, "reflect", 3.0) for shift in displacement)
    return sampled(image, rows + y, columns + x, "reflect")


def to_pillow(image):
    levels = np.round(255 * image).astype(np.uint8)
    return PIL.Image.fromarray(levels[..., 0] if image.shape[-1] == 1 else levels)


def from_pillow(sample_image, shape):
    return np.asarray(sample_image).reshape(shape) / 255


def pixelate(image, constants):
    height, width = image.shape[:2]
    small = to_pillow(image).resize((int(width * constants[0]), int(height * constants[0])), PIL.Image.Resampling.BOX)
    return from_pillow(small.resize((width, height), PIL.Image.Resampling.BOX), image.shape)


def jpeg_compression(image, constants):
    stream = io.BytesIO()
    to_pillow(image).save(stream, "JPEG", quality=constants[0])
    return from_pillow(PIL.Image.open(stream), image.shape)


def with_hsv(image, change):
    """Applies `change` to hue, saturation and value, pixel by pixel."""
    pixels = [colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*pixel))) for pixel in image.reshape(-1, 3)]
    return np.array(pixels).reshape(image.shape)


def saturate(image, constants):
    if image.shape[-1] == 1:
        return image
    scale, shift = constants
    return with_hsv(image, lambda hue, saturation, value: (hue, min(max(saturation * scale + shift, 0), 1), value))
