"""Runs as the command line makes them, without the command line."""

import contextlib
import dataclasses
import json
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.small_runs import read, run_of
from tf_robust import evaluation, models
from tf_robust.configs import DataConfig
from tf_robust.configs.train import TrainConfig
from tf_robust.evaluation.model_evaluation import check_model_suits
from tf_robust.runs import workdir
from tf_robust.runs.config import RunConfig
from tf_robust.runs.run import Run
from tf_robust.saved_models import export, loading
from tf_robust.training import loop
from tf_robust.utils import environment
from tf_robust.utils.progress import NOTED


def test_mixed_precision_is_limited_to_its_run():
    for mixed in (False, True):
        run = run_of("cross_entropy", mixed_precision=mixed)
        method = run.method(run.data().source("train"))
        assert keras.config.dtype_policy().name == "float32"  # as before
        assert {layer.compute_dtype for layer in method.classifier.layers[1:-2]} == {"bfloat16" if mixed else "float32"}
        assert {weight.dtype for weight in method.classifier.variables} == {"float32"}


def test_a_run_starts_from_the_encoder_of_its_own_seed(tmp_path):
    shape = run_of("cross_entropy").data().source("train").image_shape
    encoders = {seed: models.build("lenet", shape, 10, seed=seed + 7) for seed in (0, 1)}
    for seed, encoder in encoders.items():
        export.export(encoder, str(tmp_path / "encoder" / f"seed_{seed}" / "saved_model"), {})
    run = run_of("cross_entropy", init_from=f"{tmp_path}/encoder/seed_{{seed}}")
    for seed, encoder in encoders.items():
        begun = Run(run.config, "row", seed).method(run.data().source("train")).classifier
        for ours, theirs in zip(begun.variables[:-2], encoder.variables):
            np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/encoder/seed_2, .*--flagfile=TABLE/encoder.flags --seeds=2"):
        Run(run.config, "row", 2).method(run.data().source("train"))


@pytest.mark.slow
def test_a_run_is_evaluated_again_when_its_shifted_data_have_changed(tmp_path, monkeypatch):
    images, labels = evaluation.first_images(run_of("cross_entropy").data().source("test"), 40)
    shifted, run = str(tmp_path / "dark.npz"), run_of("cross_entropy")
    options = evaluation.EvalConfig(evaluations=("clean",), shifts=(f"npz:{shifted}",), ood=(f"npz:{shifted}",), subset=40)
    run.config = dataclasses.replace(run.config, evaluation=options)
    cards = []
    for factor in (0.8, 0.5):
        np.savez(shifted, images=(images * 255 * factor).astype(np.uint8), labels=labels)
        original = run.data().evaluation_source()
        others = evaluation.OpenSets(run.data().other_sources(original)).card()
        cards.append({"shift": {one.name: one.card() for one in run.data().shifts(original)}, "ood": others})
    assert not run._has_further_data_of(cards[0]) and run._has_further_data_of(json.loads(json.dumps(cards[1])))


def test_a_run_is_evaluated_again_when_its_surrogate_has_changed(tmp_path):
    run, path, cards = run_of("cross_entropy"), str(tmp_path / "surrogate.keras"), []
    options = evaluation.EvalConfig(evaluations=("clean", "adversarial"), attack=("pgd",), surrogate=path)
    run.config = dataclasses.replace(run.config, evaluation=options)
    for _ in range(2):
        keras.Sequential([keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(10)]).save(path)
        cards.append(evaluation.card_of(run.data().source("test"), run.config.evaluation, None, surrogate=loading.load_classifier(path)))
    assert not run._has_further_data_of(cards[0]) and run._has_further_data_of(json.loads(json.dumps(cards[1])))
    assert run._has_further_data_of({})


@pytest.mark.slow
def test_xla_training_equals_plain_training(tmp_path):
    run_of("fcl", jit_compile=True, model="mlp").train(str(tmp_path))
    run_of("fcl", model="mlp").train(str(tmp_path / "plain"))
    compiled, plain = (read(folder / "history.json") for folder in (tmp_path, tmp_path / "plain"))
    assert [entry["total"] for entry in compiled] == [pytest.approx(entry["total"], rel=1e-3) for entry in plain]


def test_xla_excludes_synchronized_batch_norm():
    run = run_of("fcl", jit_compile=True, synchronize_batch_norm=True)
    with pytest.raises(ValueError, match="synchronize_batch_norm"):
        run.method(run.data().source("train"))


def test_closed_form_methods_train_in_one_step_and_only_once(tmp_path, monkeypatch):
    train = TrainConfig(batch_size=128, method="linear_probe", weight_decay=0.001)
    run = Run(RunConfig(DataConfig(data="digits", train_examples=50), train, method={"solver": "lbfgs"}), row="probe", seed=0)
    with contextlib.suppress(OSError), workdir.claim(str(tmp_path), {"seed": "0"}):
        first = run.train(str(tmp_path))
        raise OSError("measuring failed")
    with pytest.raises(ValueError, match="seed: 0 then, 1 now"), workdir.claim(str(tmp_path), {"seed": "1"}):
        pass
    monkeypatch.setattr(loop, "fit", lambda *_, **__: pytest.fail("what was exported was trained again"))
    assert first.steps == 1 and run.train(str(tmp_path)) == first


@pytest.mark.parametrize(
    "classes, said",
    [
        (5, ""),
        ({"a": 1}, ""),
        (list("012"), "7 differ, the first None and '3'"),
        ([*range(10)], "10 differ, the first 0 and '0'"),
        (list("0123456789"), ""),
    ],
)
def test_class_names_of_a_model_card_are_compared_with_the_data(classes, said, capsys):
    source = run_of("cross_entropy").data().source("test")
    predict = types.SimpleNamespace(check_images_match=lambda _: None, num_classes=None, path="model", card={"classes": classes})
    check_model_suits(predict, source)
    out = capsys.readouterr().out
    assert said in out and bool(said) == bool(out)


@pytest.mark.parametrize(("has_bfloat16", "noted"), ((False, True), (True, False), (None, False)))
def test_mixed_precision_on_a_cpu_without_bfloat16_is_noted(has_bfloat16, noted, monkeypatch, capsys):
    monkeypatch.setattr(environment, "has_bfloat16", lambda: has_bfloat16)
    NOTED.clear()
    run = run_of("cross_entropy", mixed_precision=True)
    run.method(run.data().source("train"))
    assert ("no instructions for bfloat16" in capsys.readouterr().out) == noted


def test_mixed_precision_exports_float32_weights_and_logits(tmp_path):
    run = run_of("fcl", mixed_precision=True)
    source = run.data().source("train")
    run.train(str(tmp_path))
    losses = [entry["total"] for entry in read(tmp_path / "history.json")]
    assert len(losses) == 4 and np.isfinite(losses).all() and losses[-1] < losses[0]
    classify = loading.load_classifier(str(tmp_path / "saved_model"))
    weights = classify.loaded.signatures["serving_default"].variables
    assert len(weights) == 10 and {weight.dtype for weight in weights} == {tf.float32}
    outputs = classify.loaded.signatures["serving_default"](images=tf.constant(source.images / np.float32(255)))
    assert {outputs[name].dtype for name in export.OUTPUTS} == {tf.float32}
    assert np.mean(classify(source.images / np.float32(255)).numpy().argmax(axis=1) == source.labels) > 0.3
