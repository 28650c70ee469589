"""The table of hardening: paired differences, means over seeds, steps that are skipped, and scripts without code of the package."""

import ast
import pathlib

import keras
import numpy as np
import PIL.Image
import pytest

from research import harden
from research.harden import collect, folder, images, plain_fine_tuning, plain_keras
from research.harden.steps import Steps
from tf_robust import data
from tf_robust.data.source import ArraySource

FOLDER = pathlib.Path(harden.__file__).parent


def evaluation_of(**values):
    return {"rows": [{"metric": name, "value": value} for name, value in values.items()]}


def result(seed, clean, changed=True):
    difference = {"metric": "clean", "mean": clean - 0.5, "low": -0.1, "high": 0.2, "p": 0.5, "count": 4, "test": "McNemar"}
    return {
        "row": "cifar10",
        "seed": seed,
        "budget": "20m",
        "changed": changed,
        "values": {"initial": {"clean": 0.5}, "hardened": {"clean": clean}},
        "differences": [{"model": "hardened", "baseline": "initial", **difference}],
        "output": ["Chosen."],
        "seconds": {"harden": 1.0},
        "commit": "abc",
        "machine": "a CPU",
    }


def test_differences_are_paired_per_image():
    correct = {"initial": [1, 1, 0, 0], "hardened": [1, 1, 1, 0], "plain fine-tuning": [0, 1, 0, 0]}
    correct = {name: np.array(values, bool) for name, values in correct.items()}
    evaluations = {name: {**evaluation_of(clean=values.mean(), other=0.0), "name": name} for name, values in correct.items()}
    found = collect.differences(evaluations, lambda one, metric: ("images", correct[one["name"]]))
    means = {(one["model"], one["baseline"]): one["mean"] for one in found}
    assert means == {("hardened", "initial"): 0.25, ("plain fine-tuning", "initial"): -0.25, ("hardened", "plain fine-tuning"): 0.5}
    assert {one["metric"] for one in found} == {"clean"}


def test_evaluations_of_other_images_are_not_compared():
    evaluations = {name: {**evaluation_of(clean=0.5), "name": name} for name in ("initial", "hardened")}
    with pytest.raises(ValueError, match="same images"):
        collect.differences(evaluations, lambda one, metric: (one["name"], np.ones(4, bool)))


def test_collected_results_have_mean_std_and_t_interval_over_seeds():
    content = collect.collected([result(0, 0.6), result(1, 0.7), result(2, 0.8)], "command")
    row = next(row for row in content["rows"] if row["row"] == "cifar10/hardened")
    assert (row["values"], row["seeds"], row["metric"]) == ([0.6, 0.7, 0.8], [0, 1, 2], "clean")
    assert (row["mean"], row["std"]) == (pytest.approx(0.7), pytest.approx(0.1))
    assert row["high"] - row["mean"] == pytest.approx(4.302653 * 0.1 / 3**0.5, abs=1e-6)  # t with 2 degrees of freedom
    (difference,) = content["differences"]
    assert difference["mean"] == pytest.approx(0.2) and difference["intervals"] == [[-0.1, 0.2]] * 3


def test_page_has_the_values_the_intervals_and_the_seeds_without_improvement():
    page = collect.to_markdown(collect.collected([result(0, 0.6), result(1, 0.5, changed=False)], "collect it"))
    assert "| hardened | 0.550 (.600, .500) |" in page
    assert "| clean | +0.100 [-0.100, +0.200] | +0.000 [-0.100, +0.200] | +0.050 [" in page
    assert "Nothing helped with seed 1" in page and "collect it" in page


def test_page_begins_with_the_target_of_each_row_and_leaves_out_missing_seeds():
    def of_seed(seed, models):
        one = result(seed, 0.6)
        target = {"metric": "corruptions/mean15", "mean": 0.1 + 0.1 * seed, "low": 0.0, "high": 0.2 + 0.1 * seed, "p": 0.5, "count": 4}
        one["values"] = {name: {"clean": 0.5, "corruptions/mean15": 0.4 + 0.1 * seed} for name in ("initial", *models)}
        one["differences"] = [
            {**difference, "model": name, "baseline": "initial"}
            for name in models
            for difference in (one["differences"][0], {**target, "test": "paired t"})
        ]
        return one

    content = collect.collected([of_seed(0, ["hardened"]), of_seed(1, ["hardened", "plain fine-tuning"])], "collect")
    lines = collect.to_markdown(content).splitlines()
    ends = "+0.150 [-0.485, +0.785] | +0.100 [+0.100, +0.100] |"  # t with 1 degree of freedom: 12.706 * 0.0707 / 2**0.5 = 0.635
    assert f"| ResNet-8 of plain Keras, CIFAR-10 | 20m | 2 | 15 corruptions 0.450 to 0.450 | {ends}" in lines
    ends = "+0.200 [+0.000, +0.300] | +0.100 [-0.100, +0.200] |"
    assert f"| the same by plain fine-tuning | 20m | 1 | 15 corruptions 0.500 to 0.500 | {ends}" in lines
    assert "| 15 corruptions | - | +0.200 [+0.000, +0.300] | +0.200 |" in lines  # of plain fine-tuning, whose seed 0 is missing


def test_results_are_read_in_the_order_of_rows(tmp_path):
    for name in ("robust-0", "cifar10-1", "cifar10-0", "other-0"):
        (tmp_path / f"{name}.json").write_text(f'{{"name": "{name}", "budget": "10m"}}')
    assert [one["name"] for one in collect.read_results(str(tmp_path))] == ["cifar10-0", "cifar10-1", "robust-0"]
    with pytest.raises(FileNotFoundError, match="ROW-SEED"):
        collect.read_results(str(tmp_path / "none"))
    (tmp_path / "vit-0.json").write_text('{"name": "vit-0", "budget": "20m"}')
    with pytest.raises(ValueError, match="Received: 10m, 20m"):
        collect.read_results(str(tmp_path))


@pytest.mark.parametrize("name", ["plain_keras", "plain_fine_tuning"])
def test_scripts_of_plain_keras_do_not_import_the_package(name):
    tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    modules = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert "keras" in modules and not [module for module in modules if module.startswith("tf_robust")]


def test_finished_steps_are_skipped_and_failed_ones_are_not(tmp_path):
    steps = Steps(str(tmp_path), "cifar10", 0, "")
    steps.run("platform", ["platform"])
    first = steps.output("platform")
    steps.run("platform", ["json.tool", "missing"])  # not run: it would fail
    assert steps.output("platform") == first != "" and set(steps.seconds()) == {"platform"}
    with pytest.raises(RuntimeError, match="fails ended with"):
        steps.run("fails", ["json.tool", str(tmp_path / "missing")])


def test_folder_has_the_resized_images_of_a_source(tmp_path):
    pixels = np.random.RandomState(0).randint(0, 256, [4, 32, 32, 3]).astype(np.uint8)
    source = ArraySource.of("random", "train", pixels, [1, 0, 1, 0], ["a", "b"])
    folder.write_split(str(tmp_path / "train"), source)
    expected = np.asarray(PIL.Image.fromarray(pixels[2]).resize((64, 64), PIL.Image.Resampling.BICUBIC))
    np.testing.assert_array_equal(np.asarray(PIL.Image.open(tmp_path / "train" / "b" / "00002.png")), expected)
    assert len(data.open_source(f"folder:{tmp_path}", "train")) == 4


def test_images_for_plain_scripts_are_those_of_the_splits(tmp_path):
    images.write_images(str(tmp_path / "digits"), "digits", "", examples=50)
    for split, count in (("train", 50), ("validation", 0)):
        written, labels = plain_keras.load(str(tmp_path / "digits" / f"{split}.npz"))
        source = data.open_source("digits", split, examples=count)
        np.testing.assert_array_equal(written, source.images)
        np.testing.assert_array_equal(labels, source.labels)


def test_learning_rate_decays_to_zero_over_the_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(plain_fine_tuning.time, "monotonic", lambda: now[0])
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1.0))
    decay = plain_fine_tuning.TimedCosineDecay(0.02, 10.0)
    decay.set_model(model)
    model.stop_training = False
    for seconds, rate in ((0.0, 0.02), (5.0, 0.01), (12.0, 0.0)):
        now[0] = seconds
        decay.on_train_batch_begin(0)
        decay.on_train_batch_end(0)
        assert float(model.optimizer.learning_rate) == pytest.approx(rate, abs=1e-8)
        assert model.stop_training == (seconds >= 10.0)


def test_networks_take_images_on_their_scale_and_return_their_outputs():
    for name, training in plain_keras.TRAININGS.items():
        shape = (32, 32, 3) if training.crop_flip else (28, 28, 1)
        batch = training.high * np.random.RandomState(0).uniform(size=[2, *shape]).astype(np.float32)
        outputs = np.asarray(training.network(shape, 10)(batch))
        sums_to_one = np.allclose(outputs.sum(axis=1), 1.0, atol=1e-4)
        assert outputs.shape == (2, 10) and sums_to_one != training.from_logits, name
