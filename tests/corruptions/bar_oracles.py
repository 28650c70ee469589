"""The oracles of the corruptions of C-bar, as defined in tests/corruptions/oracles.py."""

import numpy as np
import scipy.ndimage

from tests.corruptions.noise_blur_digital_oracles import sampled
from tests.corruptions.weather_oracles import three_channels


def side_of(image):
    return np.sqrt(image.shape[0] * image.shape[1])


# Noise


def single_frequency_grayscale(image, constants, frequencies, order, phase):
    first, second = np.pi * frequencies[0], np.pi * abs(frequencies[0]) * frequencies[1]
    by_axis = (first, second) if order < 0.5 else (second, first)
    wave = np.imag(np.exp(1j * (np.tensordot(by_axis, np.mgrid[: image.shape[0], : image.shape[1]], 1) + phase)))
    return image + 19.6 / 255 * constants[0] * wave[..., None]


def concentric_sine_waves(image, constants, center, petals, amplitude, width):
    side = side_of(image)
    rows, columns = np.mgrid[: image.shape[0], : image.shape[1]]
    offset = rows - center[0] * image.shape[0] + 1j * (columns - center[1] * image.shape[1])
    radius = abs(offset) + side * amplitude * np.sin(petals * np.angle(offset))
    return image + 12.8 / 255 * constants[0] * (np.mod(radius, side * width) / (side * width) - 0.5)[..., None]


@three_channels
def plasma_noise(image, constants, time, iterations, sharpness, scale):
    """With the position as a complex number, each step turns its shift by a fixed angle and stretches it."""
    rows, columns = np.mgrid[: image.shape[0], : image.shape[1]]
    position = (columns + 1j * rows) / (scale * side_of(image))
    for step in range(iterations):
        y, x, phase = 1.93**step * position.imag, 1.93**step * position.real, time / 1.15**step
        position = position + (1 + 0.3j) * (np.cos(y + phase) + 1j * np.sin(x + phase)) / (2.25 - sharpness) ** step
    x, y = position.real, position.imag
    plasma = np.stack([np.sin(x - time), np.sin((x + y + np.sin(time)) / 2), np.sin(y + time)], axis=-1)
    weight = 6.4 / 255 * constants[0]
    return (1 - weight) * image + weight * plasma


def perlin_noise(image, constants, gradients, order):
    """Gradient noise by the four corners of each pixel's cell."""
    rows, columns = np.mgrid[: image.shape[0], : image.shape[1]] * 7 / side_of(image)
    directions = gradients / np.hypot(*gradients.T)[:, None]
    starts = np.argsort(order, kind="stable")
    total = 0
    for octave in (1, 2, 4, 8, 16):
        top, left = np.floor(octave * rows).astype(int), np.floor(octave * columns).astype(int)
        noise = 0
        for i, j in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
            down, right = octave * rows - i, octave * columns - j
            gradient = directions[(starts[i % 256] + j) % 256]
            fade = [1 - 3 * abs(x) ** 2 + 2 * abs(x) ** 3 for x in (down, right)]
            noise = noise + fade[0] * fade[1] * (gradient[..., 0] * down + gradient[..., 1] * right)
        total = total + abs(1.5 * noise) / octave
    alpha = constants[0] / 20
    return (1 - alpha) * image + alpha * np.clip((1 + total) / 2, 0, 1)[..., None]


def spectral(phases, shape, amplitude):
    """A sum of waves, one axis after the other; the second half of the phases is the first one backwards."""
    height, width = shape[:2]
    side = np.sqrt(height * width)
    phases = np.concatenate([phases, phases[::-1][height * width % 2 :]]).reshape(height, width)
    down, right = (np.arange(length) - (length + 1) // 2 for length in (height, width))  # the order of the phases
    wrapped = [np.where(k < -(n // 2), k + n, k) * side / n for k, n in ((down, height), (right, width))]
    terms = amplitude(np.hypot(wrapped[0][:, None], wrapped[1])) * np.exp(1j * phases)
    rows = np.exp(2j * np.pi * np.outer(np.arange(height), down) / height)
    columns = np.exp(2j * np.pi * np.outer(right, np.arange(width)) / width)
    noise = (rows @ terms @ columns).real
    return noise / noise.std()


def blue_noise_sample(image, constants, phases):
    return np.where(spectral(phases[0], image.shape, lambda k: k)[..., None] > 0.3 * constants[0] - 2.5, image, 0)


def brownish_noise(image, constants, phases):
    noise = [spectral(channel, image.shape, lambda k: 1 / (1 + k * k)) for channel in phases]
    return image + 6.4 / 255 * constants[0] * np.stack(noise, axis=-1)


# Covers


def glow(shape, center, lengths, power):
    """Brightness of a sparkle from the lengths of its rays; `power` of the squared ratio of length and distance."""
    rows, columns = np.mgrid[: shape[0], : shape[1]]
    offset = rows - center[0] * shape[0] + 1j * (columns - center[1] * shape[1])
    ray = (np.angle(offset) / (2 * np.pi) + 0.5) * len(lengths)
    length = np.interp(ray, np.arange(len(lengths) + 1), [*lengths, lengths[0]])
    return np.clip((1 - (ray % 1 - 0.5) ** 2) * (length**2 / (abs(offset) ** 2 + 1e-4)) ** power, 0, 1)[..., None]


def sparkles(image, constants, centers, rays, lengths):
    radius = 0.01 * constants[0] * side_of(image)
    for center, count, normal in zip(centers, rays, lengths):
        light = glow(image.shape, center, np.maximum(radius * (1 + normal[:count] / 4), 1), 1)
        image = image + light * (1 - image)
    return image


def inverse_sparkles(image, constants, center, rays, lengths):
    light = glow(image.shape, center, side_of(image) / 4 * (1 + lengths[:rays] / 4), 0.13 * constants[0])
    return light * image + (1 - light)


def checkerboard_cutout(image, constants, angle, scale, cells):
    rows, columns = np.mgrid[: image.shape[0], : image.shape[1]]
    rotated = (rows + 1j * columns) * np.exp(-1j * angle)
    side = max(scale * side_of(image), 1)
    i, j = np.floor(rotated.real / side).astype(int), np.floor(rotated.imag / side).astype(int)
    chosen = cells.reshape(32, 32)[i % 32, j % 32] < constants[0] / 10
    return np.where((chosen & (i % 2 == j % 2))[..., None], 128 / 255, image)


def lines(image, constants, middles, angle, variation, turns):
    """Lines one after the other; in units of a line, positions have real parts along it and imaginary parts across it."""
    rows, columns = np.mgrid[: image.shape[0], : image.shape[1]]
    for middle, turn in zip(middles * image.shape[:2], turns):
        direction = angle + 2 * np.pi * variation * turn
        half = side_of(image) * np.array([np.cos(direction), np.sin(direction)])
        begin, end = (np.trunc(point) for point in (middle - half, middle + half))
        line = complex(*(end - begin))
        position = (rows - begin[0] + 1j * (columns - begin[1])) / line
        opacity = np.clip(1 - abs(position.imag * abs(line)), 0, 1) * (position.real >= 0) * (position.real <= 1)
        image = image + opacity[..., None] * (128 / 255 - image)
    assert len(turns) == max(int(constants[0] / 10 * side_of(image)), 1)
    return image


# Warps


def caustics(shape, time, period):
    y, x = 2 * np.pi * (np.mgrid[: shape[0], : shape[1]] / period % 1) - 250
    first, second, total = y, x, 1
    for n in range(5):
        t = time * (1 - 3.5 / (n + 1))
        first, second = y + np.cos(t - first) + np.sin(t + second), x + np.sin(t - second) + np.cos(t + first)
        with np.errstate(divide="ignore"):
            total = total + 1 / np.hypot(0.005 * y / np.sin(first + t), 0.005 * x / np.cos(second + t))
    return np.clip(abs(1.17 - (total / 5) ** 1.4) ** 8, 0, 1)


def caustic_refraction(image, constants, time, size):
    """Refraction by Snell's law, with angles: into a medium of index 4, in the plane of the normal and the vertical ray."""
    side = side_of(image)
    surface = np.pad(scipy.ndimage.gaussian_filter(caustics(image.shape, time, size * side), 1), 1)
    slopes = np.stack([surface[2:, 1:-1] - surface[:-2, 1:-1], surface[1:-1, 2:] - surface[1:-1, :-2]])
    tilt = np.arctan(np.hypot(*slopes))
    inner = np.arcsin(np.sin(tilt) / 4)
    bent = np.where(np.cos(tilt) >= 0.999, 0, np.sin(tilt - inner))  # horizontal part of the ray, along the slope
    shift = constants[0] * 0.05 * side * bent * slopes / np.maximum(np.hypot(*slopes), 1e-12)
    rows, columns = np.mgrid[: image.shape[0], : image.shape[1]]
    return sampled(image, rows + shift[0], columns + shift[1], "grid-constant") + 0.2 * constants[0] * (slopes[0] - slopes[1])[..., None]


def pinch_and_twirl(image, constants, signs):
    """Disk by disk, pixel by pixel."""
    height, width = image.shape[:2]
    cells = 5 if np.sqrt(height * width) > np.sqrt(64 * 224) else 3
    tall, wide = height // cells, width // cells
    rows, columns = np.mgrid[:height, :width].astype(float)
    for row in range(cells * tall):
        for column in range(cells * wide):
            i, j = row // tall, column // wide
            y, x = 2 * row / tall - 2 * i - 1, 2 * column / wide - 2 * j - 1  # the disk is the unit disk
            distance = np.hypot(y, x)
            if 0 < distance <= 1:
                angle = np.pi / 20 * constants[0] * (1 if signs[j * cells + i] else -1) * (1 - distance) ** 2
                moved = (y + 1j * x) * np.exp(1j * angle) / np.sin(np.pi / 2 * distance) ** (0.04 * constants[0] + 0.1)
                rows[row, column], columns[row, column] = (i + 0.5 + moved.real / 2) * tall, (j + 0.5 + moved.imag / 2) * wide
    return sampled(image, rows, columns, "grid-constant")


def ripple(image, constants, wavelengths, phases):
    side = side_of(image)
    rows, columns = (
        positions + 0.0025 * constants[0] * side * np.sin(2 * np.pi * positions / (wavelength * side) + phase)
        for positions, wavelength, phase in zip(np.mgrid[: image.shape[0], : image.shape[1]], wavelengths, phases)
    )
    return sampled(image, rows, columns, "grid-constant")


@three_channels
def transverse_chromatic_aberration(image, constants, order):
    channels = []
    for channel, which in zip(np.moveaxis(image, -1, 0), np.argsort(order, kind="stable")):
        large = scipy.ndimage.zoom(channel, 1 + constants[0] / 40 * which, order=3, prefilter=False)
        top, left = ((new - old) // 2 for new, old in zip(large.shape, channel.shape))
        channels.append(large[top : top + channel.shape[0], left : left + channel.shape[1]])
    return np.stack(channels, axis=-1)


def circular_motion_blur(image, constants):
    positions = np.arange(-10, 11) / 10
    rotated = [scipy.ndimage.rotate(image, 1.5 * constants[0] * position, reshape=False) for position in positions]
    return np.average(rotated, axis=0, weights=np.exp(-2 * positions**2))
