"""ImageNet's classes are declared, not guessed from a data set's name; ImageNet-R from files is measured as its suite says."""

import dataclasses
import json
import os
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.command_line import main
from tests.conftest import ROOT
from tests.small_runs import read, without_charts, write_images  # noqa: F401
from tf_robust import api, data, evaluation, report
from tf_robust.data.class_mask import classes_of, label_set_of
from tf_robust.evaluation import EvalConfig
from tf_robust.evaluation.model_evaluation import with_label_set_of_card
from tf_robust.runs.config import run_config
from tf_robust.runs.run import Run
from tf_robust.utils.progress import NOTED

IMAGENET = EvalConfig(corruption_constants="imagenet")


def write_noise(root, names, splits=("train", "test")):
    """An image per class, below train/ and test/."""
    random = np.random.RandomState(0)
    for split in splits:
        write_images(root / split, {name: random.randint(0, 256, (1, 8, 8, 3)).astype(np.uint8) for name in names})
    return f"--data=folder:{root}"


@pytest.fixture(scope="module")
def thousand(tmp_path_factory):
    """A linear classifier of 1,000 classes."""
    keras.utils.set_random_seed(0)
    images = keras.Input((8, 8, 3))
    model = keras.Model(images, keras.layers.Dense(1000)(keras.layers.Flatten()(images)))
    path = str(tmp_path_factory.mktemp("thousand") / "saved_model")
    model.export(path, verbose=False)
    return path, model


@pytest.mark.parametrize(
    "classes, declared, name, expected",
    [
        (1000, "imagenet", "folder:X", True),
        (1000, "", "folder:X", False),
        (1000, "", "folder:imagenet2012", False),
        (1000, label_set_of("imagenet2012"), "imagenet2012", True),
        (1000, label_set_of("imagenet2012_subset/1pct"), "x", True),
        (1000, label_set_of("cifar100"), "x", False),
    ],
)
def test_only_declared_classes_are_imagenet(source, classes, declared, name, expected):
    one = data.declared(data.masked(source(1000, shape=(8, 8, 1), classes=classes)), declared)
    assert evaluation.is_imagenet(one, IMAGENET) is expected
    assert not evaluation.is_imagenet(one, EvalConfig(corruption_constants="cifar10"))


def test_label_sets_that_do_not_match_raise(source):
    with pytest.raises(ValueError, match="1000 classes with label_set=imagenet. Received: 3"):
        data.declared(source(), "imagenet")
    with pytest.raises(ValueError, match="label_set=imagenet_r"):
        data.declared(source(), "imagenet_r")
    with pytest.raises(ValueError, match="Received: both"):
        api.images(1, data="digits", label_map="x", label_set="imagenet_r")


def test_the_label_set_comes_from_the_card_of_the_model(tmp_path, thousand, monkeypatch):
    """Or from the flag: test_imagenet_r_from_files_is_evaluated_by_its_suite."""
    folder = write_noise(tmp_path / "imagenet", [f"n{number:08d}" for number in range(1000)], splits=("test",))
    asked, metrics_of = [], evaluation.metrics_of
    monkeypatch.setattr(
        evaluation, "metrics_of", lambda records, eval_config, imagenet: asked.append(imagenet) or metrics_of(records, eval_config)
    )
    options = "--image_size=8 --evaluations=corruptions --corruptions=contrast --severities=1 --corruption_constants=imagenet".split()
    metric = ["evaluate", f"{tmp_path}/model", folder, *options, f"--workdir={tmp_path}/measured"]
    os.symlink(thousand[0], tmp_path / "model")
    main(*metric)
    source = data.open_source(folder.removeprefix("--data="), "test", image_size=8)
    run = Run(run_config({"method": "cross_entropy", "data": "digits", "corruption_constants": "imagenet"}), "row", 0)
    assert run.card(source)["label_set"] == "" and run.card(data.declared(source, "imagenet"))["label_set"] == "imagenet"
    card = {"label_set": "imagenet"}
    assert with_label_set_of_card(types.SimpleNamespace(card=card, path="p"), source).label_set == "imagenet"
    with open(os.path.join(thousand[0], "card.json"), "w") as file:
        json.dump(card, file)
    main(*metric)
    os.remove(os.path.join(thousand[0], "card.json"))
    assert asked == [False, True]


def test_imagenet_r_from_files_is_evaluated_by_its_suite(tmp_path, thousand, monkeypatch):
    known = classes_of("imagenet_r")
    folder = write_noise(tmp_path / "r", known["wnids"])
    source = data.declared(data.open_source(folder.removeprefix("--data="), "test", image_size=8), "imagenet_r")
    assert list(source.class_mask) == known["columns"] and source.num_classes == 1000
    images = np.concatenate([batch.numpy() for batch, _ in source.ordered(200)]) / np.float32(255)
    scores = thousand[1](images).numpy()[:, known["columns"]]  # the classes stand in the order of their WordNet ids
    for row in ("baseline", "noisymix"):
        os.makedirs(tmp_path / f"runs/noisymix_table1_imagenet/{row}/seed_0")
        os.symlink(thousand[0], tmp_path / f"runs/noisymix_table1_imagenet/{row}/seed_0/saved_model")
        (tmp_path / f"runs/noisymix_table1_imagenet/{row}/seed_0/flags.txt").write_text("--label_set=imagenet\n--model=resnet50\n")
    monkeypatch.chdir(tmp_path)
    command = ["suite", "flags/noisymix/table11_imagenet_r", folder, "--label_set=imagenet_r", "--image_size=8"]
    with pytest.raises(SystemExit, match="Rows failed:\nadversarial failed"):
        main(*command)
    results = read(tmp_path / "runs" / "noisymix_table11_imagenet_r" / "results.json")["rows"]
    clean = {entry["row"]: entry for entry in results if entry["metric"] == "clean"}
    assert set(clean) == {"baseline", "noisymix"}
    for row, printed in (("baseline", 0.362), ("noisymix", 0.457)):
        assert clean[row]["values"] == [np.mean(scores.argmax(axis=1) == np.arange(200))] and clean[row]["paper"] == [printed, None]
    text = (tmp_path / "runs" / "noisymix_table11_imagenet_r" / "report.md").read_text()
    assert "augmix failed: Expected a SavedModel folder" in text
    found = read(tmp_path / "runs" / "noisymix_table11_imagenet_r" / "noisymix" / "evaluation.json")
    assert found["model"] == "resnet50" and found["card"]["data"]["class_mask"] == "200 classes"
    with pytest.raises(ValueError, match="Expected rows that are all trained, or, without --dry_run"):
        main(*command, "--dry_run")
    main("evaluate", thousand[0], folder, "--evaluations=clean", "--image_size=8", f"--workdir={tmp_path}/alone")
    alone = read(tmp_path / "alone" / "evaluation.json")  # by the WordNet ids, of which all 1,000 compete
    correct = thousand[1](images).numpy().argmax(axis=1) == known["columns"]
    assert alone["rows"][0]["value"] == correct.mean() and alone["card"]["data"]["class_mask"] == "none"


def test_the_flagfiles_of_both_suites_have_the_same_numbers():
    printed = {}
    for table in ("table1_imagenet", "table11_imagenet_r"):
        folder = os.path.join(ROOT, "flags", "noisymix", table)
        printed[table] = {name: open(os.path.join(folder, name)).read() for name in os.listdir(folder) if name.endswith(".flags")}
    paper = read(os.path.join(folder, "suite.json"))["paper"]
    assert printed["table1_imagenet"].keys() == printed["table11_imagenet_r"].keys() == {f"{row}.flags" for row in paper}
    for row, numbers in paper.items():
        text = ", ".join(f"{metric} {numbers[metric][0]:.3f}" for metric in ("clean", "calibration/rms", "aurra"))
        assert all(text in texts[f"{row}.flags"] for texts in printed.values()), row


@pytest.fixture
def half(tmp_path):
    """Gray images of two of a model's five classes; half of them have their largest logit at a class without images."""
    columns = {"cat": 4, "dog": 2}
    images = {name: [np.full((8, 8, 3), 10 * column + i % 2, np.uint8) for i in range(10)] for name, column in columns.items()}
    write_images(tmp_path / "photos", images)
    (tmp_path / "map.txt").write_text("cat 4\ndog 2\n")
    rows = [f"photos/{name}/{i}.png,{column}" for name, column in columns.items() for i in range(10)]
    (tmp_path / "table.csv").write_text("\n".join(["path,label", *rows]))
    return tmp_path


def largest_elsewhere(images):
    """Logits of five classes: 2 at the right one, 3 at class 0 for odd gray levels."""
    levels = tf.cast(tf.round(images[:, 0, 0, 0] * 255), tf.int32)
    return 2 * tf.one_hot(levels // 10, 5) + 3 * tf.one_hot([0], 5) * tf.cast(levels % 2, tf.float32)[:, None]


@pytest.mark.parametrize("route, classes, expected", [("folder", "all", 0.5), ("csv", "present", 1.0)])
def test_classes_without_images_compete_unless_masked(half, route, classes, expected, capsys):
    NOTED.clear()
    data, options = {"folder": (half / "photos", {"label_map": half / "map.txt"}), "csv": (half / "table.csv", {})}[route]
    options |= {"evaluations": "clean,adversarial", "attack": "square", "attack_queries": 1, "attack_radii": "linf_1/2550"}
    result = api.evaluate(largest_elsewhere, data, classes=classes, outputs="logits", check_inputs=False, **options)
    assert result.values["clean"] == result.values["robust/square/linf_1/2550"] == expected
    assert result.evaluation["card"]["data"]["class_mask"] == ("2 classes" if classes == "present" else "none")
    printed = capsys.readouterr().out
    assert ("only 2 of the model's 5 classes compete" in printed) == (classes == "present")
    notes = report.evaluation_notes([result.evaluation])
    assert len(notes) == (classes == "present") and all("largest_elsewhere: only 2 classes" in note for note in notes)


def test_a_folder_of_some_of_imagenets_wordnet_ids_is_evaluated(tmp_path):
    wnids = classes_of("imagenet")["wnids"]
    write_images(tmp_path, {wnids[column]: np.full((3, 8, 8, 3), column, np.uint8) for column in (3, 250)})

    def model(images):
        return tf.one_hot(tf.cast(tf.round(images[:, 0, 0, 0] * 255), tf.int32), 1000)

    result = api.evaluate(model, tmp_path, evaluations="clean", outputs="logits")
    assert result.values["clean"] == 1 and result.evaluation["card"]["data"]["class_mask"] == "none"


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({}, ""),
        ({"severities": (1, 3, 5)}, "all five severities"),
        ({"corruption_constants": "cifar10"}, "corruption_constants=imagenet"),
        ({"evaluations": ("clean",)}, ""),
    ],
)
def test_a_missing_mce_is_explained(source, changes, expected):
    one = dataclasses.replace(source(1000, shape=(8, 8, 1), classes=1000), label_set="imagenet")
    config = dataclasses.replace(IMAGENET, **{"evaluations": ("corruptions",), **changes})
    metrics = [] if expected or "evaluations" in changes else [evaluation.MetricValue("corruptions", "mce", value=1.0, count=1)]
    text = evaluation.why_no_mce(one, config, metrics)
    assert (expected in text) if expected else text == ""
    assert evaluation.why_no_mce(dataclasses.replace(one, label_set=""), config, []) == ""
