"""Flip probabilities and rates over sequences."""

import numpy as np
import pytest

from tf_robust import metrics

RANDOM = np.random.RandomState(0)
CLASSES = RANDOM.randint(3, size=(7, 31))


def flips_by_loop(predictions, noise, stride):
    """Sub-sequences of every `stride`-th frame, from each of the first frames on."""
    shares = []
    for sequence in predictions:
        flips = []
        for start in range(stride):
            reference, *others = sequence[start::stride]
            for prediction in others:
                flips.append(prediction != reference)
                reference = reference if noise else prediction
        shares.append(sum(flips) / len(flips))
    return sum(shares) / len(shares)


def test_flip_probability_equals_a_loop_over_frames():
    for noise, stride in ((False, 1), (False, 2), (False, 3), (False, 30), (True, 1)):
        expected = flips_by_loop(CLASSES, noise, stride)
        assert metrics.flip_probability(CLASSES, noise=noise, stride=stride) == pytest.approx(expected, rel=1e-12)


def test_bad_predictions_are_named():
    for predictions, options, message in (
        ([1, 2, 3], {}, r"\(3,\)"),
        ([[1], [2]], {}, r"\(2, 1\)"),
        ([[1, 2]], {"stride": 2}, "stride = 2"),
        (np.zeros((0, 5), int), {}, r"\(0, 5\)"),
        (np.zeros((2, 5, 10), int), {}, r"\(2, 5, 10\)"),
        ([[0.1, 0.2]], {}, "float64"),
        ([[1, 2, 3]], {"stride": 0}, "stride"),
        ([[1, 2, 3]], {"stride": 2, "noise": True}, "stride=1 with noise"),
    ):
        with pytest.raises(ValueError, match=message):
            metrics.flip_probability(predictions, **options)


ALEXNET_P = metrics.reference_table("alexnet_imagenet_p")
TEN = {name: 0.01 * i for i, name in enumerate(metrics.PERTURBATIONS, start=1)}
CIFAR_TEN = {"spatter" if name == "snow" else name: p for name, p in TEN.items()}


def test_names_of_perturbations():
    names = "gaussian_noise shot_noise motion_blur zoom_blur snow brightness translate rotate tilt scale"
    assert metrics.PERTURBATIONS == tuple(names.split())
    assert set(metrics.CIFAR_PERTURBATIONS) ^ set(metrics.PERTURBATIONS) == {"snow", "spatter"}
    assert len(metrics.CIFAR_PERTURBATIONS) == 10


def test_flip_rates_are_percent_of_the_references():
    assert metrics.flip_rate(0.0489 / 2, "brightness") == pytest.approx(50)
    result = metrics.mean_flip_rate(TEN)
    rates = {name: 100 * TEN[name] / ALEXNET_P["flip_probabilities"][name] for name in metrics.PERTURBATIONS}
    assert result["rates"] == pytest.approx(rates)
    assert result["mean"] == pytest.approx(sum(rates.values()) / 10)
    assert result["mean_without_noise"] == pytest.approx(sum(list(rates.values())[2:]) / 8)
    assert metrics.mean_flip_rate(ALEXNET_P["flip_probabilities"])["mean"] == 100.0


def test_flip_probabilities_of_alexnet():
    assert ALEXNET_P["flip_probabilities"] == pytest.approx(
        dict(zip(metrics.PERTURBATIONS, (0.2365, 0.3006, 0.0930, 0.0594, 0.1193, 0.0489, 0.1101, 0.1310, 0.0705, 0.2353)))
    )


def test_an_unverified_table_is_labelled():
    assert ALEXNET_P["verified"] is False and "issue 49" in ALEXNET_P["source"]
    result = metrics.mean_flip_rate(TEN)
    assert result["verified"] is False and "unverified" in result["label"] and result["source"] == ALEXNET_P["source"]
    own = {"source": "us", "flip_probabilities": {**dict.fromkeys(TEN, 0.5), "spatter": 0.1}}
    checked = metrics.mean_flip_rate(TEN, reference={**own, "verified": True})
    assert checked["verified"] is True and checked["label"] == "mFR" and checked["mean"] == pytest.approx(11)
    assert metrics.flip_rate(0.2, "spatter", reference={**own, "verified": True}) == pytest.approx(200)
    assert metrics.mean_flip_rate(TEN, reference={**own, "verified": "no"})["verified"] is False


def test_mean_flip_probability():
    for ten in (TEN, CIFAR_TEN):
        assert metrics.mean_flip_probability(ten) == pytest.approx(0.055)
    two = {"snow": 0.2, "tilt": 0.4}
    assert metrics.mean_flip_probability(two, names=["tilt", "snow"]) == pytest.approx(0.3)
    with pytest.raises(ValueError, match=r"missing: \['gaussian_noise'"):
        metrics.mean_flip_probability(two)
    with pytest.raises(ValueError, match=r"not among them: \['snow'\]"):
        metrics.mean_flip_probability({**TEN, "spatter": 0.1})


def test_bad_flips_are_named():
    short = {"source": "us", "verified": True, "flip_probabilities": {"snow": 0.1}}
    percent = {**short, "flip_probabilities": {**TEN, "snow": 11.93}}
    for bad in (12.0, np.nan, [0.1]):
        for metric in (metrics.mean_flip_rate, metrics.mean_flip_probability):
            with pytest.raises(ValueError, match="tilt"):
                metric({**TEN, "tilt": bad})
        with pytest.raises(ValueError, match="tilt"):
            metrics.flip_rate(bad, "tilt")
    for call, message in (
        (lambda: metrics.mean_flip_rate(CIFAR_TEN), "snow.*spatter"),
        (lambda: metrics.flip_rate(0.1, "tlt"), "Did you mean 'tilt'"),
        (lambda: metrics.mean_flip_rate(TEN, reference=short), "brightness"),
        (lambda: metrics.flip_rate(0.1, "snow", reference=percent), "snow.*11.93"),
        (lambda: metrics.mean_flip_rate(TEN, reference=percent), "snow.*11.93"),
        (lambda: metrics.mean_flip_rate(TEN, reference=None), "CIFAR"),
        (lambda: metrics.flip_rate(0.1, "tilt", None), "CIFAR"),
        (lambda: metrics.mean_flip_rate(TEN, reference="resnet"), "resnet"),
        (lambda: metrics.flip_rate(0.1, "tilt", "resnet"), "resnet"),
        (lambda: metrics.reference_table("alexnet_imagenet"), "alexnet_imagenet"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
