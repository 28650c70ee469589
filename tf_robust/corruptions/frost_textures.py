"""Procedural ice: five textures that replace the five frost photographs of the common-corruption benchmark.

They imitate the photographs and do not copy them. Each is generated from a fixed seed: feathers of ice (a stem with barbs on
both sides) of three sizes, in rosettes, some bright and some dark depending on how their barbs face the light, under a haze.
Matched to the photographs, one by one: size in pixels; mean and standard deviation of red, green and blue; the decay of the gray
image's power with frequency f (f**slope, radial average). Not matched: positions and shapes of the crystals, and how colors vary
from place to place.
"""

import functools
import typing

import numpy as np

_LIGHT = 1.0  # direction of the light, radians


class Ice(typing.NamedTuple):
    """Parameters of one texture.

    Attributes:
        size: rows, columns.
        mean: of red, green, blue, in [0, 1].
        std: standard deviation of red, green, blue, in [0, 1].
        slope: of log power over log frequency.
        length: of the longest feathers, in pixels.
        angle: between stem and barbs, in radians.
        curl: bend of a stem, in radians.
        rosette: feathers from one point.
        density: feathers of length L for each L x L pixels.
        cover: weight of the ice itself.
        glint: weight of the reflected light.
        haze: weight of the low-frequency haze.
    """

    size: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    slope: float
    length: float
    angle: float
    curl: float
    rosette: int
    density: float
    cover: float
    glint: float
    haze: float


# size, mean, std and slope of each are measured on the photographs
ICES = (
    Ice((600, 900), (0.305, 0.585, 0.650), (0.106, 0.065, 0.060), -1.70, 110, 0.30, 1.6, 2, 2.2, 0.2, 1.0, 0.6),
    Ice((315, 560), (0.787, 0.805, 0.841), (0.084, 0.087, 0.089), -1.69, 60, 0.20, 0.3, 4, 4.0, 0.3, 1.2, 0.25),
    Ice((315, 560), (0.787, 0.805, 0.841), (0.084, 0.087, 0.089), -1.69, 50, 0.25, 0.3, 5, 4.0, 0.3, 1.2, 0.25),
    Ice((350, 527), (0.540, 0.599, 0.648), (0.112, 0.112, 0.117), -1.24, 26, 0.50, 0.2, 6, 4.0, 0.6, 1.0, 0.25),
    Ice((495, 660), (0.441, 0.484, 0.528), (0.174, 0.170, 0.163), -1.81, 64, 0.80, 0.4, 3, 4.0, 1.2, 0.7, 0.3),
)


@functools.lru_cache(maxsize=1)
def procedural_textures() -> tuple[np.ndarray, ...]:
    """Returns the five textures: a tuple of uint8 [rows, columns, 3]."""
    return tuple(_color(_gray(np.random.RandomState(seed), ice), ice) for seed, ice in enumerate(ICES))


def _gray(random, ice):
    """Returns float64 [rows, columns], mean 0 and standard deviation 1, with the spectrum of `ice.slope`."""
    cover, glint = 0.0, 0.0
    for shrink in (1, 2, 4):
        points, thickness, light = _feathers(random, ice, ice.length / shrink)
        cover, glint = cover + _splat(points, thickness, ice.size), glint + _splat(points, light, ice.size)
    cover, glint = 1.0 - np.exp(-0.4 * cover), np.tanh(0.4 * glint)
    haze = _standardize(_filter(random.randn(*ice.size), lambda f: -1.8 * np.log(f)))
    relief = cover - np.roll(cover, (1, 1), (0, 1))
    gray = (ice.cover * cover + ice.glint * glint) * (1.0 + 0.3 * haze) + 0.4 * relief + ice.haze * haze
    gray += 0.02 * random.randn(*ice.size)
    return _standardize(_set_slope(gray, ice.slope))


def _feathers(random, ice, length):
    """Returns feathers around `length` pixels long, as points: positions [P, 2], amount of ice [P], of light or shade [P]."""
    rosettes = int(ice.density * ice.size[0] * ice.size[1] / length**2 / ice.rosette)
    count, barbs, points = rosettes * ice.rosette, max(int(length / 3), 4), max(int(length * 0.35), 4)
    along, out = (np.arange(barbs) + 0.5) / barbs, (np.arange(points) + 0.5) / points
    lengths = length * random.uniform(0.4, 1.3, (count, 1))
    start = np.repeat(random.uniform(-0.1, 1.1, (rosettes, 1, 2)) * ice.size, ice.rosette, axis=0)
    heading = np.repeat(random.uniform(0, 2 * np.pi, (rosettes, 1)), ice.rosette, axis=0)
    heading = heading + random.uniform(0, 4, (count, 1)) + ice.curl * random.randn(count, 1) * along
    stems = start + np.cumsum((lengths / barbs)[..., None] * _unit(heading), axis=1)  # [feathers, barbs, 2]

    barb_heading = heading[..., None] + ice.angle * np.array([-1, 1]) + 0.08 * random.randn(count, barbs, 2)  # both sides
    reach = (0.4 * lengths * (1 - along) ** 0.8)[..., None] * random.uniform(0.5, 1, (count, barbs, 2))
    positions = stems[:, :, None, None] + (reach[..., None] * out)[..., None] * _unit(barb_heading)[..., None, :]
    weight = (reach / points)[..., None] * (1 - 0.5 * out)  # [feathers, barbs, 2, points]
    thickness = random.uniform(0.3, 1.3, (count, 1, 1, 1))
    light = np.cos(2 * (barb_heading - _LIGHT))[..., None]
    return positions.reshape(-1, 2), (weight * thickness).ravel(), (weight * light).ravel()


def _unit(angle):
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1)


def _splat(positions, weights, size):
    """Sums weights at positions (row, column), each distributed bilinearly over the four nearest pixels: float64 `size`."""
    inside = ((positions >= 0) & (positions < np.subtract(size, 1))).all(axis=1)
    positions, weights = positions[inside], weights[inside]
    corner = positions.astype(int)
    down, right = (positions - corner).T
    first = corner[:, 0] * size[1] + corner[:, 1]
    total = np.zeros(size[0] * size[1])
    for cell, fraction in (
        (0, (1 - down) * (1 - right)),
        (1, (1 - down) * right),
        (size[1], down * (1 - right)),
        (size[1] + 1, down * right),
    ):
        total += np.bincount(first + cell, weights * fraction, minlength=total.size)
    return total.reshape(size)


def frequencies(size: tuple[int, int]) -> np.ndarray:
    """Returns the radial frequency of each coefficient of `np.fft.rfft2`, cycles per pixel; the mean's is set to the lowest."""
    radial = np.hypot(np.fft.fftfreq(size[0])[:, None], np.fft.rfftfreq(size[1])[None])
    radial[0, 0] = 1.0 / max(size)
    return radial


def _filter(gray, log_gain):
    spectrum = np.fft.rfft2(gray - gray.mean())
    return np.fft.irfft2(spectrum * np.exp(log_gain(frequencies(gray.shape))), s=gray.shape)


def _set_slope(gray, slope):
    """Keeps the phases and makes the radial average of the power spectrum fall as f**slope."""
    radial = frequencies(gray.shape)
    ring = (4 * np.log(radial * max(gray.shape)) + 1e-6).astype(int)  # a quarter of an e-fold each
    power = np.abs(np.fft.rfft2(gray - gray.mean())) ** 2
    count = np.bincount(ring.ravel())
    mean_power = np.bincount(ring.ravel(), power.ravel()) / np.maximum(count, 1)
    mean_frequency = np.bincount(ring.ravel(), radial.ravel()) / np.maximum(count, 1)
    log_frequency, log_power = np.log(mean_frequency[count > 0]), np.log(mean_power[count > 0])
    return _filter(gray, lambda f: 0.5 * (slope * np.log(f) - np.interp(np.log(f), log_frequency, log_power)))


def _standardize(gray):
    return (gray - gray.mean()) / gray.std()


def _color(gray, ice):
    """Returns uint8 [rows, columns, 3] with the means and standard deviations of `ice`."""
    highest = min(3.5, min((1.0 - np.array(ice.mean)) / ice.std))  # white, in standard deviations
    for _ in range(3):  # clipping reduces the standard deviation
        gray = _standardize(np.clip(gray, -3.0, highest))
    values = np.asarray(ice.mean) + gray[..., None] * ice.std
    return np.round(255 * np.clip(values, 0, 1)).astype(np.uint8)
