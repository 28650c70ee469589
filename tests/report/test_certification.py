"""The chart of certified accuracies against counts of the radii."""

import numpy as np
import pytest

from tf_robust import report


def test_the_curve_is_the_fraction_of_images_with_at_least_a_radius():
    radii = np.array([0.0, 0.3, 0.1, 0.0, 0.2])
    chart = report.certified_curves({"ours": radii, "nothing": np.zeros(4)}, {"ours": {0.25: 0.4, 0.0: 0.8}})
    values = chart.spec["data"]["values"]
    certified = {(v["row"], v["radius"]): v["accuracy"] for v in values if v["kind"] == "certified"}
    assert certified == {("ours", r): np.mean(radii >= max(r, 1e-9)) for r in (0.0, 0.1, 0.2, 0.3)} | {("nothing", 0.0): 0.0}
    assert [(v["radius"], v["accuracy"]) for v in values if v["kind"] == "PGD"] == [(0.0, 0.8), (0.25, 0.4)]


def test_many_radii_are_thinned_and_no_model_is_refused():
    radii = np.random.RandomState(0).rand(2000)
    assert len(report.certified_curves({"ours": radii}, {}).spec["data"]["values"]) == 301
    with pytest.raises(ValueError, match="at least one model"):
        report.certified_curves({}, {})
