"""Charts of the results of single images against NumPy."""

import numpy as np
import pytest

from tests.report.conftest import is_image, values_of
from tf_robust import report
from tf_robust.report import curves
from tf_robust.report.chart import save_png

RANDOM = np.random.RandomState(0)
COUNTS, CORRECT = np.array([10.0, 0, 30, 60]), np.array([2.0, 0, 21, 57])
BINS = np.array([COUNTS, CORRECT, COUNTS * [0.3, 0.5, 0.7, 0.95]])


def model(count):
    confidences = RANDOM.rand(count).astype(np.float32)
    return confidences, RANDOM.rand(count) < confidences


MODELS = {
    "one": model(1),
    "few": model(150),
    "many": model(3000),
    "never": (np.full(200, 0.9), np.zeros(200, bool)),
    "always": (np.ones(200), np.ones(200, bool)),
}


@pytest.mark.parametrize("draw", [curves.reliability_diagram, curves.response_rate_curves])
def test_models_of_any_size_are_drawn(tmp_path, draw):
    assert is_image(save_png(draw(MODELS), str(tmp_path / "made")))


def test_the_diagram_has_a_point_for_every_bin():
    points = values_of(curves.reliability_diagram({"few": MODELS["few"], "many": MODELS["many"]}, bin_size=50))
    bins = [value["model"] for value in points if "confidence" in value]
    few, many = dict.fromkeys(bins)
    assert (bins.count(few), bins.count(many)) == (3, 60) and few.startswith("few: RMS error 0.")


def test_the_band_contains_95_percent_of_calibrated_bins():
    points = values_of(curves.reliability_diagram({"half": (np.full(100, 0.5), np.arange(100) < 50)}))
    (half,) = (value for value in points if value.get("chance") == 0.5)
    assert [half["low"], half["high"]] == pytest.approx([0.5 - 1.96 * 0.05, 0.5 + 1.96 * 0.05])


def test_curves_have_their_aurra_and_begin_at_the_lowest_response_rate():
    points = values_of(curves.response_rate_curves({"ordered": ([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 0]), **MODELS}))
    ordered = [value for value in points if value["row"] == "ordered"]
    np.testing.assert_allclose([value["rate"] for value in ordered], [0.25, 0.5, 0.75, 1.0])
    np.testing.assert_allclose([value["accuracy"] for value in ordered], [1, 1, 2 / 3, 0.5])
    assert ordered[0]["AURRA"] == pytest.approx(0.792, abs=1e-3)
    many = [value for value in points if value["row"] == "many"]
    assert len(many) == 200 and 0.02 <= many[0]["rate"] < 0.03 and many[-1]["rate"] == 1


def test_curves_of_distances_rise_by_one_image_a_distance():
    chart = report.attack_curves({"xe": {"pgd_l2": [0.3, 0.0, np.inf, 0.1]}})
    values = values_of(chart)  # of its only panel
    assert [(v["size"], v["misclassified"]) for v in values] == [(0.0, 0.25), (0.1, 0.5), (0.3, 0.75)]
    assert values[0]["median"] == pytest.approx(0.2)


def test_curves_can_be_compared_in_panels_of_some_rows():
    models = {"xe": {"pgd_l2": [0.3], "plb_l2": [0.2]}, "fcl": {"pgd_l2": [0.5]}, "nfm": {"pgd_l2": [0.1]}}
    chart = report.attack_curves(models, {"one": ["xe", "fcl"], "two": ["fcl", "missing"], "none": ["missing"]})
    rows = {panel.title: list(dict.fromkeys(v["row"] for v in values_of(panel))) for panel in chart.concat}
    assert rows == {"one, pgd_l2": ["xe", "fcl"], "one, plb_l2": ["xe"], "two, pgd_l2": ["fcl"], "two, plb_l2": []}
    assert len({str(panel.encoding.color.to_dict()) for panel in chart.concat}) == 1  # a row looks the same in all


def test_the_certified_curve_is_the_fraction_of_images_with_at_least_a_radius():
    radii = np.array([0.0, 0.3, 0.1, 0.0, 0.2])
    values = values_of(report.certified_curves({"ours": radii, "nothing": np.zeros(4)}, {"ours": {0.25: 0.4, 0.0: 0.8}}))
    certified = {(v["row"], v["radius"]): v["accuracy"] for v in values if v["kind"] == "certified"}
    assert certified == {("ours", r): np.mean(radii >= max(r, 1e-9)) for r in (0.0, 0.1, 0.2, 0.3)} | {("nothing", 0.0): 0.0}
    assert [(v["radius"], v["accuracy"]) for v in values if v["kind"] == "PGD"] == [(0.0, 0.8), (0.25, 0.4)]


def test_many_radii_are_thinned(tmp_path):
    chart = report.certified_curves({"ours": np.random.RandomState(0).rand(2000)}, {"ours": {0.0: 0.9}})
    assert len(values_of(chart)) == 302 and is_image(save_png(chart, str(tmp_path)))


def test_risk_is_the_error_of_the_most_confident(tmp_path):
    chart = curves.risk_coverage({"a": {"clean": BINS}})
    points = sorted({(one["coverage"], one["error"]) for one in values_of(chart)})
    np.testing.assert_allclose(points, [(0.6, 0.05), (0.9, 12 / 90), (1, 0.2)])
    assert is_image(save_png(chart, str(tmp_path)))


def test_reliability_is_the_accuracy_of_each_bin(tmp_path):
    chart = curves.reliability_by_severity({"a": {"clean": BINS}})
    points = [(one["confidence"], one["accuracy"]) for one in values_of(chart)]
    np.testing.assert_allclose(points, [(0.3, 0.2), (0.7, 0.7), (0.95, 0.95)])
    assert is_image(save_png(chart, str(tmp_path)))
