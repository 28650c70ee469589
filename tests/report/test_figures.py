import json

import numpy as np
import pytest
from PIL import Image

from tf_robust import figures as of_runs
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


def test_training_curves_of_a_long_training_show_validation_at_its_epochs(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(charts, "save", lambda figure, path: drawn.append(figure) or path)
    history = [{"epoch": epoch, "total": 2.0 - epoch / 10} for epoch in range(6)]
    history[2]["val_accuracy"], history[5]["val_accuracy"] = 0.5, 0.75
    for row, epochs in (("xe", history), ("fcl", history[:3])):
        (tmp_path / f"{row}.json").write_text(json.dumps(epochs))
    of_runs.of_training(str(tmp_path), {row: str(tmp_path / f"{row}.json") for row in ("xe", "fcl", "missing")})
    lines = {(axes.get_title(), line.get_label()): line for axes in drawn[0].axes for line in axes.lines}
    assert len({axes.get_xlim() for axes in drawn[0].axes if axes.lines}) == 1  # epochs stand above each other
    found = {names: line.get_xydata().tolist() for names, line in lines.items()}
    assert found == {("total", "xe"): [[epoch + 1, 2.0 - epoch / 10] for epoch in range(6)],
                     ("total", "fcl"): [[1, 2.0], [2, 1.9], [3, 1.8]],
                     ("val_accuracy", "xe"): [[3, 0.5], [6, 0.75]], ("val_accuracy", "fcl"): [[3, 0.5]]}
    assert lines["val_accuracy", "xe"].get_marker() == "o" and lines["total", "xe"].get_marker() == "None"
    assert [line.get_marker() for line in drawn[0].legends[0].get_lines()] == ["None", "None"]
