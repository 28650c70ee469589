"""Images as files, and the images of a model that are drawn."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from matplotlib.figure import Figure

from tests.report.conftest import is_image
from tf_robust import evaluation
from tf_robust.data.sources import Shift
from tf_robust.report import images as figures

RANDOM = np.random.RandomState(0)
GRAY = RANDOM.rand(3, 8, 8, 1)
CHEAP = ("contrast", "fog", "snow", "brightness", "gaussian_noise", "pixelate", "saturate")  # corruptions
COLOR = RANDOM.randint(256, size=(5, 8, 8, 3)).astype(np.uint8)


def test_images_are_scaled_and_separated():
    axes = Figure().subplots()
    figures._show(axes, COLOR[:2], "title")
    strip = np.asarray(axes.images[0].get_array())
    np.testing.assert_allclose(strip[:, :8], COLOR[0] / 255)
    np.testing.assert_allclose(strip[:, 9:], COLOR[1] / 255)
    assert (strip[:, 8] == 1).all()


@pytest.mark.parametrize(
    "draw",
    [
        lambda path: figures.captioned_images(path, [("gray", GRAY, None), ("color", COLOR, None)]),
        lambda path: figures.noise_samples(path, GRAY, {"un": GRAY, "nun": GRAY}, {"un": np.full((8, 8), 0.1)}),
        lambda path: figures.utility_by_class(path, RANDOM.rand(10, 8, 8, 1), np.zeros((10, 8, 8, 1)), ["class"] * 10),
    ],
)
def test_figures_are_written_to_their_path(draw, tmp_path):
    path = str(tmp_path / "made" / "figure.png")
    assert draw(path) == path and is_image(path)


def test_texts_under_images_do_not_overlap(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, path: drawn.append(figure) or path)
    texts = ["elastic transform 5\nautomobile, not airplane", "jpeg compression 3\ncat, not dog", "fog 1\ncat, not dog"] * 2
    figures.captioned_images(str(tmp_path / "x.png"), [("start", np.zeros((6, 32, 32, 3)), texts)])
    drawn[0].draw_without_rendering()
    boxes = [text.get_window_extent() for text in drawn[0].axes[0].texts]
    assert len(boxes) == 6
    assert all(left.x1 <= right.x0 for left, right in zip(boxes, boxes[1:]))


# --- images of a model


@pytest.fixture
def drawn(monkeypatch):
    """The lines that would have been drawn."""
    found = []
    monkeypatch.setattr(figures, "captioned_images", lambda path, lines: found.append(lines) or path)
    return found


def brightest_third(images):
    """Right on the tiny images, until their contrast is too low for class 0."""
    thirds = [tf.reduce_mean(images[:, 5 * i : 5 * i + 5], axis=[1, 2, 3]) for i in range(3)]
    return tf.stack([thirds[0] - 0.2, *thirds[1:]], axis=1)


def less_sensitive(images):
    return brightest_third(images) + tf.constant([0.2, 0.0, 0.0])


def records_of(sets):
    models = {"plain": brightest_third, "robust": less_sensitive}
    return {row: evaluation.records(predict, sets, log=lambda _: None) for row, predict in models.items()}


@pytest.mark.parametrize("evaluated", [("clean",), ()])
def test_worst_images_are_misclassified_at_the_most_severities(source, drawn, evaluated):
    test = source(60, split="test")
    eval_config = evaluation.EvalConfig(evaluations=("clean", "corruptions"), corruption_constants="cifar")
    sets = [one for one in evaluation.evaluation_sets(test, None, eval_config) if one.name == "clean" or "/contrast/" in one.name]
    records = evaluation.records(brightest_third, [one for one in sets if one.name in evaluated or "/" in one.name], log=lambda _: None)
    assert figures.draw_worst("folder", brightest_third, test, sets, records) == "folder/worst.png"
    ((name, sample_images, captions),) = drawn[0]
    batches = {one.name: next(iter(one.batches())) for one in sets}
    said = {name: np.argmax(brightest_third(images), axis=1) for name, (images, _) in batches.items()}
    labels = batches["clean"][1].numpy()
    counts = sum((said[f"corruptions/contrast/{s}"] != labels).astype(int) for s in range(1, 6))
    possible = [i for i in range(60) if said["clean"][i] == labels[i] != said["corruptions/contrast/3"][i]]
    expected = sorted(possible, key=lambda i: (-counts[i], i))[:12]
    assert name == "contrast" and expected
    np.testing.assert_array_equal(sample_images, batches["corruptions/contrast/3"][0].numpy()[expected])
    assert captions == [f"{labels[i]} as {said['corruptions/contrast/3'][i]}" for i in expected]


def test_images_in_an_order_of_their_own_are_not_among_the_worst(source, drawn, tmp_path):
    test = source(60, split="test")
    reversed_levels = [(test.images * (1 - 0.15 * severity))[::-1].astype(np.uint8) for severity in range(1, 6)]
    np.save(tmp_path / "contrast.npy", np.concatenate(reversed_levels))
    np.save(tmp_path / "labels.npy", np.tile(np.asarray(test.labels)[::-1], 5))
    eval_config = evaluation.EvalConfig(evaluations=("clean", "corruptions"), corrupted_dir=str(tmp_path))
    sets = evaluation.evaluation_sets(test, None, eval_config)
    records = evaluation.records(brightest_third, sets, log=lambda _: None)
    assert {record.get("order") for record in records} == {None, "other"}
    assert figures.draw_worst("folder", brightest_third, test, sets, records) is None and not drawn


def test_maps_have_utility_and_sensitivity(source, drawn):
    weights = np.random.RandomState(0).normal(size=(256, 3)).astype(np.float32)

    def linear(images):
        return tf.reshape(images, [-1, 256]) @ weights

    figures.draw_maps("folder", linear, source(60, split="test"))
    _, (_, utilities, _), (_, sensitivities, _) = drawn[0]
    assert utilities.shape == sensitivities.shape == (12, 16, 16, 1)
    size = np.sqrt((weights**2).sum(axis=1)).reshape(16, 16)
    assert np.corrcoef(sensitivities[0].ravel(), size.ravel())[0, 1] > 0.9  # an estimate
    assert figures.draw_maps("folder", lambda images: tf.stop_gradient(linear(images)), source(60, split="test")) is None


def opened_images(one):
    """The images and labels of all batches of a set."""
    return [np.concatenate(parts) for parts in zip(*one.batches().as_numpy_iterator())]


def test_gains_are_images_that_only_the_other_model_classifies_correctly(source, drawn, monkeypatch):
    monkeypatch.setattr(evaluation.scoring, "BATCH", 25)
    test = source(60, split="test")
    eval_config = evaluation.EvalConfig(evaluations=("clean", "corruptions"), severities=(4, 5), corruption_constants="cifar")
    sets = [one for one in evaluation.evaluation_sets(test, None, eval_config) if "/" not in one.name or one.name.split("/")[1] in CHEAP]
    records = records_of(sets)
    path, caption = figures.draw_gains("folder", test, sets, records, "plain", lambda: brightest_third)
    assert path == "folder/gains.png" and "plain" in caption
    ((row, images, captions),) = drawn[0]
    names = {text.split("\n")[0].rpartition(" ")[0] for text in captions}
    assert row == "robust correct, plain wrong" and len(images) == len(captions) == len(names)
    opened = {one.name: opened_images(one) for one in sets}
    net = {
        name: np.mean(np.argmax(less_sensitive(x), 1) == y) - np.mean(np.argmax(brightest_third(x), 1) == y)
        for name, (x, y) in opened.items()
        if name != "clean"
    }
    best = max(net, key=net.get)  # the first of the largest, in the order of the sets
    assert captions[0].split("\n")[0] == best.removeprefix("corruptions/").replace("_", " ").replace("/", " ")
    positions = []
    for image, text in zip(images, captions):
        title, _, classes = text.partition("\n")
        name, _, severity = title.rpartition(" ")
        batch, labels = opened[f"corruptions/{name.replace(' ', '_')}/{severity}"]
        (position,) = np.flatnonzero((batch == image).all(axis=(1, 2, 3)))[:1]
        positions.append(position)
        truth, plain = test.class_names[labels[position]], test.class_names[np.argmax(brightest_third(image[None]), 1)[0]]
        assert classes == f"{truth}, not {plain}" and truth != plain
        assert np.argmax(less_sensitive(image[None]), 1)[0] == labels[position]
    assert len(set(positions)) == len(positions) and max(positions) >= 25 > min(positions)  # of several batches
    assert figures.draw_gains("folder", test, sets, {"plain": records["plain"]}, "plain", lambda: brightest_third) is None
    assert figures.draw_gains("folder", test, sets, {**records, "robust": records["plain"]}, "plain", lambda: brightest_third) is None


def test_gains_show_up_to_four_images_of_a_shift_first(source, drawn):
    """Those of the shift have their own positions, and all are classified correctly by the other model alone."""
    test = source(60, split="test")
    eval_config = evaluation.EvalConfig(evaluations=("clean", "corruptions"), severities=(5,), corruption_constants="cifar")
    bright = source(40, split="test")
    dull = dataclasses.replace(bright, images=100 + bright.images // 8)  # contrast too low for class 0
    found = evaluation.evaluation_sets(test, None, eval_config, shifts=[Shift("night", dull, tuple(range(3)), None)])
    sets = [one for one in found if "/" not in one.name or one.name.split("/")[1] in ("night", *CHEAP)]
    figures.draw_gains("folder", test, sets, records_of(sets), "plain", lambda: brightest_third)
    ((_, images, captions),) = drawn[0]
    titles = [text.split("\n")[0] for text in captions]
    (one,) = [one for one in sets if one.name == "shift/night"]
    batch, labels = opened_images(one)
    gained = (np.argmax(less_sensitive(batch), 1) == labels) & (np.argmax(brightest_third(batch), 1) != labels)
    count = min(4, gained.sum())
    assert titles.count("night") == count > 0 and set(titles[:count]) == {"night"}
    shown = [np.flatnonzero((batch == image).all(axis=(1, 2, 3))) for image in images[:count]]
    assert all(gained[positions].all() for positions in shown)
