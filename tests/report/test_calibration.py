import numpy as np
import pytest

from tests.report.conftest import is_image
from tf_robust.report import calibration

RANDOM = np.random.RandomState(0)


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
both = pytest.mark.parametrize("draw", [calibration.reliability_diagram, calibration.response_rate_curves])


def values(chart):
    return chart.spec["data"]["values"]


@pytest.mark.parametrize("names", [["many"], list(MODELS)])
@both
def test_images(tmp_path, draw, names):
    assert is_image(draw({name: MODELS[name] for name in names}).save(str(tmp_path / "made")))


def test_the_diagram_has_a_point_for_every_bin():
    points = values(calibration.reliability_diagram({"few": MODELS["few"], "many": MODELS["many"]}, bin_size=50))
    bins = [value["model"] for value in points if "confidence" in value]
    few, many = dict.fromkeys(bins)
    assert (bins.count(few), bins.count(many)) == (3, 60) and few.startswith("few: RMS error 0.")


def test_the_band_contains_95_percent_of_calibrated_bins():
    points = values(calibration.reliability_diagram({"half": (np.full(100, 0.5), np.arange(100) < 50)}))
    (half,) = (value for value in points if value.get("chance") == 0.5)
    assert [half["low"], half["high"]] == pytest.approx([0.5 - 1.96 * 0.05, 0.5 + 1.96 * 0.05])


def test_curves_have_their_aurra_and_begin_at_the_lowest_response_rate():
    points = values(calibration.response_rate_curves({"ordered": ([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 0]), **MODELS}))
    ordered = [value for value in points if value["row"] == "ordered"]
    np.testing.assert_allclose([value["rate"] for value in ordered], [0.25, 0.5, 0.75, 1.0])
    np.testing.assert_allclose([value["accuracy"] for value in ordered], [1, 1, 2 / 3, 0.5])
    assert ordered[0]["AURRA"] == pytest.approx(0.792, abs=1e-3)
    many = [value for value in points if value["row"] == "many"]
    assert len(many) == 200 and 0.02 <= many[0]["rate"] < 0.03 and many[-1]["rate"] == 1


@both
def test_bad_models_are_named(draw):
    with pytest.raises(ValueError, match="at least one model .* Received: none"):
        draw({})
    with pytest.raises(ValueError, match="Expected confidences"):
        draw({"bad": ([0.5, 2.0], [0, 1])})
