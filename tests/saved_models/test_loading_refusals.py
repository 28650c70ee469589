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
        ("unnamed_outputs", "output named 'logits' or 'probabilities', or only one.*a float32"),
        ("a_map", r"floats \[N, classes\].*y float32 .None, 8, 8, 3."),
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
        (ModelInterface(signature="wide", input_size=8), "8x16. Received: 8. Try: omit input_size and pass images of that size"),
        (ModelInterface(input_range="mean=0.1,0.2 std=1"), "one number, or 3, in mean and std"),
        (ModelInterface(signature="bytes", input_range="-1,1"), "input_range 0,255 for a model that takes uint8"),
        (ModelInterface(signature="soft", outputs="logits"), "pass outputs=probabilities"),
        (ModelInterface(signature="two_outputs", outputs="logits"), "output named 'logits'.*For 'probabilities', pass outputs="),
    ],
)
def test_interfaces_that_do_not_fit(plain, interface, message):
    with pytest.raises(ValueError, match=message):
        load_classifier(plain, interface)


@pytest.mark.parametrize(
    "shape, message",
    [
        ((8, 8, 1), r"\[8, 8, 3\] .*\[8, 8, 1\]. Only image files are converted automatically"),
        ((5, 5, 3), r"\[5, 5, 3\]. Try: image_size=8, which loads the data at the model's size"),
    ],
)
def test_images_that_do_not_fit(plain, shape, message):
    with pytest.raises(ValueError, match=message):
        load_classifier(plain)(sample_images(shape))
    with pytest.raises(ValueError, match=message):
        load_classifier(plain).check_images_match(shape)


def test_images_that_do_not_fit_another_interface(plain):
    with pytest.raises(ValueError, match="\\[5, 5, 1\\]. Only image files"):
        load_classifier(plain, ModelInterface(input_size=8))(sample_images((5, 5, 1)))
    three_means = ModelInterface(signature="any_channels", input_range=NORMALIZATION)
    with pytest.raises(ValueError, match=r"\[8, 8, 3\] .*\[8, 8, 1\]. Only image files"):
        load_classifier(plain, three_means)(sample_images((8, 8, 1)))
    with pytest.raises(ValueError, match="Try: convert the images"):
        load_classifier(plain, ModelInterface(signature="wide"))(sample_images())
    with pytest.raises(ValueError, match="Received: uint8"):
        load_classifier(plain)(sample_images().astype(np.uint8))
    with pytest.raises(ValueError, match="Try: convert the images"):
        load_classifier(plain)(sample_images()[0])


@pytest.mark.parametrize(
    "text",
    [
        "1,0",
        "0",
        "0,1,2",
        "a,b",
        "0,nan",
        "-inf,1",
        "mean=0.5",
        "mean=0.5 std=0",
        "mean=123.7,116.3,103.5 std=58,57,57",
        "mean=0.1,0.2 std=1,1,1",
        "std=1 mean=0",
    ],
)
def test_invalid_input_ranges(text):
    with pytest.raises(ValueError, match="Expected input_range as LOW,HIGH.* or 'mean="):
        ModelInterface(input_range=text)


@pytest.mark.parametrize(
    "text, meant",
    [("0-255", "0,255"), ("[0,255]", "0,255"), ("0..1", "0,1"), ("-1:1", "-1,1"), ("-1 to 1", "-1,1"), ("0, 255)", "0,255")],
)
def test_input_ranges_in_another_notation(text, meant):
    with pytest.raises(ValueError, match=rf"Received: .*\. Did you mean {meant}\?$"):
        ModelInterface(input_range=text)
    with pytest.raises(ValueError, match="Received: '255,0'$"):
        ModelInterface(input_range="255,0")


def test_invalid_outputs_and_sizes():
    with pytest.raises(ValueError, match="Did you mean 'probabilities'"):
        ModelInterface(outputs="probability")
    with pytest.raises(ValueError, match="input_size >= 0"):
        ModelInterface(input_size=-1)


def test_a_missing_model(plain, tmp_path):
    with pytest.raises(FileNotFoundError, match="Not found: .*nothing"):
        load_classifier(str(tmp_path / "nothing"))
    with pytest.raises(FileNotFoundError, match="a folder with: nothing"):
        load_classifier(str(tmp_path))
    with pytest.raises(FileNotFoundError, match=f"Did you mean {plain}?"):
        load_classifier(os.path.dirname(plain))
    with pytest.raises(ValueError, match="saved_model.pb, which is not .* Try: the folder"):
        load_classifier(os.path.join(plain, "saved_model.pb"))
    tf.saved_model.save(tf.Module(), str(tmp_path / "empty"))
    with pytest.raises(ValueError, match="'serving_default' of .* does not exist. It has none: save it with"):
        load_classifier(str(tmp_path / "empty"))


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
    with pytest.raises(ValueError, match="Expected a model that can be loaded. Received: .* Try: copy it or export it"):
        load_classifier(path)


def test_a_damaged_or_unsafe_keras_file(tmp_path):
    path = str(tmp_path / "m.keras")
    keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda x: 2 * x)]).save(path)
    with pytest.raises(ValueError, match="it contains Python code .a Lambda layer., which is not run.*trust.*model.export"):
        load_classifier(path)
    with open(path, "r+b") as file:
        file.truncate(500)
    with pytest.raises(ValueError, match="File is not a zip file"):
        load_classifier(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other.txt", "")
    with pytest.raises(ValueError, match="Expected a model that can be loaded. Received: .*config.json.*Try: copy it again"):
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


def test_keras_models_that_do_not_fit(tmp_path):
    first, second = keras.Input(SHAPE, name="first"), keras.Input((4,), name="second")
    path = str(tmp_path / "two.keras")
    keras.Model([first, second], keras.layers.Dense(CLASSES)(keras.layers.Flatten()(first)) + second).save(path)
    with pytest.raises(ValueError, match="takes 2 tensors.*\n  serving_default: first float32 .*, second float32"):
        load_classifier(path)


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
    with pytest.raises(ValueError, match="Could not locate class 'Subclassed'.*model.export"):
        load_classifier(path)
    with keras.saving.custom_object_scope({"Subclassed": Subclassed}):
        with pytest.raises(ValueError, match="its inputs are unknown.*model.export"):
            load_classifier(path)
    model.export(tmp_path / "m", verbose=False)
    np.testing.assert_allclose(load_classifier(tmp_path / "m")(sample_images()), expected, atol=1e-5)
