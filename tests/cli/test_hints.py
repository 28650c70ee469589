"""Messages on models of users name the cause and what can be done."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.command_line import main
from tests.small_runs import without_charts, write_images  # noqa: F401
from tf_robust import api
from tf_robust.hardening import search
from tf_robust.saved_models import loading

layers = keras.layers
SHAPE = (8, 8, 3)
MODULE = """
import tensorflow as tf


def builds():
    missing = {}
    return missing["weights"]


def fails(images):
    mean = tf.reduce_mean(images, [1, 2])
    return tf.matmul(mean, tf.zeros([5, 2]))


def gray_function(images):
    return tf.nn.conv2d(images, tf.ones([8, 8, 1, 2]), 1, "VALID")[:, 0, 0]


def converted(images):
    return gray_function(tf.image.rgb_to_grayscale(images))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images of two brightnesses, models of uint8, and functions."""
    root = tmp_path_factory.mktemp("hints")
    levels = {"dark": range(80, 92), "white": range(160, 172)}
    write_images(root / "photos", {label: [np.full(SHAPE, level, np.uint8) for level in grays] for label, grays in levels.items()})
    inputs = keras.Input(SHAPE, dtype="uint8")
    keras.utils.set_random_seed(0)
    model = keras.Model(inputs, layers.Dense(2)(layers.Flatten()(layers.Rescaling(1 / 255)(inputs))))
    model.save(root / "bytes.keras")
    model.export(str(root / "bytes"), verbose=False)
    color = keras.Sequential([keras.Input(SHAPE), layers.Flatten(), layers.Dense(2)])
    color.save(root / "color.keras")
    (root / "theirs.py").write_text(MODULE)
    return root


def run(command, folder, name, workdir, *arguments):
    options = (f"--data=folder:{folder}/photos", "--check_inputs=false", f"--workdir={workdir}")
    main(command, name if ":" in name else f"{folder}/{name}", *options, *arguments)


@pytest.mark.parametrize("name", ["bytes", "bytes.keras"])
def test_a_model_of_uint8_is_not_hardened_and_no_image_is_read(folder, name, tmp_path, monkeypatch):
    monkeypatch.setattr(search, "Search", None)
    with pytest.raises(ValueError, match="can be hardened.*whose input is uint8: no gradient") as error:
        run("harden", folder, name, tmp_path)
    assert "square" not in str(error.value)
    with pytest.raises(ValueError, match="can be hardened.*whose input is uint8"):
        api.harden(str(folder / name), data=(np.zeros((60, *SHAPE), np.uint8), np.arange(60) % 2))


def test_a_model_without_gradients_is_not_hardened(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (300, *SHAPE), np.uint8)
    inputs = keras.Input(SHAPE)
    rounded = keras.ops.cast(keras.ops.cast(255 * inputs, "int32"), "float32")
    model = keras.Model(inputs, layers.Dense(2)(layers.Flatten()(rounded)))
    with pytest.raises(ValueError, match="can be hardened.*no gradient flows to the images"):
        api.harden(model, data=(images, np.arange(300) % 2), check_inputs=False)


def test_attacks_name_uint8_as_the_cause(folder, tmp_path, capsys):
    run("attack", folder, "bytes", tmp_path / "a", "--attack_queries=5", "--attack_radii=linf_0.1")
    assert "bytes has no gradients, as its input is uint8: it is attacked by Square alone" in capsys.readouterr().out
    with pytest.raises(ValueError, match="gradients for attack=pgd. .*whose input is uint8.*; or attack=square"):
        run("attack", folder, "bytes", tmp_path / "b", "--attack=pgd")
    with pytest.raises(ValueError, match="surrogate with gradients. .*bytes, whose input is uint8"):
        run("attack", folder, "color.keras", tmp_path / "c", f"--surrogate={folder}/bytes")


@pytest.mark.parametrize(
    "name, message",
    [
        ("theirs:builds", r"'weights' \(KeyError\). In .*theirs.py, line 7, in builds: return missing\[\"weights\"\]$"),
        ("theirs:fails", r"return scores of images \[8, 8, 3\]. .*\(InvalidArgumentError\). In .*line 12, in fails: return tf.matmul\("),
        ("theirs:gray_function", r"channels\] \[8, 8, 1\] for theirs:gray_function. Received: \[8, 8, 3\]. .*rgb_to_grayscale\(images\)"),
        ("theirs:missing", "no attribute 'missing'.*Try: module:function, such as models:build"),
    ],
)
def test_errors_in_the_code_of_users_name_its_line(folder, name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(ValueError, match=message) as error:
        run("evaluate", folder, name, tmp_path, "--evaluations=clean")
    assert "\x1b" not in str(error.value)


def test_images_are_converted_for_a_gray_model_by_a_function(folder, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(folder)
    run("evaluate", folder, "theirs:converted", tmp_path, "--evaluations=clean")
    assert "Clean accuracy" in capsys.readouterr().out


def test_errors_of_functions_in_memory_name_their_line():
    def classify(images):
        return undefined  # noqa: F821

    with pytest.raises(ValueError, match=r"'undefined' is not defined \(NameError\). In .*test_hints.py, .* in classify: return undefined"):
        loading.classifier_of(classify)(tf.zeros([2, *SHAPE]))


def test_the_order_of_classes_in_arrays_is_not_that_of_folders():
    labels = np.arange(300) % 3
    images = np.float32(0.5 + 0.3 * np.eye(3))[labels][:, None, None] + np.random.default_rng(0).uniform(-0.2, 0.2, (300, *SHAPE))
    images = images.astype(np.float32)

    def swapped(images):
        return tf.gather(tf.reduce_mean(images, [1, 2]), [1, 0, 2], axis=1)

    with pytest.raises(ValueError, match="in the order of the data: ") as error:
        api.evaluate(swapped, data=(images, labels), evaluations="clean")
    assert "label_map" not in str(error.value)
    three = keras.Sequential([keras.Input(SHAPE), layers.Flatten(), layers.Dense(5)])
    with pytest.raises(ValueError, match="the 3 classes of arrays") as error:
        api.evaluate(three, data=(images, np.array(["a", "b", "c"])[labels]), evaluations="clean")
    assert "label_map" not in str(error.value)


def test_a_function_is_not_evaluated_on_fewer_named_classes_than_it_has():
    labels = np.arange(300) % 3
    images = np.full((300, *SHAPE), 0.1, np.float32) + np.float32(labels / 3)[:, None, None, None]

    def right(images):
        return -10 * tf.abs(3 * (tf.reduce_mean(images, [1, 2, 3]) - 0.1)[:, None] - tf.range(3.0))

    names, kept = np.array(["a", "b", "c"])[labels], labels != 1
    assert api.evaluate(right, (images, names), evaluations="clean", outputs="logits").values["clean"] == 1
    with pytest.raises(ValueError, match="the 2 classes of arrays.*'right' with 3 classes"):
        api.evaluate(right, (images[kept], names[kept]), evaluations="clean", outputs="logits", check_inputs=False)
