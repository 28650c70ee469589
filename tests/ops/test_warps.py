import numpy as np
import pytest
import tensorflow as tf

from tests.corruptions.noise_blur_digital_oracles import sampled
from tf_robust.ops import warps

modes = pytest.mark.parametrize("mode", warps.MODES)


def sample_images(*shape):
    return np.random.RandomState(0).rand(*shape).astype(np.float32)


def coordinates(count, shape, height, width):
    """Rows and columns in and around an image: between pixels, on pixels, on borders and up to three sides away."""
    random = np.random.RandomState(1)
    result = []
    for side in (height, width):
        anywhere = random.uniform(-3 * side, 4 * side, size=(count, *shape))
        choice = random.randint(0, 4, size=anywhere.shape)
        near = random.uniform(-1.5, side + 0.5, size=anywhere.shape)
        border = random.choice([-1, -0.5, 0, side - 1, side - 0.5, side], size=anywhere.shape)
        result.append(np.choose(choice, [anywhere, np.round(anywhere), near, border]).astype(np.float32))
    return result


@modes
@pytest.mark.parametrize(
    "shape", [(2, 7, 7, 3), (3, 9, 5, 1), (2, 4, 30, 2), (2, 1, 6, 3), (2, 5, 1, 3), (1, 2, 2, 1), (1, 1, 1, 3)], ids=str
)
def test_bilinear_equals_scipy(shape, mode):
    images = sample_images(*shape)
    rows, columns = coordinates(shape[0], (11, 13), *shape[1:3])
    result = warps.bilinear(images, rows, columns, mode)
    assert result.dtype == tf.float32 and result.shape == (shape[0], 11, 13, shape[3])
    expected = [sampled(image.astype(float), r, c, mode) for image, r, c in zip(images, rows, columns)]
    np.testing.assert_allclose(result, expected, atol=5e-5)


@modes
def test_bilinear_at_the_pixels_is_the_image(mode):
    images = sample_images(4, 6, 9, 3)
    rows, columns = (np.broadcast_to(axis, [4, 6, 9]).astype(np.float32) for axis in np.mgrid[:6, :9])
    np.testing.assert_allclose(warps.bilinear(images, rows, columns, mode), images, atol=1e-7)


@modes
def test_graph_takes_any_number_of_images(mode):
    images, (rows, columns) = sample_images(3, 5, 8, 3), coordinates(3, (4, 4), 5, 8)
    traced = tf.function(
        lambda *inputs: warps.bilinear(*inputs, mode),
        input_signature=[tf.TensorSpec([None, 5, 8, 3]), tf.TensorSpec([None, 4, 4]), tf.TensorSpec([None, 4, 4])],
    )
    for count in (0, 1, 3):
        inputs = images[:count], rows[:count], columns[:count]
        np.testing.assert_array_equal(traced(*inputs), warps.bilinear(*inputs, mode))


def test_bilinear_rejects_an_unknown_mode():
    with pytest.raises(ValueError, match="wrap"):
        warps.bilinear(sample_images(1, 2, 2, 1), np.zeros([1, 1, 1]), np.zeros([1, 1, 1]), "wrap")


def test_affine_coordinates_are_the_map_times_x_y_1():
    maps = np.random.RandomState(2).randn(3, 2, 3).astype(np.float32)
    rows, columns = warps.affine_coordinates(maps, 4, 6)
    expected = np.array([[[matrix @ [x, y, 1] for x in range(6)] for y in range(4)] for matrix in maps])
    np.testing.assert_allclose(columns, expected[..., 0], atol=1e-5)
    np.testing.assert_allclose(rows, expected[..., 1], atol=1e-5)
