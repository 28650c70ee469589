"""The exported model: the same predictions, without this package, differentiable, from arrays and from files."""

import io
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.conftest import sweep
from tests.saved_models.loading_models import input_gradient, sample_images
from tf_robust import attribution
from tf_robust.saved_models import export, loading
from tf_robust.testing.samples import tiny_network
from tf_robust.utils.files import read_json

SHAPE = (16, 16, 1)
SCRIPT = """
import sys
sys.modules["tf_robust"] = None  # importing it fails
import numpy as np, tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
images = tf.constant(np.load(sys.argv[2]))
with tf.GradientTape() as tape:
    tape.watch(images)
    outputs = model.signatures["serving_default"](images=images)
    loss = tf.reduce_sum(outputs["logits"][:, 0])
np.savez(sys.argv[3], gradient=tape.gradient(loss, images), **outputs)
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    model, path = tiny_network(), str(tmp_path_factory.mktemp("exported") / "saved_model")
    export.export(model, path, {"method": "test"})
    return model, path


@pytest.mark.parametrize("process", sweep(["this", "new"], ["this"]))
def test_without_this_package_it_predicts_and_differentiates_alike(process, exported, tmp_path, monkeypatch):
    model, path = exported
    np.save(tmp_path / "in.npy", sample_images(SHAPE))
    arguments = [path, str(tmp_path / "in.npy"), str(tmp_path / "out.npz")]
    if process == "new":
        subprocess.run([sys.executable, "-c", SCRIPT, *arguments], check=True)
    else:
        monkeypatch.setitem(sys.modules, "tf_robust", None)
        monkeypatch.setattr(sys, "argv", ["script", *arguments])
        exec(SCRIPT, {})
    outputs, expected = np.load(tmp_path / "out.npz"), model(sample_images(SHAPE))
    np.testing.assert_allclose(outputs["logits"], expected["logits"], atol=1e-5)
    np.testing.assert_allclose(outputs["embedding"], expected["embedding"], atol=1e-5)
    np.testing.assert_allclose(outputs["probabilities"].sum(axis=1), 1, atol=1e-6)
    gradient = input_gradient(lambda images: model(images)["logits"][:, 0], sample_images(SHAPE))
    np.testing.assert_allclose(outputs["gradient"], gradient, atol=1e-5)


def test_encoded_files_of_any_size(exported):
    model, path = exported
    exact = (sample_images(SHAPE, count=1)[0, :, :, 0] * 255).round().astype(np.uint8)
    large = np.kron(exact, np.ones((3, 3), np.uint8))
    encoded = []
    for sample_image, kind in ((exact, "PNG"), (large, "PNG"), (exact, "JPEG")):
        file = io.BytesIO()
        Image.fromarray(sample_image).save(file, kind)
        encoded.append(file.getvalue())
    outputs = loading.load_classifier(path).loaded.signatures["serving_bytes"](encoded=tf.constant(encoded))["logits"].numpy()
    expected = model(exact[None, :, :, None] / np.float32(255))["logits"].numpy()[0]
    np.testing.assert_allclose(outputs[0], expected, atol=1e-4)
    assert outputs.shape == (3, 3) and np.abs(outputs[1:] - expected).max() < 1.0


def test_attribution_of_a_loaded_model_is_that_of_the_model(exported):
    model, path = exported
    labels = np.arange(5) % 3
    np.testing.assert_allclose(
        attribution.contextual_utility(loading.load_classifier(path), sample_images(SHAPE), labels),
        attribution.contextual_utility(model, sample_images(SHAPE), labels),
        atol=1e-5,
    )


def test_card_is_kept_and_extended(exported):
    _, path = exported
    export.update_card(path, rows=[1])
    assert read_json(f"{path}/card.json") == {"method": "test", "rows": [1]}
