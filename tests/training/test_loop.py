"""Exact resume, clean stops, messages on divergence, checkpoints and validation."""

import json
import os
import shutil
import signal
import sys
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.methods.users_models import SOURCE, sequential
from tf_robust import data, methods
from tf_robust.data.augment import crop_flip, patch_gaussian
from tf_robust.training import callbacks, checkpoints, loop
from tf_robust.utils import errors

named = loop.divergence.named


def build(network, name="late", rate=0.05, **options):
    """`late`: a method that draws, and whose own term starts at the fifth step."""
    if name == "late":
        name, options = "gaussian", {"start_step": 5, "warmup_steps": 3, "weight": 0.5, **options}
    method = methods.METHODS[name](network, **options)
    method.compile(optimizer=keras.optimizers.Adam(rate))
    return method


def state(method):
    return [v.numpy() for v in (*method.classifier.variables, *method.optimizer.variables)]


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(network, source, tmp_path):
    """At the end of an epoch, and twice: test_selection, test_averaging."""
    options = {"epochs": 3, "batch_size": 12, "steps_per_execution": 3}
    folder, history = str(tmp_path / "checkpoints"), callbacks.History(str(tmp_path / "history.json"))
    with pytest.raises(loop.Interrupted, match="step 9 of 12"):
        loop.fit(build(network()), source(), checkpoint_folder=folder, stop_after=9, callbacks=[history], **options)
    resumed = build(network(seed=9))
    loop.fit(resumed, source(), checkpoint_folder=folder, callbacks=[history], **options)
    uninterrupted = build(network())
    loop.fit(uninterrupted, source(), **options)
    np.testing.assert_equal(state(resumed), state(uninterrupted))
    assert uninterrupted.get_metrics_result() == resumed.get_metrics_result()  # metrics of the epoch in which it was stopped
    assert [entry["epoch"] for entry in json.load(open(tmp_path / "history.json"))] == [0, 1, 2]


@pytest.mark.usefixtures("eagerly")
def test_a_checkpoint_that_has_reached_stop_after_is_kept(network, source, tmp_path):
    options = {"epochs": 2, "batch_size": 12, "checkpoint_folder": str(tmp_path)}
    with pytest.raises(loop.Interrupted, match="step 5 of 8"):
        loop.fit(build(network(), "cross_entropy"), source(), stop_after=5, **options)
    for stop in (3, 5):
        method = build(network(seed=9), "cross_entropy")
        with pytest.raises(loop.Interrupted, match=f"step 5 of 8. Received: {stop}"):
            loop.fit(method, source(), stop_after=stop, **options)
        assert sorted(os.listdir(tmp_path)) == ["step_000000004.npz", "step_000000005.npz"] and method.optimizer.iterations == 5
    assert loop.fit(build(network(), "cross_entropy"), source(), epochs=1, batch_size=12, stop_after=8).steps == 4
    with pytest.raises(ValueError, match="stop_after"):
        loop.fit(method, source(), stop_after=0, **options)


@pytest.mark.usefixtures("eagerly")
def test_the_seconds_of_interrupted_processes_are_counted(network, source, tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])

    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            now[0] += 10.0

    def fit(**options):
        method = build(network(), "cross_entropy")
        return loop.fit(method, source(), epochs=2, batch_size=12, checkpoint_folder=str(tmp_path), callbacks=[Slow()], **options)

    with pytest.raises(loop.Interrupted):
        fit(stop_after=3)
    with monkeypatch.context() as killed, pytest.raises(SystemExit):  # after the first epoch's checkpoint and two steps
        killed.setattr(loop.divergence, "named", lambda method: sys.exit() if method.optimizer.iterations == 6 else named(method))
        fit()
    now[0] += 5000.0  # time between processes does not count
    assert fit().seconds == 80.0
    assert fit().seconds == 80.0  # already complete


def test_a_checkpoint_without_seconds_is_restored(network, tmp_path):
    checkpoints.save(build_ready(network), str(tmp_path), 3)
    path = tmp_path / "step_000000003.npz"
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files if name != "seconds"}
    np.savez(path, **arrays)
    assert checkpoints.restore(build_ready(network), str(tmp_path)) == (3, 0.0)


def test_a_checkpoint_of_bfloat16_weights_is_restored(network, tmp_path):
    keras.config.set_dtype_policy("bfloat16")
    try:
        saved, restored = build_ready(network), build_ready(network, seed=1)
    finally:
        keras.config.set_dtype_policy("float32")
    checkpoints.save(saved, str(tmp_path), 3)
    assert checkpoints.restore(restored, str(tmp_path))[0] == 3
    for a, b in zip(state(saved), state(restored), strict=True):
        assert a.dtype == b.dtype and a.tolist() == b.tolist()
    assert saved.classifier.variables[0].dtype == "bfloat16"


@pytest.fixture
def folder(tmp_path):
    """Returns `folder:DIR` of 48 images of two sizes, whose class is a color under noise."""
    random = np.random.RandomState(0)
    for i in range(48):
        label = ("red", "green", "blue")[i % 3]
        pixels = random.randint(0, 120, size=(20 + i % 2, 24, 3))
        pixels[..., i % 3] += 120
        os.makedirs(tmp_path / "images" / "train" / label, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "images" / "train" / label / f"{i}.png")
    return f"folder:{tmp_path / 'images'}"


@pytest.mark.slow
def test_resuming_on_cropped_and_augmented_files_changes_nothing(network, folder, tmp_path):
    options = {"epochs": 2, "batch_size": 12, "augmentations": (crop_flip, patch_gaussian), "steps_per_execution": 3}

    def fit(seed, **more):
        method = build(network(shape=(16, 16, 3), seed=seed), "cross_entropy")
        loop.fit(method, data.open_source(folder, "train", image_size=16), **options, **more)
        return method

    uninterrupted, saved = fit(0), str(tmp_path / "checkpoints")
    for stop in (2, 7):  # inside the first and inside the second epoch
        with pytest.raises(loop.Interrupted, match=f"step {stop} of 8"):
            fit(0, checkpoint_folder=saved, stop_after=stop)
    np.testing.assert_equal(state(fit(9, checkpoint_folder=saved)), state(uninterrupted))


@pytest.mark.slow
def test_steps_per_execution_changes_nothing(network, source):
    states = []
    for steps in (3, 100, 1):
        method = build(network())
        result = loop.fit(method, source(50), epochs=2, batch_size=12, steps_per_execution=steps)
        assert result.steps == 8
        states.append(state(method))
    for other in states[1:]:
        np.testing.assert_equal(other, states[0])


@pytest.mark.usefixtures("eagerly")
def test_a_callback_ends_the_training_after_an_epoch(network, source):
    method, begun = build(network(), "cross_entropy"), []
    counts = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: begun.append(batch))
    stops = keras.callbacks.EarlyStopping("cross_entropy", mode="min", min_delta=100, patience=1)
    assert loop.fit(method, source(50), epochs=5, batch_size=12, callbacks=[counts, stops]).steps == 8
    assert begun == [0, 1, 2, 3] * 2
    assert loop.fit(method, source(50), epochs=1, batch_size=12).steps == 4  # the next training does not end at once


@pytest.mark.usefixtures("eagerly")
def test_ctrl_c_stops_cleanly_and_the_state_is_saved(network, source, tmp_path):
    class Press(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                os.kill(os.getpid(), signal.SIGINT)

    assert threading.current_thread() is threading.main_thread()
    with pytest.raises(loop.Interrupted, match="same command resumes"):
        method = build(network(), "cross_entropy")
        loop.fit(method, source(), epochs=2, batch_size=12, checkpoint_folder=str(tmp_path), callbacks=[Press()])
    assert os.listdir(tmp_path) == ["step_000000002.npz"]


def test_divergence_names_term_and_step_and_keeps_the_last_good_checkpoint(network, source, tmp_path):
    method = build(network(), "gaussian", weight=1.0, start_step=6)
    clean_term = method.weighted
    method.weighted = lambda term, step: clean_term(term, step) * tf.where(step >= 6, np.float32("nan"), 1.0)
    with pytest.raises(loop.TrainingDiverged, match=r"step 6: .*noised_cross_entropy"):
        loop.fit(method, source(), epochs=3, batch_size=12, checkpoint_folder=str(tmp_path), steps_per_execution=2)
    assert os.listdir(tmp_path) == ["step_000000004.npz"]
    assert all(np.isfinite(v).all() for v in state(method))


def test_an_infinite_gradient_is_named(network, source):
    method = build(network(), "cross_entropy")
    method.loss_terms = lambda batch, training: (
        {"cross_entropy": tf.sqrt(tf.reduce_sum(method.encode(batch.views[0], training)["embedding"] * 0.0))[None]},
        tf.zeros([12, 3]),
    )
    with pytest.raises(loop.TrainingDiverged, match="step 0: gradient"):
        loop.fit(method, source(), epochs=1, batch_size=12)


@pytest.mark.parametrize("name", ["adversarial", "trades"])
def test_divergence_inside_the_attack_of_a_method_is_named(name, tmp_path):
    method = methods.METHODS[name](sequential(), steps=2)
    method.compile(optimizer=keras.optimizers.SGD(1e30))  # finite weights, whose logits overflow
    cause = "logits .* attack" if name == "adversarial" else "(logits .* attack|loss term 'cross_entropy')"  # TRADES computes both at once
    with pytest.raises(loop.TrainingDiverged, match=rf"Not finite at step \d+: {cause}.*earlier checkpoints are kept\. Try: a lower"):
        loop.fit(method, SOURCE, epochs=3, batch_size=12, checkpoint_folder=str(tmp_path))
    assert all(np.isfinite(v).all() for v in state(method))


def test_it_learns_and_validates(network, source, tmp_path):
    history = callbacks.History(str(tmp_path / "history.json"))
    loop.fit(build(network(), "cross_entropy"), source(96), epochs=4, batch_size=12, validation=source(30), callbacks=[history])
    history = json.load(open(tmp_path / "history.json"))
    assert [entry["epoch"] for entry in history] == [0, 1, 2, 3]
    assert history[-1]["accuracy"] > 0.9 and history[-1]["val_accuracy"] > 0.9


def test_a_truncated_checkpoint_is_skipped_with_a_warning(network, tmp_path, caplog):
    for step in (4, 8):
        checkpoints.save(build_ready(network), str(tmp_path), step)
    newest = tmp_path / "step_000000008.npz"
    newest.write_bytes(newest.read_bytes()[:-2000])
    assert checkpoints.restore(build_ready(network), str(tmp_path))[0] == 4
    assert "step_000000008.npz is truncated" in caplog.text


def test_a_surplus_checkpoint_is_removed_on_resume(network, tmp_path):
    """It is left by a kill between writing the newest and removing the oldest."""
    for step in (1, 2, 3):
        checkpoints.save(build_ready(network), str(tmp_path), step)
    shutil.copy(tmp_path / "step_000000002.npz", tmp_path / "step_000000001.npz")
    assert checkpoints.restore(build_ready(network), str(tmp_path))[0] == 3
    assert sorted(os.listdir(tmp_path)) == ["step_000000002.npz", "step_000000003.npz"]


def build_ready(network, **options):
    method = build(network(**options))
    method.optimizer.build(method.classifier.trainable_variables)
    return method


def test_a_checkpoint_of_another_model_raises(network, tmp_path):
    checkpoints.save(build_ready(network), str(tmp_path), 1)
    with pytest.raises(ValueError, match="checkpoint of this model"):
        checkpoints.restore(build_ready(network, classes=5), str(tmp_path))


def test_invalid_lengths_raise(network, source):
    with pytest.raises(ValueError, match="batch_size"):
        loop.fit(build(network()), source(), epochs=1, batch_size=49)
    with pytest.raises(ValueError, match="epochs"):
        loop.fit(build(network()), source(), epochs=0, batch_size=12)


def test_messages_of_errors_inside_a_graph_omit_the_graph():
    @tf.function
    def step(_):
        raise ValueError("Expected a batch. Received: none")

    with pytest.raises(ValueError) as raised:
        step(1)
    assert str(raised.value).startswith("in user code:")
    assert errors.message_of(raised.value) == "Expected a batch. Received: none"
    assert errors.message_of(ValueError("Expected x")) == "Expected x"
