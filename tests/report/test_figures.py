import numpy as np
import pytest
from PIL import Image

from tf_robust.report import charts, figures, tables

RANDOM = np.random.RandomState(0)
GREY = RANDOM.rand(3, 8, 8, 1)
COLOUR = RANDOM.randint(256, size=(5, 8, 8, 3)).astype(np.uint8)


def is_picture(path):
    picture = np.asarray(Image.open(path).convert("L"))
    return min(picture.shape) > 100 and picture.std() > 5


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
    assert is_picture(figures.utility_by_class(path, RANDOM.rand(10, 8, 8, 1), np.zeros((10, 8, 8, 1))))
    with pytest.raises(ValueError, match="one shape"):
        figures.utility_by_class(path, GREY, COLOUR)


def test_class_histogram(tmp_path):
    path = str(tmp_path / "histogram.png")
    counts = {"train": np.array([1000, 10, 0]), "test": np.array([5, 5, 5])}
    assert is_picture(charts.class_histogram(path, counts, ["cat", "dog", "airplane"]))
    with pytest.raises(ValueError, match="Expected 2 counts.*'train'. Received: 3"):
        charts.class_histogram(path, counts, ["cat", "dog"])


def test_comparison_bars(tmp_path, three_seeds, evaluate):
    path = str(tmp_path / "bars.png")
    paper = {"xe": {"un": [0.4, None]}}
    alone = evaluate("other", 0, {f"corruptions/number_{number}": 0.5 for number in range(20)})
    alone["rows"][0].update(low=None, high=None)
    for runs in (three_seeds, three_seeds[:1], [*three_seeds, alone]):
        assert is_picture(charts.comparison_bars(path, tables.aggregate(runs, paper)))


def test_training_curves(tmp_path):
    path = str(tmp_path / "curves.png")
    histories = {"xe": {"loss": [2.0, 1.0]}, "fcl": {"loss": [3.0, 2.0], "contrast": [1.0]}}
    assert is_picture(charts.training_curves(path, histories))
    with pytest.raises(ValueError, match="Received rows: \\['xe'\\]"):
        charts.training_curves(path, {"xe": {}})
