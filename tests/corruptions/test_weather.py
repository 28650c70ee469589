"""Weather, pixel by pixel against slow oracles that are given the same draws."""

import colorsys
import hashlib
import itertools
import math
import zlib

import numpy as np
import PIL.Image
import pytest
import scipy.ndimage
import scipy.stats
import tensorflow as tf

from tf_robust.corruptions import frost_pictures, ice, liquid, severities, weather

RANDOM = np.random.RandomState(0)
COLOUR = RANDOM.rand(4, 18, 26, 3).astype(np.float32)
GRAY = RANDOM.rand(4, 26, 18, 1).astype(np.float32)
LUMA = [0.299, 0.587, 0.114]
CORRUPTIONS = {name: getattr(weather, name) for name in ("snow", "frost", "fog", "spatter", "brightness")}
every = pytest.mark.parametrize("corruption", CORRUPTIONS.values(), ids=CORRUPTIONS)
both = pytest.mark.parametrize("images", [COLOUR, GRAY], ids=["colour", "gray"])


def drawn(corruption, images, severity, which="cifar", seed=5):
    """(constants, {name: array}) as the corruption would draw them for `images`."""
    numbers = corruption.constants(severity, images.shape[1:], which)
    draws = corruption.drawn(tf.constant(images), severity, seed, None, numbers)
    return numbers, {name: np.asarray(values) for name, values in draws.items()}


def in_channels(image, channels):
    """A corrupted picture of three channels as it is seen, or of that the luma."""
    image = np.clip(image, 0, 1)
    return image if channels == 3 else (image @ LUMA)[..., None]


# All five

@every
@pytest.mark.parametrize("severity", [1, 3, 5])
def test_a_picture_is_the_same_alone_in_a_batch_in_a_graph_and_in_a_data_set(corruption, severity):
    images, indices = tf.constant(np.tile(COLOUR, (2, 1, 1, 1))), np.array([3, 4, 5, 6, 7, 8, 1, 0])
    together = corruption(images, severity, seed=3, indices=indices).numpy()
    alone = [corruption(images[i:i + 1], severity, seed=3, indices=indices[i:i + 1])[0] for i in range(8)]
    graph = tf.function(lambda x, i: corruption(x, severity, seed=3, indices=i), autograph=False)(images, indices)
    batches = tf.data.Dataset.from_tensor_slices((images, indices)).batch(3)
    mapped = batches.map(lambda x, i: corruption(x, severity, seed=3, indices=i)).unbatch()
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(together, graph)
    np.testing.assert_array_equal(together, np.stack(list(mapped)))


@every
def test_one_channel_is_the_luma_of_three_equal_channels(corruption):
    for severity, which in itertools.product((1, 3, 5), severities.SETS):
        numbers, draws = drawn(corruption, GRAY, severity, which)
        single, triple = (np.clip(corruption.apply(tf.constant(images), *numbers, **draws), 0, 1)
                          for images in (GRAY, np.repeat(GRAY, 3, axis=-1)))
        np.testing.assert_allclose(single[..., 0], triple @ LUMA, atol=1e-5)


@every
@pytest.mark.parametrize("shape", [(1, 9, 3), (9, 1, 1), (2, 2, 3), (5, 70, 3), (130, 40, 1)])
def test_any_size(corruption, shape):
    images = tf.constant(RANDOM.rand(2, *shape), tf.float32)
    for severity in (2, 5):
        found = corruption(images, severity, seed=1).numpy()
        assert found.shape == images.shape and np.isfinite(found).all() and found.min() >= 0 and found.max() <= 1


# Snow

def zoomed(plane, factor):
    """The central 1 / factor of the plane, enlarged to its size."""
    cropped = [math.ceil(side / factor) for side in plane.shape]
    first = [(side - crop) // 2 for side, crop in zip(plane.shape, cropped)]
    window = plane[first[0]:first[0] + cropped[0], first[1]:first[1] + cropped[1]]
    # nearest: by default SciPy can take the last pixel to lie outside, by a rounding error
    large = scipy.ndimage.zoom(window, factor, order=1, mode="nearest")
    first = [(large.shape[i] - plane.shape[i]) // 2 for i in range(2)]
    return large[first[0]:first[0] + plane.shape[0], first[1]:first[1] + plane.shape[1]]


def blown(plane, radius, sigma, angle):
    """Motion blur by ImageMagick's rule: half a Gaussian of taps on one side, the border's pixel beyond the border."""
    taps = np.arange(2 * radius + 1)
    weights = np.exp(-taps**2 / (2 * sigma**2))
    total = np.zeros_like(plane)
    for tap, weight in zip(taps, weights / weights.sum()):
        rows = np.arange(plane.shape[0]) + math.ceil(tap * math.sin(math.radians(angle)) - 0.5)
        columns = np.arange(plane.shape[1]) + math.ceil(tap * math.cos(math.radians(angle)) - 0.5)
        total += weight * plane[np.clip(rows, 0, plane.shape[0] - 1)][:, np.clip(columns, 0, plane.shape[1] - 1)]
    return total


@both
@pytest.mark.parametrize("severity", [1, 3, 4, 5])
def test_snow(images, severity):
    numbers, draws = drawn(weather.snow, images, severity)
    mean, deviation, zoom, threshold, radius, sigma, mix = numbers
    found = weather.snow.apply(tf.constant(images), *numbers, **draws)
    for image, normal, angle, ours in zip(images.astype(float), draws["normal"], draws["angle"], found):
        layer = zoomed(mean + deviation * normal.astype(float), zoom)
        layer[layer < threshold] = 0
        layer = blown(np.clip(layer, 0, 1), radius, sigma, float(angle))
        gray = (image @ LUMA if image.shape[-1] == 3 else image[..., 0])[..., None]
        expected = mix * image + (1 - mix) * np.maximum(image, 1.5 * gray + 0.5)
        np.testing.assert_allclose(ours, expected + (layer + np.rot90(layer, 2))[..., None], atol=2e-5)


def test_draws_of_snow():
    _, draws = drawn(weather.snow, np.zeros([3000, 8, 6, 3], np.float32), 3)
    assert draws["normal"].shape == (3000, 8, 6) and draws["angle"].shape == (3000,)
    check_normal(draws["normal"])
    check_uniform(draws["angle"], -135, -45)


# Frost

def write_photographs(folder, names=frost_pictures.FILES):
    """Made-up pictures, [rows, columns, 3] each, lossless whatever the name says."""
    pictures = [RANDOM.randint(0, 256, (60 + 7 * i, 90 - 5 * i, 3), dtype=np.uint8) for i in range(len(names))]
    for name, picture in zip(names, pictures):
        PIL.Image.fromarray(picture).save(folder / name, format="PNG")
    return pictures


def zoomed_by_centres(picture, scale):
    """Bilinear at the centres of the new pixels, without smoothing."""
    centres = [np.clip((np.arange(round(side * scale)) + 0.5) / scale - 0.5, 0, side - 1) for side in picture.shape[:2]]
    where = np.stack(np.meshgrid(*centres, indexing="ij"))
    return np.stack([scipy.ndimage.map_coordinates(picture[..., i], where, order=1) for i in range(3)], axis=-1)


@both
def test_frost_lays_a_window_of_a_photograph_over_the_image(images, tmp_path):
    photographs = write_photographs(tmp_path)
    corner = np.float32([[0, 0], [0.5, 0.99999994], [0.99999994, 0.3], [0.25, 0.75]])
    texture = np.int32([0, 4, 2, 3])
    images = images[:, :11, :13]
    found = weather.frost_from(tmp_path).apply(tf.constant(images), 0.8, 0.6, texture=texture, corner=corner)
    for i, shrunk in enumerate(zoomed_by_centres(photographs[number], 0.2) / 255 for number in texture):
        free = shrunk.shape[0] - 11, shrunk.shape[1] - 13
        top, left = (int(float(share) * room) for share, room in zip(corner[i], free))
        assert top < free[0] and left < free[1]  # the last place is never taken, as in the benchmark
        expected = in_channels(0.8 * images[i] + 0.6 * shrunk[top:top + 11, left:left + 13], images.shape[-1])
        np.testing.assert_allclose(np.clip(found[i], 0, 1), expected, atol=1.1 * 0.6 * 0.5 / 255)  # of 8 bits


@pytest.mark.parametrize("size, scale", [((20, 30), 0.2), ((60, 60), 0.3), ((224, 200), 1.0), ((300, 500), 1.0)])
def test_photographs_shrink_with_the_image_as_in_the_benchmark_and_are_mirrored_where_too_small(size, scale, tmp_path):
    photographs = write_photographs(tmp_path)
    for photograph, found in zip(photographs, frost_pictures.scaled_textures(tmp_path, *size)):
        shrunk = np.clip(zoomed_by_centres(photograph.astype(float), scale), 0, 255)
        inside = tuple(slice(side) for side in shrunk.shape[:2])
        np.testing.assert_allclose(found[inside], shrunk, atol=0.5 + 1e-6)
        assert found.shape == (max(size[0], shrunk.shape[0]), max(size[1], shrunk.shape[1]), 3)
        beyond = found[shrunk.shape[0]:2 * shrunk.shape[0]]
        np.testing.assert_array_equal(beyond, found[shrunk.shape[0] - 1::-1][:len(beyond)])


def test_frost_textures_are_the_five_photographs_of_the_folder(tmp_path):
    photographs = write_photographs(tmp_path)
    PIL.Image.new("RGB", (40, 40)).save(tmp_path / "frost6.jpg")
    textures = weather.frost_textures(str(tmp_path))
    assert len(textures) == 5
    for texture, photograph in zip(textures, photographs):
        assert texture.dtype == np.float32
        np.testing.assert_allclose(texture, photograph / 255, atol=1e-7)
    digest = hashlib.sha256(b"".join((tmp_path / name).read_bytes() for name in frost_pictures.FILES)).hexdigest()
    assert weather.frost_source(tmp_path) == f"photographs sha256:{digest[:12]}"
    assert weather.frost_source() == weather.frost_source(None) == "procedural"


def test_a_folder_without_the_photographs_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="frost1.png.*frost5.jpg in frost_dir '.*no_folder'.*Found: no such"):
        weather.frost_textures(tmp_path / "no_folder")
    write_photographs(tmp_path, ["frost1.png", "frost2.png", "frost4.jpg"])
    with pytest.raises(FileNotFoundError, match="Missing: frost3.png, frost5.jpg. Found: frost1.png, frost2.png, fr"):
        weather.frost_source(tmp_path)
    (tmp_path / "frost3.png").write_text("no picture")
    (tmp_path / "frost5.jpg").write_bytes(b"")
    frost = weather.frost_from(tmp_path)
    with pytest.raises(ValueError, match="Expected a frost photograph in .*frost3.png"):
        frost(tf.constant(COLOUR), 1)


def test_frost_is_bound_to_its_folder_once():
    assert weather.frost.name == "frost" and weather.frost_from("a") is weather.frost_from("a")
    assert weather.frost_from("b") is not weather.frost_from("a")


def test_draws_of_frost():
    _, draws = drawn(weather.frost, np.zeros([20000, 1, 1, 3], np.float32), 3)
    np.testing.assert_allclose(np.bincount(draws["texture"]) / 20000, 0.2, atol=0.01)
    assert draws["texture"].dtype == np.int32 and draws["corner"].shape == (20000, 2)
    check_uniform(draws["corner"], 0, 1)


def spectrum_slope(gray):
    """Slope of log power over log frequency, between 0.01 and 0.5 cycles a pixel, under a Hann window."""
    window = np.hanning(gray.shape[0])[:, None] * np.hanning(gray.shape[1])
    power = np.abs(np.fft.fft2((gray - gray.mean()) * window))**2
    radius = np.hypot(np.fft.fftfreq(gray.shape[0])[:, None], np.fft.fftfreq(gray.shape[1]))
    edges = np.geomspace(0.01, 0.5, 13)
    rings = [power[(radius >= low) & (radius < high)].mean() for low, high in itertools.pairwise(edges)]
    return np.polyfit(np.log(edges[:-1] * edges[1:]) / 2, np.log(rings), 1)[0]


# Of the benchmark's photographs: size, mean and deviation of the gray picture, slope of its spectrum
PHOTOGRAPHS = [((600, 900), .508, .072, -1.70), ((315, 560), .804, .086, -1.69), ((315, 560), .804, .086, -1.69),
               ((350, 527), .587, .112, -1.24), ((495, 660), .476, .170, -1.81)]


@pytest.mark.parametrize("number", range(5))
def test_procedural_ice_has_the_brightness_and_the_spectrum_of_the_photographs(number):
    size, mean, deviation, slope = PHOTOGRAPHS[number]
    texture = weather.frost_textures()[number]
    gray = texture @ np.float32(LUMA)
    assert texture.shape == (*size, 3) and texture.dtype == np.float32 and texture.min() >= 0 and texture.max() <= 1
    assert gray.mean() == pytest.approx(mean, abs=0.01)
    assert gray.std() == pytest.approx(deviation, rel=0.1)
    assert spectrum_slope(gray) == pytest.approx(slope, abs=0.15)
    np.testing.assert_allclose(texture.mean(axis=(0, 1)), ice.ICES[number].mean, atol=0.01)


def test_procedural_ice_is_crystals_and_not_noise():
    """With the same spectrum and random phases, differences of neighbours would be of the normal distribution."""
    for texture in weather.frost_textures():
        across = np.diff(texture @ np.float32(LUMA), axis=1)
        assert scipy.stats.kurtosis(across, axis=None) > 1


def test_procedural_ice_is_always_the_same():
    ice.grown.cache_clear()
    first = ice.grown()
    ice.grown.cache_clear()
    for one, other in zip(first, ice.grown()):
        np.testing.assert_array_equal(one, other)


# Fog

def slow_plasma(noise, decay):
    side = len(noise)
    plane, wibble, step = np.zeros([side, side]), 100.0, side

    def fill(row, column, neighbours):
        near = [plane[(row + down) % side, (column + right) % side] for down, right in neighbours]
        plane[row, column] = np.mean(near) + wibble**2 * noise[row, column]
    while step >= 2:
        half = step // 2
        corners = [(-half, -half), (-half, half), (half, -half), (half, half)]
        beside = [(-half, 0), (half, 0), (0, -half), (0, half)]
        for row, column in itertools.product(range(half, side, step), repeat=2):
            fill(row, column, corners)
        for row, column in itertools.product(range(0, side, step), range(half, side, step)):
            fill(row, column, beside)
            fill(column, row, beside)
        step, wibble = half, wibble / decay
    plane -= plane.min()
    return plane / plane.max()


@pytest.mark.parametrize("side, decay", [(2, 3.0), (4, 2.0), (32, 3.0), (64, 1.4)])
def test_plasma(side, decay):
    noise = RANDOM.uniform(-1, 1, (3, side, side)).astype(np.float32)
    found = weather.plasma(tf.constant(noise.reshape(3, -1)), side, decay)
    for plane, ours in zip(noise.astype(float), found):
        np.testing.assert_allclose(ours, slow_plasma(plane, decay), atol=1e-5)


@both
def test_fog(images):
    numbers, draws = drawn(weather.fog, images, 4)
    found = weather.fog.apply(tf.constant(images), *numbers, **draws)
    for image, noise, ours in zip(images.astype(float), draws["noise"], found):
        plane = slow_plasma(noise.reshape(32, 32).astype(float), numbers[1])
        foggy = image + numbers[0] * plane[:image.shape[0], :image.shape[1], None]
        np.testing.assert_allclose(ours, foggy * image.max() / (image.max() + numbers[0]), atol=1e-5)


def test_draws_of_fog():
    sizes = {(32, 32): 32, (33, 5): 64, (9, 64): 64, (224, 100): 256, (1, 1): 1}
    assert [weather.fog_side(*size) for size in sizes] == list(sizes.values())
    _, draws = drawn(weather.fog, np.zeros([3000, 5, 8, 3], np.float32), 3)
    assert draws["noise"].shape == (3000, 64)
    check_uniform(draws["noise"], -1, 1)


# Spatter

def speckled(seed):
    """uint8 [70, 90]: patches of 150..255 on 0, by whole-number arithmetic alone."""
    plane = np.random.RandomState(seed).randint(0, 256, (70, 90))
    for _ in range(2):
        plane = sum(np.roll(plane, shift, (0, 1)) for shift in itertools.product(range(-2, 3), repeat=2)) // 25
    plane = (plane - plane.min()) * 255 // (plane.max() - plane.min())
    return np.where(plane < 150, 0, plane).astype(np.uint8)


# What OpenCV 4.12 and 5.0 make of speckled(0), (1), (2): CRC of Canny(plane, 50, 150) > 0; sums of the distances to
# those edges (DIST_L2, 5 x 5, at most 20) and of their squares; CRC of equalizeHist(plane)
OPENCV = [(950685966, 16958.1146, 75612.248, 2905795445), (4079019766, 12439.2971, 41856.389, 2894950616),
          (3794512097, 18747.2343, 91672.910, 3759776877)]


def test_edges_distances_and_equalization_are_those_of_opencv():
    planes = np.stack([speckled(seed) for seed in range(3)]).astype(np.float32)
    edges = liquid.edges(planes)
    distances = liquid.edge_distance(edges).numpy().astype(float)
    equalized = liquid.equalized(planes, 256)
    for i, (edges_crc, total, squares, equalized_crc) in enumerate(OPENCV):
        assert zlib.crc32(edges[i].numpy().astype(np.uint8).tobytes()) == edges_crc
        assert zlib.crc32(equalized[i].numpy().astype(np.uint8).tobytes()) == equalized_crc
        assert distances[i].sum() == pytest.approx(total, rel=1e-5)
        assert (distances[i]**2).sum() == pytest.approx(squares, rel=1e-5)


def slow_canny(plane):
    """Canny edges at 50 and 150 by the rules of OpenCV, one pixel at a time."""
    plane = plane.astype(int)
    right, down = (scipy.ndimage.correlate(plane, kernel, mode="nearest") for kernel in (
        np.outer([1, 2, 1], [-1, 0, 1]), np.outer([-1, 0, 1], [1, 2, 1])))
    steep = np.pad(abs(right) + abs(down), 1)
    found = np.zeros(plane.shape, int)
    for row, column in np.ndindex(*plane.shape):
        here, x, y = steep[row + 1, column + 1], right[row, column], down[row, column]
        angle = math.degrees(math.atan2(abs(y), abs(x)))
        if angle < 22.5:
            before, behind, strict = (0, -1), (0, 1), 0
        elif angle > 67.5:
            before, behind, strict = (-1, 0), (1, 0), 0
        else:
            before, behind, strict = ((-1, -1), (1, 1), 1) if x * y > 0 else ((-1, 1), (1, -1), 1)
        before, behind = (steep[row + 1 + i, column + 1 + j] for i, j in (before, behind))
        if here > 50 and here > before and here >= behind + strict:
            found[row, column] = 2 if here > 150 else 1
    labels, _ = scipy.ndimage.label(found, np.ones([3, 3]))
    return np.isin(labels, np.unique(labels[found == 2])) & (found > 0)


def test_edges():
    rough = RANDOM.randint(0, 256, (6, 20, 31))
    smooth = np.round(scipy.ndimage.gaussian_filter(rough.astype(float), [0, 2, 2]) * 2 - 120).clip(0, 255)
    stairs = np.tile(np.arange(31) // 3 * 14, (2, 20, 1))  # candidates without a strong pixel; and with one
    stairs[1, 3, 5:] = 255
    planes = np.concatenate([rough, smooth, stairs, stairs[..., ::-1], np.zeros([1, 20, 31])]).astype(np.float32)
    found = liquid.edges(planes).numpy()
    for plane, ours in zip(planes, found):
        np.testing.assert_array_equal(ours, slow_canny(plane))
    assert found[6:12].any() and not found[12].any() and found[13].any() and not found[-1].any()


def test_a_long_chain_of_candidates_is_followed_to_its_end():
    plane = np.zeros([1, 12, 400], np.float32)
    plane[:, 6:] = 30  # a step of 120 in the gradient, all along: candidates
    plane[0, 6:, :3] = 60
    assert liquid.edges(plane).numpy().any(axis=1).all()


def slow_distance(edges):
    """min over edge pixels of the chamfer norm: of a steps, b diagonals and c knight's moves, as few as can be."""
    down, right = np.indices(edges.shape)
    best = np.full(edges.shape, 20.0)
    for row, column in np.argwhere(edges):
        small, large = np.sort([abs(down - row), abs(right - column)], axis=0)
        flat = (large - 2 * small) + 2.1969 * small
        steep = 2.1969 * (large - small) + 1.4 * (2 * small - large)
        best = np.minimum(best, np.where(large >= 2 * small, flat, steep))
    return best


@pytest.mark.parametrize("size, count", [((64, 75), 3), ((9, 70), 1), ((75, 5), 2), ((40, 40), 60), ((1, 30), 1)])
def test_distance_to_edges(size, count):
    edges = np.zeros([5, *size], bool)
    for plane in edges[1:]:
        plane[RANDOM.randint(0, size[0], count), RANDOM.randint(0, size[1], count)] = True
    edges[4, -1, -1] = edges[4, 0, 0] = True  # nothing may leak over a border into the next row or the next plane
    found = liquid.edge_distance(tf.constant(edges)).numpy()
    for plane, ours in zip(edges, found):
        np.testing.assert_allclose(ours, slow_distance(plane), atol=2e-4)
    assert (found[0] == 20).all()


def slow_equalized(plane, count):
    histogram = np.bincount(plane.ravel(), minlength=count)
    first = histogram[plane.min()]
    if first == plane.size:
        return plane
    table = np.array([np.round((histogram[:level + 1].sum() - first) * 255 / (plane.size - first))
                      for level in range(count)])
    return np.maximum(table, 0)[plane]


def test_equalization():
    planes = np.minimum(RANDOM.poisson(4, (4, 9, 13)), 20)
    planes[2], planes[3] = 7, np.where(planes[3] > 4, 20, 3)
    found = liquid.equalized(tf.constant(planes, tf.float32), 21)
    for plane, ours in zip(planes, found):
        np.testing.assert_array_equal(ours, slow_equalized(plane, 21))


def slow_water(layer):
    """The benchmark's chain, from SciPy's filters and the slow parts above."""
    levels = (layer * 255).astype(int) % 256
    depth = scipy.ndimage.correlate(slow_distance(slow_canny(levels)), np.ones([3, 3]), mode="mirror")
    depth = slow_equalized(np.floor(depth / 9 + 1e-5).astype(int), 21)
    relief = scipy.ndimage.correlate(depth, np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]), mode="mirror").clip(0, 255)
    light = levels * np.round(scipy.ndimage.correlate(relief, np.ones([3, 3]), mode="mirror") / 9)
    return light / max(light.max(), 1)


@both
@pytest.mark.parametrize("severity, which", [(1, "cifar"), (3, "cifar"), (1, "imagenet"), (3, "imagenet")])
def test_water(images, severity, which):
    numbers, draws = drawn(weather.spatter, images, severity, which)
    mean, deviation, sigma, threshold, strength, _ = numbers
    found = np.clip(weather.spatter.apply(tf.constant(images), *numbers, **draws), 0, 1)
    off = []
    for image, normal, ours in zip(images, draws["normal"].astype(float), found):
        layer = scipy.ndimage.gaussian_filter(mean + deviation * normal, sigma, truncate=4.0, mode="nearest")
        layer[layer < threshold] = 0
        light = strength * slow_water(layer)[..., None] * np.array([175, 238, 238]) / 255
        off.append(255 * abs(in_channels(image + light, images.shape[-1]) - ours))
    assert np.mean(np.less(off, 1)) > 0.995 and np.mean(off) < 0.05
    assert abs(found - images).max() > 0.3


def test_a_picture_without_water_stays_as_it_is():
    layer = np.zeros([2, 12, 12], np.float32)
    layer[1, 4:8, 4:8] = 0.8
    light = liquid.water(tf.constant(layer)).numpy()
    assert not light[0].any() and light[1].max() == 1 and not light[1, :4].any()
    np.testing.assert_array_equal(weather.spatter.apply(
        tf.constant(COLOUR), .5, .1, 1, .9, .5, 0, normal=np.zeros(COLOUR.shape[:3], np.float32)), COLOUR)


def test_an_overflow_of_8_bits_wraps_around():
    layer = np.full([1, 16, 16], 0.9, np.float32)
    layer[0, 6:10, 6:10] = 1.2
    np.testing.assert_allclose(liquid.water(tf.constant(layer))[0], slow_water(layer[0].astype(float)), atol=1e-6)


@both
@pytest.mark.parametrize("severity, which", [(4, "cifar"), (5, "cifar"), (4, "imagenet")])
def test_mud(images, severity, which):
    numbers, draws = drawn(weather.spatter, images, severity, which)
    mean, deviation, sigma, threshold, softness, _ = numbers
    found = np.clip(weather.spatter.apply(tf.constant(images), *numbers, **draws), 0, 1)
    off = []
    for image, normal, ours in zip(images, draws["normal"].astype(float), found):
        layer = scipy.ndimage.gaussian_filter(mean + deviation * normal, sigma, truncate=4.0, mode="nearest")
        cover = scipy.ndimage.gaussian_filter((layer > threshold).astype(float), softness, truncate=4.0, mode="nearest")
        cover = np.where(cover < 0.8, 0, cover)[..., None]
        muddy = image * (1 - cover) + cover * np.array([63, 42, 20]) / 255
        off.append(255 * abs(in_channels(muddy, images.shape[-1]) - ours))
    assert np.mean(np.less(off, 1)) > 0.995 and np.mean(off) < 0.05
    assert abs(found - images).max() > 0.3


def test_draws_of_spatter():
    _, draws = drawn(weather.spatter, np.zeros([3000, 8, 6, 3], np.float32), 3)
    assert draws["normal"].shape == (3000, 8, 6)
    check_normal(draws["normal"])


# Brightness

@pytest.mark.parametrize("amount", [0.1, 0.5, -0.2])
def test_brightness_is_hsv_value(amount):
    images = COLOUR.copy()
    images[0, 0, :5] = [[0, 0, 0], [1, 1, 1], [1, 0, 0], [0, 1e-3, 0], [0.2, 0.2, 0.2]]
    found = weather.brightness.apply(tf.constant(images), amount).numpy()
    for pixel, ours in zip(images.reshape(-1, 3)[::3], found.reshape(-1, 3)[::3]):
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel.astype(float))
        expected = colorsys.hsv_to_rgb(hue, saturation, np.clip(value + amount, 0, 1))
        np.testing.assert_allclose(ours, expected, atol=2e-6)
    np.testing.assert_allclose(found[0, 0, 0], max(amount, 0), atol=1e-6)


def test_brightness_of_very_dark_pixels_is_finite():
    dark = np.float32([0, 1e-45, 1e-39, 1e-20, 1e-7, 1e-6])[None, None, :, None] * np.float32([1, 0.5, 0])
    found = weather.brightness(tf.constant(dark), 3).numpy()
    assert np.isfinite(found).all() and (found >= 0).all()
    np.testing.assert_allclose(found.max(axis=-1), 0.15, atol=1e-5)


def check_normal(values):
    values = values.astype(float)
    assert abs(values.mean()) < 0.03 and abs(values.std() - 1) < 0.03
    assert abs((values**3).mean()) < 0.1 and abs((values**4).mean() - 3) < 0.2
    assert abs((values[1:] * values[:-1]).mean()) < 0.03  # pictures next to each other


def check_uniform(values, low, high):
    unit = (values.astype(float) - low) / (high - low)
    assert unit.min() >= 0 and unit.max() <= 1 and values.max() < high
    assert abs(unit.mean() - 0.5) < 0.015 and abs(unit.std() * np.sqrt(12) - 1) < 0.03
    assert abs(np.corrcoef(unit[1:].ravel(), unit[:-1].ravel())[0, 1]) < 0.04
