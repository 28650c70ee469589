"""Models of other programs on the command line and in Python: the check of their inputs, and models and data that do not fit."""

import pickle

import keras
import numpy as np
import pytest
from PIL import Image

from tests.command_line import main
from tests.small_runs import read, without_charts  # noqa: F401
from tf_robust import api

COUNT = 40  # images of each class


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images of three brightnesses, a file bright.keras that tells them apart on 0 to 255 alone, and files that are no models."""
    root = tmp_path_factory.mktemp("foreign")
    for label, gray in (("dark", 20), ("medium", 110), ("white", 200)):
        (root / "photos" / label).mkdir(parents=True)
        for i in range(COUNT):
            Image.fromarray(np.full((8, 8, 3), gray + i, np.uint8)).save(root / "photos" / label / f"{i}.png")
    images = keras.Input((8, 8, 3))
    mean = keras.ops.mean(images, axis=(1, 2, 3))
    scores = keras.ops.stack([-keras.ops.abs(mean - center) for center in (40.0, 130.0, 220.0)], axis=1)
    keras.Model(images, scores).save(root / "bright.keras")
    keras.Model(images, keras.ops.softmax(scores)).save(root / "soft.keras")
    keras.Model(images, keras.ops.take(scores, [1, 0, 2], axis=1)).save(root / "swapped.keras")
    keras.Model(images, [scores, mean]).save(root / "two.keras")
    keras.Model(images, scores * np.nan).save(root / "nan.keras")
    keras.Model(images, scores[:, :2]).save(root / "classes.keras")
    keras.Model(images, keras.layers.Lambda(lambda x: 2 * x)(scores)).save(root / "lambda.keras")
    for name in ("pickle.pt", "broken.keras", "unknown.bin"):
        (root / name).write_bytes(pickle.dumps({"weights": [1.0]}))
    return root


def evaluate(folder, name, workdir, *arguments):
    main("evaluate", f"{folder}/{name}", f"--data=folder:{folder}/photos", "--evaluations=clean", f"--workdir={workdir}", *arguments)
    return read(workdir / "evaluation.json")


def clean(evaluation):
    return next(row["value"] for row in evaluation["rows"] if row["metric"] == "clean")


@pytest.mark.parametrize("declared", [(), ("--input_range=-1,1",)])
def test_a_wrong_pixel_scale_stops_the_evaluation_and_the_right_one_is_named(folder, tmp_path, declared):
    with pytest.raises(ValueError, match=r"with 0,255 it is 100.0%. Try: input_range=0,255 \("):
        evaluate(folder, "bright.keras", tmp_path / "run", *declared)
    assert not (tmp_path / "run" / "evaluation.json").exists() and not (tmp_path / "run" / "measured.jsonl").exists()


@pytest.mark.parametrize(
    "name, declared, outputs",
    [("bright.keras", "0,255", "logits"), ("bright.keras", "auto", "logits"), ("soft.keras", "0,255", "probabilities")],
)
def test_the_right_pixel_scale_is_taken_and_recorded(folder, tmp_path, name, declared, outputs, capsys):
    evaluation = evaluate(folder, name, tmp_path, f"--input_range={declared}")
    assert clean(evaluation) == 1
    assert evaluation["interface"] == {"input_range": "0,255", "outputs": outputs, "signature": "serving_default", "input_size": 0}
    assert ("Note: input_range=0,255 fits" in capsys.readouterr().out) == (declared == "auto")


def test_without_the_check_a_wrong_pixel_scale_is_measured(folder, tmp_path):
    evaluation = evaluate(folder, "bright.keras", tmp_path, "--check_inputs=false")
    assert clean(evaluation) == pytest.approx(1 / 3) and evaluation["interface"]["input_range"] == "0,1"
    with pytest.raises(ValueError, match="Received: auto. Try: check_inputs"):
        evaluate(folder, "bright.keras", tmp_path, "--check_inputs=false", "--input_range=auto")


def test_a_wrong_class_order_stops_the_evaluation_and_a_label_map_mends_it(folder, tmp_path):
    with pytest.raises(ValueError, match="with the columns dark 1, medium 0. Try: label_map=FILE"):
        evaluate(folder, "swapped.keras", tmp_path / "wrong", "--input_range=0,255")
    (tmp_path / "map.txt").write_text("dark 1\nmedium 0\nwhite 2\n")
    assert clean(evaluate(folder, "swapped.keras", tmp_path / "right", "--input_range=0,255", f"--label_map={tmp_path}/map.txt")) == 1


@pytest.mark.parametrize(
    "name, message",
    [
        ("unknown.bin", "unknown.bin"),
        ("pickle.pt", "may be a pickled model"),
        ("broken.keras", "File is not a zip file"),
        ("photos", "photos, a folder"),
        ("two.keras", "only one output"),
        ("nan.keras", "finite logits in 'clean'"),
        ("classes.keras", "classes.keras with 2 classes"),
        ("lambda.keras", "Lambda layer"),
    ],
)
def test_models_that_do_not_fit_are_described_and_nothing_is_written(folder, tmp_path, name, message):
    with pytest.raises((ValueError, FileNotFoundError), match=f"(?s)^Expected .*{message}"):
        evaluate(folder, name, tmp_path / "run")
    assert not (tmp_path / "run" / "evaluation.json").exists()


def test_a_required_measure_that_is_not_measured_is_refused_before_the_model_is_read(folder, tmp_path):
    with pytest.raises(ValueError, match="evaluations=clean,corruptions"):
        evaluate(folder, "broken.keras", tmp_path, "--require=corruptions/mean15>=0.7")


IMAGES, LABELS = np.random.RandomState(0).rand(20, 8, 8, 3).astype(np.float32), np.arange(20) % 10


@pytest.mark.parametrize(
    "model, message",
    [
        (lambda x: np.zeros([len(x), 5], np.float32), "labels in 0..4"),
        (lambda x: np.zeros(len(x), np.float32), r"Received: \[20\]"),
        (lambda x: np.zeros([3, 10], np.float32), r"Received: \[3, 10\]"),
        (lambda x: np.full([len(x), 10], np.nan, np.float32), "finite logits"),
        (lambda x: (x, x), "2 outputs"),
        (lambda x: {"a": x}, "dictionary with: 'a'"),
        (lambda x: None, "NoneType"),
    ],
)
def test_functions_whose_scores_do_not_fit_are_described(model, message):
    with pytest.raises(ValueError, match=message):
        api.evaluate(model, data=(IMAGES, LABELS), evaluations="clean")
