"""Randomized smoothing on a linear classifier, whose smoothed classifier and certified radii are known in closed form."""

import numpy as np
import pytest
import tensorflow as tf

import tf_robust as tfr
from tests.attacks.oracles import SHAPE, Linear, sample_images
from tests.evaluation.shared import source_of, values_of
from tf_robust import evaluation, report
from tf_robust.evaluation import smoothing
from tf_robust.report import comparison
from tf_robust.utils.files import decoded

SIGMA = 0.2
SETTINGS = {
    "evaluations": ("certified",),
    "smoothing_sigma": SIGMA,
    "smoothing_selection": 50,
    "smoothing_samples": 2000,
    "certified_radii": (0.0, 0.05, 0.1),
}


@pytest.fixture(scope="module")
def linear():
    return Linear(classes=2)


@pytest.fixture(scope="module")
def source(linear):
    return source_of(linear, 40)


@pytest.fixture(scope="module")
def distances(linear, source):
    """Distance of each image to the hyperplane, which is the exact radius of the smoothed classifier of a linear one."""
    images = source.images / np.float32(255)
    return linear.distances(images, np.argmax(linear(images), axis=1), 2)


def evaluated(predict, source, **settings):
    eval_config = evaluation.EvalConfig(**{**SETTINGS, **settings})
    return evaluation.evaluate(predict, source, source, eval_config, log=lambda line: None)


def test_certified_radii_lie_below_the_distance_to_the_hyperplane_and_converge_to_it(linear, source, distances):
    images = source.images[:6] / np.float32(255)
    errors = []
    batches = tf.data.Dataset.from_tensors((images, source.labels[:6].astype(np.int64)))
    options = {"positions": source.positions[:6], "sigma": SIGMA, "selection": 50, "batch": 5000}
    for samples in (200, 2000, 20_000):
        record = smoothing.score_certified(linear, evaluation.EvaluationSet("certified", lambda: batches), samples=samples, **options)
        radii = np.nan_to_num(decoded(record["radii"], np.float32))
        assert (radii < distances[:6]).all()
        errors.append(np.mean(distances[:6] - radii))
    assert errors[0] > errors[1] > errors[2] and errors[2] < 0.04 * SIGMA


def test_measures_are_counts_of_correct_images_with_a_radius(linear, source, distances):
    result = evaluated(linear, source)
    values = values_of(result.metrics)
    right = np.argmax(linear(source.images / np.float32(255)), axis=1) == source.labels
    radii = smoothing.radii_of(result.records[0])
    assert values["certified/abstained"] == result.records[0]["abstained"] / 40 < 1
    assert values["certified/mean_radius"] == pytest.approx(radii.mean())
    for radius in SETTINGS["certified_radii"]:
        certified = values[f"certified/l2_{radius:g}"]
        assert certified == np.mean((radii >= np.float32(radius)) & (radii > 0)) <= np.mean(right & (distances >= radius))
        name = f"smoothed/pgd/l2_{radius:g}" if radius else "smoothed/clean"
        assert certified <= values[name]
        uncertain = np.abs(distances - radius) < 0.015  # the vote of 1,000 copies has an error there
        survives = right & (distances > radius)
        assert np.mean(survives & ~uncertain) <= values[name] <= np.mean(survives | uncertain)


def test_noise_depends_on_the_seed_the_image_and_the_sample_alone(linear, source):
    image = source.images[3] / np.float32(255)
    alone = smoothing._noisy(image, 7 * smoothing._ROWS, 100, SIGMA, "estimation").numpy()
    np.testing.assert_array_equal(smoothing._noisy(image, 7 * smoothing._ROWS + 30, 5, SIGMA, "estimation").numpy(), alone[30:35])
    noise = (alone - image) / SIGMA
    assert abs(noise.mean()) < 0.1 and abs(noise.std() - 1) < 0.1 and len(np.unique(noise[:, 0, 0, 0])) == 100
    for other in (smoothing._noisy(image, 8 * smoothing._ROWS, 100, SIGMA, "estimation"), smoothing._noisy(image, 0, 100, SIGMA, "x")):
        assert abs(np.corrcoef(other.numpy().ravel(), alone.ravel())[0, 1]) < 0.1


def test_records_do_not_depend_on_the_batches_of_images(linear, source):
    source = source.subset(np.arange(12))
    options = {"positions": source.positions, "sigma": SIGMA, "selection": 20, "samples": 200}
    images = tf.data.Dataset.from_tensor_slices((source.images / np.float32(255), source.labels.astype(np.int64)))

    def record(size, batch):
        one = evaluation.EvaluationSet("certified", lambda: images.batch(size))
        return smoothing.score_certified(linear, one, batch=batch, **options)

    assert record(12, 64) == record(5, 200)


def test_interrupted_certificates_resume_at_the_image_and_attacks_at_their_batch(linear, source, tmp_path):
    source, path, calls = source.subset(np.arange(14)), str(tmp_path / "measured.jsonl"), []

    def counted(stop):
        def predict(images):
            if len(calls) == stop and tf.executing_eagerly():
                raise KeyboardInterrupt
            calls.append(len(images))
            return linear(images)

        return predict

    sets = evaluation.evaluation_sets(source, None, evaluation.EvalConfig(**SETTINGS, smoothing_attack=False))
    complete = evaluation.records(linear, sets, log=lambda line: None)
    evaluation.records(counted(None), sets, log=lambda line: None)
    passes = len(calls)
    calls.clear()
    for stop in (1, 7, 22, 40):  # within images, of certificates and of votes
        with pytest.raises(KeyboardInterrupt):
            evaluation.records(counted(stop), sets, path, log=lambda line: None)
    assert evaluation.records(counted(None), sets, path, log=lambda line: None) == complete
    assert passes < len(calls) <= passes + 3 * 2 + 16  # the image in work, or the images of an attack, were begun again
    assert [file.name for file in tmp_path.iterdir()] == ["measured.jsonl"]


def test_smoothed_logits_and_gradients_are_those_of_the_mean_probability(linear):
    images = tf.constant(sample_images(linear, count=3)[0])
    predict = smoothing.smoothed(linear, SHAPE, SIGMA, samples=5)
    copies = smoothing.Draws(evaluation.SEED, 5, "smoothing", "gradient").exact_normal(SHAPE).numpy() * SIGMA
    means = np.mean([tf.nn.softmax(linear(images + copy)).numpy() for copy in copies], axis=0)
    np.testing.assert_allclose(predict(images), np.log(means), rtol=1e-4, atol=1e-5)
    with tf.GradientTape() as tape:
        tape.watch(images)
        total = tf.reduce_sum(predict(images)[:, 0])
    gradient, step = tape.gradient(total, images).numpy(), 1e-2
    for place in ((0, 0, 0), (3, 2, 0)):
        moved = np.zeros((1, *SHAPE), np.float32)
        moved[(0, *place)] = step
        difference = (predict(images + moved)[:, 0] - predict(images - moved)[:, 0]).numpy() / (2 * step)
        np.testing.assert_allclose(gradient[(slice(None), *place)], difference, rtol=0.02, atol=0.02)


def test_gradients_are_finite_where_classes_are_masked_out():
    model = Linear(classes=3)
    predict = smoothing.smoothed(evaluation.masked(model, (0, 2)), SHAPE, SIGMA, samples=4)
    images = tf.constant(sample_images(model, count=3)[0])
    with tf.GradientTape() as tape:
        tape.watch(images)
        loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits([0, 2, 0], predict(images)))
    assert np.isfinite(tape.gradient(loss, images)).all() and 1 not in np.argmax(predict(images), axis=1)


def test_any_callable_can_be_certified_and_radii_reuse_the_record(linear, source, tmp_path):
    calls = []

    def black_box(images):
        calls.append(len(images))
        return np.asarray(linear(images))  # NumPy: no gradients

    def measured(radii):
        config = evaluation.EvalConfig(**{**SETTINGS, "smoothing_attack": False, "certified_radii": radii, "smoothing_samples": 100})
        path = str(tmp_path / "measured.jsonl")
        return evaluation.evaluate(black_box, source, None, config, path=path, log=lambda line: None)

    first, count = measured((0.05,)), len(calls)
    assert count and len(measured((0.0, 0.1)).metrics) == len(first.metrics) + 1 and len(calls) == count


def test_an_attack_without_gradients_is_refused(linear, source):
    with pytest.raises(ValueError, match="differentiable"):
        evaluated(lambda images: tf.stop_gradient(linear(images)), source, smoothing_samples=20, certified_radii=(0.05,))


def test_abstention_everywhere_is_explained(source):
    lines = []

    def fickle(images):  # each class for half of the noisy copies
        return tf.one_hot(tf.cast(tf.math.floormod(tf.reduce_sum(tf.abs(images), axis=[1, 2, 3]) * 1e3, 2.0), tf.int32), 2)

    config = evaluation.EvalConfig(**{**SETTINGS, "smoothing_attack": False, "smoothing_samples": 100})
    metrics = evaluation.evaluate(fickle, source, None, config, log=lines.append).metrics
    values = values_of(metrics)
    rows = [row.to_json() for row in metrics]
    (note,) = report.evaluation_notes([{"row": "fickle", "seed": 0, "rows": rows}])
    assert note.startswith(f"fickle: {smoothing.ABSTAINS}")
    assert values["certified/abstained"] == 1 and values["certified/l2_0"] == 0
    assert any(smoothing.ABSTAINS in line for line in lines)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"smoothing_sigma": 0.0}, "smoothing_sigma"),
        ({"smoothing_sigma": float("nan")}, "smoothing_sigma"),
        ({"smoothing_samples": 0}, "smoothing_samples from 1"),
        ({"certified_radii": ()}, "certified_radii >= 0"),
        ({"certified_radii": (-1.0,)}, "certified_radii >= 0"),
        ({"smoothing_samples": 9, "certified_radii": (0.0,)}, "the largest radius is nan. Try: smoothing_samples=10$"),
        ({"smoothing_samples": 100, "certified_radii": (0.0, 0.5, 0.6)}, "the largest radius is 0.3001"),
        ({"certified_radii": (5.0,)}, "Try: smaller certified_radii$"),
        ({"smoothing_samples": 100, "certified_radii": (0.5,)}, "Try: smoothing_samples=1109$"),
    ],
)
def test_bad_configurations_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        evaluation.EvalConfig(**{**SETTINGS, **settings})


def test_the_card_names_what_certificates_depend_on(source):
    config = evaluation.EvalConfig(**SETTINGS)
    other = evaluation.EvalConfig(**{**SETTINGS, "smoothing_samples": 5000, "certified_radii": (0.1,)})
    cards = [evaluation.card_of(source, one, None) for one in (config, other)]
    assert evaluation.difference("certified/l2_0.1", *cards) == [("certified.samples", 2000, 5000)]
    assert evaluation.difference("smoothed/pgd/l2_0.1", *cards) == []  # 1,000 votes in both


def test_models_without_gradients_are_certified_but_not_attacked_and_compared_per_image(linear, source, capsys):
    settings = {**SETTINGS, "smoothing_samples": 100, "certified_radii": (0.0, 0.05), "check_inputs": False}
    images = source.images / np.float32(255)
    rounded, plain = (
        tfr.evaluate(model, data=(images, source.labels), **settings) for model in (lambda x: tf.stop_gradient(linear(x)), linear)
    )
    assert "it is certified, but not attacked" in capsys.readouterr().out
    assert set(plain.values) - set(rounded.values) == {"smoothed/pgd/l2_0.05"}
    assert {name: plain.values[name] for name in rounded.values} == rounded.values  # the same noise for all models
    per_image = evaluation.PerImage(lambda one: plain.folder)
    for name in ("certified/l2_0", "certified/l2_0.05", "certified/mean_radius", "smoothed/pgd/l2_0.05"):
        _, values = per_image(plain.evaluation, name)
        assert values.mean() == pytest.approx(plain.values[name]) and len(values) == 40
    assert per_image(plain.evaluation, "certified/abstained") is None
    (chart,) = comparison.record_charts(
        {"plain": evaluation.own_records(plain.evaluation, evaluation.read_records(f"{plain.folder}/measured.jsonl"))},
        {"certified"},
    )
    dots = {value["radius"]: value["accuracy"] for value in chart.data.values if value["kind"] == "PGD"}
    assert dots == {0.0: plain.values["smoothed/clean"], 0.05: plain.values["smoothed/pgd/l2_0.05"]}
