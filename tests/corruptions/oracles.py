"""What the public generator of the common corruptions computes, one picture at a time, in NumPy, SciPy and Pillow.

Written for the tests alone and from the construction of the originals, not from `tf_robust.corruptions`. An oracle is
(image, constants, **drawn) -> image: float64 [H, W, C] in [0, 1], C = 1 or 3, the numbers of one severity as a tuple,
and what was drawn for this picture, without its first axis. The result is not clipped. The originals' truncation to
uint8 between steps is left out, except inside spatter's water, where whole gray levels are part of the construction.
"""

import colorsys
import functools
import io

import numpy as np
import PIL.Image
import scipy.ndimage
import scipy.stats
import sklearn.datasets
import tensorflow as tf

LUMA = np.array([0.299, 0.587, 0.114])  # Rec. 601


def three_channels(oracle):
    """Lets a colour operation take one channel: as three equal ones, of whose result the luma is kept."""
    @functools.wraps(oracle)
    def wrapped(image, constants, **drawn):
        if image.shape[-1] == 3:
            return oracle(image, constants, **drawn)
        return (np.clip(oracle(np.repeat(image, 3, axis=-1), constants, **drawn), 0, 1) @ LUMA)[..., None]
    return wrapped


# Noise

def gaussian_noise(image, constants, normal):
    return image + constants[0] * normal


def speckle_noise(image, constants, normal):
    return image + image * constants[0] * normal


def shot_noise(image, constants, uniform):
    """Poisson counts by inversion of the cumulative distribution."""
    middle = uniform.astype(float) + 2.0**-24  # of the interval that a float32 draw stands for: never 0
    return np.maximum(scipy.stats.poisson.ppf(middle, image * constants[0]), 0) / constants[0]


def impulse_noise(image, constants, uniform):
    """Each value of each channel by itself; the lower tail is made black, the upper white."""
    half = constants[0] / 2
    return np.where(uniform < half, 0.0, np.where(uniform >= 1 - half, 1.0, image))


# Blur

def gaussian(image, sigma, mode="nearest", truncate=4.0):
    """Each channel of [H, W, C], or [H, W], blurred over rows and columns."""
    return scipy.ndimage.gaussian_filter(image, (sigma, sigma, 0)[:image.ndim], mode=mode, truncate=truncate)


def gaussian_blur(image, constants):
    return gaussian(image, constants[0])


def disk_kernel(radius, alias_sigma):
    """A disk on the integer grid, of sum 1, whose rim is softened by a small Gaussian of 3 or 5 taps."""
    half, taps = (8, 3) if radius <= 8 else (int(radius), 5)
    row, column = np.mgrid[-half:half + 1, -half:half + 1]
    disk = (row**2 + column**2 <= radius**2).astype(float)
    offsets = np.arange(taps) - taps // 2
    weights = np.exp(-offsets**2 / (2 * alias_sigma**2))
    weights /= weights.sum()
    return scipy.ndimage.correlate(disk / disk.sum(), np.outer(weights, weights), mode="mirror")


def defocus_blur(image, constants):
    kernel = disk_kernel(*constants)
    return scipy.ndimage.correlate(image, kernel[..., None], mode="mirror")


def glass_blur(image, constants, offsets):
    """Pixels take the values of near ones, in turn: what was meant as a swap copies, as both ends are views."""
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
    weights = np.exp(-taps**2 / (2 * sigma**2))
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
    """The centre of [H, W, C], magnified to at least the old size, and of that the centre."""
    sides = image.shape[:2]
    cut = [int(np.ceil(side / factor)) for side in sides]
    top, left = ((side - part) // 2 for side, part in zip(sides, cut))
    window = image[top:top + cut[0], left:left + cut[1]]
    large = scipy.ndimage.zoom(window, (factor, factor, 1), order=1, mode="nearest")
    top, left = ((new - side) // 2 for new, side in zip(large.shape, sides))
    return large[top:top + sides[0], left:left + sides[1]]


def zoom_blur(image, constants):
    """The mean of the picture and its magnifications, among which is the factor 1."""
    factors = np.arange(1, *constants)
    return (image + sum(zoomed(image, factor) for factor in factors)) / (len(factors) + 1)


# Weather

@three_channels
def snow(image, constants, normal, angle):
    mean, deviation, zoom, threshold, radius, sigma, mix = constants
    flakes = zoomed((mean + deviation * normal)[..., None], zoom)
    flakes = np.where(flakes < threshold, 0, flakes)
    flakes = motion(np.clip(flakes, 0, 1), radius, sigma, angle)
    whitened = np.maximum(image, (image @ LUMA)[..., None] * 1.5 + 0.5)
    return mix * image + (1 - mix) * whitened + flakes + flakes[::-1, ::-1]


def shrunk(picture, factor):
    """Bilinear without antialiasing, as OpenCV resizes: positions at centres of pixels, sides rounded half to even."""
    positions = [np.clip((np.arange(round(side * factor)) + 0.5) / factor - 0.5, 0, side - 1)
                 for side in picture.shape[:2]]
    return sampled(picture, *np.meshgrid(*positions, indexing="ij"), "nearest")


@three_channels
def frost(image, constants, texture, corner, textures):
    """A window of one of the first five ice pictures, laid over the image; small images get a smaller ice picture."""
    height, width = image.shape[:2]
    factors = {32: 0.2, 64: 0.3, 224: 1.0}  # the side of the images that each was published for
    factor = factors[min(factors, key=lambda side: abs(np.log(np.sqrt(height * width) / side)))]
    ice = shrunk(textures[texture], factor)
    top = int(corner[0] * (ice.shape[0] - height))
    left = int(corner[1] * (ice.shape[1] - width))
    return constants[0] * image + constants[1] * ice[top:top + height, left:left + width]


def plasma(noise, decay):
    """Diamond-square on a torus: noise [size, size] in [-1, 1) -> map in [0, 1]."""
    size = len(noise)
    heights = np.zeros([size, size])
    amplitude, step = 100.0, size
    while step >= 2:
        half = step // 2
        square = ((-half, -half), (-half, half), (half, -half), (half, half))
        edge = ((-half, 0), (half, 0), (0, -half), (0, half))
        for first_row, first_column, neighbours in ((half, half, square), (0, half, edge), (half, 0, edge)):
            for row in range(first_row, size, step):
                for column in range(first_column, size, step):
                    near = [heights[(row + down) % size, (column + right) % size] for down, right in neighbours]
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


def with_hsv(image, change):
    """The picture after `change` of hue, saturation and value, pixel by pixel."""
    pixels = [colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*pixel))) for pixel in image.reshape(-1, 3)]
    return np.array(pixels).reshape(image.shape)


@three_channels
def brightness(image, constants):
    return with_hsv(image, lambda hue, saturation, value: (hue, saturation, min(value + constants[0], 1)))


# Digital

def contrast(image, constants):
    mean = image.mean(axis=(0, 1))
    return (image - mean) * constants[0] + mean


def affine_map(corners, jitter, shape):
    """The 2x3 matrix, over (x, y, 1), that takes three points about the centre to where the jitter moves them."""
    centre = np.array(shape[:2]) // 2  # (rows, columns), though used as (x, y)
    reach = min(shape[:2]) // 3
    before = np.array([centre + reach, [centre[0] + reach, centre[1] - reach], centre - reach], dtype=float)
    return np.linalg.solve(np.column_stack([before, np.ones(3)]), before + jitter * corners).T


def sampled(image, rows, columns, mode):
    """Bilinear samples of every channel at float [H, W] positions."""
    return np.stack([scipy.ndimage.map_coordinates(channel, [rows, columns], order=1, mode=mode)
                     for channel in np.moveaxis(image, -1, 0)], axis=-1)


def elastic_transform(image, constants, corners, displacement):
    alpha, sigma, jitter = constants
    rows, columns = np.mgrid[:image.shape[0], :image.shape[1]].astype(float)
    back = np.linalg.inv(np.vstack([affine_map(corners, jitter, image.shape), [0, 0, 1]]))
    x = back[0, 0] * columns + back[0, 1] * rows + back[0, 2]
    y = back[1, 0] * columns + back[1, 1] * rows + back[1, 2]
    image = sampled(image, y, x, "mirror")
    x, y = (alpha * gaussian(shift.astype(float), sigma, "reflect", 3.0) for shift in displacement)
    return sampled(image, rows + y, columns + x, "reflect")


def to_pillow(image):
    levels = np.round(255 * image).astype(np.uint8)
    return PIL.Image.fromarray(levels[..., 0] if image.shape[-1] == 1 else levels)


def from_pillow(picture, shape):
    return np.asarray(picture).reshape(shape) / 255


def pixelate(image, constants):
    height, width = image.shape[:2]
    small = to_pillow(image).resize((int(width * constants[0]), int(height * constants[0])), PIL.Image.Resampling.BOX)
    return from_pillow(small.resize((width, height), PIL.Image.Resampling.BOX), image.shape)


def jpeg_compression(image, constants):
    stream = io.BytesIO()
    to_pillow(image).save(stream, "JPEG", quality=constants[0])
    return from_pillow(PIL.Image.open(stream), image.shape)


def saturate(image, constants):
    if image.shape[-1] == 1:
        return image
    scale, shift = constants
    return with_hsv(image, lambda hue, saturation, value: (hue, min(max(saturation * scale + shift, 0), 1), value))


def moved(array, down, right, fill):
    """array [H, W] -> the value that lies (down, right) of each position, `fill` outside."""
    reach = max(abs(down), abs(right))
    padded = np.pad(array, reach, constant_values=fill)
    height, width = array.shape
    return padded[reach + down:reach + down + height, reach + right:reach + right + width]


def canny(levels, low, high):
    """int [H, W] -> bool: Canny's edges as OpenCV finds them, with 3x3 Sobel slopes and |dx| + |dy| for their size."""
    smooth, slope = [1, 2, 1], [-1, 0, 1]
    dx = scipy.ndimage.correlate(levels, np.outer(smooth, slope), mode="nearest")
    dy = scipy.ndimage.correlate(levels, np.outer(slope, smooth), mode="nearest")
    size = abs(dx) + abs(dy)
    # tangents of 22.5 and 67.5 degrees in fixed point of 15 bits: the one is the other plus 2
    flat, scaled = abs(dx) * 13573, abs(dy) << 15
    horizontal, vertical = scaled < flat, scaled > flat + (abs(dx) << 16)
    falling = (dx < 0) != (dy < 0)  # as signs of the bits: 0 counts as positive

    def beats(down, right, ties):
        other = moved(size, down, right, 0)
        return size >= other if ties else size > other
    ridge = np.select([horizontal, vertical, falling], [
        beats(0, -1, False) & beats(0, 1, True), beats(-1, 0, False) & beats(1, 0, True),
        beats(-1, 1, False) & beats(1, -1, False)], beats(-1, -1, False) & beats(1, 1, False))
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
                shorter = np.minimum(shorter, moved(shorter, down, right, limit) + length)
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
    """Drops [H, W] -> how much each pixel shines, in [0, 1]: brightest along their rims, with light from one side."""
    levels = (layer * 255).astype(np.uint8).astype(int)
    distance = distance_to(canny(levels, 50, 150), 20.0)
    # float32 sees a mean of whole numbers as a whole number, which the truncation needs
    depth = equalized(mean_of_nine(distance).astype(np.float32).astype(int))
    relief = scipy.ndimage.correlate(depth, np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]), mode="mirror")
    relief = np.round(mean_of_nine(np.clip(relief, 0, 255)))
    shine = levels * relief
    return shine / shine.max() if shine.max() > 0 else shine


@three_channels
def spatter(image, constants, normal):
    mean, deviation, sigma, threshold, strength, mud = constants
    layer = gaussian(mean + deviation * normal.astype(float), sigma)
    layer = np.where(layer < threshold, 0, layer)
    if not mud:
        return image + strength * water(layer)[..., None] * np.array([175, 238, 238]) / 255  # pale turquoise
    cover = gaussian((layer > threshold).astype(float), strength)
    cover = np.where(cover < 0.8, 0, cover)[..., None]
    return image * (1 - cover) + cover * np.array([63, 42, 20]) / 255  # brown


ORACLES = {oracle.__name__: oracle for oracle in (
    gaussian_noise, shot_noise, impulse_noise, defocus_blur, glass_blur, motion_blur, zoom_blur, snow, frost, fog,
    brightness, contrast, elastic_transform, pixelate, jpeg_compression,
    speckle_noise, gaussian_blur, spatter, saturate)}


# Comparison

def pictures(height, width, channels, count):
    """float32 [count, height, width, channels], whole gray levels: one drawn picture, and windows of photographs."""
    random = np.random.RandomState(height + width)
    photographs = [PIL.Image.fromarray(image) for image in sklearn.datasets.load_sample_images().images]
    found = [drawn_picture(height, width)]
    while len(found) < count:
        photograph = photographs[len(found) % 2]
        side = random.uniform(0.4, 1) * min(photograph.width / width, photograph.height / height)
        left, top = random.rand(2) * (photograph.width - side * width, photograph.height - side * height)
        found.append(photograph.resize((width, height), PIL.Image.Resampling.BOX,
                                       (left, top, left + side * width, top + side * height)))
    return np.stack([np.asarray(picture.convert("L" if channels == 1 else "RGB"), np.float32).reshape(
        height, width, channels) / 255 for picture in found])


def drawn_picture(height, width):
    """Ramps of colour with a black square, a white disk and stripes: what photographs rarely have, flat and sharp."""
    row, column = np.mgrid[:height, :width] / np.array([height, width])[:, None, None]
    picture = np.stack([row, column, 1 - row], axis=-1)
    picture[(abs(row - 0.25) < 0.15) & (abs(column - 0.25) < 0.15)] = 0
    picture[(row - 0.7)**2 + (column - 0.3)**2 < 0.03] = 1
    picture[(column > 0.6) & (row > 0.5) & (np.arange(width) % 2 == 0)] = 0.5
    return PIL.Image.fromarray(np.round(255 * picture).astype(np.uint8))


def differences(corruption, images, severity, which, seed=0):
    """What a `Corruption` makes of the pictures less what its oracle does, both clipped: gray levels [N, H, W, C]."""
    numbers = corruption.constants(severity, images.shape[1:], which)
    drawn = corruption.drawn(images, severity, seed, None, numbers)
    ours = np.clip(corruption.apply(tf.constant(images), *numbers, **drawn), 0, 1)
    oracle = ORACLES[corruption.name]
    if corruption.name == "frost":
        from tf_robust.corruptions.weather import frost_textures
        oracle = functools.partial(oracle, textures=[np.asarray(ice, float) for ice in frost_textures(None)])
    drawn = {key: np.asarray(values) for key, values in drawn.items()}
    expected = [oracle(image.astype(float), numbers, **{key: values[i] for key, values in drawn.items()})
                for i, image in enumerate(images)]
    return 255 * (ours - np.clip(expected, 0, 1))


def summary(difference):
    """(share of the pixels off by at most 1 in every channel, mean absolute difference, largest), in gray levels."""
    off = abs(difference)
    return (off.max(axis=-1) <= 1 + 1e-3).mean(), off.mean(), off.max()
