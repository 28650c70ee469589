"""Models with one output [N, 1] have two classes: of every format, in attacks, exported and trained."""

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf
from PIL import Image

from tests.command_line import main
from tests.saved_models.loading_models import sample_images, written
from tests.small_runs import without_charts  # noqa: F401
from tf_robust import api, methods, models
from tf_robust.hardening.search import Search
from tf_robust.saved_models import formats, loading
from tf_robust.saved_models.loading import ModelInterface, without_softmax

layers = keras.layers
SHAPE = (8, 8, 3)
ENDS = {
    "sigmoid": lambda: [layers.Dense(1, "sigmoid")],
    "sigmoid layer": lambda: [layers.Dense(1), layers.Activation("sigmoid")],
    "logit": lambda: [layers.Dense(1)],
}


def network(end, shape=SHAPE):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input(shape), layers.Conv2D(8, 3, activation="relu"), layers.Flatten(), *ENDS[end]()])
    kernel, bias, dense, offset = model.get_weights()
    offset = offset - (np.asarray(models_logit(model, sample_images(shape, 50))).mean() * 8)
    model.set_weights([kernel, bias, 8 * dense, offset])  # of both signs
    return model


def models_logit(model, images):
    """The input of a sigmoid, or the output of a model without one."""
    outputs = np.asarray(model(images), np.float64)
    return outputs if outputs.min() < 0 or outputs.max() > 1 else scipy.special.logit(outputs)


def torchscript(model, path):
    torch = pytest.importorskip("torch")
    kernel, bias, dense, offset = (torch.tensor(weight) for weight in model.get_weights())
    one = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 1))
    dense = dense.reshape(6, 6, 8, 1).permute(3, 2, 0, 1).reshape(1, 288)
    one.load_state_dict({"0.weight": kernel.permute(3, 2, 0, 1), "0.bias": bias, "3.weight": dense, "3.bias": offset})
    if model.layers[-1].get_config().get("activation") == "sigmoid":
        one.append(torch.nn.Sigmoid())
    torch.jit.script(one.eval()).save(path)


def tflite(model, path):
    pytest.importorskip("ai_edge_litert")
    with open(path, "wb") as file:
        file.write(tf.lite.TFLiteConverter.from_keras_model(model).convert())


def onnx(model, path):
    pytest.importorskip("onnxruntime")
    converter = pytest.importorskip("tf2onnx")
    function = tf.function(lambda x: model(x), input_signature=[tf.TensorSpec([None, *SHAPE], name="x")])
    converter.convert.from_function(function, function.input_signature, output_path=path)


WRITERS = {
    "m.keras": lambda model, path: model.save(path),
    "m": lambda model, path: model.export(path, verbose=False),
    "m.pt": torchscript,
    "m.tflite": tflite,
    "m.onnx": onnx,
}


def two_probabilities(model, images):
    logits = models_logit(model, images)
    return scipy.special.expit(np.concatenate([-logits, logits], axis=1))


@pytest.mark.parametrize("name, end", [*((name, "sigmoid") for name in WRITERS), ("m.keras", "logit"), ("m.pt", "logit")])
def test_files_of_every_format_give_the_probabilities_of_two_classes(name, end, tmp_path):
    model, images = network(end), sample_images(count=50)
    WRITERS[name](model, str(tmp_path / name))
    classify = loading.load_classifier(tmp_path / name).with_known_outputs(images)
    assert classify.interface.outputs == ("probabilities" if end == "sigmoid" else "logits")
    assert classify.num_classes == 2 and classify.has_one_output
    expected = two_probabilities(model, images)
    assert 0.2 < (expected[:, 1] > 0.5).mean() < 0.8
    for logits in (classify(images), tf.function(lambda x: classify(x), input_signature=[tf.TensorSpec([None, *SHAPE])])(images)):
        assert logits.shape == (50, 2)
        np.testing.assert_allclose(scipy.special.softmax(logits, axis=1), expected, atol=1e-5)
    if end == "logit":
        np.testing.assert_allclose(logits[:, 0], np.zeros(50))
        np.testing.assert_allclose(logits[:, 1:], model(images), rtol=1e-4, atol=1e-4)
    assert classify.check(classify(images)) == ""


@pytest.mark.parametrize("end", ENDS)
def test_functions_whose_shapes_are_unknown(end):
    model, images = network(end), sample_images(count=50)
    for function in (lambda x: model(x), lambda x: tf.numpy_function(lambda x: model(x).numpy(), [x], tf.float32)):
        classify = loading.classifier_of(function)
        assert classify.num_classes is None and classify.has_one_output is None
        if function(images).shape.rank == 2:
            classify = classify.with_known_outputs(images)
            assert classify.num_classes == 2 and classify.has_one_output and classify.with_interface(input_range="-1,1").has_one_output
            np.testing.assert_allclose(scipy.special.softmax(classify(images), axis=1), two_probabilities(model, images), atol=1e-5)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("label", [0, 1])
def test_gradients_are_those_of_the_binary_cross_entropy_of_keras(end, label):
    model, images = network(end), tf.constant(sample_images(count=6))
    classify = loading.classifier_of(model).with_known_outputs(sample_images(count=50))
    binary = keras.losses.BinaryCrossentropy(from_logits=end == "logit", reduction="sum")
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(images)
        expected = binary(tf.fill([6, 1], float(label)), model(images))
        loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits([label] * 6, classify(images)))
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    np.testing.assert_allclose(tape.gradient(loss, images), tape.gradient(expected, images), rtol=1e-3, atol=1e-5)


def test_an_attack_finds_the_other_class():
    model, images = network("sigmoid"), sample_images(count=50)
    labels = np.asarray(model(images))[:, 0] > 0.5
    attacked = api.attack(model, images, labels.astype(int), "pgd", norm="linf", radius=0.1)
    assert ((np.asarray(model(attacked))[:, 0] > 0.5) == labels).mean() < 0.2


def test_a_logit_that_is_small_on_another_pixel_scale_is_no_probability():
    model = network("logit")
    kernel, bias, dense, offset = model.get_weights()
    model.set_weights([kernel / 255, bias, dense, offset * 0])  # for 0 to 255: on 0 to 1 within 0.2 around 0
    shifted = loading.classifier_of(lambda images: model(images) + 0.5)
    scores = np.asarray(model(sample_images(count=50))) + 0.5
    assert 0 < scores.min() and scores.max() < 1
    assert shifted.with_known_outputs(sample_images(count=50)).interface.outputs == "logits"


def test_outputs_that_contradict_the_declared_kind_are_reported():
    model, images = network("sigmoid"), sample_images(count=50)
    declared = loading.classifier_of(model, ModelInterface(outputs="logits"))
    assert "pass outputs=probabilities" in declared.check(declared(images))
    declared = loading.classifier_of(network("logit"), ModelInterface(outputs="probabilities"))
    assert "pass outputs=logits" in declared.check(declared(images))


@pytest.mark.parametrize(
    "name, end",  # of all ends the formats that keep the layers or the graph; converters are given the same graph for each
    [*((name, "sigmoid") for name in formats.files()), *((name, end) for name in ("savedmodel", "keras") for end in [*ENDS][1:])],
)
def test_exported_files_give_the_probabilities_of_two_classes(name, end, tmp_path):
    for package in formats.FORMATS[name].packages:
        pytest.importorskip(package)
    model, images = network(end), sample_images(count=50)
    classifier = without_softmax(loading.classifier_of(model, ModelInterface(input_range="-1,1")).with_known_outputs(images))
    assert classifier.interface.outputs == "logits"  # not through the sigmoid, of which 8 bits resolve little
    logits = loading.load_classifier(written(name, classifier, tmp_path, calibration=images), classifier.interface)(images)
    tolerance = {"tflite_int8": 0.1, "tflite_float16": 0.01}.get(name, 1e-5)
    np.testing.assert_allclose(scipy.special.softmax(logits, axis=1), two_probabilities(model, 2 * images - 1), atol=tolerance)


@pytest.mark.parametrize("end, nested", [("sigmoid", True), ("sigmoid layer", False), ("logit", False)])
def test_methods_train_on_the_logits_of_two_classes(end, nested):
    model, images = network(end), sample_images(count=50)
    labels = (images.mean(axis=(1, 2, 3)) > np.median(images.mean(axis=(1, 2, 3)))).astype(int)
    trained = keras.Sequential([keras.Input(SHAPE), model]) if nested else model
    wrapped = models.wrap(trained)
    outputs = wrapped.network(images)
    np.testing.assert_allclose(scipy.special.softmax(outputs["logits"], axis=1), two_probabilities(model, images), atol=1e-5)
    assert outputs["embedding"].shape == (50, 288) and wrapped.logits_layer is None
    method = methods.CrossEntropy(trained)
    method.compile("adam", run_eagerly=nested)
    loss = method.fit(images, labels, epochs=4, verbose=0).history["loss"]
    probabilities = two_probabilities(model, images)  # the model itself is trained
    after = -np.log(probabilities[np.arange(50), labels]).mean()
    assert after < loss[0] and model.output_shape == (None, 1)


def test_a_sigmoid_for_each_of_several_classes_is_refused():
    model = keras.Sequential([keras.Input(SHAPE), layers.Flatten(), layers.Dense(3, "sigmoid")])
    with pytest.raises(ValueError, match="activation 'sigmoid'"):
        models.wrap(model)
    with pytest.raises(ValueError, match="activation 'softmax'"):
        models.wrap(keras.Sequential([keras.Input(SHAPE), layers.Flatten(), layers.Dense(1, "softmax")]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images of two brightnesses, and models of 0..255 that tell them apart by one output."""
    root = tmp_path_factory.mktemp("two")
    random = np.random.default_rng(0)
    for label, gray in (("dark", 80), ("white", 160)):
        (root / "photos" / label).mkdir(parents=True)
        for i in range(40):
            image = np.clip(gray + random.normal(0, 20, (8, 8, 3)) + i - 20, 0, 255)
            Image.fromarray(image.astype(np.uint8)).save(root / "photos" / label / f"{i}.png")
    for name, last in (("sigmoid", "sigmoid"), ("logit", None)):
        dense = layers.Dense(1, last)
        model = keras.Sequential([keras.Input(SHAPE), layers.Rescaling(1 / 255), layers.Flatten(), dense])
        dense.set_weights([np.full((192, 1), 20 / 192, np.float32), np.float32([-9.4])])
        model.save(root / f"{name}.keras")
        model.export(root / name, verbose=False)
    return root


@pytest.mark.parametrize("name, kind, surrogate", [("sigmoid.keras", "probability", ""), ("logit", "logit", "sigmoid")])
def test_evaluation_under_its_own_attacks_and_those_of_a_surrogate(folder, name, kind, surrogate, capsys):
    options = {"attack": "pgd", "attack_radii": "linf_0.3", "attack_checks": False}  # without eight further attacks
    evaluated = api.evaluate(
        str(folder / name),
        data=f"folder:{folder}/photos",
        evaluations="clean,adversarial,calibration",
        input_range="auto",
        **options,
        **({"surrogate": str(folder / surrogate)} if surrogate else {}),
    )
    printed, values = capsys.readouterr().out, evaluated.values
    assert f"has one output, which is read as the {kind} of the second class 'white' (outputs=" in printed
    assert ("(input_range=0,255, outputs=probabilities), which classifies" in printed) == bool(surrogate)
    assert values["clean"] > 0.9 and values[f"robust/{'transfer' if surrogate else 'pgd'}/linf_0.3"] < 0.2
    assert values["calibration/rms"] < 0.4


def test_data_of_three_classes_are_refused(folder, tmp_path):
    images, labels = sample_images(count=30), np.arange(30) % 3
    with pytest.raises(ValueError, match="classes|label"):
        api.evaluate(str(folder / "sigmoid.keras"), data=(images, labels), evaluations="clean", input_range="0,255")
    (tmp_path / "gray").mkdir()
    for label in ("a", "b", "c"):
        (tmp_path / "gray" / label).mkdir()
        Image.fromarray(np.zeros(SHAPE, np.uint8)).save(tmp_path / "gray" / label / "0.png")
    with pytest.raises(ValueError, match="3 classes .* 2 classes"):
        main("evaluate", f"{folder}/sigmoid.keras", f"--data=folder:{tmp_path}/gray", "--evaluations=clean", f"--workdir={tmp_path}/run")


@pytest.mark.parametrize("name, tried", [pytest.param("sigmoid.keras", 2, marks=pytest.mark.slow), ("logit", 1)])
def test_hardening_keeps_the_one_output(folder, name, tried, tmp_path, monkeypatch):
    """A search that tries plain fine-tuning, and of the Keras file one recipe."""
    monkeypatch.setattr(Search, "run", lambda search: [search._trial(one, 0, 20) for one in search.candidates[:tried]])
    random = np.random.default_rng(1)
    labels = np.arange(400) % 2
    images = np.clip(80 + 80 * labels[:, None, None, None] + random.normal(0, 30, (400, *SHAPE)), 0, 255).astype(np.uint8)
    hardened = api.harden(
        *(str(folder / name), (images, labels)),
        **{"folder": str(tmp_path / "run"), "target": "noise", "budget": "300steps", "evaluations": "clean", "input_range": "0,255"},
    )
    assert hardened.values["clean"][0] > 0.9
    model = loading.load_classifier(hardened.save(str(tmp_path / "hardened")), ModelInterface(input_range="0,255"))
    assert model.has_one_output and model.num_classes == 2


@pytest.mark.parametrize("end", ["sigmoid", "logit"])
@pytest.mark.parametrize("columns", [1, 3])
def test_columns_that_a_graph_does_not_know(end, columns):
    """As of TorchScript models."""
    model, images = network(end), sample_images(count=50)

    @tf.function(input_signature=[tf.TensorSpec([None, *SHAPE]), tf.TensorSpec([], tf.int32)])
    def gradient(images, columns):
        classify = loading.classifier_of(
            lambda x: tf.ensure_shape(tf.tile(model(x), [1, columns]), [None, None]),
            ModelInterface(outputs="probabilities" if end == "sigmoid" else "logits"),
        )
        logits = classify(images)
        return logits, tf.gradients(logits[:, -1], images)[0]

    logits, computed = gradient(images, columns)
    first = (1 - model(images) if end == "sigmoid" else tf.zeros([50, 1])) if columns == 1 else tf.tile(model(images), [1, 2])
    scores = np.concatenate([first, model(images)], axis=1)
    np.testing.assert_allclose(logits, np.log(scores) if end == "sigmoid" else scores, rtol=1e-4, atol=1e-5)
    with tf.GradientTape() as tape:
        tape.watch(given := tf.constant(images))
        last = model(given)
        last = tf.math.log(last) if end == "sigmoid" else last
    np.testing.assert_allclose(computed, tape.gradient(last, given), rtol=1e-3, atol=1e-5)
