"""Sentences below a table on what its measures depend on."""

import scipy.stats

from tf_robust import report


def test_a_certificate_is_reported_with_its_noise_and_its_largest_radius(evaluate):
    part = {"sigma": 0.25, "selection": 100, "samples": 1000, "alpha": 0.001}
    run = {**evaluate("noised", 0, {"certified/l2_0.25": 0.6}), "card": {"data": {}, "certified": part}}
    (note,) = report.evaluation_notes([run, run])
    largest = 0.25 * scipy.stats.norm.ppf(0.001 ** (1 / 1000))  # all copies of the selected class
    assert note.startswith("noised: certified accuracy") and f"no l2 radius above {largest:.2f} " in note
    assert all(text in note for text in ("standard deviation 0.25", "confidence 0.999", "from 100 noisy copies", "1,000 that bound"))


def test_means_over_other_severities_are_named(evaluate):
    run = {**evaluate("a", 0, {"corruptions/mean15": 0.6}), "card": {"corruption_means": {"means_over_severities": [1, 3, 5]}}}
    other = {**evaluate("b", 0, {"corruptions/mean15": 0.6}), "card": {}}
    assert report.evaluation_notes([run, other]) == ["a: means over corruptions are of severity 1, 3, 5 alone."]


def test_few_bins_of_the_calibration_error_are_named(evaluate):
    few, many = ({**evaluate(row, 0, {"calibration/rms": 0.02}), "card": {}} for row in ("few", "many"))
    few["rows"][0]["count"], many["rows"][0]["count"] = 160, 500
    (note,) = report.evaluation_notes([few, many])
    assert note.startswith("few: the RMS calibration error is that of bins of 100 images. 160 images give 1, ")
    few["rows"][0]["measure"] = "adapted/calibration/rms"
    assert report.evaluation_notes([few]) == [note]
