import numpy as np
import pytest
from PIL import Image

from tf_robust.report import reliability

RANDOM = np.random.RandomState(0)


def model(count):
    confidences = RANDOM.rand(count).astype(np.float32)
    return confidences, RANDOM.rand(count) < confidences


MODELS = {"one": model(1), "few": model(150), "many": model(3000), "never": (np.full(200, 0.9), np.zeros(200, bool)),
          "always": (np.ones(200), np.ones(200, bool))}


def is_picture(path):
    picture = np.asarray(Image.open(path).convert("L"))
    return min(picture.shape) > 100 and picture.std() > 5


@pytest.mark.parametrize("names", [["many"], ["few", "many"], list(MODELS)])
@pytest.mark.parametrize("draw", [reliability.reliability_diagram, reliability.response_rate_curves])
def test_figures(tmp_path, draw, names):
    path = str(tmp_path / "made" / "figure.png")
    assert draw(path, {name: MODELS[name] for name in names}) == path and is_picture(path)


@pytest.fixture
def drawn(monkeypatch):
    """The figures that would have been written."""
    figures = []
    monkeypatch.setattr(reliability, "save", lambda figure, path: figures.append(figure) or path)
    return figures


def test_the_diagram_shows_every_bin(drawn):
    reliability.reliability_diagram("unused", {"few": MODELS["few"], "many": MODELS["many"]}, bin_size=50)
    few, many = drawn[0].axes
    assert len(few.lines[-1].get_xdata()) == 3 and len(many.lines[-1].get_xdata()) == 60
    assert few.get_title().startswith("few\nRMS error 0.") and "accuracy" in many.get_title()


def test_the_band_holds_95_percent_of_calibrated_bins(drawn):
    reliability.reliability_diagram("unused", {"half": (np.full(100, 0.5), np.arange(100) < 50)})
    points = drawn[0].axes[0].collections[0].get_paths()[0].vertices
    at_half = points[np.isclose(points[:, 0], 0.5), 1]
    assert [at_half.min(), at_half.max()] == pytest.approx([0.5 - 1.96 * 0.05, 0.5 + 1.96 * 0.05])


def test_curves_name_their_aurra_and_stay_inside(drawn):
    reliability.response_rate_curves("unused", {"ordered": ([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 0]), **MODELS})
    axes, = drawn[0].axes
    rates, accuracies = axes.lines[0].get_data()
    np.testing.assert_allclose(rates, [0.25, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(accuracies, [1, 1, 2 / 3, 0.5])
    assert axes.lines[0].get_label() == "ordered (AURRA 0.792)"
    low, high = axes.get_ylim()
    assert low == 0.0 and high >= 1.0
    reliability.response_rate_curves("unused", {"ordered": ([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 0])})
    assert 0.4 < drawn[1].axes[0].get_ylim()[0] < 0.5


@pytest.mark.parametrize("draw", [reliability.reliability_diagram, reliability.response_rate_curves])
def test_bad_models_are_named(tmp_path, draw):
    with pytest.raises(ValueError, match="at least one model .* Received none"):
        draw(str(tmp_path / "figure.png"), {})
    with pytest.raises(ValueError, match="Expected confidences"):
        draw(str(tmp_path / "figure.png"), {"bad": ([0.5, 2.0], [0, 1])})
    assert not list(tmp_path.iterdir())
