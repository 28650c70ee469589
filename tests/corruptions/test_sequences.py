"""The frames of every perturbation sequence against Pillow, SciPy and NumPy."""

import numpy as np
import PIL.Image
import pytest
import scipy.ndimage
import sklearn.datasets
import tensorflow as tf

from tests.rounding import tolerance
from tf_robust import corruptions, metrics
from tf_robust.corruptions import sequences

FRAMES = {**dict.fromkeys(corruptions.SEQUENCES, 31), "motion_blur": 21, "translate": 16}


@pytest.fixture(scope="module")
def sample_images():
    china, flower = (image[::6, ::6] for image in sklearn.datasets.load_sample_images().images)
    return np.stack([china[5:37, 10:42], flower[20:52, 40:72]]).astype(np.float32) / 255


def test_sequence_names():
    assert tuple(corruptions.SEQUENCES)[:10] == metrics.PERTURBATIONS == corruptions.sequence_names("imagenet_p")
    assert set(corruptions.sequence_names("cifar_p")) - set(metrics.PERTURBATIONS) == {"spatter"}
    assert len(corruptions.sequence_names("all")) == 14


@pytest.mark.parametrize("name", corruptions.SEQUENCES)
def test_shape_range_steps_and_reproducibility(name, sample_images, monkeypatch):
    result = corruptions.perturb(sample_images, name).numpy()
    assert result.shape == (2, FRAMES[name], 32, 32, 3) and result.dtype == np.float32
    assert result.min() >= 0 and result.max() <= 1
    steps = np.abs(np.diff(result, axis=1))
    assert steps.max(axis=(2, 3, 4)).min() > 0  # every frame differs from the one before
    if "noise" not in name:  # adjacent frames are nearer than the ends
        assert steps.mean() < np.abs(result[:, -1] - result[:, 0]).mean() / 2
    monkeypatch.setattr(sequences, "_FRAMES", 4)  # a graph of all frames takes long to build
    expected = corruptions.perturb(sample_images, name, seed=1, indices=[5, 9])
    alone = corruptions.perturb(sample_images[1:], name, seed=1, indices=[9])[0]
    np.testing.assert_allclose(alone, expected[1], rtol=0, atol=tolerance(256))
    graph = tf.function(lambda x, i: corruptions.perturb(x, name, seed=1, indices=i), autograph=False)
    np.testing.assert_allclose(graph(sample_images, tf.constant([5, 9])), expected, rtol=0, atol=tolerance(256))


@pytest.mark.parametrize(
    "name, cifar, imagenet",
    [("gaussian_noise", 0.02, 0.03), ("speckle_noise", 0.025, 0.025), ("shot_noise", np.sqrt(0.5 / 700), np.sqrt(0.5 / 300))],
)
def test_noise_frames_follow_the_clean_one(name, cifar, imagenet):
    gray = np.full([4, 32, 32, 3], 0.5, np.float32)
    for constants, std in (("cifar", cifar), ("imagenet", imagenet)):
        result = corruptions.perturb(gray, name, constants=constants).numpy()
        np.testing.assert_array_equal(result[:, 0], gray)
        np.testing.assert_allclose([result[:, 1:].mean(), result[:, 1:].std()], [0.5, std], rtol=0.015)
        assert abs(np.corrcoef(result[:, 1].ravel() - 0.5, result[:, 2].ravel() - 0.5)[0, 1]) < 0.05


def inside(images, margin):
    return images[..., margin:-margin, margin:-margin, :]


def pillow(sample_image, method, data):
    image = PIL.Image.fromarray(np.round(sample_image * 255).astype(np.uint8))
    return np.asarray(image.transform(image.size, method, data, PIL.Image.BILINEAR), np.float32) / 255


def test_rotation_equals_pillow(sample_images):
    result = corruptions.perturb(sample_images, "rotate").numpy()
    for frame in (0, 10, 15, 30):
        image = PIL.Image.fromarray(np.round(sample_images[0] * 255).astype(np.uint8))
        ours, expected = result[0, frame], np.asarray(image.rotate(frame - 15, PIL.Image.BILINEAR), np.float32) / 255
        np.testing.assert_allclose(inside(ours, 6), inside(expected, 6), atol=1.5 / 255)
    np.testing.assert_allclose(result[:, 15], sample_images, atol=1e-6)


def test_shear_and_scale_equal_pillows_affine_transform(sample_images):
    shear, scale = (corruptions.perturb(sample_images, name).numpy() for name in ("shear", "scale"))
    for frame in (3, 15, 28):
        tangent, size = np.tan(np.radians(frame - 15)), (70 + 2 * frame) / 100
        expected = pillow(sample_images[1], PIL.Image.AFFINE, (1, tangent, -16 * tangent, 0, 1, 0))
        np.testing.assert_allclose(inside(shear[1, frame], 8), inside(expected, 8), atol=1.5 / 255)
        expected = pillow(sample_images[1], PIL.Image.AFFINE, (1 / size, 0, 16 - 16 / size, 0, 1 / size, 16 - 16 / size))
        np.testing.assert_allclose(inside(scale[1, frame], 8), inside(expected, 8), atol=1.5 / 255)


def test_translation_moves_by_integral_pixels(sample_images):
    result = corruptions.perturb(sample_images, "translate").numpy()
    for frame in range(16):
        expected = scipy.ndimage.shift(sample_images, (0, 0, 7 - frame, 0), order=0)
        np.testing.assert_allclose(result[:, frame], expected, atol=1e-6)
    wide = corruptions.perturb(sample_images, "translate", constants="imagenet").numpy()
    assert wide.shape[1] == 41
    np.testing.assert_allclose(wide[:, 20], sample_images, atol=1e-6)
    np.testing.assert_allclose(wide[:, 25, :, :-5], sample_images[:, :, 5:], atol=1e-6)


def test_tilt_is_a_rotation_in_space_seen_in_perspective(sample_images):
    """Points of the image are projected to the frame by the camera model; the frame must show them there."""
    result = corruptions.perturb(sample_images, "tilt").numpy()
    np.testing.assert_allclose(result[:, 15], sample_images, atol=1e-5)
    for frame in (0, 30):
        angle, distance = np.radians(0.75 * (frame - 15)), np.hypot(32, 32)
        cos, sin = np.cos(angle), np.sin(angle)
        rows, columns = np.mgrid[8:24, 8:24].reshape(2, -1).astype(float)
        x, y = columns - 15.5, rows - 15.5
        x, z = x * cos, x * sin  # about the vertical axis
        y, z = y * cos - z * sin, y * sin + z * cos  # about the horizontal axis
        projected = np.stack([y, x]) * distance / (distance + z) + 15.5
        shown = np.stack([scipy.ndimage.map_coordinates(result[0, frame, ..., c], projected, order=1) for c in range(3)], -1)
        expected_values = sample_images[0, 8:24, 8:24].reshape(-1, 3)
        assert np.corrcoef(shown.ravel(), expected_values.ravel())[0, 1] > 0.97  # interpolated twice
        shifted = sample_images[0, 7:23, 8:24].reshape(-1, 3)
        assert np.corrcoef(shown.ravel(), expected_values.ravel())[0, 1] > np.corrcoef(shown.ravel(), shifted.ravel())[0, 1]


def test_gaussian_blur_equals_scipy(sample_images):
    blurred = corruptions.perturb(sample_images, "gaussian_blur").numpy()
    for frame in (0, 30):
        expected = scipy.ndimage.gaussian_filter(
            sample_images, (0, 0.3 + 0.015 * frame, 0.3 + 0.015 * frame, 0), truncate=7, mode="nearest"
        )
        np.testing.assert_allclose(blurred[:, frame], expected, atol=1e-5)


def test_zoom_blur_is_the_running_mean_of_zooms(sample_images):
    result = corruptions.perturb(sample_images, "zoom_blur").numpy()
    np.testing.assert_allclose(result[:, 0], sample_images, atol=1e-6)
    for i in (1, 30):
        zoom = result[0, i] * (i + 1) - result[0, i - 1] * i  # what this frame adds
        positions = (np.mgrid[:32, :32] - 15.5) / (1 + 0.004 * i) + 15.5
        expected = np.stack([scipy.ndimage.map_coordinates(sample_images[0, ..., c], positions, order=1) for c in range(3)], -1)
        np.testing.assert_allclose(zoom, expected, atol=1e-4)


def test_brightness_changes_the_hsv_value(sample_images):
    result = corruptions.perturb(sample_images, "brightness").numpy()
    for frame in (0, 15, 30):
        expected = np.clip(sample_images.max(axis=-1) + 0.015 * (frame - 15), 0, 1)
        np.testing.assert_allclose(result[:, frame].max(axis=-1), expected, atol=1e-5)


def test_drops_run_down():
    layer = np.zeros([8, 8])
    layer[2] = 1.0
    smear = sequences._smear(8, (0.2, 0.8))
    np.testing.assert_allclose(smear @ layer, np.apply_along_axis(lambda c: np.convolve(c, [0.2, 0.8], "same"), 0, layer))
    assert (smear @ layer)[3, 0] > (smear @ layer)[2, 0] > 0


def test_invalid_arguments_are_rejected(sample_images):
    with pytest.raises(ValueError, match="rotation"):
        corruptions.perturb(sample_images, "rotation")
    with pytest.raises(ValueError, match="cifar_p"):
        corruptions.perturb(sample_images, "rotate", constants="cifar_p")
    with pytest.raises(ValueError, match="uint8"):
        corruptions.perturb((sample_images * 255).astype(np.uint8), "rotate")
