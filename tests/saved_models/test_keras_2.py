"""Files of Keras 2 are read where possible; otherwise their version is named."""

import json
import zipfile

import h5py
import keras
import numpy as np
import pytest

from tests.saved_models.loading_models import CLASSES, SHAPE, sample_images
from tf_robust.saved_models.loading import load_classifier

layers = keras.layers


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    stack = [
        layers.DepthwiseConv2D(3),
        layers.BatchNormalization(name="stem_bn"),
        layers.Conv2DTranspose(2, 3),
        layers.SeparableConv2D(4, 3),
        layers.GlobalAveragePooling2D(),
    ]
    x = images = keras.Input(SHAPE)
    for layer in stack:
        x = layer(x)
    return keras.Model(images, layers.Dense(CLASSES)(x))


def of_keras_2(config, unknown=False):
    """A configuration as Keras 2.15 writes it."""
    for layer in config["config"]["layers"]:
        if "Conv2D" in layer["class_name"]:
            layer["config"]["groups"] = 7 if unknown else 1
        if layer["class_name"] == "BatchNormalization":
            layer["config"]["axis"] = [3]
        if layer["class_name"] == "SeparableConv2D":
            layer["config"] |= {"kernel_initializer": "glorot_uniform", "kernel_regularizer": None}
        if "module" in layer:
            layer["module"] = f"tf_{layer['module']}"  # as the package tf_keras writes it
    if "module" in config:
        config |= {"module": "keras.src.engine.functional", "class_name": "Functional", "registered_name": "Functional"}
    return json.loads(json.dumps(config).replace("stem_bn", "stem/bn"))


def write_h5(model, path, unknown=False):
    model.save(path)
    with h5py.File(path, "r+") as file:
        config = of_keras_2(json.loads(file.attrs["model_config"]), unknown)
        file.attrs["model_config"], file.attrs["keras_version"] = json.dumps(config), "2.15.0"


def write_archive(model, path, unknown=False):
    new = path.with_name("new.keras")
    model.save(new)
    with zipfile.ZipFile(new) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "metadata.json":
                content = json.dumps({"keras_version": "2.15.0"})
            if name == "config.json":
                content = json.dumps(of_keras_2(json.loads(content), unknown))
            target.writestr(name, content)


@pytest.mark.parametrize("write, name", [(write_h5, "old.h5"), (write_archive, "old.keras")])
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
def test_files_of_keras_2(model, write, name, tmp_path):
    write(model, tmp_path / name)
    before = (tmp_path / name).read_bytes()
    np.testing.assert_allclose(load_classifier(tmp_path / name)(sample_images()), model(sample_images()), atol=1e-6)
    assert (tmp_path / name).read_bytes() == before
    write(model, tmp_path / name, unknown=True)
    with pytest.raises(ValueError, match=f"{name}.*written by Keras 2.15.0.*Try: .*tf_keras.*SavedModel"):
        load_classifier(tmp_path / name)
