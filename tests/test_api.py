"""The functions of `tf_robust.api`: models, images and attacks from Python, and what they refuse."""

import os

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from tests.small_runs import gray_images, write_images
from tf_robust import api, metrics
from tf_robust.evaluation import shortfalls
from tf_robust.report import comparison as comparisons
from tf_robust.saved_models import loading
from tf_robust.saved_models.interface import read_card
from tf_robust.utils.progress import NOTED


@pytest.fixture(scope="module")
def scaled():
    """A softmax classifier of digits (28x28x1, ten classes) on the pixel scale 0..255, and the same as logits on [0, 1]."""
    keras.utils.set_random_seed(0)
    images = keras.Input([28, 28, 1])
    scores = keras.layers.Dense(10)(keras.layers.Flatten()(images))
    logits = keras.Model(images, scores, name="plain")
    logits.layers[-1].kernel.assign_add(logits.layers[-1].kernel * 4.0)  # far from uniform
    other = keras.Input([28, 28, 1])
    scores = logits(keras.layers.Rescaling(1 / 255)(other))
    return logits, keras.Model(other, keras.layers.Softmax()(scores), name="theirs")


def fitted(images, labels, *layers, rcond=1e-3):
    """A linear classifier of digits by least squares, behind layers whose outputs are on the scale of the images."""
    pixels = np.concatenate([images.reshape(len(images), -1), np.ones([len(images), 1])], axis=1)
    solution = np.linalg.lstsq(pixels, np.eye(10)[labels], rcond=rcond)[0]
    model = keras.Sequential([keras.Input([28, 28, 1]), *layers, keras.layers.Flatten(), keras.layers.Dense(10)])
    model.layers[-1].set_weights([solution[:-1], solution[-1]])
    return model


def test_numbers_of_images(capsys):
    assert len(api.images(np.int64(3), data="digits", subset=np.int64(5))[0]) == 3
    assert len(api.images(9, data="digits", subset=5)[0]) == 5
    assert "digits (test) has 5 images, fewer than 9." in capsys.readouterr().out
    with pytest.raises(ValueError, match="Expected count >= 1. Received: 0"):
        api.images(0, data="digits")


def test_without_data_a_model_is_evaluated_on_those_of_its_card():
    path = "zoo:digits/lenet_cross_entropy"
    assert api.evaluate(path, evaluations="clean").evaluation["data"] == read_card(path)["data"]
    with pytest.raises(ValueError, match="Expected data, as there is no card of"):
        api.evaluate(lambda images: images, evaluations="clean")


DIGITS = {"data": "digits", "evaluations": "clean,calibration", "subset": 100}
INTERFACE = {"input_range": "0,255", "outputs": "probabilities"}


@pytest.mark.parametrize("kind", ["keras", "callable", "file"])
def test_the_interface_applies_to_all_kinds_of_models(scaled, kind, tmp_path):
    plain, theirs = scaled
    model = {"keras": theirs, "callable": lambda x: theirs(x).numpy(), "file": str(tmp_path / "m.keras")}[kind]
    if kind == "file":
        theirs.save(model)
    images, labels = api.images(1000, data="digits", subset=100)
    expected = scipy.special.softmax(plain(images).numpy().astype(np.float64), axis=1)
    found = api.evaluate(model, **DIGITS, **INTERFACE).values
    assert found["clean"] == np.mean(expected.argmax(axis=1) == labels)
    assert found["calibration/ece"] == pytest.approx(
        metrics.expected_calibration_error(expected.max(axis=1), expected.argmax(axis=1) == labels), abs=1e-4
    )
    as_logits = api.evaluate(model, **DIGITS, input_range="0,255", outputs="logits").values
    assert found["calibration/ece"] != pytest.approx(as_logits["calibration/ece"], abs=0.05)


def test_images_of_another_size_are_refused_unless_they_are_resized():
    images, labels = api.images(100, data="digits")
    large = keras.Sequential([keras.Input([14, 14, 1]), keras.layers.Flatten(), keras.layers.Dense(10)])
    with pytest.raises(ValueError, match=r"\[14, 14, 1\] .*Received: \[28, 28, 1\]. Try: image_size=14"):
        api.evaluate(large, **DIGITS)
    with pytest.raises(ValueError, match=r"\[14, 14, 1\] .*Received: \[28, 28, 1\]"):
        api.attack(large, images, labels)
    for option in ("input_size", "image_size"):
        assert "clean" in api.evaluate(large, **DIGITS, **{option: 14}).values


def test_arguments_of_other_functions_raise(scaled, tmp_path):
    plain, _ = scaled
    loaded = loading.classifier_of(plain)
    for model, given, message in (
        (plain, {"epochs": 3}, "Unknown argument: 'epochs'"),
        (plain, {"signature": "other"}, "Expected .*signature"),
        (loaded, {"input_range": "0,255"}, "Expected .*input_range"),
        (plain, {"seeds": (0, 1)}, "Unknown argument: 'seeds'"),
    ):
        with pytest.raises(ValueError, match=message):
            api.evaluate(model, **{**DIGITS, **given})
    for given, name in (({"fcl_k": 3}, "fcl_k"), ({"input_size": 9}, "input_size")):
        with pytest.raises(ValueError, match=f"Unknown argument of training with the method 'gaussian': '{name}'"):
            api.train(str(tmp_path), method="gaussian", **given)
    with pytest.raises(ValueError, match="Unknown argument: 'epochs'"):
        api.images(3, epochs=3)


def test_logits_and_probabilities_are_told_apart(scaled, capsys):
    plain, softmax = scaled
    logits = api.evaluate(plain, **DIGITS)
    told = api.evaluate(softmax, **DIGITS, input_range="0,255")
    declared = api.evaluate(softmax, **DIGITS, input_range="0,255", outputs="probabilities")
    assert logits.evaluation["interface"]["outputs"] == "logits"
    assert told.evaluation["interface"] == declared.evaluation["interface"]
    assert told.evaluation["interface"]["outputs"] == "probabilities"
    assert told.values == declared.values == pytest.approx(logits.values, abs=1e-4)
    printed = capsys.readouterr().out
    assert printed.count("outputs=probabilities: the sums over the classes are 1") == 1
    assert "look like" not in printed
    api.evaluate(softmax, **{**DIGITS, "evaluations": "clean"}, input_range="0,255", outputs="logits")
    assert "look like probabilities" in capsys.readouterr().out


def test_attacks_of_probabilities_are_those_of_their_logits(scaled):
    images, labels = api.images(20, data="digits")
    plain, softmax = scaled
    scaled_inside = keras.Sequential([keras.Input(images.shape[1:]), keras.layers.Rescaling(255), softmax])
    settings = {"norm": "linf", "radius": 0.05, "steps": 5}
    attacked = [api.attack(model, images, labels, "pgd", **settings) for model in (plain, scaled_inside)]
    np.testing.assert_allclose(*attacked, atol=1e-5)


def test_a_model_of_another_pixel_scale_is_not_attacked_on_the_wrong_one():
    images, labels = api.images(300, data="digits", evaluation_split="validation")
    of_255 = fitted(images, labels, keras.layers.Rescaling(1 / 255))
    settings = {"norm": "linf", "radius": 0.02, "steps": 3}
    with pytest.raises(ValueError, match="pixel scale with which .*input_range=0,1.*Try: input_range=0,255"):
        api.attack(of_255, images, labels, "pgd", **settings)
    declared = api.attack(of_255, images, labels, "pgd", input_range="0,255", **settings)
    of_1 = keras.Sequential([keras.Input([28, 28, 1]), keras.layers.Rescaling(255), of_255])
    np.testing.assert_allclose(declared, api.attack(of_1, images, labels, "pgd", **settings), atol=1e-5)
    assert api.attack(of_255, images, labels, "pgd", check_inputs=False, **settings).shape == images.shape


def test_the_current_folder_has_no_learning_curves_of_a_model_in_memory(scaled, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "history.json").write_text('{"loss": [1.0, 0.5]}')
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "worst.png").write_bytes(b"of something else")
    scaled[0].save("model.keras")
    for model in (scaled[0], "model.keras"):
        with open(api.evaluate(model, data="digits", evaluations="clean", subset=100).report(), encoding="utf-8") as file:
            assert "when clean and misclassified" not in file.read()


def test_a_result_has_values_a_frame_and_a_report(scaled, tmp_path):
    result = api.evaluate(scaled[0], **{**DIGITS, "evaluations": "clean,calibration,noise"})
    frame = result.frame().set_index("metric")
    assert frame["value"].to_dict() == result.values and set(frame["row"]) == {"plain"} and (frame["count"] == 100).all()
    assert frame.loc["clean", "low"] < result.values["clean"] < frame.loc["clean", "high"]
    assert result.report(str(tmp_path / "reports" / "report.html")) == str(tmp_path / "reports" / "report.html")
    page = (tmp_path / "reports" / "report.html").read_text("utf-8")
    assert os.listdir(tmp_path / "reports") == ["report.html"] and f"{result.values['clean']:.3f}" in page
    shown = result._repr_html_()
    assert f"{result.values['un']:.4f}" in shown and "<table" in shown
    images, labels = api.images(100, data="digits", subset=100)
    assert np.mean(np.argmax(result.model(images), axis=1) == labels) == pytest.approx(result.values["clean"])


def test_comparisons_are_paired_over_the_images(scaled, tmp_path):
    plain, _ = scaled
    images, labels = api.images(100, data="digits", subset=100)
    worse = keras.models.clone_model(plain)
    worse.set_weights([weights + np.random.RandomState(0).normal(0, 0.02, weights.shape) for weights in plain.get_weights()])
    one, other = (api.evaluate(model, **DIGITS) for model in (plain, worse))
    comparison = api.compare(one, other)  # both are called `plain`
    line = comparison.frame().set_index("metric").loc["clean"]
    correct = [np.argmax(model(images), axis=1) == labels for model in (worse, plain)]
    expected = metrics.paired_difference(*correct)
    assert line["row"] == "plain (2)" and line["baseline"] == np.mean(correct[1]) and line["value"] == np.mean(correct[0])
    assert {name: line[name] for name in ("low", "high", "count")} == pytest.approx(
        {name: expected[name] for name in ("low", "high", "count")}
    )
    assert bool(line["significant"]) == (not expected["low"] <= 0 <= expected["high"])
    assert str(comparison).startswith("RMS calibration error: best plain")
    assert repr(comparison).startswith("<Comparison of plain (2) with plain: ")
    named = api.compare(one=one, other=other, baseline="other")
    assert set(named.frame()["row"]) == {"one"} and "other" in named._repr_html_()
    assert named.frame().set_index("metric").loc["clean", "difference"] == pytest.approx(-line["difference"])
    assert "<html" in open(named.report(str(tmp_path / "report.html")), encoding="utf-8").read()
    with pytest.raises(ValueError, match=r"differ in .* \(data.fingerprint\), .* \(data"):
        api.compare(one, api.evaluate(worse, **{**DIGITS, "subset": 90}))
    other.evaluation["seed"] = 1  # as of two runs in folders of one name
    assert set(api.compare(one, other).frame()["row"]) == {"plain (2)"}
    with pytest.raises(ValueError, match="Received: 'runs/a'"):
        api.compare(one, "runs/a")
    with pytest.raises(ValueError, match="at least two results"):
        api.compare(one)


def test_a_significant_loss_against_a_baseline_is_named(scaled, tmp_path):
    plain, _ = scaled
    settings = {"data": "digits", "evaluations": "clean", "subset": 200, "check_inputs": False}
    images, labels = api.images(200, data="digits", subset=200)
    good = fitted(images, labels)
    results = {name: api.evaluate(model, **settings) for name, model in (("good", good), ("plain", plain))}
    measured = {name: {**result.evaluation, "measured_in": result.folder} for name, result in results.items()}
    difference = metrics.paired_difference(*(np.argmax(model(images), axis=1) == labels for model in (plain, good)))
    losses = lambda one, other: shortfalls(comparisons.not_worse(one, other))
    (message,) = losses(measured["plain"], measured["good"])
    assert difference["high"] < 0 and f"clean is {results['plain'].values['clean']:.4f}, required not worse than" in message
    assert f": {difference['mean']:+.3f} [" in message
    assert losses(measured["good"], measured["plain"]) == losses(measured["good"], measured["good"]) == []
    (tmp_path / "evaluation.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="Not found: .*measured.jsonl"):
        comparisons.read_baseline(str(tmp_path / "evaluation.json"))


@pytest.fixture(scope="module")
def trained():
    """(model of images in [0, 1], the same of images in 0..255, images uint8 [80, 28, 28, 1], labels)."""
    images, labels = api.images(80, data="digits", evaluation_split="validation")
    models = [fitted(images, labels, *layers, rcond=1e-2) for layers in ([], [keras.layers.Rescaling(1 / 255)])]
    return (*models, np.round(255 * images).astype(np.uint8), labels)


SHORT = {"norm": "linf", "radius": 4 / 255, "steps": 3, "check_inputs": False}


@pytest.fixture(scope="module")
def attacked_floats(trained):
    model, _, levels, labels = trained
    return api.attack(model, (levels[:12] / 255).astype(np.float32), labels[:12], **SHORT).numpy()


@pytest.mark.parametrize("kind", ["uint8", "int64", "floats to 255", "float64", "-1,1"])
def test_attacked_images_have_the_scale_and_the_type_of_the_given_ones(trained, attacked_floats, kind):
    model, _, levels, labels = trained
    levels, labels = levels[:12], labels[:12]
    scale, offset, data_range, dtype = {
        "uint8": (255, 0, "", "uint8"),
        "int64": (255, 0, "", "int64"),
        "floats to 255": (255, 0, "0,255", "float32"),
        "float64": (1, 0, "", "float64"),
        "-1,1": (2, -1, "-1,1", "float32"),
    }[kind]
    given = (levels / 255 * scale + offset).astype(dtype) if dtype.startswith("float") else levels.astype(dtype)
    attacked, success = api.attack(model, given, labels, data_range=data_range, return_success=True, **SHORT)
    assert attacked.dtype.name == dtype and attacked.shape == given.shape
    unit = (attacked.numpy().astype(np.float64) - offset) / scale
    np.testing.assert_allclose(unit, attacked_floats, atol=1e-5 if dtype.startswith("float") else 0.5 / 255 + 1e-6)
    assert np.abs(unit - levels / 255).max() <= 4 / 255 + 1e-6
    predicted = model(unit.astype(np.float32)).numpy().argmax(axis=1)
    np.testing.assert_array_equal(success, predicted != labels)
    untouched = model(levels / np.float32(255)).numpy().argmax(axis=1) != labels
    np.testing.assert_array_equal(attacked.numpy()[untouched], given[untouched])


def test_images_of_another_scale_than_data_range_are_refused_with_the_one_that_fits(trained):
    model, _, levels, labels = trained
    with pytest.raises(ValueError, match="data_range=0,1.*Received: float32 from 0 to 255. Try: data_range=0,255"):
        api.attack(model, levels.astype(np.float32), labels, **SHORT)


def test_integers_stay_within_a_radius_between_two_levels(trained):
    model, _, levels, labels = trained
    for norm, radius in (("linf", 3.6 / 255), ("l2", 0.3)):
        attacked = api.attack(model, levels, labels, **{**SHORT, "norm": norm, "radius": radius}).numpy()
        changes = (attacked.astype(float) - levels).reshape(len(levels), -1) / 255
        sizes = np.linalg.norm(changes, np.inf if norm == "linf" else 2, axis=1)
        assert 0.5 * radius < sizes.max() <= radius * 1.00001


@pytest.mark.parametrize("white, radius", [(255, 0.9 / 255), (15, 8 / 255)])
def test_a_radius_of_less_than_a_level_of_integer_images_is_refused(trained, white, radius):
    model, _, levels, labels = trained
    given = np.round(levels / 255 * white).astype(np.uint8)
    with pytest.raises(ValueError, match=f"radius >= {1 / white:.4g}, one level"):
        api.attack(model, given, labels, data_range=f"0,{white}", **{**SHORT, "norm": "l2", "radius": radius})


def test_several_radii_are_attacked_at_once(trained):
    model, _, levels, labels = trained
    radii = [0.0, 2 / 255, 20 / 255]
    attacked, success = api.attack(model, levels[:12], labels[:12], return_success=True, **{**SHORT, "radius": radii})
    assert attacked.shape == (3, 12, 28, 28, 1) and attacked.dtype.name == "uint8" and success.shape == (3, 12)
    np.testing.assert_array_equal(attacked[0], levels[:12])
    np.testing.assert_array_equal(attacked[1], api.attack(model, levels[:12], labels[:12], **{**SHORT, "radius": radii[1]}))
    assert np.diff(success.numpy().mean(axis=1)).min() >= 0


def test_few_images_with_another_pixel_scale_give_a_note_with_both_accuracies(trained, capsys):
    _, of_255, levels, labels = trained
    NOTED.clear()
    for count in (8, 24):
        given, classes = levels[:count], labels[:count].copy()
        classes[12:] = (classes[12:] + 1) % 10  # an accuracy of 0.5 at best
        accuracies = [np.mean(of_255(np.float32(scale) * given).numpy().argmax(axis=1) == classes) for scale in (1 / 255, 1.0)]
        options = {**SHORT, "check_inputs": True}
        api.attack(of_255, given, classes, **options)
        note = capsys.readouterr().out
        assert "Note" in note and all(f"{accuracy:.1%}" in note for accuracy in accuracies) and "input_range=0,255" in note
        api.attack(of_255, given, classes, input_range="0,255", **options)
        assert "Note" not in capsys.readouterr().out


def test_names_and_arguments_of_attacks_have_suggestions(trained):
    model, _, levels, labels = trained
    assert api.attack(model, levels[:2], labels[:2], "fgsm", norm="linf", radius=0.0, check_inputs=False).shape == (2, 28, 28, 1)
    for name, options, message in (
        ("pdg", {}, "Unknown attack: 'pdg'. Did you mean 'pgd'"),
        ("pgd", {"radus": 0.1}, "'radus'. Did you mean 'radius'"),
        ("pgd", {"input_rang": "0,255"}, "'input_rang'. Did you mean 'input_range'"),
        ("plb", {"radius": 0.1}, "Unknown argument of the attack plb: 'radius'"),
        ("square", {"loss": "margin"}, "Unknown argument of the attack square: 'loss'"),
        ("fab", {"loss": "margin"}, "Unknown argument of the attack fab: 'loss'"),
    ):
        with pytest.raises(ValueError, match=message):
            api.attack(model, levels, labels, name, **options)


def test_a_folder_is_taken_by_its_path(tmp_path):
    write_images(tmp_path / "pics", gray_images(3, dark=40, light=200))

    def model(images):
        bright = np.asarray(images)[:, 0, 0, 0] > 0.5
        return np.stack([~bright, bright], axis=1).astype(np.float32)

    for path in (tmp_path / "pics", str(tmp_path / "pics") + "/"):
        result = api.evaluate(model, data=path, evaluations="clean", shifts=[path])
        assert result.values["clean"] == result.values["shift/pics"] == 1 and result.evaluation["data"] == f"folder:{tmp_path}/pics"
    assert api.images(4, data=tmp_path / "pics", evaluation_split="all")[0].shape == (4, 20, 18, 3)
    for function in (api.train, api.harden):
        with pytest.raises(ValueError, match=r"epoch\b|budgets"):  # the data are no obstacle
            function("unused.keras", data=tmp_path / "pics", **{"epoch" if function is api.train else "budgets": 1})
    with pytest.raises(ValueError, match="Expected arrays .* of further images. Received: '.*pics'"):
        api.evaluate(model, data=tmp_path / "pics", evaluations="clean", calibrate="temperature", validation_data=tmp_path / "pics")


@pytest.mark.parametrize("target, refused", [("adversarial", "a budget"), ("noise", "evaluations=adversarial")])
def test_options_of_the_evaluation_that_a_target_adds_are_taken(target, refused):
    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
    images, labels = np.random.RandomState(0).rand(60, 8, 8, 3).astype(np.float32), np.arange(60) % 3
    options = {"evaluations": "clean", "attack_subset": 10, "budget": "20steps", "outputs": "logits"}
    with pytest.raises(ValueError, match=f"Expected {refused}"):
        api.harden(model, (images, labels), target=target, **options)


def test_an_attack_of_images_that_are_misclassified_anyway_is_noted(capsys):
    def model(images):
        return tf.stack([tf.reduce_mean(images, axis=(1, 2, 3)), 0.5 + 0.0 * images[:, 0, 0, 0]], axis=1)

    images = np.repeat([40, 200], 8).astype(np.uint8)[:, None, None, None] * np.ones([16, 4, 4, 1], np.uint8)
    right = (np.arange(16) < 8).astype(int)  # dark images are of class 1
    for labels, noted in ((right, False), (1 - right, True)):
        attacked = api.attack(model, images, labels, "fgsm", radius=4 / 255, check_inputs=False)
        printed = capsys.readouterr().out
        assert ("16 of 16 images are misclassified before the attack" in printed) == noted
        assert (np.asarray(attacked) == images).all() == noted


def test_a_function_with_a_condition_on_a_tensor_is_exported(tmp_path):
    weights = np.random.RandomState(0).normal(size=(64, 3)).astype(np.float32)

    def classify(images):
        scores = tf.reshape(images, [-1, 64]) @ weights
        if tf.reduce_max(scores) > 0.0:  # which AutoGraph converts
            scores = 2.0 * scores
        return scores

    images = np.random.RandomState(1).uniform(size=(30, 8, 8, 1)).astype(np.float32)
    labels = np.argmax(classify(images), axis=1)
    (path,) = api.export(classify, str(tmp_path), "savedmodel", (images, labels), check_inputs=False).values()
    np.testing.assert_allclose(loading.load_classifier(path)(images), classify(images), rtol=1e-5)


def test_export_writes_files_with_the_scores_of_a_model_in_memory(tmp_path):
    images, labels = api.images(30, data="digits")
    model = keras.Sequential([keras.Input([28, 28, 1]), keras.layers.Flatten(), keras.layers.Dense(10)])
    with pytest.raises(ValueError, match="'kears'.*'keras'"):
        api.export(model, str(tmp_path), "kears", (images, labels))
    with pytest.raises(ValueError, match="TensorFlow operations.*calls Python code"):
        api.export(lambda images: np.asarray(images).reshape(len(images), -1)[:, :10], str(tmp_path), "savedmodel", (images, labels))
    (path,) = api.export(model, str(tmp_path), ["keras"], (images, labels), check_inputs=False).values()
    np.testing.assert_allclose(keras.saving.load_model(path)(images), model(images), rtol=1e-6)
