"""ImageNet's classes are declared, not guessed from a data set's name; ImageNet-R from files is measured as its suite says."""

import json
import os
import types

import keras
import numpy as np
import pytest
from PIL import Image

from tests.test_cli import little_drawn, main, read  # noqa: F401
from tf_robust import api, cli, data, evaluation
from tf_robust.data.class_mask import classes_of, label_set_of
from tf_robust.evaluation import EvalConfig
from tf_robust.experiments.model_checks import with_label_set_of_card
from tf_robust.experiments.run import Run

IMAGENET = EvalConfig(corruption_constants="imagenet")


def write_images(root, names, seed=0):
    """An image per class, below train/ and test/."""
    random = np.random.RandomState(seed)
    for split in ("train", "test"):
        for name in names:
            os.makedirs(root / split / name)
            Image.fromarray(random.randint(0, 256, (8, 8, 3)).astype(np.uint8)).save(root / split / name / "0.png")
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
    with pytest.raises(ValueError, match="Expected 1000 classes with --label_set=imagenet. Received: 3 in tiny"):
        data.declared(source(), "imagenet")
    with pytest.raises(ValueError, match="Expected --data=folder:DIR or imagenet_r with --label_set=imagenet_r"):
        data.declared(source(), "imagenet_r")
    with pytest.raises(ValueError, match="Received: both"):
        api.images(1, data="digits", label_map="x", label_set="imagenet_r")


def test_the_label_set_comes_from_the_flag_or_the_card_of_the_model(tmp_path, thousand, monkeypatch):
    folder = write_images(tmp_path / "imagenet", [f"n{number:08d}" for number in range(1000)])
    asked, measures_of = [], evaluation.measures_of
    monkeypatch.setattr(
        evaluation, "measures_of", lambda records, eval_config, imagenet: asked.append(imagenet) or measures_of(records, eval_config)
    )
    measure = [
        "evaluate",
        f"{tmp_path}/model",
        folder,
        "--image_size=8",
        "--evaluations=clean",
        "--subset=1000",
        "--corruption_constants=imagenet",
        f"--workdir={tmp_path}/measured",
    ]
    os.symlink(thousand[0], tmp_path / "model")
    main(*measure)
    main(*measure, "--label_set=imagenet")
    source = data.open_source(folder.removeprefix("--data="), "test", image_size=8)
    run = Run(types.SimpleNamespace(method="m", model="m", data="d", init_from=""), IMAGENET, {}, {}, {}, "row", 0)
    assert run.card(source)["label_set"] == "" and run.card(data.declared(source, "imagenet"))["label_set"] == "imagenet"
    card = {"label_set": "imagenet"}
    assert with_label_set_of_card(types.SimpleNamespace(card=card, path="p"), source).label_set == "imagenet"
    with open(os.path.join(thousand[0], "card.json"), "w") as file:
        json.dump(card, file)
    main(*measure)
    os.remove(os.path.join(thousand[0], "card.json"))
    assert asked == [False, True, True]


def test_imagenet_r_from_files_is_evaluated_by_its_suite(tmp_path, thousand, monkeypatch):
    known = classes_of("imagenet_r")
    folder = write_images(tmp_path / "r", known["wnids"])
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
    clean = {entry["row"]: entry for entry in results if entry["measure"] == "clean"}
    assert set(clean) == {"baseline", "noisymix"}
    for row, printed in (("baseline", 0.362), ("noisymix", 0.457)):
        assert clean[row]["values"] == [np.mean(scores.argmax(axis=1) == np.arange(200))] and clean[row]["paper"] == [printed, None]
    text = (tmp_path / "runs" / "noisymix_table11_imagenet_r" / "report.md").read_text()
    assert "augmix failed: Expected a SavedModel folder" in text
    found = read(tmp_path / "runs" / "noisymix_table11_imagenet_r" / "noisymix" / "evaluation.json")
    assert found["model"] == "resnet50" and found["card"]["data"]["class_mask"] == "200 classes"
    with pytest.raises(ValueError, match="Expected a suite that trains its rows with --dry_run"):
        main(*command, "--dry_run")
    with pytest.raises(ValueError, match="--label_set=imagenet_r those of ImageNet-R"):  # as before the commands were mended
        main(
            "evaluate",
            thousand[0],
            folder,
            "--evaluations=clean",
            "--image_size=8",
            f"--workdir={tmp_path}/alone",
        )


def test_the_flagfiles_of_both_suites_have_the_same_numbers():
    printed = {}
    for table in ("table1_imagenet", "table11_imagenet_r"):
        folder = os.path.join(cli.ROOT, "flags", "noisymix", table)
        printed[table] = {name: open(os.path.join(folder, name)).read() for name in os.listdir(folder) if name.endswith(".flags")}
    paper = read(os.path.join(folder, "suite.json"))["paper"]
    assert printed["table1_imagenet"].keys() == printed["table11_imagenet_r"].keys() == {f"{row}.flags" for row in paper}
    for row, numbers in paper.items():
        text = ", ".join(f"{measure} {numbers[measure][0]:.3f}" for measure in ("clean", "calibration/rms", "aurra"))
        assert all(text in texts[f"{row}.flags"] for texts in printed.values()), row
