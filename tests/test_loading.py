"""A loaded model gives what the original gives on pictures prepared by hand; what does not fit is said."""

import functools
import os
import shutil
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tf_robust import export, hyperparameters, loading, model_files
from tf_robust.loading import Interface, load_classifier

SHAPE, CLASSES = (8, 8, 3), 4
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORMALIZATION = "mean=0.485,0.456,0.406 std=0.229,0.224,0.225"


def pictures(shape=SHAPE, count=5, seed=0):
    return np.random.RandomState(seed).rand(count, *shape).astype(np.float32)


WEIGHTS = pictures((CLASSES,), 8 * 8 * 3, seed=1) - np.float32(0.5)


def scores_by_hand(values):
    """A linear classifier on [N, 8, 8, 3]; the tests' modules compute the same in TensorFlow."""
    return values.reshape(len(values), -1).astype(np.float64) @ WEIGHTS


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


class Module(tf.Module):
    def __init__(self):
        super().__init__()
        self.weights = tf.Variable(WEIGHTS)

    def scores(self, values):
        return tf.reshape(tf.cast(values, tf.float32), [-1, 192]) @ self.weights


def saved(path, **signatures):
    """Saves a module; signatures: {name: (function(module, tensor) -> outputs, TensorSpec)}. Returns the path."""
    module = Module()

    def of(function, *specs):
        return tf.function(lambda *tensors: function(module, *tensors), input_signature=specs)
    tf.saved_model.save(module, str(path), signatures={name: of(*given) for name, given in signatures.items()})
    return str(path)


def spec(*shape, dtype=tf.float32):
    return tf.TensorSpec([None, *shape], dtype, "x")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """One model with signatures that fit and others that do not; read once."""
    path = saved(tmp_path_factory.mktemp("plain") / "m", **{
        "serving_default": (lambda m, x: {"scores": m.scores(x)}, spec(*SHAPE)),
        "doubled": (lambda m, x: {"a": x, "logits": 2 * m.scores(x)}, spec(*SHAPE)),
        "soft": (lambda m, x: {"probabilities": tf.nn.softmax(m.scores(x))}, spec(*SHAPE)),
        "half": (lambda m, x: {"y": tf.cast(m.scores(x), tf.float16)}, spec(*SHAPE, dtype=tf.float16)),
        "bytes": (lambda m, x: {"y": m.scores(x)}, spec(*SHAPE, dtype=tf.uint8)),
        "any_size": (lambda m, x: {"y": m.scores(x[:, :8, :8])}, spec(None, None, 3)),
        "any_channels": (lambda m, x: {"y": m.scores(x)}, spec(8, 8, None)),
        "any_shape": (lambda m, x: {"y": m.scores(x)}, tf.TensorSpec(None, tf.float32, "x")),
        "flat": (lambda m, x: {"y": x}, spec(192)),
        "encoded": (lambda m, x: {"y": tf.zeros([1, 4])}, spec(dtype=tf.string)),
        "whole_numbers": (lambda m, x: {"y": m.scores(x)}, spec(*SHAPE, dtype=tf.int32)),
        "channels_first": (lambda m, x: {"y": m.scores(x)}, spec(3, 8, 8)),
        "one_by_one": (lambda m, x: {"y": m.scores(x)}, tf.TensorSpec([1, *SHAPE], tf.float32, "x")),
        "two_inputs": (lambda m, x, y: {"y": m.scores(x)}, spec(*SHAPE), tf.TensorSpec([], tf.bool, "training")),
        "two_outputs": (lambda m, x: {"a": m.scores(x), "probabilities": m.scores(x)}, spec(*SHAPE)),
        "one_score": (lambda m, x: {"y": m.scores(x)[:, :1]}, spec(*SHAPE)),
        "a_map": (lambda m, x: {"y": x}, spec(*SHAPE)),
        "classes": (lambda m, x: {"y": tf.cast(m.scores(x), tf.int64)}, spec(*SHAPE)),
        "wide": (lambda m, x: {"y": m.scores(x[:, :, :8])}, spec(8, 16, 3)),
    })
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_files, "read", functools.lru_cache(model_files.read))
        yield path


@pytest.mark.parametrize("given, by_hand", [
    ("0,1", lambda x: x), ("-1,1", lambda x: 2 * x - 1), ("0,255", lambda x: 255 * x),
    ("-2,0.5", lambda x: 2.5 * x - 2), (NORMALIZATION, lambda x: (x - MEAN) / STD),
    ("mean=0.5 std=0.25", lambda x: (x - 0.5) / 0.25),
    ("mean=0.1,0.2,0.3 std=0.5", lambda x: (x - (0.1, 0.2, 0.3)) / 0.5)])
def test_input_range(plain, given, by_hand):
    found = load_classifier(plain, Interface(input_range=given))(pictures())
    expected = scores_by_hand(by_hand(pictures()))
    assert found.dtype == tf.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name, factor", [("doubled", 2), ("any_channels", 1), ("any_shape", 1), ("any_size", 1)])
def test_signatures(plain, name, factor):
    classify = load_classifier(plain, Interface(signature=name))
    np.testing.assert_allclose(classify(pictures()), factor * scores_by_hand(pictures()), rtol=1e-4, atol=1e-4)
    assert repr(name) in classify.description


def test_half_precision_comes_back_in_full(plain):
    found = load_classifier(plain, Interface(signature="half"))(pictures())
    assert found.dtype == tf.float32
    np.testing.assert_allclose(found, scores_by_hand(pictures()), atol=0.05)


@pytest.mark.parametrize("given", ["0,1", "0,255"])
def test_uint8_is_rounded(plain, given):
    classify = load_classifier(plain, Interface(signature="bytes", input_range=given))
    images = pictures()
    images[0, 0, 0] = (0.0, 1.0, 0.4999 / 255)
    np.testing.assert_allclose(classify(images), scores_by_hand(np.round(255 * images)), rtol=1e-4, atol=0.02)
    assert "uint8" in classify.description and "no gradients" in classify.description
    images = tf.constant(images)
    with tf.GradientTape() as tape:
        tape.watch(images)
        total = tf.reduce_sum(classify(images))
    assert tape.gradient(total, images) is None


@pytest.mark.parametrize("side", [5, 13])
def test_resized_input(plain, side):
    images = pictures((side, side, 3))
    classify = load_classifier(plain, Interface(input_size=8, input_range="-1,1"))
    resized = np.stack([np.stack([np.asarray(Image.fromarray(image[:, :, c], "F").resize((8, 8), Image.BILINEAR))
                                  for c in range(3)], axis=-1) for image in images])
    np.testing.assert_allclose(classify(images), scores_by_hand(2 * resized - 1), atol=1e-3)
    assert classify.input_shape.as_list() == [None, None, None, 3] and "input_size 8" in classify.description


def test_probabilities_become_logits_whose_softmax_gives_them_back(plain):
    classify = load_classifier(plain, Interface(signature="soft", outputs="probabilities"))
    logits = classify(pictures()).numpy()
    expected = softmax(scores_by_hand(pictures()))
    np.testing.assert_allclose(logits, np.log(expected), atol=1e-4)
    np.testing.assert_allclose(softmax(logits.astype(np.float64)), expected, atol=1e-5)
    assert classify.check(logits) == ""
    certain = load_classifier(plain, Interface(signature="soft", outputs="probabilities", input_range="0,255"))
    np.testing.assert_allclose(certain(pictures()).numpy().min(), np.log(1e-12), rtol=1e-5)


def test_values_that_contradict_outputs_are_noticed(tmp_path):
    path = saved(tmp_path / "m", **{
        "serving_default": (lambda m, x: {"predictions": tf.nn.softmax(m.scores(x))}, spec(*SHAPE)),
        "scores": (lambda m, x: {"predictions": m.scores(x)}, spec(*SHAPE))})
    classify = load_classifier(path)
    assert "pass --outputs=probabilities" in classify.check(classify(pictures()))
    assert "pass --outputs=probabilities" in classify.check([[0.25, 0.25, 0.5], [0.0, 0.0, 1.0005]])
    for scores in ([[0.5, 0.5, 0.0], [0.0, -0.0005, 1.0]], [[0.5, 0.5, 0.0], [0.0, 0.0, 1.002]], np.zeros([0, 3])):
        assert classify.check(scores) == ""
    scores = load_classifier(path, Interface(signature="scores"))
    assert scores.check(scores(pictures())) == ""
    wrong = load_classifier(path, Interface(signature="scores", outputs="probabilities"))
    assert "pass --outputs=logits" in wrong.check(wrong(pictures()))


@pytest.mark.parametrize("kind", ["export", "save"])
def test_keras_models(tmp_path, kind):
    keras.utils.set_random_seed(0)
    images = keras.Input(SHAPE, name="pictures")
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(3, 3, activation="silu")(images))
    x = keras.layers.Dense(CLASSES)(keras.layers.Dropout(0.5)(keras.layers.Flatten()(x)))
    model = keras.Model({"pictures": images}, {"embedding": x + 1, "logits": x})
    model({"pictures": pictures(seed=2)}, training=True)  # moves the batch statistics
    path = str(tmp_path / ("m" if kind == "export" else "m.keras"))
    model.export(path, verbose=False) if kind == "export" else model.save(path)
    classify = load_classifier(path, Interface(input_range="-1,1"))
    np.testing.assert_allclose(classify(pictures()), model({"pictures": 2 * pictures() - 1})["logits"], atol=1e-5)
    assert classify.num_classes == CLASSES and classify.input_shape.as_list() == [None, *SHAPE]
    assert "pictures float32 [None, 8, 8, 3]" in classify.description


def test_keras_file_of_a_sequential_model_that_takes_uint8(tmp_path):
    model = keras.Sequential([keras.Input(SHAPE, dtype="uint8"), keras.layers.Rescaling(1 / 255),
                              keras.layers.Flatten(), keras.layers.Dense(CLASSES, activation="softmax")])
    model.save(tmp_path / "m.keras")
    classify = load_classifier(tmp_path / "m.keras", Interface(outputs="probabilities"))
    expected = np.log(model(np.round(255 * pictures()).astype(np.uint8)))
    np.testing.assert_allclose(classify(pictures()), expected, atol=1e-5)


def test_our_own_export_and_its_workdir(network, tmp_path):
    model, path = network(), str(tmp_path / "saved_model")
    export.export(model, path, {"method": "test"})
    expected = model(pictures((16, 16, 1)))["logits"]
    for given in (path, str(tmp_path)):
        classify = load_classifier(given)
        np.testing.assert_allclose(classify(pictures((16, 16, 1))), expected, atol=1e-5)
        assert classify.path == path and classify.card == {"method": "test"} and classify.num_classes == 3
        assert classify.input_shape.as_list() == [None, 16, 16, 1]
    probable = load_classifier(path, Interface(outputs="probabilities"))(pictures((16, 16, 1)))
    np.testing.assert_allclose(probable, tf.nn.log_softmax(expected), atol=1e-4)
    with pytest.raises(ValueError, match="'serving_bytes' .* takes strings.*\n.*serving_default: images") as error:
        load_classifier(path, Interface(signature="serving_bytes"))
    assert str(error.value).endswith("Pass --signature=serving_default.")


@pytest.mark.parametrize("interface, by_hand", [
    (Interface(input_range="-1,1"), lambda gradient: 2 * gradient),
    (Interface(input_range=NORMALIZATION), lambda gradient: gradient / STD)])
def test_gradients_flow_through_the_scaling_also_in_a_graph(plain, interface, by_hand):
    classify = load_classifier(plain, interface)

    @tf.function(input_signature=[tf.TensorSpec([None, *SHAPE])])
    def gradient(images):
        with tf.GradientTape() as tape:
            tape.watch(images)
            total = tf.reduce_sum(classify(images)[:, 2])
        return tape.gradient(total, images)
    expected = by_hand(WEIGHTS[:, 2].reshape(1, *SHAPE).repeat(5, axis=0))
    np.testing.assert_allclose(gradient(pictures()), expected, rtol=1e-4)


def test_gradients_flow_through_resizing_and_the_logarithm(plain):
    classify = load_classifier(plain, Interface(signature="soft", outputs="probabilities", input_size=8))
    images = tf.constant(pictures((16, 16, 3)))
    with tf.GradientTape() as tape:
        tape.watch(images)
        total = tf.reduce_sum(classify(images)[:, 0])
    gradient, step = tape.gradient(total, images).numpy(), pictures((16, 16, 3), seed=3) - 0.5
    shifted = [float(tf.reduce_sum(classify(images + sign * 0.01 * step)[:, 0])) for sign in (-1, 1)]
    np.testing.assert_allclose((gradient * step).sum(), (shifted[1] - shifted[0]) / 0.02, rtol=1e-2)


def test_in_a_dataset(plain):
    found = next(iter(tf.data.Dataset.from_tensors(pictures()).map(load_classifier(plain))))
    np.testing.assert_allclose(found, scores_by_hand(pictures()), atol=1e-4)


@pytest.mark.parametrize("name, message", [
    ("missing", "'missing' of .* is not there"), ("flat", "rank 2, not 4"), ("encoded", "takes strings"),
    ("whole_numbers", "takes int32"), ("channels_first", "channels first .NCHW."), ("one_by_one", "takes exactly 1 "),
    ("two_inputs", "takes 2 tensors"), ("two_outputs", "output named 'logits'.*For 'probabilities', pass --outputs="),
    ("soft", "'probabilities', pass --outputs=probabilities"), ("one_score", "at least 2 classes.*y float32 .None, 1."),
    ("a_map", r"floats \[N, classes\].*y float32 .None, 8, 8, 3."), ("classes", "y int64 .None, 4.")])
def test_signatures_that_do_not_fit_are_described(plain, name, message):
    with pytest.raises(ValueError, match=f"(?s)Expected .*{message}") as error:
        load_classifier(plain, Interface(signature=name))
    assert "serving_default: x float32 [None, 8, 8, 3] -> scores float32 [None, 4]" in str(error.value)


def test_a_misfit_names_the_signatures_that_fit(plain):
    with pytest.raises(ValueError, match="Pass --signature=") as error:
        load_classifier(plain, Interface(signature="missing"))
    advice = str(error.value).rsplit("\n", 1)[1]
    assert "--signature=doubled" in advice and "--signature=flat" not in advice and "channels_first" not in advice


@pytest.mark.parametrize("interface, message", [
    (Interface(input_size=9), "8x8: pass --input_size=8. Received: 9"),
    (Interface(signature="wide", input_size=8), "8x16: resize the pictures before"),
    (Interface(input_range="mean=0.1,0.2 std=1"), "one number, or 3, in mean and std"),
    (Interface(signature="bytes", input_range="-1,1"), "input_range 0,255 for a model that takes uint8"),
    (Interface(signature="soft", outputs="logits"), "pass --outputs=probabilities")])
def test_interfaces_that_do_not_fit(plain, interface, message):
    with pytest.raises(ValueError, match=message):
        load_classifier(plain, interface)


@pytest.mark.parametrize("shape, message", [
    ((8, 8, 1), r"\[8, 8, 3\] .*\[8, 8, 1\]. Channels are neither repeated nor averaged"),
    ((5, 5, 3), r"\[5, 5, 3\]. Pass --input_size=8 to")])
def test_pictures_that_do_not_fit(plain, shape, message):
    with pytest.raises(ValueError, match=message):
        load_classifier(plain)(pictures(shape))
    with pytest.raises(ValueError, match=message):
        load_classifier(plain).check_pictures(shape)


def test_pictures_that_do_not_fit_another_interface(plain):
    with pytest.raises(ValueError, match="Channels"):
        load_classifier(plain, Interface(input_size=8))(pictures((5, 5, 1)))
    three_means = Interface(signature="any_channels", input_range=NORMALIZATION)
    with pytest.raises(ValueError, match=r"\[8, 8, 3\] .*\[8, 8, 1\]. Channels"):
        load_classifier(plain, three_means)(pictures((8, 8, 1)))
    with pytest.raises(ValueError, match="Convert the pictures"):
        load_classifier(plain, Interface(signature="wide"))(pictures())
    with pytest.raises(ValueError, match="Received: uint8"):
        load_classifier(plain)(pictures().astype(np.uint8))
    with pytest.raises(ValueError, match="Convert the pictures"):
        load_classifier(plain)(pictures()[0])


@pytest.mark.parametrize("text", ["", "1,0", "0", "0,1,2", "a,b", "0,nan", "-inf,1", "mean=0.5", "mean=0.5 std=0",
                                  "mean=123.7,116.3,103.5 std=58,57,57", "mean=0.1,0.2 std=1,1,1", "std=1 mean=0"])
def test_ranges_that_are_none(text):
    with pytest.raises(ValueError, match="Expected input_range as LOW,HIGH.* or 'mean="):
        Interface(input_range=text)


def test_other_settings_that_are_none():
    with pytest.raises(ValueError, match="Did you mean 'probabilities'"):
        Interface(outputs="probability")
    with pytest.raises(ValueError, match="input_size >= 0"):
        Interface(input_size=-1)


def test_settings_make_flags():
    found = hyperparameters.parameters(Interface)
    assert list(found) == ["input_range", "outputs", "signature", "input_size"]
    assert all(parameter.help for parameter in found.values())
    assert found["outputs"].choices == loading.OUTPUTS and NORMALIZATION in found["input_range"].help


def test_what_is_not_there(plain, tmp_path):
    with pytest.raises(FileNotFoundError, match="Not found: .*nothing"):
        load_classifier(str(tmp_path / "nothing"))
    with pytest.raises(FileNotFoundError, match="a folder with: nothing"):
        load_classifier(str(tmp_path))
    with pytest.raises(FileNotFoundError, match=f"Did you mean {plain}?"):
        load_classifier(os.path.dirname(plain))
    with pytest.raises(ValueError, match="saved_model.pb, which is not .* give the folder"):
        load_classifier(os.path.join(plain, "saved_model.pb"))
    tf.saved_model.save(tf.Module(), str(tmp_path / "empty"))
    with pytest.raises(ValueError, match="'serving_default' of .* is not there. It has none: save it with"):
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
        file.write_bytes(file.read_bytes()[:file.stat().st_size // 2])
    with pytest.raises(ValueError, match="Expected a model that can be loaded. Received: .* Copy it or export it"):
        load_classifier(path)


def test_a_damaged_or_unsafe_keras_file(tmp_path):
    path = str(tmp_path / "m.keras")
    keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda x: 2 * x)]).save(path)
    with pytest.raises(ValueError, match="it holds Python code .a Lambda layer., which is not run.*model.export"):
        load_classifier(path)
    with open(path, "r+b") as file:
        file.truncate(500)
    with pytest.raises(ValueError, match="not a whole .keras archive"):
        load_classifier(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other.txt", "")
    with pytest.raises(ValueError, match="Expected a model that can be loaded. Received: .*config.json.*Copy it again"):
        load_classifier(path)


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
    expected = model(pictures())
    model.save(path)
    with pytest.raises(ValueError, match="Could not locate class 'Subclassed'.*model.export"):
        load_classifier(path)
    with keras.saving.custom_object_scope({"Subclassed": Subclassed}):
        with pytest.raises(ValueError, match="does not say what it takes.*model.export"):
            load_classifier(path)
    model.export(tmp_path / "m", verbose=False)
    np.testing.assert_allclose(load_classifier(tmp_path / "m")(pictures()), expected, atol=1e-5)


def test_cards(plain, tmp_path):
    path = shutil.copytree(plain, tmp_path / "m")
    assert load_classifier(path).card == {}
    (path / "card.json").write_text("[1]")
    assert load_classifier(path).card == {}
    (path / "card.json").write_text('{"half": ')
    with pytest.raises(ValueError, match="Expected JSON in .*card.json"):
        load_classifier(path)
