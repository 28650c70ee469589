"""Errors on corruptions, against AlexNet's and by hand."""

import numpy as np
import pytest

from tf_robust import metrics

RANDOM = np.random.RandomState(0)
ALEXNET = metrics.reference_table("alexnet_imagenet_c")
OWN = {name: ALEXNET["errors"][name] for name in metrics.BENCHMARK}
PUBLISHED_MEANS = """0.886428 0.894468 0.922640 0.819880 0.826268 0.785948 0.798360 0.866816 0.826572 0.819324
    0.564592 0.853204 0.646056 0.717840 0.606500 0.845388 0.787108 0.717512 0.658248"""  # of the source
NAMES = """gaussian_noise shot_noise impulse_noise defocus_blur glass_blur motion_blur zoom_blur snow frost fog brightness contrast
    elastic_transform pixelate jpeg_compression"""


def test_names_equal_the_papers_tables():
    assert metrics.BENCHMARK == tuple(NAMES.split())
    assert metrics.EXTRA == ("speckle_noise", "gaussian_blur", "spatter", "saturate")
    assert [(name, len(members)) for name, members in metrics.GROUPS.items()] == [("noise", 3), ("blur", 4), ("weather", 4), ("digital", 4)]


def test_the_table_has_the_published_means():
    assert tuple(ALEXNET["errors"]) == metrics.BENCHMARK + metrics.EXTRA and ALEXNET["verified"] is True
    np.testing.assert_allclose([np.mean(row) for row in ALEXNET["errors"].values()], np.array(PUBLISHED_MEANS.split(), float), rtol=1e-9)


def test_mean_corruption_error_equals_sums():
    errors = {name: RANDOM.rand(5) for name in reversed(metrics.BENCHMARK)}
    ratios = [sum(errors[name]) / sum(OWN[name]) for name in metrics.BENCHMARK]
    assert metrics.mean_corruption_error(errors) == pytest.approx(100 * sum(ratios) / 15)
    rises = [sum(e - 0.3 for e in errors[name]) / sum(a - 0.4348 for a in OWN[name]) for name in metrics.BENCHMARK]
    assert metrics.relative_mean_corruption_error(errors, 0.3) == pytest.approx(100 * sum(rises) / 15)


def test_custom_reference():
    table = {"source": "us", "verified": True, "clean_error": 0.1, "errors": {name: [0.5] * 5 for name in OWN}}
    errors = {name: [0.1, 0.2, 0.3, 0.4, 0.5] for name in OWN}
    assert metrics.mean_corruption_error(errors, reference=table) == pytest.approx(60)
    assert metrics.relative_mean_corruption_error(errors, 0.2, reference=table) == pytest.approx(25)
    short = {name: row for name, row in table["errors"].items() if name != "fog"}
    for bad, message in (
        ({"source": "us"}, "errors"),
        ({**table, "clean_error": 0.5}, "gaussian_noise"),
        ({name: table[name] for name in ("source", "verified", "errors")}, "clean_error"),
        ({**table, "errors": short}, "fog"),
    ):
        with pytest.raises(ValueError, match=message):
            metrics.relative_mean_corruption_error(errors, 0.2, reference=bad)


def relative(errors, reference="alexnet"):
    return metrics.relative_mean_corruption_error(errors, 0.4, reference)


def test_bad_errors_are_named():
    without = {name: row for name, row in OWN.items() if name != "fog"}
    for metric in (metrics.mean_corruption_error, relative):
        for errors, message in (
            (without, "fog"),
            ({**OWN, "spatter": [0.5] * 5}, "spatter"),
            ({**without, "mist": [0.5] * 5}, "fog.*mist"),
            *(({**OWN, "fog": row}, "fog") for row in ([0.5] * 4, 0.5, [[0.5] * 5], [50.0] * 5, [0.5, np.nan, 0.5, 0.5, 0.5])),
        ):
            with pytest.raises(ValueError, match=message):
                metric(errors)
        for reference, message in (("alexnt", "alexnt"), (None, "CIFAR")):
            with pytest.raises(ValueError, match=message):
                metric(OWN, reference=reference)
    with pytest.raises(ValueError, match="clean_error"):
        metrics.relative_mean_corruption_error(OWN, 23.9)


def test_corruption_means_by_hand():
    # the mean of the i-th of the 19 is i hundredths
    spread = np.array([-0.01, 0.0, 0.0, 0.0, 0.01])
    accuracies = {name: spread + i / 100 for i, name in enumerate(metrics.BENCHMARK + metrics.EXTRA, start=1)}
    expected = {"mean15": 0.08, "mean19": 0.10, "mean_without_noise": 0.095, "mean16": (120 + 16) / 1600}
    expected |= {"noise": 0.02, "blur": 0.055, "weather": 0.095, "digital": 0.135}
    assert metrics.corruption_means(accuracies) == pytest.approx(expected)
    assert list(metrics.corruption_means(accuracies)) == list(expected)


def test_a_mean_needs_all_its_corruptions():
    complete = metrics.corruption_means(ALEXNET["errors"])
    for missing, lost_means in (
        ("fog", {"mean15", "mean19", "mean_without_noise", "mean16", "weather"}),
        ("shot_noise", {"mean15", "mean19", "mean16", "noise"}),
        ("speckle_noise", {"mean19", "mean16"}),
        ("spatter", {"mean19"}),
    ):
        accuracies = {name: row for name, row in ALEXNET["errors"].items() if name != missing}
        assert metrics.corruption_means(accuracies) == {name: mean for name, mean in complete.items() if name not in lost_means}


def test_bad_accuracies_are_named():
    assert metrics.corruption_means({"fog": [0.5] * 5}) == {}
    for accuracies, message in (
        ({}, "at least one"),
        ({"mist": [0.5] * 5}, "mist"),
        ({"fog": [0.5] * 3}, "fog"),
        ({"fog": [95.0] * 5}, "fog"),
    ):
        with pytest.raises(ValueError, match=message):
            metrics.corruption_means(accuracies)
