"""Models, interfaces and images that do not fit and damaged files are refused."""

import contextlib
import os
import shutil
import tempfile
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.saved_models import loading_models
from tests.saved_models.loading_models import CLASSES, NORMALIZATION, SHAPE, sample_images
from tf_robust.saved_models.loading import ModelInterface, load_classifier

plain = loading_models.plain  # the fixture


@pytest.mark.parametrize(
    "name, message",
    [
        ("missing", "'missing' of .* does not exist"),
        ("flat", "rank 2, not 4"),
        ("encoded", "takes strings"),
        ("whole_numbers", "takes int32"),
        ("one_by_one", "takes exactly 1 "),
        ("two_inputs", "takes 2 tensors"),
        ("unnamed_outputs", "'logits' or 'probabilities', or only one.*a float32"),
        ("a_map", "y float32 .None, 8, 8, 3."),
        ("classes", "y int64 .None, 4."),
    ],
)
def test_signatures_that_do_not_fit_are_described(plain, name, message):
    with pytest.raises(ValueError, match=f"(?s)Expected .*{message}") as error:
        load_classifier(plain, ModelInterface(signature=name))
    assert "serving_default: x float32 [None, 8, 8, 3] -> scores float32 [None, 4]" in str(error.value)


def test_a_misfit_names_the_signatures_that_fit(plain):
    with pytest.raises(ValueError, match="Try: signature=") as error:
        load_classifier(plain, ModelInterface(signature="missing"))
    advice = str(error.value).rsplit("\n", 1)[1]
    assert "signature=doubled" in advice and "signature=flat" not in advice


@pytest.mark.parametrize(
    "interface, message",
    [
        (ModelInterface(input_size=9), "8x8. Received: 9. Try: image_size=8"),
        (ModelInterface(signature="wide", input_size=8), "8x16. Received: 8. Try: omit input_size"),
        (ModelInterface(input_range="mean=0.1,0.2 std=1"), "input_range .* 3 channels"),
        (ModelInterface(signature="bytes", input_range="-1,1"), "input_range 0,255 .* uint8"),
        (ModelInterface(signature="soft", outputs="logits"), "pass outputs=probabilities"),
        (ModelInterface(signature="two_outputs", outputs="logits"), "pass outputs=probabilities"),
    ],
)
def test_interfaces_that_do_not_fit(plain, interface, message):
    with pytest.raises(ValueError, match=message):
        load_classifier(plain, interface)


@pytest.mark.parametrize(
    "interface, shape, message",
    [
        ({}, (8, 8, 1), r"\[8, 8, 3\] .*\[8, 8, 1\]"),
        ({}, (5, 5, 3), r"\[5, 5, 3\]. Try: image_size=8"),
        ({"input_size": 8}, (5, 5, 1), r"\[5, 5, 1\]"),
        ({"signature": "any_channels", "input_range": NORMALIZATION}, (8, 8, 1), r"\[8, 8, 3\] .*\[8, 8, 1\]"),
        ({"signature": "wide"}, SHAPE, "Try: convert the images"),
    ],
)
def test_images_that_do_not_fit(plain, interface, shape, message):
    classify = load_classifier(plain, ModelInterface(**interface))
    for function, argument in ((classify, sample_images(shape)), (classify.check_images_match, shape)):
        with pytest.raises(ValueError, match=message):
            function(argument)


def test_images_of_another_type_or_rank(plain):
    with pytest.raises(ValueError, match="uint8"):
        load_classifier(plain)(sample_images().astype(np.uint8))
    with pytest.raises(ValueError, match="Try: convert the images"):
        load_classifier(plain)(sample_images()[0])


@pytest.mark.parametrize(
    "text",
    [
        *("1,0", "0", "0,1,2", "a,b", "0,nan", "-inf,1", "mean=0.5", "mean=0.5 std=0", "mean=0.1,0.2 std=1,1,1", "std=1 mean=0"),
        "mean=123.7,116.3,103.5 std=58,57,57",
    ],
)
def test_invalid_input_ranges(text):
    with pytest.raises(ValueError, match="Expected input_range"):
        ModelInterface(input_range=text)


@pytest.mark.parametrize(
    "text, meant",
    [("0-255", "0,255"), ("[0,255]", "0,255"), ("0..1", "0,1"), ("-1:1", "-1,1"), ("-1 to 1", "-1,1"), ("0, 255)", "0,255")],
)
def test_input_ranges_in_another_notation(text, meant):
    with pytest.raises(ValueError, match=rf"Did you mean {meant}\?$"):
        ModelInterface(input_range=text)


@pytest.mark.parametrize("field, value", [("outputs", "probability"), ("input_size", -1)])
def test_invalid_outputs_and_sizes(field, value):
    with pytest.raises(ValueError, match=field):
        ModelInterface(**{field: value})


def test_a_missing_model(plain, tmp_path):
    tf.saved_model.save(tf.Module(), str(tmp_path / "empty"))
    (tmp_path / "folder").mkdir()
    for path, error, message in (
        (tmp_path / "nothing", FileNotFoundError, "Not found: .*nothing"),
        (tmp_path / "folder", FileNotFoundError, "a folder with: nothing"),
        (os.path.dirname(plain), FileNotFoundError, f"Did you mean {plain}?"),
        (os.path.join(plain, "saved_model.pb"), ValueError, "Try: the folder"),
        (tmp_path / "empty", ValueError, "'serving_default' of .* does not exist"),
    ):
        with pytest.raises(error, match=message):
            load_classifier(path)


@pytest.mark.parametrize("damage", [b"", b"\x0a\x05damage", "half", "no variables", "half variables"])
def test_a_damaged_saved_model(plain, tmp_path, damage):
    path = shutil.copytree(plain, tmp_path / "m")
    file = path / ("variables/variables.data-00000-of-00001" if "variables" in str(damage) else "saved_model.pb")
    if damage == "no variables":
        shutil.rmtree(path / "variables")
    elif isinstance(damage, bytes):
        file.write_bytes(damage)
    else:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(ValueError, match=f"Received: {path}"):
        load_classifier(path)


@pytest.mark.parametrize("member", ["../outside.txt", "assets/../../outside.txt", "/{folder}/outside.txt"])
def test_a_hostile_member_of_a_keras_file_writes_nothing_elsewhere(member, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    path = str(tmp_path / "m.keras")
    keras.Sequential([keras.Input(SHAPE), keras.layers.Flatten(), keras.layers.Dense(CLASSES)]).save(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(zipfile.ZipInfo(member.format(folder=tmp_path)), "here")
        archive.writestr("assets/kept.txt", "here")  # Keras unpacks assets
    with contextlib.suppress(ValueError):
        load_classifier(path, ModelInterface(outputs="logits"))
    assert list(tmp_path.rglob("outside.txt")) == []


class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(CLASSES)

    def call(self, x):
        return self.dense(keras.ops.reshape(x, (-1, 192)))


def test_a_keras_file_of_a_custom_class(tmp_path):
    model, path = Subclassed(), str(tmp_path / "m.keras")
    expected = model(sample_images())
    model.save(path)
    with pytest.raises(ValueError, match="Subclassed.*model.export"):
        load_classifier(path)
    with keras.saving.custom_object_scope({"Subclassed": Subclassed}):
        with pytest.raises(ValueError, match="its inputs are unknown.*model.export"):
            load_classifier(path)
    model.export(tmp_path / "m", verbose=False)
    np.testing.assert_allclose(load_classifier(tmp_path / "m")(sample_images()), expected, atol=1e-5)
