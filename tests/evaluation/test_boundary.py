"""Length and gradient of the decision boundary, for circles, lines and functions with known gradients."""

import dataclasses

import numpy as np
import pytest

from tf_robust import data, evaluation
from tf_robust.data import toy
from tf_robust.evaluation import boundary
from tf_robust.report import model_figures


def logits_of(function):
    """Returns a classifier of points with the logits (0, function(x, y))."""

    def predict(images):
        x, y = toy.to_points(np.asarray(images, np.float64)).T
        return np.stack([np.zeros_like(x), function(x, y)], axis=1)

    return predict


def boundary_record(function):
    predict = logits_of(function)
    return boundary.measure(np.concatenate([predict(points) for points, _ in boundary.grid().as_numpy_iterator()]))


def test_the_grid_covers_the_square_y_by_y():
    points = toy.to_points(np.concatenate([p for p, _ in boundary.grid().as_numpy_iterator()]))
    corners = [[-3, -3], [-2.98, -3], [-3, -2.98], [3, 3]]
    np.testing.assert_allclose(points[[0, 1, boundary.GRID, -1]], corners, atol=1e-5)


@pytest.mark.parametrize("radius", [0.5, 1.3, 2.5])
def test_length_and_gradient_of_a_circle(radius):
    """Difference 2 (r - |x|): its gradient has the norm 2, so the probability's has 1/2."""
    record = boundary_record(lambda x, y: 2 * (radius - np.hypot(x, y)))
    assert record["length"] == pytest.approx(2 * np.pi * radius, rel=1e-3)
    assert record["gradient"] == pytest.approx(0.5, rel=1e-3)


def test_a_line_ends_at_the_border_of_the_square():
    record = boundary_record(lambda x, y: 3 * x - 4 * y + 1)  # from x = -3, y = -2, to x = 3, y = 2.5
    assert record["length"] == pytest.approx(7.5, rel=1e-6)
    assert record["gradient"] == pytest.approx(5 / 4, rel=1e-6)


def test_lengths_of_pieces_are_added():
    record = boundary_record(lambda x, y: (x + 1) * (2 - x))  # two lines
    assert record["length"] == pytest.approx(12, rel=1e-4)
    assert len(boundary.lines(record)) == 2


def test_the_mean_gradient_is_weighted_by_length():
    record = boundary_record(lambda x, y: x * (2 + y / 2))  # slope 2 + y / 2 at x = 0, whose mean is 2
    assert record["length"] == pytest.approx(6.0, rel=1e-6)
    assert record["gradient"] == pytest.approx(0.5, rel=1e-3)


def test_the_gradient_of_the_probability_equals_finite_differences():
    """On the boundary it is a quarter of the gradient of the difference of the logits."""

    def function(x, y):
        return np.sin(x) + 2 * np.cos(y) + 0.3 * x * y

    record = boundary_record(function)

    def probability(x, y):
        return 1 / (1 + np.exp(-function(x, y)))

    steps, norms, h = [], [], 1e-5
    for line in boundary.lines(record):
        x, y = ((line[1:] + line[:-1]) / 2).astype(np.float64).T
        slopes = ((probability(x + h, y) - probability(x - h, y)) / (2 * h), (probability(x, y + h) - probability(x, y - h)) / (2 * h))
        steps.append(np.linalg.norm(np.diff(line, axis=0), axis=1))
        norms.append(np.hypot(*slopes))
    expected = np.average(np.concatenate(norms), weights=np.concatenate(steps))
    assert record["gradient"] == pytest.approx(expected, rel=2e-3)


def test_the_gradient_is_none_without_a_boundary():
    record = boundary_record(lambda x, y: 1 + x**2)
    assert record["length"] == 0 and record["gradient"] is None and boundary.lines(record) == []
    assert boundary.sides(record).all()


def test_sides_and_lines_are_decoded_from_the_record():
    record = boundary_record(lambda x, y: y - 1.0001)
    sides = boundary.sides(record)
    assert sides.shape == (boundary.GRID, boundary.GRID) and sides.mean(axis=1).tolist() == [0.0] * 201 + [1.0] * 100
    (line,) = boundary.lines(record)
    np.testing.assert_allclose(line[:, 1], 1.0001, atol=1e-5)


def test_boundary_measures_and_figure(tmp_path):
    source, eval_config = data.open_source("toy", "test"), evaluation.EvalConfig(evaluations=("clean", "boundary"))
    sets = evaluation.evaluation_sets(source, None, eval_config)
    predict = logits_of(lambda x, y: 2 * (1.1 - np.hypot(x, y)))
    (tmp_path / "row").mkdir()
    path = str(tmp_path / "row" / "measured.jsonl")
    records = evaluation.records(predict, sets, path=path, log=lambda line: None)
    rows = {row.measure: row.value for row in evaluation.measures_of(records, eval_config)}
    assert list(rows) == ["clean", "boundary/length", "boundary/gradient"]
    assert rows["boundary/length"] == pytest.approx(2.2 * np.pi, rel=1e-3)
    assert 0.7 < rows["clean"] < 1
    ((path, caption),) = model_figures.of_boundaries(
        str(tmp_path), {"row": {record["set"]: record for record in records}}, (source, source)
    )
    assert path.endswith("boundaries.png") and "boundaries" in caption
    assert model_figures.of_boundaries(str(tmp_path), {"row": {}}, ()) == []
    assert evaluation.card_of(source, eval_config, None)["boundary"]["grid"] == boundary.GRID


def test_other_data_raise(source):
    eval_config = evaluation.EvalConfig(evaluations=("boundary",))
    with pytest.raises(ValueError, match="Expected points in the plane.*Received: tiny, 16x16x1, 3 classes"):
        evaluation.evaluation_sets(source(), None, eval_config)
    points = data.open_source("toy", "test")
    with pytest.raises(ValueError, match="Expected points in the plane"):
        boundary.check(dataclasses.replace(points, class_names=("a", "b", "c")))
