"""Notes on what the metrics of a table depend on."""

import types

import pytest
import scipy.stats

from tf_robust import evaluation, report


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
    few["rows"][0]["metric"] = "adapted/calibration/rms"
    assert report.evaluation_notes([few]) == [note]


def sized(evaluation_of_run, corrupted_at, model_input, **more):
    sizes = {"corrupted_at": [corrupted_at] * 2, "model_input": [model_input] * 2}
    return {**evaluation_of_run, "card": {"data": more.pop("data", {}), "sizes": sizes}}


def test_each_kind_of_resizing_is_stated(evaluate):
    metrics = {"clean": 0.9, "corruptions/mean15": 0.5}
    same, enlarged, also = (sized(evaluate(row, 0, metrics), 32, side) for row, side in (("a", 32), ("b", 224), ("c", 224)))
    assert report.evaluation_notes([same, evaluate("old", 0, metrics)]) == []
    assert report.evaluation_notes([same, enlarged, also]) == [
        "b, c: corruptions were applied at 32x32 pixels; the network takes 224x224, and the images were resized to that after it."
    ]
    files = sized(evaluate("d", 0, {"un": 0.5, "flips/mean": 0.1}), 224, 224, data={"image_fit": "cropped to 224x224"})
    assert report.evaluation_notes([files]) == [
        "d: perturbations and noise were applied at 224x224 pixels, to which the image files were resized before (cropped to 224x224); "
        "the network takes 224x224."
    ]
    assert report.evaluation_notes([sized(evaluate("e", 0, {"clean": 0.5}), 32, 224)]) == []  # nothing is applied


def test_a_report_states_it(tmp_path, evaluate):
    run = sized(evaluate("b", 0, {"corruptions/mean15": 0.5}), 32, 224)
    report.write(str(tmp_path), [run], title="t", command="c", commit="x")
    for name in ("report.md", "report.html"):
        assert "b: corruptions were applied at 32x32 pixels; the network takes 224x224" in (tmp_path / name).read_text()


@pytest.mark.parametrize(
    "input_size, flags, expected",
    [(0, {}, 16), (64, {}, 64), (0, {"resize": "48"}, 48), (0, {"resize": "8"}, 8), (64, {"resize": "96"}, 64), (0, [], 16)],
)
def test_the_size_that_the_network_sees(source, input_size, flags, expected):
    predict = types.SimpleNamespace(interface=types.SimpleNamespace(input_size=input_size), card={"flags": flags})
    assert evaluation.image_sizes(source(), predict) == {"corrupted_at": [16, 16], "model_input": [expected] * 2}


def test_different_numbers_of_seeds_are_named():
    def run(row, seed):
        return {"row": row, "seed": seed, "rows": [], "split": "test"}

    runs = [run("a", seed) for seed in range(5)] + [run("b", seed) for seed in range(3)]
    assert report.evaluation_notes(runs) == ["Seeds: a 5, b 3."] and report.evaluation_notes(runs[5:]) == []
    assert report.evaluation_notes([*runs[:3], *runs[5:]]) == []
