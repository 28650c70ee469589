"""Length and gradient of the decision boundary, for circles, lines and functions with known gradients."""

import json

import numpy as np
import pytest

from research.noisymix_toy import __main__ as metric
from research.noisymix_toy import boundary
from research.noisymix_toy import points as toy


def logits_of(function):
    """Returns a classifier of points with the logits (0, function(x, y))."""

    def predict(images):
        x, y = toy.to_points(np.asarray(images, np.float64)).T
        return np.stack([np.zeros_like(x), function(x, y)], axis=1)

    return predict


def boundary_of(function):
    return boundary.find_boundary(logits_of(function)(boundary.grid()))


def test_the_grid_covers_the_square_y_by_y():
    points = toy.to_points(boundary.grid())
    corners = [[-3, -3], [-2.98, -3], [-3, -2.98], [3, 3]]
    np.testing.assert_allclose(points[[0, 1, boundary.GRID, -1]], corners, atol=1e-5)


@pytest.mark.parametrize("radius", [0.5, 1.3, 2.5])
def test_length_and_gradient_of_a_circle(radius):
    """Difference 2 (r - |x|): its gradient has the norm 2, so the probability's has 1/2."""
    found = boundary_of(lambda x, y: 2 * (radius - np.hypot(x, y)))
    assert found.length == pytest.approx(2 * np.pi * radius, rel=1e-3)
    assert found.gradient == pytest.approx(0.5, rel=1e-3)


def test_a_line_ends_at_the_border_of_the_square():
    found = boundary_of(lambda x, y: 3 * x - 4 * y + 1)  # from x = -3, y = -2, to x = 3, y = 2.5
    assert found.length == pytest.approx(7.5, rel=1e-6)
    assert found.gradient == pytest.approx(5 / 4, rel=1e-6)


def test_lengths_of_pieces_are_added():
    found = boundary_of(lambda x, y: (x + 1) * (2 - x))  # two lines
    assert found.length == pytest.approx(12, rel=1e-4)
    assert len(found.lines) == 2


def test_the_mean_gradient_is_weighted_by_length():
    found = boundary_of(lambda x, y: x * (2 + y / 2))  # slope 2 + y / 2 at x = 0, whose mean is 2
    assert found.length == pytest.approx(6.0, rel=1e-6)
    assert found.gradient == pytest.approx(0.5, rel=1e-3)


def test_the_gradient_of_the_probability_equals_finite_differences():
    """On the boundary it is a quarter of the gradient of the difference of the logits."""

    def function(x, y):
        return np.sin(x) + 2 * np.cos(y) + 0.3 * x * y

    found = boundary_of(function)

    def probability(x, y):
        return 1 / (1 + np.exp(-function(x, y)))

    steps, norms, h = [], [], 1e-5
    for line in found.lines:
        x, y = ((line[1:] + line[:-1]) / 2).astype(np.float64).T
        slopes = ((probability(x + h, y) - probability(x - h, y)) / (2 * h), (probability(x, y + h) - probability(x, y - h)) / (2 * h))
        steps.append(np.linalg.norm(np.diff(line, axis=0), axis=1))
        norms.append(np.hypot(*slopes))
    expected = np.average(np.concatenate(norms), weights=np.concatenate(steps))
    assert found.gradient == pytest.approx(expected, rel=2e-3)


def test_the_gradient_is_none_without_a_boundary():
    found = boundary_of(lambda x, y: 1 + x**2)
    assert found.length == 0 and np.isnan(found.gradient) and found.lines == []
    assert found.sides.all()


def test_sides_and_lines():
    found = boundary_of(lambda x, y: y - 1.0001)
    assert found.sides.shape == (boundary.GRID, boundary.GRID) and found.sides.mean(axis=1).tolist() == [0.0] * 201 + [1.0] * 100
    (line,) = found.lines
    np.testing.assert_allclose(line[:, 1], 1.0001, atol=1e-5)


def test_models_of_a_suite_are_measured_and_drawn(tmp_path, monkeypatch):
    functions = {"baseline": lambda x, y: 2 * (1.1 - np.hypot(x, y)), "noise": lambda x, y: x}
    monkeypatch.setattr(metric, "FLAGS", str(tmp_path))
    (tmp_path / "suite.json").write_text(json.dumps({"rows": [*functions]}))
    for row in functions:
        for seed in (0, 1):
            (tmp_path / "runs" / row / f"seed_{seed}" / "saved_model").mkdir(parents=True)
    monkeypatch.setattr(metric, "load_classifier", lambda path: logits_of(functions[path.split("/")[-3]]))
    metric.main(str(tmp_path / "runs"))
    rows = json.loads((tmp_path / "runs" / "boundaries.json").read_text())["rows"]
    values = {(row["row"], row["metric"]): row["values"] for row in rows}
    np.testing.assert_allclose(values["baseline", "boundary/length"], [2.2 * np.pi] * 2, rtol=1e-3)
    np.testing.assert_allclose(values["noise", "boundary/gradient"], [0.25] * 2, rtol=1e-3)
    images, labels = toy.split("test", band=True)
    inside = np.hypot(*toy.to_points(images / 255.0).T) < 1.1
    np.testing.assert_allclose(values["baseline", "clean"], [np.mean(inside == labels)] * 2)
    assert (tmp_path / "runs" / "boundaries.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match="Expected models .*baseline"):
        metric.main(str(tmp_path / "nothing"))
