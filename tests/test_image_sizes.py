"""Image files, the size that a model takes, and what is printed and recorded about the way from one to the other."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.command_line import main
from tests.small_runs import eagerly, read, sample_images, without_charts, write_images  # noqa: F401
from tf_robust import api, data, models
from tf_robust.saved_models import export, loading

pytestmark = pytest.mark.usefixtures("eagerly")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """32x32 noise whose class is in single pixels, which resizing would mix."""
    root, random = tmp_path_factory.mktemp("sizes"), np.random.RandomState(0)
    for split, count in (("train", 1), ("test", 12)):
        images = random.randint(256, size=(2, count, 32, 32, 3)).astype(np.uint8)
        images[:, :, 0, 0] = np.array([0, 255])[:, None, None]
        write_images(root / "images" / split, {"0": images[0], "1": images[1]})
    return root


def corner_model(side):
    """Logits from the pixel at the upper left alone."""
    images = keras.Input([side, side, 3])
    corner = keras.layers.GlobalAveragePooling2D()(keras.layers.Cropping2D([[0, side - 1], [0, side - 1]])(images))
    model = keras.Model(images, keras.layers.Dense(2)(corner))
    model.layers[-1].set_weights([np.array([[-1.0, 1.0]] * 3), np.array([1.5, -1.5])])
    return model


def evaluate(model, data, folder, *flags):
    main("evaluate", f"{model}", f"--data={data}", "--evaluations=clean", f"--workdir={folder}", *flags)
    return read(folder, "evaluation.json")


@pytest.mark.parametrize("flags", [[], ["--image_size=32", "--input_size=32"]])
def test_files_of_the_input_size_are_unchanged(folder, tmp_path, capsys, flags):
    corner_model(32).save(tmp_path / "model.keras")
    found = evaluate(tmp_path / "model.keras", f"folder:{folder}/images", tmp_path / "out", *flags)
    assert found["rows"][0]["value"] == 1.0 and found["card"]["data"]["image_shape"] == [32, 32, 3]
    assert "image_fit" not in found["card"]["data"] and "Note" not in capsys.readouterr().out


def test_resizing_to_the_input_size_is_noted_once_and_recorded(folder, tmp_path, capsys):
    corner_model(16).save(tmp_path / "model.keras")
    for how, text in (("crop", "resized to cover 16x16, center-cropped"), ("pad", "resized to fit inside 16x16, padded with black")):
        found = evaluate(tmp_path / "model.keras", f"folder:{folder}/images", tmp_path / how, f"--image_fit={how}")
        assert found["card"]["data"]["image_fit"] == text and found["card"]["data"]["image_shape"] == [16, 16, 3]
        assert capsys.readouterr().out.count(f"Note: images of folder:{folder}/images (test) are {text}.") == 1


def test_keras_models_get_files_of_their_input_size(folder):
    assert api.evaluate(corner_model(32), data=f"folder:{folder}/images", evaluations="clean").values == {"clean": 1.0}
    assert loading.image_size_of(corner_model(16)) == (16, 16) and loading.image_size_of(lambda images: images) == ()


@pytest.mark.parametrize("how", ["crop", "stretch"])
def test_an_exported_model_applies_the_recorded_fit_to_encoded_images(sample_images, tmp_path, how):
    source = data.open_source(sample_images.removeprefix("--data="), "test", image_size=16, image_fit=how)
    text = {"crop": "resized to cover 16x16, center-cropped", "stretch": "resized to 16x16, whatever the aspect ratio"}[how]
    assert export.input_card(source)["encoded"] == text
    export.export(models.build("mlp", source.image_shape, 2), str(tmp_path / "saved_model"), {}, fit=source.fit)
    image = Image.fromarray(np.random.RandomState(0).randint(256, size=(16, 40, 3)).astype(np.uint8))
    image.save(tmp_path / "wide.png")
    fitted = image.crop((12, 0, 28, 16)) if how == "crop" else image.resize((16, 16), Image.Resampling.BILINEAR)
    model = tf.saved_model.load(str(tmp_path / "saved_model"))
    encoded = model.signatures["serving_bytes"](encoded=tf.constant([(tmp_path / "wide.png").read_bytes()]))
    plain = model.signatures["serving_default"](images=tf.constant(np.asarray(fitted, np.float32)[None] / 255))
    np.testing.assert_allclose(encoded["logits"], plain["logits"], rtol=0.02, atol=0.02)
