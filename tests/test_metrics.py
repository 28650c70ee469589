import itertools

import numpy as np
import pytest
import scipy.special
import sklearn.metrics

from tf_robust import metrics

RANDOM = np.random.RandomState(0)
CONFIDENCES = RANDOM.permutation(np.linspace(0.03, 0.98, 1037))  # no ties
CORRECT = RANDOM.rand(1037) < CONFIDENCES ** 2


def bins_by_loop(confidences, correct, size):
    """[(confidences, outcomes)] of each bin: pairs sorted, dealt out `size` at a time, a short rest to the last."""
    pairs, found = sorted(zip(confidences, correct)), []
    while pairs:
        take = size if len(pairs) >= 2 * size else len(pairs)
        found.append(tuple(zip(*pairs[:take])))
        pairs = pairs[take:]
    return found


def rms_of(bins, count):
    return sum(len(c) / count * (sum(c) / len(c) - sum(r) / len(r)) ** 2 for c, r in bins) ** 0.5


# Calibration

@pytest.mark.parametrize("size", [1, 7, 100, 500, 519, 1037, 2000])
def test_rms_error_equals_a_loop_over_bins(size):
    bins = bins_by_loop(CONFIDENCES, CORRECT, size)
    assert metrics.rms_calibration_error(CONFIDENCES, CORRECT, size) == pytest.approx(rms_of(bins, 1037), rel=1e-12)
    means, accuracies, counts = metrics.reliability_bins(CONFIDENCES, CORRECT, size)
    np.testing.assert_array_equal(counts, [len(confident) for confident, _ in bins])
    np.testing.assert_allclose(means, [np.mean(confident) for confident, _ in bins])
    np.testing.assert_allclose(accuracies, [np.mean(right) for _, right in bins])


def published_error(confidences, correct, size):
    """The published code as described: half-open index ranges, the last to the end, and a loop that stops early."""
    order = np.argsort(confidences)
    confidences, correct = confidences[order], correct[order]
    ranges = [[size * i, size * (i + 1)] for i in range(len(confidences) // size)]
    ranges[-1][1] = len(confidences)
    total = 0.0
    for index in range(len(ranges) - 1):
        inside = slice(*ranges[index])
        gap = confidences[inside].mean() - correct[inside].mean()
        total += len(confidences[inside]) / len(confidences) * gap ** 2
    return np.sqrt(total)


@pytest.mark.parametrize("count", [100, 199, 200, 201, 999, 1000, 1037])
def test_compat_is_the_published_loop(count):
    confidences, correct = CONFIDENCES[:count], CORRECT[:count]
    expected = published_error(confidences, correct, 100)
    assert metrics.rms_calibration_error(confidences, correct, compat=True) == pytest.approx(expected, rel=1e-12)
    assert (expected == 0) == (count < 200)
    assert metrics.rms_calibration_error(confidences, correct) > expected


def test_compat_needs_a_bin():
    with pytest.raises(ValueError, match="at least bin_size = 100 examples with compat=True. Received: 99"):
        metrics.rms_calibration_error(CONFIDENCES[:99], CORRECT[:99], compat=True)


def test_hand_computed_rms_error():
    # bins {.1, .2}: means .15 and 0, and {.6, .7, .8}: means .7 and 1/3
    expected = np.sqrt(2 / 5 * 0.15 ** 2 + 3 / 5 * (0.7 - 1 / 3) ** 2)
    found = metrics.rms_calibration_error([0.7, 0.1, 0.8, 0.2, 0.6], [0, 0, 1, 0, 0], bin_size=2)
    assert found == pytest.approx(expected, rel=1e-12)


def test_equal_confidences_stay_in_order():
    confidences = RANDOM.randint(3, size=1000) / 4
    ranked = sorted(range(1000), key=confidences.__getitem__)  # a stable sort
    _, accuracies, _ = metrics.reliability_bins(confidences, CORRECT[:1000], bin_size=10)
    np.testing.assert_allclose(accuracies, CORRECT[ranked].reshape(100, 10).mean(axis=1))


@pytest.mark.parametrize("bins", [1, 2, 10, 15, 40])
def test_expected_calibration_error_equals_a_loop_over_bins(bins):
    edges = [b / bins for b in range(bins + 1)]
    confidences = np.concatenate([CONFIDENCES, edges])  # each edge belongs to the bin below
    correct = np.concatenate([CORRECT, np.arange(bins + 1) % 3 == 0])
    total = 0.0
    for low, high in zip(edges, edges[1:]):
        inside = [i for i, c in enumerate(confidences) if low < c <= high or (low == 0.0 == c)]
        total += abs(sum(confidences[i] - correct[i] for i in inside)) / len(confidences)
    assert metrics.expected_calibration_error(confidences, correct, bins) == pytest.approx(total, rel=1e-10)


def test_expected_calibration_error_has_15_bins():
    # .06 and .07 lie on either side of 1/15 (but not of 1/14): their gaps cannot cancel
    assert metrics.expected_calibration_error([0.06, 0.07], [0, 1]) == pytest.approx((0.06 + 0.93) / 2)
    assert metrics.expected_calibration_error([0.067, 0.071], [0, 1]) == pytest.approx((0.929 - 0.067) / 2)


@pytest.mark.parametrize("error", [metrics.rms_calibration_error, metrics.expected_calibration_error])
def test_extreme_calibration(error):
    assert error(np.ones(300), np.ones(300, bool)) == 0.0
    assert error(np.ones(300), np.zeros(300, bool)) == 1.0
    assert error(np.zeros(300), np.zeros(300, bool)) == 0.0
    assert error(np.full(300, 0.5), np.tile([0, 1], 150)) == 0.0


# Proper scores

def test_brier_score_equals_sklearn():
    probabilities, labels = RANDOM.dirichlet(np.ones(4), size=50), np.arange(50) % 4
    kept = probabilities.copy()
    expected = sklearn.metrics.brier_score_loss(labels, probabilities, labels=range(4), scale_by_half=False)
    assert metrics.brier_score(probabilities, labels) == pytest.approx(expected, rel=1e-12)
    np.testing.assert_array_equal(probabilities, kept)


def test_brier_score_by_hand():
    assert metrics.brier_score([[0.7, 0.2, 0.1]], [1]) == pytest.approx(0.7 ** 2 + 0.8 ** 2 + 0.1 ** 2)
    assert metrics.brier_score([[1.0, 0.0], [1.0, 0.0]], [0, 1]) == 1.0  # 0 and 2


def test_negative_log_likelihood():
    logits, labels = 3 * RANDOM.randn(50, 4), np.arange(50) % 4
    expected = sklearn.metrics.log_loss(labels, scipy.special.softmax(logits, axis=1), labels=range(4))
    assert metrics.negative_log_likelihood(logits, labels) == pytest.approx(expected, rel=1e-12)
    assert metrics.negative_log_likelihood(np.zeros((3, 7)), [0, 3, 6]) == pytest.approx(np.log(7))


def test_negative_log_likelihood_of_large_logits():
    assert metrics.negative_log_likelihood(np.float32([[1e4, 0.0], [-1e4, -1e4]]), [1, 0]) == \
        pytest.approx((1e4 + np.log(2)) / 2)


# Response rates

def test_aurra_equals_the_mean_of_top_k_accuracies():
    ranked = [right for _, right in sorted(zip(CONFIDENCES, CORRECT), reverse=True)]
    accuracies = [sum(ranked[:k]) / k for k in range(1, len(ranked) + 1)]
    assert metrics.aurra(CONFIDENCES, CORRECT) == pytest.approx(np.mean(accuracies), rel=1e-12)
    rates, found = metrics.response_rate_curve(CONFIDENCES, CORRECT)
    np.testing.assert_allclose(found, accuracies)
    np.testing.assert_allclose(rates, [k / 1037 for k in range(1, 1038)])


@pytest.mark.parametrize("confidences, correct", [
    ([0.9, 0.9, 0.9, 0.5, 0.5, 0.1], [1, 0, 0, 1, 0, 1]),
    ([0.2, 0.8, 0.2, 0.8, 0.2, 0.2], [1, 1, 0, 0, 0, 1]),
    ([0.3] * 6, [0, 0, 1, 0, 1, 0]),
])
def test_ties_are_averaged_over_all_their_orders(confidences, correct):
    curves = []
    for order in itertools.permutations(range(6)):
        if all(confidences[a] >= confidences[b] for a, b in zip(order, order[1:])):
            ranked = np.array(correct)[list(order)]
            curves.append([ranked[:k].mean() for k in range(1, 7)])
            assert metrics.aurra(np.array(confidences)[list(order)], ranked) == metrics.aurra(confidences, correct)
    np.testing.assert_allclose(metrics.response_rate_curve(confidences, correct)[1], np.mean(curves, axis=0))
    assert metrics.aurra(confidences, correct) == pytest.approx(np.mean(curves))


def test_aurra_by_hand():
    assert metrics.aurra([0.9, 0.8, 0.7], [1, 1, 0]) == pytest.approx((1 + 1 + 2 / 3) / 3)
    assert metrics.aurra([0.7, 0.8, 0.9], [1, 1, 0]) == pytest.approx((0 + 1 / 2 + 2 / 3) / 3)


# What outcomes must be

OUTCOME_MEASURES = [metrics.rms_calibration_error, metrics.expected_calibration_error, metrics.aurra,
                    metrics.response_rate_curve, metrics.reliability_bins]


@pytest.mark.parametrize("measure", OUTCOME_MEASURES)
@pytest.mark.parametrize("confidences, correct, message", [
    ([], [], "at least one value of confidences. Received none"),
    ([0.5, 0.5], [True], r"one shape \[N\]. Received shapes: \(2,\), \(1,\)"),
    ([[0.5]], [[True]], r"Received shapes: \(1, 1\)"),
    (0.5, True, r"Received shapes: \(\), \(\)"),
    ([0.5, np.nan], [0, 1], "finite confidences. Received NaN or infinity in 1 of 2"),
    ([0.5, 70.0], [0, 1], r"confidences in \[0, 1\]. Received values in \[0.5, 70\]"),
    ([-0.1, 0.5], [0, 1], r"Received values in \[-0.1, 0.5\]"),
    ([0.5, 0.5], [0, 2], r"bool, or 0 and 1. Received: \[2\]"),
    ([0.5, 0.5], [0, np.nan], "bool, or 0 and 1"),
    ([0.5, 0.5], [0.0, 0.5], r"Received: \[0.5\]"),
])
def test_bad_outcomes_are_named(measure, confidences, correct, message):
    with pytest.raises(ValueError, match=message):
        measure(confidences, correct)


@pytest.mark.parametrize("measure", OUTCOME_MEASURES)
def test_outcomes_may_be_bool_or_numbers(measure):
    expected = measure(CONFIDENCES, CORRECT)
    for kind in (int, float, np.float32):
        found = measure(CONFIDENCES.tolist(), CORRECT.astype(kind))
        assert all(map(np.array_equal, np.atleast_1d(found), np.atleast_1d(expected)))


def test_the_rounding_of_a_softmax_is_forgiven():
    means, _, _ = metrics.reliability_bins(np.float32([1.0000001, 1.0]), [1, 1])
    assert means.tolist() == [1.0]
    assert metrics.aurra(np.float32([1.0000001, 1.0]), [1, 0]) == 0.5  # cut to a tie


@pytest.mark.parametrize("size", [0, -1, 2.0, True, None])
def test_bad_numbers_of_bins_are_named(size):
    with pytest.raises(ValueError, match=f"bin_size as a whole number >= 1. Received: {size}"):
        metrics.reliability_bins([0.5], [1], size)
    with pytest.raises(ValueError, match=f"bins as a whole number >= 1. Received: {size}"):
        metrics.expected_calibration_error([0.5], [1], size)


@pytest.mark.parametrize("score", [metrics.brier_score, metrics.negative_log_likelihood])
@pytest.mark.parametrize("scores, labels, message", [
    ([0.5, 0.5], [0], r"\[N, C\] and labels \[N\]. Received shapes: \(2,\), \(1,\)"),
    ([[0.5, 0.5]], [0, 1], r"Received shapes: \(1, 2\), \(2,\)"),
    ([[0.5, 0.5]], [[0.0, 1.0]], r"Received shapes: \(1, 2\), \(1, 2\)"),
    (np.zeros((0, 3)), np.zeros(0, int), r"Received shapes: \(0, 3\)"),
    ([[0.5, 0.5]], [1.0], "int labels. Received dtype: float64"),
    ([[0.5, 0.5]], [2], "labels in 0..1. Received: 2..2"),
    ([[0.5, 0.5]], [-1], "Received: -1..-1"),
    ([[0.5, 0.5], [0.5, np.nan]], [0, 1], "NaN or infinity for 1 of 2 examples"),
    ([[0.5, np.inf]], [0], "NaN or infinity"),
])
def test_bad_scores_are_named(score, scores, labels, message):
    with pytest.raises(ValueError, match=message):
        score(scores, labels)


def test_probabilities_are_not_logits():
    with pytest.raises(ValueError, match=r"probabilities in \[0, 1\]. Received values in \[-1, 2\]"):
        metrics.brier_score([[-1.0, 2.0]], [0])
    with pytest.raises(ValueError, match=r"sum to 1 .* Received sums in \[1, 1.2\]"):
        metrics.brier_score([[0.5, 0.5], [0.5, 0.7]], [0, 0])


# Corruptions

ALEXNET = metrics.reference_table("alexnet_imagenet_c")
OWN = {name: ALEXNET["errors"][name] for name in metrics.BENCHMARK}
PUBLISHED_MEANS = [.886428, .894468, .922640, .819880, .826268, .785948, .798360, .866816, .826572, .819324, .564592,
                   .853204, .646056, .717840, .606500, .845388, .787108, .717512, .658248]  # of the source


def test_names_are_those_of_the_papers_tables():
    assert metrics.BENCHMARK == (
        "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur",
        "snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression")
    assert metrics.EXTRA == ("speckle_noise", "gaussian_blur", "spatter", "saturate")
    assert [(name, len(members)) for name, members in metrics.GROUPS.items()] == [
        ("noise", 3), ("blur", 4), ("weather", 4), ("digital", 4)]


def test_alexnets_own_errors_are_100_percent():
    assert metrics.mean_corruption_error(OWN) == 100.0
    assert metrics.relative_mean_corruption_error(OWN, 0.4348) == 100.0


def test_the_table_has_the_published_means():
    assert tuple(ALEXNET["errors"]) == metrics.BENCHMARK + metrics.EXTRA and ALEXNET["verified"] is True
    np.testing.assert_allclose([np.mean(row) for row in ALEXNET["errors"].values()], PUBLISHED_MEANS, rtol=1e-9)


def test_mean_corruption_error_equals_sums():
    errors = {name: RANDOM.rand(5) for name in reversed(metrics.BENCHMARK)}
    ratios = [sum(errors[name]) / sum(OWN[name]) for name in metrics.BENCHMARK]
    assert metrics.mean_corruption_error(errors) == pytest.approx(100 * sum(ratios) / 15)
    rises = [sum(e - 0.3 for e in errors[name]) / sum(a - 0.4348 for a in OWN[name]) for name in metrics.BENCHMARK]
    assert metrics.relative_mean_corruption_error(errors, 0.3) == pytest.approx(100 * sum(rises) / 15)


def test_a_reference_of_ones_own():
    table = {"source": "us", "verified": True, "clean_error": 0.1, "errors": {name: [0.5] * 5 for name in OWN}}
    errors = {name: [0.1, 0.2, 0.3, 0.4, 0.5] for name in OWN}
    assert metrics.mean_corruption_error(errors, reference=table) == pytest.approx(60)
    assert metrics.relative_mean_corruption_error(errors, 0.2, reference=table) == pytest.approx(25)
    with pytest.raises(ValueError, match="with source, verified, errors. Missing: \\['errors', 'verified'\\]"):
        metrics.mean_corruption_error(errors, reference={"source": "us"})
    with pytest.raises(ValueError, match="positive reference for 'gaussian_noise'. Received: 0"):
        metrics.relative_mean_corruption_error(errors, 0.2, reference={**table, "clean_error": 0.5})
    with pytest.raises(ValueError, match="with clean_error"):
        metrics.relative_mean_corruption_error(
            errors, 0.2, reference={name: table[name] for name in ("source", "verified", "errors")})
    with pytest.raises(ValueError, match="reference errors of exactly .* missing: \\['fog'\\]"):
        short = {name: row for name, row in table["errors"].items() if name != "fog"}
        metrics.mean_corruption_error(errors, reference={**table, "errors": short})


def relative(errors, reference="alexnet"):
    return metrics.relative_mean_corruption_error(errors, 0.4, reference)


@pytest.mark.parametrize("measure", [metrics.mean_corruption_error, relative])
def test_bad_errors_are_named(measure):
    without = {name: row for name, row in OWN.items() if name != "fog"}
    for errors, message in [
        (without, r"exactly these 15: .* Received 14; missing: \['fog'\], not among them: \[\]"),
        ({**OWN, "spatter": [0.5] * 5}, r"Received 16; missing: \[\], not among them: \['spatter'\]"),
        ({**without, "mist": [0.5] * 5}, r"missing: \['fog'\], not among them: \['mist'\]"),
        ({**OWN, "fog": [0.5] * 4}, r"errors of 'fog' for 5 severities. Received shape: \(4,\)"),
        ({**OWN, "fog": 0.5}, r"Received shape: \(\)"),
        ({**OWN, "fog": [[0.5] * 5]}, r"Received shape: \(1, 5\)"),
        ({**OWN, "fog": [50.0] * 5}, r"errors of 'fog' in \[0, 1\]. Received values in \[50, 50\]"),
        ({**OWN, "fog": [0.5, np.nan, 0.5, 0.5, 0.5]}, "finite errors of 'fog'"),
    ]:
        with pytest.raises(ValueError, match=message):
            measure(errors)
    with pytest.raises(ValueError, match="Unknown reference for imagenet_c: 'alexnt'. Did you mean 'alexnet'?"):
        measure(OWN, reference="alexnt")
    with pytest.raises(ValueError, match="Received: None. .* CIFAR .* report the mean error over the 15 corruptions"):
        measure(OWN, reference=None)


def test_a_clean_error_is_a_fraction():
    with pytest.raises(ValueError, match=r"clean_error in \[0, 1\]. Received values in \[23.9, 23.9\]"):
        metrics.relative_mean_corruption_error(OWN, 23.9)


def test_corruption_means_by_hand():
    # the mean of the i-th of the 19 is i hundredths
    accuracies = {name: np.array([-0.01, 0.0, 0.0, 0.0, 0.01]) + i / 100
                  for i, name in enumerate(metrics.BENCHMARK + metrics.EXTRA, start=1)}
    expected = {"mean15": 0.08, "mean19": 0.10, "mean_without_noise": 0.095, "mean16": (120 + 16) / 1600, "noise": 0.02,
                "blur": 0.055, "weather": 0.095, "digital": 0.135}
    assert metrics.corruption_means(accuracies) == pytest.approx(expected)
    assert list(metrics.corruption_means(accuracies)) == list(expected)


@pytest.mark.parametrize("left_out, gone", [
    ("fog", {"mean15", "mean19", "mean_without_noise", "mean16", "weather"}),
    ("shot_noise", {"mean15", "mean19", "mean16", "noise"}),
    ("speckle_noise", {"mean19", "mean16"}),
    ("spatter", {"mean19"}),
])
def test_a_mean_needs_all_its_corruptions(left_out, gone):
    accuracies = {name: row for name, row in ALEXNET["errors"].items() if name != left_out}
    whole = metrics.corruption_means(ALEXNET["errors"])
    assert metrics.corruption_means(accuracies) == {name: mean for name, mean in whole.items() if name not in gone}


def test_bad_accuracies_are_named():
    assert metrics.corruption_means({"fog": [0.5] * 5}) == {}
    for accuracies, message in [({}, "at least one corruption"), ({"mist": [0.5] * 5}, "Unknown corruption: 'mist'"),
                                ({"fog": [0.5] * 3}, r"accuracies of 'fog' for 5 severities. Received shape: \(3,\)"),
                                ({"fog": [95.0] * 5}, r"accuracies of 'fog' in \[0, 1\]")]:
        with pytest.raises(ValueError, match=message):
            metrics.corruption_means(accuracies)


# Flips

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


@pytest.mark.parametrize("noise, stride", [(False, 1), (False, 2), (False, 3), (False, 30), (True, 1)])
def test_flip_probability_equals_a_loop_over_frames(noise, stride):
    expected = flips_by_loop(CLASSES, noise, stride)
    assert metrics.flip_probability(CLASSES, noise=noise, stride=stride) == pytest.approx(expected, rel=1e-12)


def test_flip_probability_by_hand():
    predictions = [[4, 4, 7, 4, 4], [1, 1, 1, 1, 2]]
    assert metrics.flip_probability(predictions) == 3 / 8
    assert metrics.flip_probability(predictions, noise=True) == 2 / 8
    assert metrics.flip_probability(predictions, stride=2) == 3 / 6
    assert metrics.flip_probability([[5, 5, 5]]) == 0.0 and metrics.flip_probability([[0, 1, 0]]) == 1.0


@pytest.mark.parametrize("predictions, options, message", [
    ([1, 2, 3], {}, r"\[sequences, frames\], .* Received shape: \(3,\)"),
    ([[1], [2]], {}, r"frames > stride = 1. Received shape: \(2, 1\)"),
    ([[1, 2]], {"stride": 2}, r"frames > stride = 2. Received shape: \(1, 2\)"),
    (np.zeros((0, 5), int), {}, r"Received shape: \(0, 5\)"),
    (np.zeros((2, 5, 10), int), {}, r"Received shape: \(2, 5, 10\)"),
    ([[0.1, 0.2]], {}, "int predictions, classes and not scores. Received dtype: float64"),
    ([[1, 2, 3]], {"stride": 0}, "stride as a whole number >= 1. Received: 0"),
    ([[1, 2, 3]], {"stride": 2, "noise": True}, "stride=1 with noise=True. Received: 2"),
])
def test_bad_predictions_are_named(predictions, options, message):
    with pytest.raises(ValueError, match=message):
        metrics.flip_probability(predictions, **options)


ALEXNET_P = metrics.reference_table("alexnet_imagenet_p")
TEN = {name: 0.01 * i for i, name in enumerate(metrics.PERTURBATIONS, start=1)}


def test_the_two_tens():
    assert metrics.PERTURBATIONS == ("gaussian_noise", "shot_noise", "motion_blur", "zoom_blur", "snow", "brightness",
                                     "translate", "rotate", "tilt", "scale")
    assert set(metrics.CIFAR_PERTURBATIONS) ^ set(metrics.PERTURBATIONS) == {"snow", "spatter"}
    assert len(metrics.CIFAR_PERTURBATIONS) == 10


def test_flip_rates_are_percent_of_the_references():
    assert metrics.flip_rate(0.0489 / 2, "brightness") == pytest.approx(50)
    found = metrics.mean_flip_rate(TEN)
    rates = {name: 100 * TEN[name] / ALEXNET_P["flip_probabilities"][name] for name in metrics.PERTURBATIONS}
    assert found["rates"] == pytest.approx(rates)
    assert found["mean"] == pytest.approx(sum(rates.values()) / 10)
    assert found["mean_without_noise"] == pytest.approx(sum(list(rates.values())[2:]) / 8)
    assert metrics.mean_flip_rate(ALEXNET_P["flip_probabilities"])["mean"] == 100.0


def test_alexnets_flips_are_the_recalled_ones():
    assert ALEXNET_P["flip_probabilities"] == pytest.approx(dict(zip(metrics.PERTURBATIONS, (
        .2365, .3006, .0930, .0594, .1193, .0489, .1101, .1310, .0705, .2353))))


def test_an_unverified_table_says_so():
    assert ALEXNET_P["verified"] is False and "issue 49" in ALEXNET_P["source"]
    found = metrics.mean_flip_rate(TEN)
    assert found["verified"] is False and "unverified" in found["label"] and found["source"] == ALEXNET_P["source"]
    own = {"source": "us", "flip_probabilities": {**dict.fromkeys(TEN, 0.5), "spatter": 0.1}}
    checked = metrics.mean_flip_rate(TEN, reference={**own, "verified": True})
    assert checked["verified"] is True and checked["label"] == "mFR" and checked["mean"] == pytest.approx(11)
    assert metrics.flip_rate(0.2, "spatter", reference={**own, "verified": True}) == pytest.approx(200)
    assert metrics.mean_flip_rate(TEN, reference={**own, "verified": "no"})["verified"] is False


def test_mean_flip_probability():
    assert metrics.mean_flip_probability(TEN) == pytest.approx(0.055)
    cifar = {"spatter" if name == "snow" else name: p for name, p in TEN.items()}
    assert metrics.mean_flip_probability(cifar) == pytest.approx(0.055)
    two = {"snow": 0.2, "tilt": 0.4}
    assert metrics.mean_flip_probability(two, names=["tilt", "snow"]) == pytest.approx(0.3)
    with pytest.raises(ValueError, match=r"exactly these 10: .* Received 2; missing: \['gaussian_noise'"):
        metrics.mean_flip_probability(two)
    with pytest.raises(ValueError, match=r"Received 11; missing: \[\], not among them: \['snow'\]"):
        metrics.mean_flip_probability({**TEN, "spatter": 0.1})


def test_bad_flips_are_named():
    cifar = {"spatter" if name == "snow" else name: p for name, p in TEN.items()}
    with pytest.raises(ValueError, match=r"missing: \['snow'\], not among them: \['spatter'\]"):
        metrics.mean_flip_rate(cifar)
    for bad, message in [(12.0, r"flip probability of 'tilt' in \[0, 1\]. Received values in \[12, 12\]"),
                         (np.nan, "finite flip probability of 'tilt'"),
                         ([0.1], r"one flip probability of 'tilt'. Received shape: \(1,\)")]:
        for measure in (metrics.mean_flip_rate, metrics.mean_flip_probability):
            with pytest.raises(ValueError, match=message):
                measure({**TEN, "tilt": bad})
        with pytest.raises(ValueError, match=message):
            metrics.flip_rate(bad, "tilt")
    with pytest.raises(ValueError, match="Unknown perturbation of the reference: 'tlt'. Did you mean 'tilt'"):
        metrics.flip_rate(0.1, "tlt")
    short = {"source": "us", "verified": True, "flip_probabilities": {"snow": 0.1}}
    with pytest.raises(ValueError, match="Expected reference flip probabilities of .* Missing: \\['brightness'"):
        metrics.mean_flip_rate(TEN, reference=short)
    with pytest.raises(ValueError, match=r"flip probability of 'snow' in \[0, 1\]. Received values in \[11.93"):
        metrics.flip_rate(0.1, "snow", reference={**short, "flip_probabilities": {"snow": 11.93}})
    with pytest.raises(ValueError, match=r"flip probability of 'snow' in \[0, 1\]. Received values in \[11.93"):
        metrics.mean_flip_rate(TEN, reference={**short, "flip_probabilities": {**TEN, "snow": 11.93}})


def tilt_rate(probabilities, reference):
    return metrics.flip_rate(probabilities["tilt"], "tilt", reference)


@pytest.mark.parametrize("measure", [metrics.mean_flip_rate, tilt_rate])
def test_a_flip_rate_needs_a_reference(measure):
    with pytest.raises(ValueError, match="CIFAR .* report the mean flip probability"):
        measure(TEN, reference=None)
    with pytest.raises(ValueError, match="Unknown reference for imagenet_p: 'resnet'. .*Known: alexnet"):
        measure(TEN, reference="resnet")


def test_an_unknown_table_is_named():
    with pytest.raises(ValueError, match="Unknown reference table: 'alexnet_imagenet'. Did you mean 'alexnet_im"):
        metrics.reference_table("alexnet_imagenet")
