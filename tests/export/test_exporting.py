"""`tf-robust export` and `tf-robust evaluate --formats`: from a run on digits to files of every format, evaluated side by side."""

import importlib.util
import os
import re
import shutil

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf
from PIL import Image

from tests.command_line import main
from tests.saved_models.loading_models import Bessel
from tests.small_runs import eagerly, read, without_charts  # noqa: F401
from tf_robust import data, evaluation, exporter
from tf_robust.cli import commands
from tf_robust.cli.command_line import read_command
from tf_robust.saved_models import latency
from tf_robust.saved_models.formats import FORMATS, files
from tf_robust.saved_models.loading import load_classifier

pytest.importorskip("ai_edge_litert")
pytest.importorskip("onnxruntime")
pytest.importorskip("tf2onnx")

RUN = ["--data=digits", "--model=lenet", "--epochs=3", "--batch_size=50", "--train_examples=500", "--evaluations=none"]


MILLISECONDS = latency.milliseconds


@pytest.fixture(autouse=True)
def latency_here(monkeypatch):
    """Measures latencies in this process: that of another one, for each file, takes longer than all else."""

    def milliseconds(*arguments):
        seconds = latency.measure(*arguments)
        return 1000 * float(np.median(seconds)), len(seconds)

    monkeypatch.setattr(latency, "milliseconds", milliseconds)
    monkeypatch.setattr(latency, "SECONDS", 0.0)  # after the fewest calls


@pytest.fixture(scope="module")
def trained(tmp_path_factory, eagerly):
    """The workdir of a run on digits."""
    folder = str(tmp_path_factory.mktemp("trained") / "run")
    main("train", *RUN, f"--workdir={folder}")
    return folder


@pytest.fixture(scope="module")
def exported(trained):
    """The same with all formats exported."""
    main("export", trained)
    return trained


def test_every_file_has_a_card_and_the_logits_of_the_run(exported):
    images, labels = evaluation.first_images(data.open_source("digits", "test"), 60)
    expected = load_classifier(exported)(images).numpy()
    for name, file in files().items():
        path = os.path.join(exported, "exported", file)
        card, classifier = read(exporter.card_of(path)), load_classifier(path)
        assert card["format"] == name and card["classes"] == list("0123456789") and card["data"] == "digits" and card["output"] == "logits"
        difference = np.abs(classifier(images).numpy() - expected).max()
        largest = card["check"]["largest_output"]
        assert card["check"]["images"] == exporter.CHECKED and difference <= 2 * card["check"]["largest_difference"] + 1e-6 * largest
        limit = {"tflite_float16": 0.01, "tflite_int8": 0.1}.get(name, 1e-5)
        assert card["check"]["largest_difference"] <= limit * largest and card["check"]["same_class"] >= 0.97
        assert classifier.card == card and (card["calibration"] is not None) == (name == "tflite_int8")
        assert card["bytes"] >= os.path.getsize(path) if os.path.isfile(path) else card["bytes"] > 0
    assert (expected.argmax(axis=1) == labels).mean() > 0.5
    assert not [name for name in os.listdir(os.path.join(exported, "exported")) if "writing" in name]


def test_the_exported_saved_model_is_that_of_the_run_with_its_byte_signature(exported):
    path = os.path.join(exported, "exported", "saved_model")
    assert {"serving_default", "serving_bytes"} <= set(load_classifier(path).loaded.signatures)
    card, own = read(os.path.join(path, "card.json")), read(os.path.join(exported, "saved_model", "card.json"))
    assert card["training"] == own["training"] and card["check"]["largest_difference"] == 0
    assert np.load(os.path.join(path, "weights.npz")).files


@pytest.mark.slow  # three evaluations; each format: test_every_file_has_a_card_and_the_logits_of_the_run
def test_formats_are_evaluated_side_by_side(exported, tmp_path, capsys):
    chosen = "--evaluations=clean,calibration,adversarial", "--attack_radii=linf_0.1", "--attack_queries=20", "--subset=40"
    shutil.copytree(os.path.join(exported, "exported"), tmp_path / "out" / "formats" / "exported")
    int8 = tmp_path / "out" / "formats" / "exported" / "model_int8.tflite"
    before = os.path.getmtime(int8)
    main("evaluate", exported, "--formats=savedmodel,tflite_int8,onnx", *chosen, f"--workdir={tmp_path}/out")
    assert os.path.getmtime(int8) == before  # a file of the same model is kept
    printed = capsys.readouterr().out
    results = read(tmp_path / "out" / "formats" / "results.json")
    values = {(row["row"], row["metric"]): row["mean"] for row in results["rows"]}
    rows, metrics = zip(*values)
    assert list(dict.fromkeys(rows)) == ["savedmodel", "tflite_int8", "onnx"]
    expected = "clean calibration/rms robust/square/linf_0.1 robust/transfer/linf_0.1 deployed/bytes deployed/milliseconds"
    assert {*expected.split()} <= {*metrics}
    images, labels = evaluation.first_images(data.open_source("digits", "test", examples=40), 40)
    for name in ("savedmodel", "tflite_int8", "onnx"):
        path = tmp_path / "out" / "formats" / "exported" / FORMATS[name].file
        assert values[name, "clean"] == pytest.approx((np.argmax(load_classifier(path)(images), axis=1) == labels).mean())
        assert 0 < values[name, "deployed/milliseconds"] < 1000
    assert values["tflite_int8", "deployed/bytes"] == os.path.getsize(int8)
    assert values["savedmodel", "clean"] == values["onnx", "clean"]
    assert "Latency: one image, one thread" in printed and f"{os.path.getsize(int8):,}" in printed


def test_integers_are_calibrated_on_all_classes_of_data_that_are_sorted_by_class():
    labels = np.repeat(np.arange(10), 60)
    images = np.repeat(labels.astype(np.uint8), 64).reshape(-1, 8, 8, 1) + np.arange(64, dtype=np.uint8).reshape(8, 8, 1)
    found = evaluation.stratified_images(data.from_arrays(images, labels), 100)[0]
    assert np.bincount(np.round(255 * found[:, 0, 0, 0]).astype(int)).tolist() == [10] * 10


def test_a_file_is_written_anew_for_other_images(theirs, tmp_path):
    command = ["evaluate", f"{theirs}/plain", f"--data=npz:{tmp_path}/data.npz", "--formats=tflite_int8", "--evaluations=clean"]
    written, arrays = [], dict(np.load(theirs / "data.npz"))
    for images in (arrays["images"], arrays["images"] // 2 + 1):
        np.savez(tmp_path / "data.npz", images=images, labels=arrays["labels"])
        main(*command, "--check_inputs=false", f"--workdir={tmp_path}/out")
        written.append((tmp_path / "out" / "formats" / "exported" / "model_int8.tflite").read_bytes())
    assert written[0] != written[1]


@keras.saving.register_keras_serializable("theirs")
class Scale(keras.layers.Layer):
    def call(self, images):
        return images * 2


def flat_network(*first):
    """Images 16 x 16 -> the scores of 3 classes."""
    return keras.Sequential([keras.Input((16, 16, 1)), *first, keras.layers.Flatten(), keras.layers.Dense(3)])


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.classes, self.flatten = keras.layers.Dense(3), keras.layers.Flatten()

    def call(self, images):
        return self.classes(self.flatten(images))


def subclassed():
    model = Subclassed()
    model(np.zeros([1, 16, 16, 1], np.float32))
    return model


def calling_python():
    kernel = np.random.RandomState(0).randn(256, 3).astype(np.float32)
    logits = lambda x: tf.ensure_shape(tf.numpy_function(lambda y: y.reshape(len(y), -1) @ kernel, [x], tf.float32), [None, 3])
    return tf.function(logits, input_signature=[tf.TensorSpec([None, 16, 16, 1], tf.float32)])


def test_models_of_python(theirs, tmp_path, capsys):
    where, options = f"--data=npz:{theirs}/data.npz", ["--check_inputs=false", "--outputs=logits"]
    main("export", f"{__name__}:subclassed", where, *options, f"--workdir={tmp_path}/subclassed")
    assert "Note: keras is left out: " in capsys.readouterr().out and (tmp_path / "subclassed" / "saved_model").is_dir()
    with pytest.raises(ValueError, match="calling_python.* Python code"):
        main("export", f"{__name__}:calling_python", where, *options, "--formats=savedmodel", f"--workdir={tmp_path}/python")


@pytest.mark.slow
def test_the_latency_of_a_file_with_classes_of_the_user_is_left_out(theirs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(latency, "milliseconds", MILLISECONDS)
    flat_network(Scale()).save(tmp_path / "model.keras")
    options = ["--formats=keras", "--evaluations=clean", "--check_inputs=false", f"--workdir={tmp_path}/out"]
    main("evaluate", f"{tmp_path}/model.keras", f"--data=npz:{theirs}/data.npz", *options)
    assert "the latency of keras is left out." in capsys.readouterr().out
    rows = {row["metric"] for row in read(tmp_path / "out" / "formats" / "results.json")["rows"]}
    assert {"clean", "deployed/bytes"} <= rows and "deployed/milliseconds" not in rows


def test_attacks_are_transferred_from_the_model_with_its_own_pixel_scale(theirs, tmp_path, capsys):
    flat_network().save(tmp_path / "model.keras")
    options = ["--formats=keras", "--evaluations=clean,adversarial", "--attack=pgd", "--attack_radii=linf_8/255", "--check_inputs=false"]
    scale = "mean=0.306 std=0.376"
    flags = [f"--data=npz:{theirs}/data.npz", *options, f"--input_range={scale}", "--noattack_checks", f"--workdir={tmp_path}/out"]
    main("evaluate", f"{tmp_path}/model.keras", *flags)
    assert f"(input_range={scale}, outputs=logits)" in capsys.readouterr().out
    values = {row["metric"]: row["mean"] for row in read(tmp_path / "out" / "formats" / "results.json")["rows"]}
    assert values["robust/transfer/linf_8/255"] == pytest.approx(values["robust/pgd/linf_8/255"], abs=0.02)


@pytest.mark.slow
def test_a_run_in_bfloat16_is_deployed_in_float32(tmp_path, capsys):
    """Converters have no operations in bfloat16; the SavedModel stays as it is."""
    run = str(tmp_path / "run")
    main("train", *RUN, "--mixed_precision", "--epochs=1", f"--workdir={run}")
    images, _ = evaluation.first_images(data.open_source("digits", "test"), 60)
    own = load_classifier(run)(images).numpy()
    names = ("savedmodel", "keras", "tflite", "tflite_int8", "onnx")
    main("export", run, f"--formats={','.join(names)}")
    assert "computes in bfloat16. Formats other than savedmodel compute in float32" in capsys.readouterr().out
    logits = {name: load_classifier(os.path.join(run, "exported", FORMATS[name].file))(images).numpy() for name in names}
    expected, largest = logits["keras"], np.abs(own).max()
    np.testing.assert_array_equal(logits["savedmodel"], own)
    assert 1e-4 * largest < np.abs(own - expected).max() < 0.02 * largest  # bfloat16 has 8 bits
    for name in ("tflite", "onnx"):
        np.testing.assert_allclose(logits[name], expected, atol=1e-5 * largest)
    assert np.abs(logits["tflite_int8"] - expected).max() < 0.1 * largest
    with np.load(os.path.join(run, "saved_model", "weights.npz")) as weights:
        assert {weights[name].dtype for name in weights.files} == {np.dtype(np.float32)}


def test_required_bounds_hold_for_every_format(exported, tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "_report", lambda *_: None)
    arguments = ["evaluate", exported, "--formats=tflite", "--evaluations=clean", "--subset=30", f"--workdir={tmp_path}/out"]
    with pytest.raises(SystemExit, match="(?s)tflite:\n  deployed/bytes"):
        main(*arguments, "--require=deployed/bytes<=1000")


def test_files_of_a_keras_file_have_its_pixel_scale_and_its_probabilities(exported, tmp_path):
    network = keras.saving.load_model(os.path.join(exported, "exported", "model.keras"))
    images = keras.Input((28, 28, 1))
    path = str(tmp_path / "theirs.keras")
    keras.Model(images, keras.layers.Softmax()(network(keras.layers.Rescaling(1 / 255)(images))["logits"])).save(path)
    folder = tmp_path / "out"
    main("export", path, "--data=digits", "--input_range=auto", "--formats=keras,tflite,onnx,savedmodel", f"--workdir={folder}")
    sample, _ = evaluation.first_images(data.open_source("digits", "test"), 20)
    probabilities = keras.saving.load_model(path).predict(255 * sample, verbose=0)
    for name in ("keras", "tflite", "onnx", "savedmodel"):
        logits = load_classifier(folder / FORMATS[name].file)(sample).numpy()
        np.testing.assert_allclose(scipy.special.softmax(logits, axis=1), probabilities, atol=1e-4)
        card = read(exporter.card_of(str(folder / FORMATS[name].file)))
        assert card["input"]["range"] == [0, 255] and card["output"] == "probabilities" and card["interface"]["input_range"] == "0,255"


def test_a_converter_that_computes_something_else_is_noticed_and_leaves_nothing(exported, tmp_path, monkeypatch):
    def with_other_weights(name, model, path, *args, **kwargs):
        shutil.copy(os.path.join(exported, "exported", "model_int8.tflite"), path)

    monkeypatch.setattr("tf_robust.saved_models.export.write", with_other_weights)
    with pytest.raises(ValueError, match="tflite .*zoo:digits.* difference"):
        main("export", "zoo:digits/lenet_augmix", "--formats=tflite", f"--workdir={tmp_path}/out")
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.parametrize("formats, split, note", [
    ("keras", "all", "evaluated on all of its images."),
    ("keras,tflite_int8", "test", "evaluated on the test part, as tflite_int8 is calibrated on the training part. To compare another"),
])  # fmt: skip
def test_the_note_on_data_without_splits_says_what_is_evaluated(formats, split, note, theirs, tmp_path, capsys):
    flat_network().save(tmp_path / "theirs.keras")
    shutil.copy(theirs / "data.npz", tmp_path)  # a note is printed once for each file
    own = (str(tmp_path / "theirs.keras"), f"--data=npz:{tmp_path}/data.npz", f"--formats={formats}", f"--workdir={tmp_path}/out")
    main("evaluate", *own, "--evaluations=clean", "--check_inputs=false")
    printed = capsys.readouterr().out
    assert printed.count("has no splits:") == 1 and f"data.npz has no splits: {note}" in printed
    for name in formats.split(","):
        content = read(tmp_path / "out" / "formats" / name / "evaluation.json")
        assert content["split"] == split and content["rows"][0]["count"] == {"all": 120, "test": 12}[split]
    main("export", *own)
    assert "has no splits" not in capsys.readouterr().out  # nothing is evaluated


def test_no_images_to_calibrate_on(tmp_path):
    flat_network().save(tmp_path / "model.keras")
    for label in ("a", "b", "c"):
        os.makedirs(tmp_path / "photos" / "test" / label)
        Image.fromarray(np.zeros((16, 16), np.uint8)).save(tmp_path / "photos" / "test" / label / "0.png")
    arguments = [f"{tmp_path}/model.keras", f"--data=folder:{tmp_path}/photos", "--check_inputs=false", "--formats=tflite,tflite_int8"]
    with pytest.raises(ValueError, match="training images to calibrate tflite_int8"):
        main("export", *arguments, f"--workdir={tmp_path}/out")
    assert sorted(os.listdir(tmp_path / "out")) == ["model.tflite", "model.tflite.json"]
    with pytest.raises(ValueError, match="training images to calibrate tflite_int8"):  # before anything is evaluated
        main("evaluate", *arguments, "--evaluations=clean", f"--workdir={tmp_path}/evaluated")
    assert not os.path.exists(tmp_path / "evaluated" / "formats" / "exported")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """A SavedModel, another one with an operation that converters lack, and images."""
    root = tmp_path_factory.mktemp("theirs")
    images = np.random.default_rng(0).integers(0, 256, (120, 16, 16, 1), np.uint8)
    np.savez(root / "data.npz", images=images, labels=np.arange(120) % 3)
    keras.utils.set_random_seed(0)
    for name, layers in (("plain", []), ("bessel", [Bessel()])):
        flat_network(*layers).export(str(root / name), verbose=False)
    return root


def export(root, name, folder, *arguments):
    main("export", str(root / name), f"--data=npz:{root}/data.npz", "--check_inputs=false", f"--workdir={folder}", *arguments)


def test_formats_that_do_not_apply_are_left_out_of_the_default_ones(theirs, tmp_path, capsys):
    export(theirs, "plain", tmp_path)
    printed = capsys.readouterr().out
    assert "Note: keras is left out: " in printed and "is a model whose layers are unknown." in printed
    assert {*os.listdir(tmp_path)} >= {file for name, file in files().items() if name != "keras"} and "Not written" not in printed
    assert "--formats=savedmodel,tflite,tflite_float16,tflite_int8,onnx" in printed.replace("\n", "")


def test_all_formats_that_can_be_written_are_written(theirs, tmp_path, capsys):
    export(theirs, "bessel", tmp_path / "default")
    printed = capsys.readouterr().out
    for name in ("tflite", "tflite_float16", "tflite_int8", "onnx"):
        assert re.search(rf"\nNot written: {name}.* BesselI1e", printed)
    assert [name for name in os.listdir(tmp_path / "default") if not name.startswith("model")] == ["saved_model"]
    with pytest.raises(ValueError, match=r"(?s)\n  keras: .*\n  onnx: .*BesselI1e"):
        export(theirs, "bessel", tmp_path / "chosen", "--formats=keras,onnx,savedmodel")
    assert os.listdir(tmp_path / "chosen") == ["saved_model"]
    with pytest.raises(ValueError, match="^Expected a Keras model .*plain"):
        export(theirs, "plain", tmp_path / "one", "--formats=keras,onnx")
    assert sorted(os.listdir(tmp_path / "one")) == ["model.onnx", "model.onnx.json"]


@pytest.mark.parametrize(
    "line, message",
    [
        ("export zoo:digits/lenet_augmix --formats=tflite_int", "--formats: 'tflite_int'.*'tflite_int8'"),
        ("evaluate zoo:digits/lenet_augmix --formats=oxxn", "--formats: 'oxxn'.*onnx"),
        ("export zoo:digits/lenet_augmix --formats=", "--formats, of: savedmodel, keras"),
        ("export", "Expected a model"),
    ],
)
def test_bad_command_lines(line, message):
    with pytest.raises(ValueError, match=message):
        read_command(line.split())


def test_files_that_were_converted_already_are_refused_at_once(exported):
    path = os.path.join(exported, "exported", "model.tflite")
    with pytest.raises(ValueError, match="model.tflite"):
        read_command(["export", path, "--data=digits", "--formats=onnx"])


@pytest.mark.parametrize("name, package, extra", [("onnx", "tf2onnx", "onnx"), ("tflite_int8", "ai_edge_litert", "tflite")])
def test_a_missing_package_is_named_with_its_extra(name, package, extra, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None if module == package else find(module))
    with pytest.raises(ValueError, match=rf"{package} for --formats={name}.*tf_robust\[{extra}\]"):
        read_command(["export", "zoo:digits/lenet_augmix", f"--formats={name}"])
