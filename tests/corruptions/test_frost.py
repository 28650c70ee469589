"""Frost, from photographs and from procedural ice, against slow oracles with the same draws."""

import hashlib
import itertools

import numpy as np
import PIL.Image
import pytest
import scipy.stats
import tensorflow as tf

from tests.corruptions.weather_oracles import COLOR, GRAY, LUMA, shrunk
from tf_robust.corruptions import frost_images, frost_textures, weather

RANDOM = np.random.RandomState(0)


def write_photographs(folder, names=frost_images.FILES):
    """Writes random images, [rows, columns, 3] each, lossless whatever the extension."""
    sample_images = [RANDOM.randint(0, 256, (60 + 7 * i, 90 - 5 * i, 3), dtype=np.uint8) for i in range(len(names))]
    for name, sample_image in zip(names, sample_images):
        PIL.Image.fromarray(sample_image).save(folder / name, format="PNG")
    return sample_images


@pytest.mark.parametrize("images", [COLOR, GRAY], ids=["color", "gray"])
def test_frost_overlays_a_window_of_a_photograph(images, tmp_path):
    photographs = write_photographs(tmp_path)
    corner = np.float32([[0, 0], [0.5, 0.99999994], [0.99999994, 0.3], [0.25, 0.75]])
    texture = np.int32([0, 4, 2, 3])
    images = images[:, :11, :13]
    result = weather.frost_from(tmp_path).apply(tf.constant(images), 0.8, 0.6, texture=texture, corner=corner)
    for i, ice in enumerate(shrunk(photographs[number].astype(float), 0.2) / 255 for number in texture):
        free = ice.shape[0] - 11, ice.shape[1] - 13
        top, left = (int(float(fraction) * room) for fraction, room in zip(corner[i], free))
        assert top < free[0] and left < free[1]  # the last position is never drawn, as in the benchmark
        expected = np.clip(0.8 * images[i] + 0.6 * ice[top : top + 11, left : left + 13], 0, 1)
        expected = expected if images.shape[-1] == 3 else (expected @ LUMA)[..., None]
        np.testing.assert_allclose(np.clip(result[i], 0, 1), expected, atol=1.1 * 0.6 * 0.5 / 255)  # of 8 bits


@pytest.mark.parametrize("size, scale", [((20, 30), 0.2), ((60, 60), 0.3), ((224, 200), 1.0), ((300, 500), 1.0)])
def test_photographs_are_scaled_as_in_the_benchmark_and_mirrored_if_too_small(size, scale, tmp_path):
    photographs = write_photographs(tmp_path)
    for photograph, texture in zip(photographs, frost_images.scaled_textures(tmp_path, *size)):
        ice = np.clip(shrunk(photograph.astype(float), scale), 0, 255)
        inside = tuple(slice(side) for side in ice.shape[:2])
        np.testing.assert_allclose(texture[inside], ice, atol=0.5 + 1e-6)
        assert texture.shape == (max(size[0], ice.shape[0]), max(size[1], ice.shape[1]), 3)
        beyond = texture[ice.shape[0] : 2 * ice.shape[0]]
        np.testing.assert_array_equal(beyond, texture[ice.shape[0] - 1 :: -1][: len(beyond)])


def test_frost_textures_are_the_five_photographs_of_the_folder(tmp_path):
    photographs = write_photographs(tmp_path)
    PIL.Image.new("RGB", (40, 40)).save(tmp_path / "frost6.jpg")
    textures = weather.frost_textures(str(tmp_path))
    assert len(textures) == 5
    for texture, photograph in zip(textures, photographs):
        assert texture.dtype == np.float32
        np.testing.assert_allclose(texture, photograph / 255, atol=1e-7)
    digest = hashlib.sha256(b"".join((tmp_path / name).read_bytes() for name in frost_images.FILES)).hexdigest()
    assert weather.frost_source(tmp_path) == f"photographs sha256:{digest[:12]}"
    assert weather.frost_source() == weather.frost_source(None) == "procedural"


def test_a_folder_without_the_photographs_is_rejected(tmp_path):
    with pytest.raises(FileNotFoundError, match="no_folder"):
        weather.frost_textures(tmp_path / "no_folder")
    write_photographs(tmp_path, ["frost1.png", "frost2.png", "frost4.jpg"])
    with pytest.raises(FileNotFoundError, match="Missing: frost3.png, frost5.jpg"):
        weather.frost_source(tmp_path)
    (tmp_path / "frost3.png").write_text("no image")
    (tmp_path / "frost5.jpg").write_bytes(b"")
    with pytest.raises(ValueError, match="frost3.png"):
        weather.frost_from(tmp_path)(tf.constant(COLOR), 1)


def test_frost_of_a_folder_is_cached():
    assert weather.frost.name == "frost" and weather.frost_from("a") is weather.frost_from("a")
    assert weather.frost_from("b") is not weather.frost_from("a")


def spectrum_slope(gray):
    """Slope of log power over log frequency, between 0.01 and 0.5 cycles a pixel, under a Hann window."""
    window = np.hanning(gray.shape[0])[:, None] * np.hanning(gray.shape[1])
    power = np.abs(np.fft.fft2((gray - gray.mean()) * window)) ** 2
    radius = np.hypot(np.fft.fftfreq(gray.shape[0])[:, None], np.fft.fftfreq(gray.shape[1]))
    edges = np.geomspace(0.01, 0.5, 13)
    rings = [power[(radius >= low) & (radius < high)].mean() for low, high in itertools.pairwise(edges)]
    return np.polyfit(np.log(edges[:-1] * edges[1:]) / 2, np.log(rings), 1)[0]


# Size, mean and std of the gray image and slope of its spectrum, of the benchmark's photographs
PHOTOGRAPHS = [
    ((600, 900), 0.508, 0.072, -1.70),
    ((315, 560), 0.804, 0.086, -1.69),
    ((315, 560), 0.804, 0.086, -1.69),
    ((350, 527), 0.587, 0.112, -1.24),
    ((495, 660), 0.476, 0.170, -1.81),
]


@pytest.mark.parametrize("number", range(5))
def test_procedural_ice_has_the_statistics_of_the_photographs(number):
    size, mean, std, slope = PHOTOGRAPHS[number]
    texture = weather.frost_textures()[number]
    gray = texture @ np.float32(LUMA)
    assert texture.shape == (*size, 3) and texture.dtype == np.float32 and texture.min() >= 0 and texture.max() <= 1
    assert gray.mean() == pytest.approx(mean, abs=0.01)
    assert gray.std() == pytest.approx(std, rel=0.1)
    assert spectrum_slope(gray) == pytest.approx(slope, abs=0.15)
    np.testing.assert_allclose(texture.mean(axis=(0, 1)), frost_textures.ICES[number].mean, atol=0.01)


def test_procedural_ice_is_not_gaussian_noise():
    """With the same spectrum and random phases, differences of adjacent pixels would be normally distributed."""
    for texture in weather.frost_textures():
        across = np.diff(texture @ np.float32(LUMA), axis=1)
        assert scipy.stats.kurtosis(across, axis=None) > 1


def test_procedural_ice_is_reproducible():
    first = frost_textures.procedural_textures()  # drawn in another test, perhaps
    frost_textures.procedural_textures.cache_clear()
    for one, other in zip(first, frost_textures.procedural_textures()):
        np.testing.assert_array_equal(one, other)
