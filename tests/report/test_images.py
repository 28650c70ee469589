import numpy as np
import pytest

from tests.report.conftest import is_image
from tf_robust.report import images as figures

RANDOM = np.random.RandomState(0)
GRAY = RANDOM.rand(3, 8, 8, 1)
COLOR = RANDOM.randint(256, size=(5, 8, 8, 3)).astype(np.uint8)


def test_strip_scales_and_separates():
    strip = figures._strip(COLOR[:2])
    np.testing.assert_allclose(strip[:, :8], COLOR[0] / 255)
    np.testing.assert_allclose(strip[:, 9:], COLOR[1] / 255)
    assert (strip[:, 8] == 1).all()


@pytest.mark.parametrize("images", [GRAY[0], GRAY[:0], GRAY[..., [0, 0]]])
def test_strip_names_the_shape(images):
    with pytest.raises(ValueError, match="Expected images .* Received shape"):
        figures._strip(images)


def test_lines_without_texts(tmp_path):
    path = str(tmp_path / "made" / "lines.png")
    assert figures.captioned_images(path, [("gray", GRAY, None), ("color", COLOR, None)]) == path and is_image(path)


def test_noise_samples(tmp_path):
    path = str(tmp_path / "noise.png")
    chances = {"un": np.full((8, 8), 0.1)}
    assert is_image(figures.noise_samples(path, GRAY, {"un": GRAY, "nun": GRAY}, chances))


def test_utility_by_class(tmp_path):
    path = str(tmp_path / "utility.png")
    assert is_image(figures.utility_by_class(path, RANDOM.rand(10, 8, 8, 1), np.zeros((10, 8, 8, 1)), ["class"] * 10))
    with pytest.raises(ValueError, match="one shape"):
        figures.utility_by_class(path, GRAY, COLOR, ["class"] * 3)


def test_texts_under_images_do_not_overlap(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, path: drawn.append(figure) or path)
    texts = ["elastic transform 5\nautomobile, not airplane", "jpeg compression 3\ncat, not dog", "fog 1\ncat, not dog"] * 2
    figures.captioned_images(str(tmp_path / "x.png"), [("start", np.zeros((6, 32, 32, 3)), texts)])
    drawn[0].draw_without_rendering()
    boxes = [text.get_window_extent() for text in drawn[0].axes[0].texts]
    assert len(boxes) == 6
    assert all(left.x1 <= right.x0 for left, right in zip(boxes, boxes[1:]))
