"""The oracles of snow, frost, fog, brightness and spatter, as defined in tests/corruptions/oracles.py."""

import functools

import numpy as np
import scipy.ndimage

from tests.corruptions.noise_blur_digital_oracles import gaussian, motion, sampled, with_hsv, zoomed

LUMA = np.array([0.299, 0.587, 0.114])  # Rec. 601
RANDOM = np.random.RandomState(0)
COLOR, GRAY = (RANDOM.rand(4, *shape).astype(np.float32) for shape in ((18, 26, 3), (26, 18, 1)))  # images for tests


def three_channels(oracle):
    """Extends a color operation to one channel: three equal channels, of whose result the luma is returned."""

    @functools.wraps(oracle)
    def wrapped(image, constants, **drawn):
        if image.shape[-1] == 3:
            return oracle(image, constants, **drawn)
        return (np.clip(oracle(np.repeat(image, 3, axis=-1), constants, **drawn), 0, 1) @ LUMA)[..., None]

    return wrapped


@three_channels
def snow(image, constants, normal, angle):
    mean, std, zoom, threshold, radius, sigma, mix = constants
    flakes = zoomed((mean + std * normal)[..., None], zoom)
    flakes = np.where(flakes < threshold, 0, flakes)
    flakes = motion(np.clip(flakes, 0, 1), radius, sigma, angle)
    whitened = np.maximum(image, (image @ LUMA)[..., None] * 1.5 + 0.5)
    return mix * image + (1 - mix) * whitened + flakes + flakes[::-1, ::-1]


def shrunk(sample_image, factor):
    """Bilinear without antialiasing, as OpenCV resizes: positions at centers of pixels, sides rounded half to even."""
    positions = [np.clip((np.arange(round(side * factor)) + 0.5) / factor - 0.5, 0, side - 1) for side in sample_image.shape[:2]]
    return sampled(sample_image, *np.meshgrid(*positions, indexing="ij"), "nearest")


@three_channels
def frost(image, constants, texture, corner, textures):
    """Overlays a window of one of the first five ice images; small images get a smaller ice image."""
    height, width = image.shape[:2]
    factors = {32: 0.2, 64: 0.3, 224: 1.0}  # the side of the images that each was published for
    factor = factors[min(factors, key=lambda side: abs(np.log(np.sqrt(height * width) / side)))]
    ice = shrunk(textures[texture], factor)
    top = int(corner[0] * (ice.shape[0] - height))
    left = int(corner[1] * (ice.shape[1] - width))
    return constants[0] * image + constants[1] * ice[top : top + height, left : left + width]


def plasma(noise, decay):
    """Diamond-square on a torus: noise [size, size] in [-1, 1) -> map in [0, 1]."""
    size = len(noise)
    heights = np.zeros([size, size])
    amplitude, step = 100.0, size
    while step >= 2:
        half = step // 2
        square = ((-half, -half), (-half, half), (half, -half), (half, half))
        edge = ((-half, 0), (half, 0), (0, -half), (0, half))
        for first_row, first_column, neighbors in ((half, half, square), (0, half, edge), (half, 0, edge)):
            for row in range(first_row, size, step):
                for column in range(first_column, size, step):
                    near = [heights[(row + down) % size, (column + right) % size] for down, right in neighbors]
                    # the amplitude counts twice: once as a factor, once as the range of the noise
                    heights[row, column] = sum(near) / 4 + amplitude**2 * noise[row, column]
        step, amplitude = half, amplitude / decay
    heights -= heights.min()
    return heights / heights.max()


def fog(image, constants, noise):
    strength, decay = constants
    height, width = image.shape[:2]
    size = int(np.sqrt(noise.size))
    mist = plasma(noise.reshape(size, size), decay)[:height, :width, None]
    highest = image.max()
    return (image + strength * mist) * highest / (highest + strength)


@three_channels
def brightness(image, constants):
    return with_hsv(image, lambda hue, saturation, value: (hue, saturation, min(value + constants[0], 1)))


# Spatter


def shifted(array, down, right, fill):
    """array [H, W] -> the value at (down, right) from each position, `fill` outside."""
    reach = max(abs(down), abs(right))
    padded = np.pad(array, reach, constant_values=fill)
    height, width = array.shape
    return padded[reach + down : reach + down + height, reach + right : reach + right + width]


def canny(levels, low, high):
    """int [H, W] -> bool: Canny's edges as in OpenCV, with 3x3 Sobel gradients and |dx| + |dy| as their magnitude."""
    smooth, slope = [1, 2, 1], [-1, 0, 1]
    dx = scipy.ndimage.correlate(levels, np.outer(smooth, slope), mode="nearest")
    dy = scipy.ndimage.correlate(levels, np.outer(slope, smooth), mode="nearest")
    size = abs(dx) + abs(dy)
    # tangents of 22.5 and 67.5 degrees in 15-bit fixed point: the second is the first plus 2
    flat, scaled = abs(dx) * 13573, abs(dy) << 15
    horizontal, vertical = scaled < flat, scaled > flat + (abs(dx) << 16)
    falling = (dx < 0) != (dy < 0)  # sign bits: 0 counts as positive

    def beats(down, right, ties):
        other = shifted(size, down, right, 0)
        return size >= other if ties else size > other

    ridge = np.select(
        [horizontal, vertical, falling],
        [beats(0, -1, False) & beats(0, 1, True), beats(-1, 0, False) & beats(1, 0, True), beats(-1, 1, False) & beats(1, -1, False)],
        beats(-1, -1, False) & beats(1, 1, False),
    )
    weak = ridge & (size > low)
    parts, _ = scipy.ndimage.label(weak, np.ones([3, 3]))
    return weak & np.isin(parts, np.unique(parts[weak & (size > high)]))


def distance_to(edges, limit):
    """bool [H, W] -> distance to the nearest edge, at most `limit`: the chamfer metric of OpenCV's 5x5 mask."""
    lengths = {(0, 1): 1.0, (1, 1): 1.4, (1, 2): 2.1969}
    distance = np.where(edges, 0.0, limit)
    while True:
        shorter = distance
        for (a, b), length in lengths.items():
            length = round(length * 2**16) / 2**16
            for down, right in {(s * p, t * q) for p, q in ((a, b), (b, a)) for s in (-1, 1) for t in (-1, 1)}:
                shorter = np.minimum(shorter, shifted(shorter, down, right, limit) + length)
        if (shorter == distance).all():
            return distance
        distance = shorter


def equalized(levels):
    """uint8 levels [H, W], as ints -> the same with a flat histogram; the lowest level becomes 0."""
    counts = np.bincount(levels.ravel(), minlength=256)
    lowest = counts[levels.min()]
    if lowest == levels.size:
        return levels
    sums = np.cumsum(counts) - lowest
    return np.round(np.maximum(sums, 0) * 255 / (levels.size - lowest)).astype(int)[levels]


def mean_of_nine(values):
    return scipy.ndimage.correlate(values.astype(float), np.full([3, 3], 1 / 9), mode="mirror")


def water(layer):
    """Drops [H, W] -> brightness of each pixel in [0, 1]: brightest along their edges, with light from one side."""
    levels = (layer * 255).astype(int) % 256  # 8 bits wrap around
    distance = distance_to(canny(levels, 50, 150), 20.0)
    # in float32 a mean of integers is an integer, as the truncation requires
    depth = equalized(mean_of_nine(distance).astype(np.float32).astype(int))
    relief = scipy.ndimage.correlate(depth, np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]), mode="mirror")
    relief = np.round(mean_of_nine(np.clip(relief, 0, 255)))
    shine = levels * relief
    return shine / shine.max() if shine.max() > 0 else shine


@three_channels
def spatter(image, constants, normal):
    mean, std, sigma, threshold, strength, mud = constants
    layer = gaussian(mean + std * normal.astype(float), sigma)
    layer = np.where(layer < threshold, 0, layer)
    if not mud:
        return image + strength * water(layer)[..., None] * np.array([175, 238, 238]) / 255  # pale turquoise
    cover = gaussian((layer > threshold).astype(float), strength)
    cover = np.where(cover < 0.8, 0, cover)[..., None]
    return image * (1 - cover) + cover * np.array([63, 42, 20]) / 255  # brown
