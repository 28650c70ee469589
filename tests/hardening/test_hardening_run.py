"""Hardening from a model and data to a delivered model and its final evaluation, on small images of stripes."""

import dataclasses
import json
import os
import re
import shutil
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_robust as tfr
from tests.command_line import main
from tests.small_runs import without_charts  # noqa: F401
from tf_robust import data, metrics
from tf_robust.configs import DataConfig
from tf_robust.corruptions import noise_sets
from tf_robust.evaluation import EvalConfig
from tf_robust.evaluation.evaluation_data import (
    EvaluationData,
    check_unchanged,
    fraction_not_trained_on,
    with_default_split,
    with_validation_of_card,
)
from tf_robust.hardening import candidates, diagnosis, final_evaluation, harden, training
from tf_robust.hardening.config import HardenConfig
from tf_robust.hardening.data import fraction_held_out
from tf_robust.hardening.frontier import frontier_chart
from tf_robust.hardening.result import Hardened
from tf_robust.hardening.search import Search
from tf_robust.hardening.target import Outcome
from tf_robust.hardening.trials import Choice, Member, Point, SliceChange, choose
from tf_robust.runs import workdir
from tf_robust.saved_models.interface import read_card, training_data, trainings
from tf_robust.saved_models.loading import ModelInterface, load_classifier
from tf_robust.utils import locks
from tf_robust.utils.progress import NOTED

SIZE = 12


def _images(count, seed, noise=0.03):
    """Stripes in one of three directions, uint8 [N, H, W, 3], and their directions."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, count)
    y, x = np.mgrid[:SIZE, :SIZE]
    waves = np.stack([y, x, x + y])[labels] + 6.28 * random.random((count, 1, 1))
    images = 0.5 + 0.1 * np.sin(1.5 * waves)[..., None] + noise * random.normal(size=(count, SIZE, SIZE, 3))
    return (255 * np.clip(images, 0, 1)).astype(np.uint8), labels


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """The path of a model that was trained on clean stripes by plain Keras: [0, 255] -> probabilities."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Conv2D(8, 3, 2), keras.layers.BatchNormalization(momentum=0.8), keras.layers.ReLU(name="stage")]
    head = [keras.layers.Conv2D(12, 3), keras.layers.ReLU(), keras.layers.GlobalAveragePooling2D()]
    output = keras.layers.Dense(3, activation="softmax")
    model = keras.Sequential([keras.Input((SIZE, SIZE, 3)), keras.layers.Rescaling(1 / 255), *layers, *head, output])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    images, labels = _images(600, 1)
    model.fit(images.astype(np.float32), labels, epochs=12, verbose=0)
    path = str(tmp_path_factory.mktemp("start") / "stripes.keras")
    model.save(path)
    return path


OPTIONS = {
    "data": _images(600, 2),
    "validation_data": _images(900, 7),
    "test_data": _images(300, 8),
    "input_range": "0,255",
    "max_clean_loss": 0.05,
}
MANY_STEPS = {**OPTIONS, "target": "noise", "evaluations": "clean,noise", "budget": "480steps"}
FEW_STEPS = {**OPTIONS, "target": "noise", "evaluations": "clean", "budget": "240steps"}  # three trials in the first rung

RECIPES = ("Patch Gaussian", "Gaussian")


@pytest.fixture(scope="module", autouse=True)
def few_recipes():
    """The control and two recipes, a short diagnosis, and no AugMix: most of the time is for graphs.

    Tests of recipes, of the search and of the diagnosis have all of them.
    """
    every = candidates.candidates

    def few(*arguments, **options):
        return [one for one in every(*arguments, **options) if one.control or one.recipe in RECIPES]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(candidates, "candidates", few)
        patched.setattr(diagnosis, "GROUPS", ())
        patched.setattr(diagnosis, "SMALL_CHANGES", {"translation": diagnosis.translation})
        patched.setattr(training, "BATCHES", 4)
        patched.setitem(training._VIEWS, "augmix", data.augment.clean)
        yield


@pytest.fixture(scope="module")
def hardened(start, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("hardened"))
    return tfr.harden(start, folder=folder, **MANY_STEPS), folder


def helpful(*arguments, **options):
    """The choice of a search, as one that helps."""
    return dataclasses.replace(choose(*arguments, **options), helps=True)


def test_a_model_becomes_more_robust_on_images_never_used_before(hardened):
    result, _ = hardened
    assert result.changed and result.choice.target["low"] > 0
    before, after = result.values["un"]
    assert after > before
    text = r"Target \(noise\) on [\d,]+ test images.*: ([\d.]+) to ([\d.]+), (\S+) \[.*\], significant"
    start_target, target, change = map(float, re.search(text, result.sentences[0]).groups())
    assert target - start_target == pytest.approx(change, abs=0.0015) and change > 0.02
    images, labels = _images(1000, 3)  # the search had others
    noisy = 255 * noise_sets.uniform_noise(images / np.float32(255), seed=1).numpy()
    original = keras.saving.load_model(result.trainable.classifier.path, compile=False)
    accuracy = [np.mean(model.predict(noisy, verbose=0).argmax(axis=1) == labels) for model in (original, result.model)]
    assert accuracy[1] > accuracy[0] + 0.02


def test_report_and_card(hardened, tmp_path):
    result, folder = hardened
    page = open(result.report(str(tmp_path / "harden.html")), encoding="utf-8").read()
    for text in ("What changed", "Diagnosis", "Candidates", "import tf_robust as tfr", "Fixed:", result.choice.point.name):
        assert text in page, text
    with open(os.path.join(folder, "harden.json"), encoding="utf-8") as file:
        card = json.load(file)
    assert card["chosen"] == result.choice.point.name and card["config"]["budget"] == "480steps"
    assert card["test"]["clean"] == list(result.values["clean"]) and len(card["trials"]) == len(result.trials)
    assert "Measured on: " in result._repr_html_() and repr(result).startswith("<Hardened: Chosen on")


@pytest.mark.slow
def test_a_search_in_steps_is_reproducible_and_a_finished_one_is_read(start, hardened, monkeypatch):
    first, folder = hardened
    model = keras.saving.load_model(start, compile=False)  # a model in memory is not changed
    weights, again = model.get_weights(), tfr.harden(model, **MANY_STEPS)
    np.testing.assert_equal(again.model.get_weights(), first.model.get_weights())
    np.testing.assert_equal(model.get_weights(), weights)
    monkeypatch.setattr("tf_robust.hardening.training.Trainers.train", lambda *_: pytest.fail("trained again"))
    read = tfr.harden(start, folder=folder, **MANY_STEPS)
    np.testing.assert_equal(read.model.get_weights(), first.model.get_weights())
    assert read.values == first.values


@pytest.mark.slow
def test_a_saved_model_stays_one_and_its_card_has_the_new_metrics(start, tmp_path, monkeypatch):
    monkeypatch.setattr("tf_robust.hardening.harden.choose", helpful)
    keras.saving.load_model(start, compile=False).export(str(tmp_path / "exported"), verbose=False)
    (tmp_path / "exported" / "card.json").write_text(json.dumps({"rows": [{"metric": "old"}], "label_set": "stripes"}))
    result = tfr.harden(str(tmp_path / "exported"), folder=str(tmp_path / "work"), **FEW_STEPS)
    assert result.changed and not result.recipe
    path = str(tmp_path / "work" / "hardened")
    card = json.loads((tmp_path / "work" / "hardened" / "card.json").read_text())
    assert card["label_set"] == "stripes" and card["rows"] == result.evaluations[1]["rows"] and card["hardened"] == result.notes[0]
    images = OPTIONS["test_data"][0].astype(np.float32)
    (name,) = tf.saved_model.load(path).signatures["serving_default"].structured_input_signature[1]
    served = tf.saved_model.load(path).signatures["serving_default"](**{name: images})
    accuracy = np.mean(np.argmax(next(iter(served.values())), axis=1) == OPTIONS["test_data"][1])
    assert accuracy == pytest.approx(result.values["clean"][1])


def test_nothing_helps_leaves_the_model_as_it_was(start, tmp_path, monkeypatch):
    def unchanged(self, _, steps, state, *__):
        return training.State(self.start, [], steps + (state.steps if state else 0))

    monkeypatch.setattr("tf_robust.hardening.training.Trainers.train", unchanged)
    result = tfr.harden(start, folder=str(tmp_path / "work"), **FEW_STEPS)
    assert not result.changed and len(result.evaluations) == 1 and not os.path.exists(tmp_path / "work" / "hardened.keras")
    assert "The model is unchanged" in result.notes[0] and not result.recipe
    np.testing.assert_equal(result.model.get_weights(), keras.saving.load_model(start).get_weights())
    assert "nothing helps" in open(result.report(str(tmp_path / "report.html")), encoding="utf-8").read()


@pytest.mark.slow
def test_interrupted_the_best_so_far_is_written_without_a_final_evaluation_and_the_same_call_resumes(start, tmp_path, monkeypatch):
    run = Search._rung

    def interrupted(self, rung, candidates):
        if rung == 2:
            raise KeyboardInterrupt
        return run(self, rung, candidates)

    with monkeypatch.context() as patched:
        patched.setattr(Search, "_rung", interrupted)
        result = tfr.harden(start, folder=str(tmp_path), **FEW_STEPS)
    assert result.interrupted and not result.evaluations and not result.values
    assert os.path.exists(tmp_path / "hardened.keras") == result.changed
    with pytest.raises(ValueError, match="interrupted"):
        result.report()
    complete = tfr.harden(start, folder=str(tmp_path), **FEW_STEPS)
    assert complete.evaluations and not complete.interrupted


def test_two_searches_do_not_share_a_folder(start, tmp_path):
    with workdir.held(str(tmp_path)), pytest.raises(locks.WorkdirLocked, match="Another process is working in"):
        tfr.harden(start, folder=str(tmp_path), **FEW_STEPS)


@pytest.mark.slow
def test_a_full_disk_names_the_folder_with_the_weights(start, tmp_path, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("tf_robust.hardening.harden.choose", helpful)
    with monkeypatch.context() as patched, pytest.raises(OSError, match="trials"):
        patched.setattr("tf_robust.hardening.trainable.TrainableModel.save", full)
        tfr.harden(start, folder=str(tmp_path), **FEW_STEPS)
    monkeypatch.setattr("tf_robust.hardening.training.Trainers.train", lambda *_: pytest.fail("trained again"))
    assert tfr.harden(start, folder=str(tmp_path), **FEW_STEPS).changed


def test_the_command_line(start, tmp_path, capsys):
    images, labels = (np.concatenate(parts) for parts in zip(_images(600, 2), _images(300, 7), _images(300, 8)))
    np.savez(tmp_path / "stripes.npz", images=images, labels=labels)
    flags = ["--budget=240steps", "--evaluations=clean", "--target=noise", "--input_range=auto", "--max_clean_loss=0.05"]
    code = 0
    try:
        main("harden", start, f"--data=npz:{tmp_path / 'stripes.npz'}", f"--workdir={tmp_path / 'work'}", *flags)
    except SystemExit as ended:
        code = ended.code
    printed = capsys.readouterr().out
    assert code == (0 if "Model:  " in printed else 1)
    for text in ("180 validation and 180 test images", "Breaks it most", "Plan: a search of 240 training steps", "Rung 3", "Report: "):
        assert text in printed, text
    assert {"harden.html", "harden.json", "figures", "final_evaluation", "trials"} <= set(os.listdir(tmp_path / "work"))
    found = list((tmp_path / "work" / "tensorboard").iterdir())
    events = [one for path in found for one in tf.compat.v1.train.summary_iterator(str(path)) if one.summary.value]
    recorded = [float(tf.make_ndarray(one.summary.value[0].tensor)) for one in events if one.summary.value[0].tag == "target"]
    trials = json.loads((tmp_path / "work" / "harden.json").read_text())["trials"]
    assert recorded == pytest.approx([trial["target"] for trial in trials]) and len(recorded) > 4
    assert ("minus the control's: " in printed) <= ("Model:  " in printed)
    assert ("Model:  " in printed) == os.path.exists(tmp_path / "work" / "hardened.keras") == ("Measured on: " in printed)


@pytest.mark.parametrize(("model", "said"), (("hardened.keras", "on the test part"), ("other.keras", "on all of its images")))
def test_a_hardened_model_is_not_evaluated_on_the_images_that_it_was_trained_on(start, tmp_path, model, said, capsys):
    images, labels = _images(200, 2)
    np.savez(tmp_path / "stripes.npz", images=images, labels=labels)
    shutil.copyfile(start, tmp_path / model)
    (tmp_path / "harden.json").write_text(json.dumps({"model": "hardened.keras", "data": f"npz:{tmp_path / 'stripes.npz'}"}))
    NOTED.clear()
    flags = ["--input_range=0,255", "--evaluations=clean", f"--workdir={tmp_path}/work"]
    main("evaluate", str(tmp_path / model), f"--data=npz:{tmp_path / 'stripes.npz'}", *flags)
    assert f"has no splits: evaluated {said}" in capsys.readouterr().out
    with open(tmp_path / "work" / "evaluation.json", encoding="utf-8") as file:
        assert json.load(file)["rows"][0]["count"] == (20 if model == "hardened.keras" else 200)


def test_the_images_that_a_hardened_model_was_not_trained_on_are_recorded(start, tmp_path):
    given = EvaluationData(DataConfig(data="mnist"), EvalConfig())
    plain, trained = (types.SimpleNamespace(card=card) for card in ({}, {"data": "mnist", "flags": {"validation_fraction": "0.1"}}))
    assert fraction_held_out(given, plain) == 0.15 and fraction_held_out(given, trained) == 0.1
    assert fraction_held_out(dataclasses.replace(given, config=DataConfig(data="mnist", validation_fraction=0.05)), trained) == 0.05
    assert fraction_held_out(dataclasses.replace(given, images=object()), trained) is None
    for name in ("hardened.keras", "other.keras"):
        shutil.copyfile(start, tmp_path / name)
    record = {"model": "hardened.keras", "data": "mnist", "validation_fraction": 0.1}
    (tmp_path / "harden.json").write_text(json.dumps(record))
    card = load_classifier(tmp_path / "hardened.keras").card
    assert fraction_not_trained_on(card, "mnist") == 0.1 and load_classifier(tmp_path / "other.keras").card == {}
    assert fraction_held_out(dataclasses.replace(given, config=DataConfig(data="digits")), plain, test=object()) == 0.15
    no_splits = dataclasses.replace(given, config=DataConfig(data=f"npz:{tmp_path}/any.npz"))
    assert fraction_held_out(no_splits, plain, test=object()) is None


@pytest.mark.parametrize("kind", ["keras", "saved_model"])
def test_the_data_of_the_start_and_of_the_search_are_recorded(start, tmp_path, kind):
    first, second, third = ({"data": name, "validation_fraction": held_out} for name, held_out in (("a", 0.1), ("b", 0.15), ("c", None)))
    path, record = tmp_path / ("hardened.keras" if kind == "keras" else "hardened"), {"data": "b", "validation_fraction": 0.15}
    if kind == "keras":
        shutil.copyfile(start, path)
        record |= {"model": "hardened.keras", "trained_on": [first, second, third]}
        (tmp_path / "harden.json").write_text(json.dumps(record))
    else:
        path.mkdir()
        of_start = {"data": "a", "flags": {"validation_fraction": "0.1"}, "rows": [1], "confidence": {"threshold": 0.5}, "division": {}}
        (path / "card.json").write_text(json.dumps(of_start))
        hardened = types.SimpleNamespace(evaluations=[], notes=["Chosen"], data="b", trained_on=[first, second, third])
        Hardened.update_card(hardened, str(path))
        assert not {"confidence", "division"} & {*json.loads((path / "card.json").read_text())}
    card = read_card(str(path))
    assert card["data"] == training_data(str(path)) == "b" and card.get("rows", []) == []
    assert [one["data"] for one in trainings(card)] == ["a", "b", "c"]
    assert [fraction_not_trained_on(card, name) for name in "abcd"] == [0.1, 0.15, None, None]


def test_changed_data_of_a_hardened_model_are_refused_and_unknown_parts_are_noted(tmp_path, capsys):
    images, labels = _images(200, 2)
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    name = f"npz:{tmp_path}/a.npz"
    config = DataConfig(data=name)
    card = {"trained_on": [{"data": name, "validation_fraction": 0.15, "division": data.describe_division(name)}]}
    assert with_validation_of_card(card, "m.keras", config).validation_fraction == 0.15
    given = EvaluationData(config, EvalConfig())
    assert with_default_split(given, card).eval_config.evaluation_split == "test"
    card["trained_on"][0]["validation_fraction"] = None
    NOTED.clear()
    assert with_default_split(given, card).eval_config.evaluation_split == "all"
    assert "was trained on images of npz:" in capsys.readouterr().out
    np.savez(tmp_path / "a.npz", images=images[:-20], labels=labels[:-20])
    with pytest.raises(ValueError, match=r"images that have changed since \(180 instead of 200\)"):
        check_unchanged(card, "m.keras", config)


@pytest.mark.parametrize(
    "config, evaluations, radii, expected",
    [
        ({"target": "adversarial", "attack_radius": 12 / 255}, "clean,adversarial", ("linf_4/255",), ("linf_4/255", "linf_0.0470588")),
        ({"target": "adversarial", "attack_radius": 4 / 255}, "clean,adversarial", ("linf_4/255",), ("linf_4/255",)),
        ({"target": "adversarial", "attack_norm": "l2", "attack_radius": 0.5}, "clean", ("linf_4/255",), ("l2_0.5",)),
    ],
)
def test_the_final_evaluation_attacks_with_the_radius_of_the_target(config, evaluations, radii, expected):
    chosen = EvalConfig(evaluations=tuple(evaluations.split(",")), attack_radii=radii)
    found = final_evaluation._with_target(chosen, HardenConfig(**config), (8, 8, 3))
    assert found.attack_radii == expected and found.evaluations == ("clean", "adversarial")


@pytest.mark.parametrize(
    "target, chosen, evaluations, names",
    [
        ("noise", "clean", "clean,noise", ()),
        ("corruptions", "clean", "clean,corruptions", metrics.BENCHMARK),
        ("blur_corruptions:2,fog,noise", "clean", "clean,corruptions,noise", (*metrics.GROUPS["blur"], "fog")),
        ("fog", "clean,corruptions", "clean,corruptions", ()),
        ("sparkles,fog", "clean,corruptions_bar", "clean,corruptions_bar,corruptions", ("fog",)),
        ("sparkles", "clean,corruptions", "clean,corruptions", (*metrics.MEANS["mean19"], "sparkles")),
        ("shift=folder:x", "clean", "clean", ()),
    ],
)
def test_the_final_evaluation_measures_the_target(target, chosen, evaluations, names):
    given = EvalConfig(evaluations=tuple(chosen.split(",")))
    found = final_evaluation._with_target(given, HardenConfig(target=target), (32, 32, 3))
    assert found.evaluations == tuple(evaluations.split(",")) and found.corruptions == names


def test_a_file_that_cannot_be_loaded_leaves_the_evaluation_of_the_model_in_memory(tmp_path):
    (tmp_path / "hardened.keras").write_bytes(b"damaged")
    lines, classifier = [], types.SimpleNamespace(interface=ModelInterface())
    assert final_evaluation._load(str(tmp_path / "hardened.keras"), classifier, lines.append) is classifier
    assert lines[0].startswith("The model in memory is evaluated, not its file: ")


def test_chance_is_the_accuracy_of_a_constant():
    labels = np.repeat([0, 1], [600, 400])
    random = np.random.default_rng(0)
    constant, weak = labels == 0, random.random(1000) < 0.74
    with pytest.raises(ValueError, match="chance, 0.500"):
        harden._check_start(types.SimpleNamespace(outcome=Outcome(constant, constant)), labels, "m.keras")
    harden._check_start(types.SimpleNamespace(outcome=Outcome(weak, weak)), labels, "m.keras")


def test_a_model_near_chance(start):
    images, labels = FEW_STEPS["validation_data"]
    with pytest.raises(ValueError, match="chance, 0.333"):
        tfr.harden(start, **{**FEW_STEPS, "validation_data": (images, np.random.default_rng(0).permutation(labels))})


@pytest.mark.parametrize("arguments", [{"calibrate": "temperature"}, {"abstain_accuracy": 0.9}, {"conformal": 0.9}])
def test_confidences_are_not_fitted_on_images_that_the_model_is_chosen_on(start, arguments):
    with pytest.raises(ValueError, match=f"{[*arguments][0]}.* have no effect on harden"):
        tfr.harden(start, **FEW_STEPS, **arguments)


def test_the_summary_has_the_interval_the_number_of_models_and_of_images_that_would_decide():
    config, start = HardenConfig(), Point(Outcome(np.ones(400, bool), np.ones(400)), 0.5)
    assert "unchanged" in harden.summary(None, config) and "Interrupted" in harden.summary(None, config, tried=False)
    assert frontier_chart(start, [], None, "noise", 0.01).to_dict()  # of that search
    change = {"mean": 0.02, "low": -0.01, "high": 0.05, "p": 0.3, "count": 400, "test": "paired t, max-t"}
    choice = Choice(start, {**change, "mean": 0.0}, change, False, 1234, 24)
    text = "(corruptions) +0.020 [-0.010, +0.050], the best of 24 models with interpolations"
    assert f"{text}. About 1,200 validation images" in harden.summary(choice, config)
    assert f"{text}, clean accuracy +0.000" in harden.summary(dataclasses.replace(choice, helps=True, images_needed=0), config)


def test_a_search_that_plain_fine_tuning_wins_says_so_first():
    random = np.random.default_rng(0)
    control, recipe = (Member(candidate, (32,), 2) for candidate in candidates.candidates(("noise",))[:2])
    start, best, other, harmful = (
        Point(Outcome(np.arange(200) < clean, (random.random(200) < target).astype(float)), 1.0, members)
        for clean, target, members in ((190, 0.4, ()), (189, 0.8, (control,)), (189, 0.7, (recipe,)), (100, 1.0, (recipe,)))
    )
    assert [point.is_control for point in (start, best, other)] == [False, True, False]
    found = harden.control_wins(start, best, [best, other, harmful], 0.01)
    difference = other.target - best.target
    assert found.startswith("Plain fine-tuning") and f"{recipe.candidate.name} (rung 3, 32 steps): {difference:+.3f} [" in found
    assert recipe.candidate.name not in harden.control_wins(start, best, [best, harmful], 0.01)


def test_the_delivered_model_has_the_interface_and_the_optimizer_of_the_initial_one(hardened, tmp_path):
    result, folder = hardened
    path = os.path.join(folder, "hardened.keras")
    for model in (result.model, keras.saving.load_model(path)):
        assert model.compiled and type(model.optimizer) is keras.optimizers.Adam and model.loss == "sparse_categorical_crossentropy"
    classifier, images = load_classifier(path), _images(5, 3)[0]
    assert (classifier.interface.input_range, classifier.interface.outputs) == ("0,255", "probabilities")
    copy = load_classifier(result.save(str(tmp_path / "copy")), ModelInterface(input_range="0,255", outputs="probabilities"))
    for one in (classifier, copy):
        np.testing.assert_allclose(np.exp(one(images / np.float32(255))), result.model(images.astype(np.float32)), atol=1e-5)
    with pytest.raises(ValueError, match="input_range=0,255, .*input_range=0,1"):
        load_classifier(path, ModelInterface(input_range="0,1"))


@pytest.mark.parametrize("labels, correct, needed", [([0, 1, 0, 1], 4, 5), ([0, 1] * 8, 11, 29), ([0, 1], 2, 5)])
def test_few_images_do_not_tell_an_accuracy_from_chance(labels, correct, needed):
    """The binomial standard error sqrt(1 / (4 N)): two of them are less than the distance to chance, 0.5, from N images on."""
    outcome = np.arange(len(labels)) < correct
    balanced = np.mean([outcome[np.array(labels) == label].mean() for label in (0, 1)])
    assert 2 * np.sqrt(0.25 / needed) < balanced - 0.5 <= 2 * np.sqrt(0.25 / (needed - 1))
    with pytest.raises(ValueError, match=f"at least {needed} validation images .* m.keras .* of {len(labels)} validation"):
        harden._check_start(types.SimpleNamespace(outcome=Outcome(outcome, outcome)), np.array(labels), "m.keras")


def test_the_class_with_the_largest_loss_is_named_with_an_interval_for_all_classes():
    note = harden.slice_note(SliceChange("cat", -0.05, -0.12, 0.02, 40), "class", 10)
    assert "'cat', -0.050 [-0.120, +0.020] (40 validation images; the interval is for all 10" in note
    assert "'cat'" not in harden.slice_note(SliceChange("cat", 0.0, 0.0, 0.0, 40), "class", 10)
