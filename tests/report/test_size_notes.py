"""Where images are resized between corruption and network, the report says at which sizes."""

import types

import pytest

from tf_robust import evaluation, report


def sized(evaluation_of_run, corrupted_at, model_input, **more):
    return {
        **evaluation_of_run,
        "card": {"data": more.pop("data", {}), "sizes": {"corrupted_at": [corrupted_at] * 2, "model_input": [model_input] * 2}},
    }


def test_each_kind_of_resizing_is_stated(evaluate):
    measures = {"clean": 0.9, "corruptions/mean15": 0.5}
    same, enlarged, also = (sized(evaluate(row, 0, measures), 32, side) for row, side in (("a", 32), ("b", 224), ("c", 224)))
    assert report.evaluation_notes([same, evaluate("old", 0, measures)]) == []
    assert report.evaluation_notes([same, enlarged, also]) == [
        "b, c: corruptions were applied at 32x32 pixels; the network takes 224x224, and the images were resized to that after it."
    ]
    files = sized(evaluate("d", 0, {"un": 0.5, "flips/mean": 0.1}), 224, 224, data={"image_fit": "cropped"})
    assert report.evaluation_notes([files]) == [
        "d: perturbations and noise were applied at 224x224 pixels, to which the image files were resized before (cropped); "
        "the network takes 224x224."
    ]
    assert report.evaluation_notes([sized(evaluate("e", 0, {"clean": 0.5}), 32, 224)]) == []  # nothing is applied
    fitted = sized(evaluate("f", 0, measures), 224, 224, data={"image_fit": "cropped to 224x224"})
    assert "to which the image files were resized before (cropped to 224x224)" in report.evaluation_notes([fitted])[0]


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
