"""Metrics and their intervals, interrupted evaluations, cards, and errors of unsuitable models."""

import dataclasses
import json
import os

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import tensorflow as tf
from PIL import Image

from tests.evaluation.shared import by_name, values_of
from tests.rounding import assert_equal_levels
from tf_robust import corrupted_datasets, corruptions, data, evaluation, metrics
from tf_robust.evaluation import scoring
from tf_robust.utils import files, progress

EvalConfig = evaluation.EvalConfig


def labelled_set(labels, name="clean"):
    images = np.zeros((len(labels), 8, 8, 1), np.float32)
    images[:, 0, 0, 0] = np.arange(len(labels)) / 100
    batches = tf.data.Dataset.from_tensor_slices((images, np.asarray(labels, np.int64))).batch(4)
    return evaluation.EvaluationSet(name, lambda: batches)


def always_1(images):
    return tf.one_hot(tf.fill([len(images)], 1), 3)


def brightness(images):
    """Returns logits of three classes that depend on the mean of the image."""
    mean = tf.reduce_mean(images, axis=[1, 2, 3])
    return tf.stack([1.0 - mean, mean, 2.0 * mean - 0.5], axis=1) * 9.0


def metrics_of(predict, labels):
    return evaluation.metrics_of(evaluation.records(predict, [labelled_set(labels)], log=lambda _: None), EvalConfig(("clean",)))


def images_of(evaluation_set):
    return np.concatenate([images for images, _ in evaluation_set.batches().as_numpy_iterator()])


def test_few_images_of_files_are_decoded_once(tmp_path, monkeypatch):
    for label in "ab":
        os.makedirs(tmp_path / label)
        for i in range(3):
            Image.fromarray(np.full((8, 8, 3), 20 * i + ord(label), np.uint8)).save(tmp_path / label / f"{i}.png")
    source = data.open_source(f"folder:{tmp_path}", "all")
    kept = scoring.clean_batches(source)
    monkeypatch.setattr(scoring, "KEPT_BYTES", 6 * 8 * 8 * 3 - 1)
    read_again = scoring.clean_batches(source)
    first = [np.concatenate(part) for part in zip(*kept.as_numpy_iterator())]
    os.remove(tmp_path / "a" / "0.png")
    mapped = kept.map(lambda images, labels: (images, labels))
    for part, expected in zip(zip(*mapped.as_numpy_iterator()), first, strict=True):
        np.testing.assert_array_equal(np.concatenate(part), expected)
    with pytest.raises(tf.errors.InvalidArgumentError, match="0.png"):
        [*read_again]


def test_the_time_of_long_evaluations_is_estimated_and_compared_at_the_end(monkeypatch):
    clock, lines = [0.0], []
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])

    def slow(images):
        clock[0] += 10.0
        return always_1(images)

    evaluation.records(slow, [labelled_set([1, 0], name) for name in ("clean", "fog", "snow", "frost", "un")], log=lines.append)
    assert [line.split("/5")[1] for line in lines[:5]] == ["", ", 30 s left", "", "", ""]  # at least 20 s
    assert lines[5:] == ["  The evaluation took 50 s (first estimate 50 s)."]


def test_accuracy_has_a_wilson_interval():
    row, _ = metrics_of(always_1, [1, 1, 0, 2, 1, 0, 1, 1, 2, 0])
    assert (str(row), row.value, row.count) == ("clean", 0.5, 10)
    z = scipy.stats.norm.ppf(0.975)
    center, half = (0.5 + z * z / 20) / (1 + z * z / 10), z * np.sqrt(0.025 + z * z / 400) / (1 + z * z / 10)
    np.testing.assert_allclose([row.low, row.high], [center - half, center + half], rtol=1e-9)


def test_accuracy_per_class_is_measured_for_classes_of_different_sizes():
    labels = np.array([1, 1, 0, 2, 1, 0, 1, 1, 2, 0, 1, 0])
    logits = np.random.RandomState(0).normal(size=(12, 3))
    _, row = metrics_of(lambda images: tf.gather(logits, tf.cast(tf.round(images[:, 0, 0, 0] * 100), tf.int32)), labels)
    expected = sklearn.metrics.balanced_accuracy_score(labels, logits.argmax(axis=1))
    assert str(row) == "clean/per_class" and row.value == pytest.approx(expected) != np.mean(logits.argmax(axis=1) == labels)
    assert [str(row) for row in metrics_of(always_1, [0, 1, 2, 2, 1, 0])] == ["clean"]


def test_sets_do_not_depend_on_the_batch_size_and_noise_has_its_rate(source, monkeypatch):
    test, train = source(30, split="test"), source(90)
    eval_config = EvalConfig(evaluations=("clean", "noise", "corruptions"))
    corrupted = ("gaussian_noise/5", "shot_noise/1", "glass_blur/3", "fog/3", "jpeg_compression/3")
    chosen = ("clean", "un", "nun", *(f"corruptions/{name}" for name in corrupted))

    def sample_images():
        return {one.name: images_of(one) for one in evaluation.evaluation_sets(test, train, eval_config) if one.name in chosen}

    found = sample_images()
    monkeypatch.setattr(evaluation.scoring, "BATCH", 7)
    monkeypatch.setattr(evaluation.sets, "MAX_CACHED_BYTES", 0)  # computed again, by a graph
    for name, images in sample_images().items():
        assert_equal_levels(images, found[name])
    assert set(found) == set(chosen)
    for name in ("un", "nun"):
        assert abs((found[name] != found["clean"]).mean() - 0.15) < 4 * np.sqrt(0.15 * 0.85 / found[name].size)


def test_small_corrupted_sets_are_computed_once(source, monkeypatch):
    """For the same images and constants only."""
    computed, corrupt = [], corruptions.corrupt

    def counting(images, name, severity, *args, **kwargs):
        computed.append((name, severity))
        return corrupt(images, name, severity, *args, **kwargs)

    monkeypatch.setattr(corruptions, "corrupt", counting)
    monkeypatch.setattr(evaluation.sets, "_cached_sets", {})
    eval_config = EvalConfig(evaluations=("corruptions",), severities=(2,))

    def first(count, config=eval_config):
        images = images_of(evaluation.evaluation_sets(source(count, split="test"), None, config)[0])
        assert len(images) == count
        return images

    once, again = first(30), first(30)
    np.testing.assert_array_equal(once, again)
    assert computed == [("gaussian_noise", 2)]
    first(31)
    assert np.abs(first(30, dataclasses.replace(eval_config, corruption_protocol="float")) - once).max() > 0
    assert len(computed) == 3
    monkeypatch.setattr(evaluation.sets, "MAX_CACHE_BYTES", 1)  # full: emptied before the next set is kept
    first(32)
    assert len(evaluation.sets._cached_sets) == 1 and len(computed) == 4


def test_images_of_a_subset_are_corrupted_as_in_the_full_set(source):
    full, eval_config = source(30, split="test"), EvalConfig(evaluations=("noise", "corruptions"))
    subset = full.subset(np.array([3, 4, 17, 29])).subset(np.array([0, 2, 3]))
    for one, other in zip(evaluation.evaluation_sets(full, full, eval_config), evaluation.evaluation_sets(subset, full, eval_config)):
        if one.name in ("un", "nun", "corruptions/impulse_noise/4"):
            np.testing.assert_array_equal(images_of(other), images_of(one)[[3, 17, 29]])


def test_calibration_equals_numpy(source):
    test = source(600, split="test")
    values = values_of(evaluation.evaluate(brightness, test, test, EvalConfig(("calibration",)), log=lambda _: None).metrics)
    logits = brightness(test.images / np.float32(255)).numpy().astype(np.float64)
    fractions = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    correct = fractions.argmax(axis=1) == test.labels
    assert set(values) == {"calibration/rms", "calibration/ece", "calibration/brier", "calibration/nll", "aurra"}
    np.testing.assert_allclose(values["calibration/nll"], -np.log(fractions[np.arange(600), test.labels]).mean(), rtol=1e-5)
    np.testing.assert_allclose(values["calibration/rms"], metrics.rms_calibration_error(fractions.max(axis=1), correct), rtol=1e-5)
    np.testing.assert_allclose(values["aurra"], metrics.aurra(fractions.max(axis=1), correct), rtol=1e-5)


def corrupted_records(random, count=50):
    which = {(name, s): random.rand(count) < 0.9 - 0.1 * s for name in metrics.BENCHMARK + metrics.EXTRA for s in range(1, 6)}
    records = [
        {
            "kind": "accuracy",
            "set": f"corruptions/{name}/{s}",
            "count": count,
            "correct": int(bits.sum()),
            "rms_calibration_error": s / 10,
            "which": files.encoded(np.packbits(bits)),
        }
        for (name, s), bits in which.items()
    ]
    return which, records


def test_corruption_means_have_intervals_over_images():
    which, records = corrupted_records(np.random.RandomState(0))
    rows = by_name(evaluation.metrics_of(records, EvalConfig(("corruptions",))))
    fog = np.array([which["fog", s] for s in range(1, 6)])
    all15 = np.array([which[name, s] for name in metrics.BENCHMARK for s in range(1, 6)])
    np.testing.assert_allclose(rows["corruptions/fog"].value, fog.mean())
    np.testing.assert_allclose(rows["corruptions/fog/3"].value, fog[2].mean())
    np.testing.assert_allclose(rows["corruptions/mean15"].value, all15.mean())
    np.testing.assert_allclose(rows["corruptions/mean19"].value, np.mean(list(which.values())))
    np.testing.assert_allclose(rows["corruptions/calibration_rms"].value, 0.3)
    fractions = all15.mean(axis=0)  # the standard error of a mean over 50 independent images
    half = 1.959964 * fractions.std(ddof=1) / np.sqrt(50)
    np.testing.assert_allclose(
        [rows["corruptions/mean15"].low, rows["corruptions/mean15"].high], [fractions.mean() - half, fractions.mean() + half], rtol=1e-6
    )
    assert not any("mce" in metric for metric in rows)  # only on the data set of the reference network


def test_means_over_corruptions_are_over_the_chosen_severities(source):
    which, records = corrupted_records(np.random.RandomState(2))
    eval_config = EvalConfig(evaluations=("corruptions",), severities=(1, 4))
    assert {one.name.rpartition("/")[2] for one in evaluation.evaluation_sets(source(5, split="test"), None, eval_config)} == {"1", "4"}
    chosen = [record for record in records if record["set"][-1] in "14"]
    values = values_of(evaluation.metrics_of(chosen, eval_config, imagenet=True))
    expected = np.mean([which[name, s] for name in metrics.BENCHMARK for s in (1, 4)])
    np.testing.assert_allclose(values["corruptions/mean15"], expected)
    np.testing.assert_allclose(values["corruptions/fog"], np.mean([which["fog", s] for s in (1, 4)]))
    assert "corruptions/fog/4" in values and "corruptions/fog/3" not in values
    assert "corruptions/mce" not in values  # AlexNet's errors are over all five


def test_mean_corruption_error_needs_imagenet():
    which, records = corrupted_records(np.random.RandomState(1))
    clean = {"kind": "accuracy", "set": "clean", "count": 50, "correct": 45}
    values = values_of(evaluation.metrics_of([clean, *records], EvalConfig(("corruptions",)), imagenet=True))
    errors = {name: [1 - which[name, s].mean() for s in range(1, 6)] for name in metrics.BENCHMARK}
    np.testing.assert_allclose(values["corruptions/mce"], metrics.mean_corruption_error(errors) / 100)
    np.testing.assert_allclose(values["corruptions/relative_mce"], metrics.relative_mean_corruption_error(errors, 0.1) / 100)


def flip_records(flips):
    return [{"kind": "flips", "set": f"flips/{name}", "count": 7, "frames": 31, "flip_probability": p} for name, p in flips.items()]


def test_the_mean_flip_probability_is_over_the_ten_named_sequences():
    records = flip_records({name: i / 100 for i, name in enumerate((*metrics.PERTURBATIONS, "spatter"))})
    for sequences, mean in (("imagenet_p", 0.045), ("cifar_p", 0.051)):
        values = values_of(evaluation.metrics_of(records, EvalConfig(("perturbations",), sequences=sequences)))
        np.testing.assert_allclose(values["flips/mean"], mean)
        np.testing.assert_allclose(values["flips/mean_without_noise"], (mean * 10 - 0.01) / 8)


def test_flip_rates_are_divided_by_those_of_alexnet(source):
    flips = {name: i / 100 for i, name in enumerate(metrics.PERTURBATIONS, 1)}
    records, eval_config = flip_records(flips), EvalConfig(("perturbations",))
    values = values_of(evaluation.metrics_of(records, eval_config, imagenet=True))
    known = metrics.reference_table("alexnet_imagenet_p")
    rates = {name: p / known["flip_probabilities"][name] for name, p in flips.items()}
    for name, rate in rates.items():
        np.testing.assert_allclose(values[f"flips/rate/{name}"], rate)
    np.testing.assert_allclose(values["flips/mfr"], np.mean(list(rates.values())))
    np.testing.assert_allclose(values["flips/mfr_without_noise"], np.mean([r for n, r in rates.items() if "noise" not in n]))
    card = evaluation.card_of(source(30, split="test"), eval_config, None, imagenet=True)
    assert card["flip_rates"]["verified"] is known["verified"] and card["flip_rates"]["source"] == known["source"]
    assert not any("mfr" in str(row) or "rate" in str(row) for row in evaluation.metrics_of(records, eval_config))
    assert "flip_rates" not in evaluation.card_of(source(30, split="test"), eval_config, None)


def test_flips_are_counted_against_the_first_or_previous_frame():
    frames = np.array([[0, 1, 1, 1], [2, 2, 2, 2]])
    sample_images = (frames[..., None, None, None] * np.ones([8, 8, 1]) / 10).astype(np.float32)
    batches = tf.data.Dataset.from_tensor_slices((sample_images, np.zeros(2, np.int64))).batch(1)

    def predict(images):
        return tf.one_hot(tf.cast(tf.round(images[:, 0, 0, 0] * 10), tf.int32), 3)

    sets = [evaluation.EvaluationSet(f"flips/{name}", lambda: batches, scoring.score_sequences) for name in ("tilt", "shot_noise")]
    tilt, shot = evaluation.records(predict, sets, log=lambda _: None)
    assert (tilt["flip_probability"], shot["flip_probability"]) == (1 / 6, 3 / 6)
    assert (tilt["count"], tilt["frames"]) == (2, 4)


def test_an_interrupted_evaluation_resumes(tmp_path):
    path, calls = str(tmp_path / "m" / "measured.jsonl"), []

    def predict(images):
        calls.append(len(images))
        if len(calls) > limit:
            raise KeyboardInterrupt
        return always_1(images)

    sets = [labelled_set([1, 0, 1], name) for name in ("clean", "un", "nun")]

    def metric(depends=None):
        calls.clear()
        return evaluation.records(predict, sets, path, depends, log=lambda _: None), len(calls)

    limit = 2
    with pytest.raises(KeyboardInterrupt):
        metric()
    first = evaluation.read_records(path)
    with open(path, "a") as file:
        file.write('{"set": "nun", "cou')  # the process was killed during a write
    limit = 9
    complete, computed = metric()
    assert complete[:2] == first and computed == 1
    assert metric() == (complete, 0)
    assert metric(depends=lambda name: "another model")[1] == 3
    assert metric(depends=lambda name: "another model")[1] == metric()[1] == 0


def test_masked_logits_ignore_classes_that_do_not_occur():
    masked = evaluation.masked(lambda images: tf.constant([[3.0, 1.0, 2.0, 0.0]] * 4), (1, 2))
    found = scoring.record_of(scoring.image_results(masked(None).numpy(), np.array([2, 2, 1, 2])), keep=True)
    assert found["correct"] == 3
    np.testing.assert_allclose(evaluation.confidences(found), 1 / (1 + np.exp(-1)), rtol=1e-6)
    np.testing.assert_array_equal(evaluation.correctness(found), [True, True, False, True])


@pytest.mark.parametrize(
    "predict, message",
    [
        (lambda x: tf.zeros([len(x)]), "logits"),
        (lambda x: tf.fill([len(x), 3], np.nan), "finite"),
        (lambda x: tf.zeros([len(x), 2]), "labels in 0..1"),
    ],
)
def test_unsuitable_models_raise(predict, message):
    with pytest.raises(ValueError, match=message):
        metrics_of(predict, [0, 1, 2])


@pytest.mark.parametrize(
    "field, values",
    [
        ("subset", [-1]),
        ("severities", [(), (0, 1), (1, 1), (5, 6), (3, 1)]),
        ("attack", [("pgd", "pgd")]),
        ("curve_attacks", [("pgd_l2", "pgd_l2")]),
        ("certified_radii", [(0.5, 0.5)]),
        ("nun_floor", ["-0.1", "nan", "none"]),
    ],
)
def test_invalid_settings_raise(field, values):
    for value in values:
        with pytest.raises(ValueError, match=field):
            EvalConfig(**{field: value})


def test_cards_differ_in_what_a_measure_depends_on(source):
    test, other, train = source(30, split="test"), source(31, split="test"), source(90)
    every = EvalConfig(evaluations=("clean", "noise", "corruptions", "calibration"))
    card = evaluation.card_of(test, every, train)

    def difference(metric, images=test, training=train, **changes):
        return evaluation.difference(metric, card, evaluation.card_of(images, dataclasses.replace(every, **changes), training))

    assert json.loads(json.dumps(card)) == card
    assert card["corruptions"]["protocol"] == "cifar_c" and "16x16" in card["corruptions"]["constants"]
    assert difference("clean", corruption_protocol="float") == []
    assert difference("corruptions/mean15", corruption_protocol="float") == [("corruptions.protocol", "cifar_c", "float")]
    assert ("data.num_images", 30, 31) in difference("clean", other)
    assert difference("nun", training=other)[0][0] == "noise.std_from" and difference("un", training=other) == []
    assert evaluation.difference("clean", None, card) == []
    over = [("corruptions.means_over_severities", [1, 2, 3, 4, 5], [1, 3])]
    assert difference("corruptions/mean15", severities=(1, 3)) == over
    for metric in ("corruptions/fog/3", "clean", "un"):
        assert difference(metric, severities=(1, 3)) == []


def test_cards_of_checks_have_their_radii(source):
    changes: list[dict] = [{}, {"attack_radii": ("linf_8/255", "l2_0.5")}, {"attack_radii": ("linf_4/255",)}, {"attack_subset": 4}]
    parts = [evaluation.card_of(source(30), EvalConfig(("adversarial",), **change), None)["checks"] for change in changes]
    assert parts[0] == parts[1] and len({json.dumps(part) for part in parts}) == 3


def test_cards_of_published_sets_have_the_sizes_of_their_files(source, tmp_path):
    cards = []
    for number, size in enumerate((10, 10, 11)):
        folder = tmp_path / str(number) / "CIFAR-10-C"
        folder.mkdir(parents=True)
        np.save(folder / "fog.npy", np.zeros(size, np.uint8))
        config = EvalConfig(evaluations=("corruptions",), corrupted_dir=str(folder))
        cards.append(evaluation.card_of(source(30), config, None)["corruptions"])
    assert cards[0]["prepared_set"] == "CIFAR-10-C" and cards[0] == cards[1] != cards[2]


def test_sizes_of_the_same_files_have_their_own_corruptions_and_noise(tmp_path, monkeypatch):
    monkeypatch.setattr(corruptions, "CORRUPTIONS", {name: corruptions.CORRUPTIONS[name] for name in ("gaussian_noise", "fog")})
    for number, label in enumerate("ab" * 4):
        (tmp_path / "photos" / label).mkdir(parents=True, exist_ok=True)
        pixels = np.random.RandomState(number).randint(0, 256, (50 + number, 60, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{number}.png")
    for size in (32, 40):
        photos = data.open_source(f"folder:{tmp_path}/photos", "all", image_size=size)
        config = EvalConfig(evaluations=("noise", "corruptions"), severities=(3,))
        for one in evaluation.evaluation_sets(photos, photos, config):
            assert next(iter(one.batches()))[0].shape[1:] == (size, size, 3)


def test_nun_floor_is_applied_and_in_the_card(source):
    """With a constant location the default is 0.1, which cards omit, as do cards written before the setting existed."""
    varying, test = source(90), source(30, split="test")
    constant = dataclasses.replace(varying, images=np.concatenate([np.zeros_like(varying.images[:, :1]), varying.images[:, 1:]], axis=1))
    for train, text, floor in ((varying, "auto", 0.0), (varying, "0.1", 0.1), (constant, "auto", 0.1), (constant, "0.02", 0.02)):
        eval_config = EvalConfig(evaluations=("noise",), nun_floor=text)
        std = (train.images / 255.0).std(axis=0).mean(axis=-1)
        expected = corruptions.nonuniform_probabilities(std, floor=floor)
        np.testing.assert_allclose(evaluation.noise_probabilities(train, eval_config), expected, rtol=1e-5)
        card = evaluation.card_of(test, eval_config, train)
        assert card.get("nun", {"floor": 0.1})["floor"] == floor
        usual = {name: fields for name, fields in card.items() if name != "nun"}
        assert evaluation.difference("un", card, usual) == evaluation.difference("nun/floor_0.5", card, usual) == []
        assert evaluation.difference("nun", card, usual) == ([("noise.floor", floor, None)] if floor != 0.1 else [])
        noised = corruptions.nonuniform_noise(test.images / np.float32(255), expected, seed=evaluation.SEED, indices=test.positions)
        np.testing.assert_allclose(images_of(evaluation.evaluation_sets(test, train, eval_config)[1]), noised, atol=1e-6)


@pytest.mark.slow
def test_a_set_on_disk_equals_corruption_on_the_fly(source, tmp_path):
    full = source(20, split="test")
    test, eval_config = full.subset(np.arange(1, 20, 2)), EvalConfig(evaluations=("corruptions",))
    chosen = ("shot_noise", "fog", "pixelate")
    corruption_config = corrupted_datasets.CorruptionConfig(evaluation.SEED, protocol=eval_config.protocol(test.image_shape))
    corrupted_datasets.write(
        lambda: test, str(tmp_path), corrupted_datasets.WriterConfig(corruptions=chosen, chunk_size=4), corruption_config
    )
    stored = dataclasses.replace(eval_config, corrupted_dir=str(tmp_path))
    on_the_fly = {one.name: one for one in evaluation.evaluation_sets(test, None, eval_config)}
    from_disk = evaluation.evaluation_sets(test, None, stored)
    assert [one.name for one in from_disk] == [f"corruptions/{name}/{s}" for name in chosen for s in range(1, 6)]
    for one in from_disk[::2]:
        for (images, labels), (expected, truth) in zip(one.batches(), on_the_fly[one.name].batches()):
            np.testing.assert_allclose(images, expected, atol=1e-6)
            np.testing.assert_array_equal(labels, truth)
    cards = [evaluation.card_of(test, how, None)["corruptions"] for how in (eval_config, stored)]
    assert cards[0] == cards[1] and cards[0]["seed"] == evaluation.SEED
