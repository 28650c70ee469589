import numpy as np
import pytest

from tests.report.conftest import is_picture
from tf_robust.report import figures

RANDOM = np.random.RandomState(0)
GREY = RANDOM.rand(3, 8, 8, 1)
COLOUR = RANDOM.randint(256, size=(5, 8, 8, 3)).astype(np.uint8)


def test_strip_scales_and_separates():
    strip = figures._strip(COLOUR[:2])
    np.testing.assert_allclose(strip[:, :8], COLOUR[0] / 255)
    np.testing.assert_allclose(strip[:, 9:], COLOUR[1] / 255)
    assert (strip[:, 8] == 1).all()


@pytest.mark.parametrize("pictures", [GREY[0], GREY[:0], GREY[..., [0, 0]]])
def test_strip_names_the_shape(pictures):
    with pytest.raises(ValueError, match="Expected pictures .* Received shape"):
        figures._strip(pictures)


def test_picture_groups(tmp_path):
    path = str(tmp_path / "made" / "groups.png")
    assert figures.picture_groups(path, {"grey": GREY, "colour": COLOUR}, "Examples") == path and is_picture(path)
    with pytest.raises(ValueError, match="at least one group"):
        figures.picture_groups(path, {}, "Examples")


def test_noise_samples(tmp_path):
    path = str(tmp_path / "noise.png")
    chances = {"un": np.full((8, 8), 0.1)}
    assert is_picture(figures.noise_samples(path, GREY, {"un": GREY, "nun": GREY}, chances))


def test_utility_by_class(tmp_path):
    path = str(tmp_path / "utility.png")
    assert is_picture(figures.utility_by_class(path, RANDOM.rand(10, 8, 8, 1), np.zeros((10, 8, 8, 1)), ["class"] * 10))
    with pytest.raises(ValueError, match="one shape"):
        figures.utility_by_class(path, GREY, COLOUR, ["class"] * 3)
