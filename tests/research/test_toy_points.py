"""The 2-D data set: shapes, noise, and the conversion of points to images."""

import os

import matplotlib.path
import numpy as np
import pytest

import research.noisymix_toy  # noqa: F401
from research.noisymix_toy import points as toy
from tests.conftest import ROOT
from tf_robust import data
from tf_robust.cli.build import read_rows
from tf_robust.runs import suite


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_splits_have_250_points_half_of_them_inside(split):
    source = data.open_source("toy", split)
    assert source.image_shape == (1, 2, 1) and source.num_classes == 2 and len(source) == 250
    np.testing.assert_array_equal(np.bincount(source.labels), [125, 125])
    again = toy.split(split)
    np.testing.assert_array_equal(source.images, again[0])


def polygon(scale):
    """Returns the outline of a star as a matplotlib path of its corners."""
    return matplotlib.path.Path(scale * toy.star(np.arange(2 * toy.TIPS + 1) / (2 * toy.TIPS)))


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_labels_are_fixed_beside_the_band_and_random_on_it(split):
    source, plain = data.open_source("toy_band", split), data.open_source("toy", split)
    np.testing.assert_array_equal(source.images, plain.images)
    points = toy.to_points(source.images / 255.0)
    edge = 0.02  # points are rounded to half a level
    outside, inside = ~polygon(toy.BAND[1] + edge).contains_points(points), polygon(toy.BAND[0] - edge).contains_points(points)
    assert outside.sum() > 60 and inside.sum() > 60
    assert not source.labels[outside].any() and source.labels[inside].all()
    on_band = polygon(toy.BAND[1] - edge).contains_points(points) & ~polygon(toy.BAND[0] + edge).contains_points(points)
    sides = toy.star_size(points[on_band]) < 0.75
    assert on_band.sum() > 20 and abs(np.mean(source.labels[on_band] == sides) - 0.5) < 0.25


def test_star_size_of_outlines():
    outline, sizes = toy.star(np.random.RandomState(0).rand(200)), np.random.RandomState(1).uniform(0.1, 2.0, 200)
    np.testing.assert_allclose(toy.star_size(sizes[:, None] * outline), sizes, rtol=1e-9)
    points = np.random.RandomState(2).uniform(-2, 2, (2000, 2))
    np.testing.assert_array_equal(toy.star_size(points) < 0.8, polygon(0.8).contains_points(points))


def test_splits_are_different_draws():
    train, test = (data.open_source("toy", split) for split in ("train", "test"))
    assert np.mean(np.all(train.images == test.images, axis=(1, 2, 3))) < 0.05


def test_points_are_rounded_to_half_a_level():
    points = np.random.RandomState(0).uniform(-toy.LIMIT, toy.LIMIT, size=(100, 2))
    restored = toy.to_points(toy.to_images(points) / 255.0)
    assert np.abs(restored - points).max() <= toy.LIMIT / 255 + 1e-9
    np.testing.assert_allclose(toy.to_points(toy.to_images(np.array([[9.0, -9.0]])) / 255.0), [[3.0, -3.0]])


def test_the_outline_is_a_closed_nonconvex_star():
    points = toy.star(np.linspace(0.0, 1.0, 1001))
    np.testing.assert_allclose(points[0], points[-1], atol=1e-12)
    np.testing.assert_allclose(points[0], [0.0, toy.TIP_RADIUS], atol=1e-12)
    radii = np.linalg.norm(points, axis=1)
    assert radii.max() == pytest.approx(toy.TIP_RADIUS) and radii.min() == pytest.approx(toy.NOTCH_RADIUS)
    steps = np.linalg.norm(np.diff(points, axis=0), axis=1)
    np.testing.assert_allclose(steps, steps[0], rtol=1e-9)  # evenly spread
    sides = np.diff(toy.star(np.arange(12) / 10), axis=0)
    turn = sides[:-1, 0] * sides[1:, 1] - sides[:-1, 1] * sides[1:, 0]
    assert turn.min() < 0 < turn.max()


def test_noise_has_the_papers_std():
    for split in ("train", "test"):
        images, labels = toy.split(split)
        points = toy.to_points(images / 255.0)
        for label, scale in ((0, 1.0), (1, toy.SCALE)):
            outline = scale * toy.star(np.linspace(0.0, 1.0, 2000))
            distances = np.linalg.norm(points[labels == label][:, None] - outline[None], axis=2).min(axis=1)
            assert 0.08 < np.sqrt(np.mean(distances**2)) < 0.22  # 0.2 across a line, less near its corners


def test_the_rows_of_the_table_are_flagfiles():
    path, names, _ = suite.table_of(os.path.join(ROOT, "research/noisymix_toy/flags"), ROOT)
    rows = read_rows({name: f"{path}/{name}.flags" for name in names}, {"seeds": "0,1"})
    assert len(rows) == 6 and {row["data"] for row in rows.values()} == {"toy_band"}
