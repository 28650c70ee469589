"""Attacks that are computed on a surrogate and evaluated on another model."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_robust import api, data, evaluation
from tf_robust.cli import checks
from tf_robust.evaluation.model_evaluation import load_surrogate
from tf_robust.saved_models import loading

RADIUS = 0.1
SUBSET = 60
OPTIONS = {
    "data": "digits",
    "subset": SUBSET,
    "evaluations": "clean,adversarial",
    "attack_radii": f"linf_{RADIUS}",
    "attack_queries": 5,
    "check_inputs": False,
}


@pytest.fixture(scope="module")
def source():
    return data.open_source("digits", "test", examples=SUBSET)


@pytest.fixture(scope="module")
def matrices():
    """Two linear classifiers of digits, [785, 10] each with the offset last, fitted on separate halves by ridge regression."""
    train = data.open_source("digits", "train")
    images = np.concatenate([train.images.reshape(len(train), -1) / 255, np.ones((len(train), 1))], axis=1)
    targets = np.eye(10)[train.labels] * 10

    def fit(part):
        return np.linalg.solve(images[part].T @ images[part] + 5 * np.eye(785), images[part].T @ targets[part]).astype(np.float32)

    return fit(slice(0, None, 2)), fit(slice(1, None, 2))


def without_gradients(matrix):
    """A NumPy function, through which no gradient flows."""

    def classify(images):
        logits = tf.numpy_function(lambda x: (x.reshape(len(x), -1) @ matrix[:-1] + matrix[-1]).astype(np.float32), [images], tf.float32)
        return tf.ensure_shape(logits, [None, 10])

    return classify


def differentiable(matrix, layers=(), after=()):
    """The same as a Keras model. layers, after: before and after the dense layer."""
    dense = keras.layers.Dense(10)
    model = keras.Sequential([keras.layers.Input((28, 28, 1)), *layers, keras.layers.Flatten(), dense, *after])
    dense.set_weights([matrix[:-1], matrix[-1]])
    return model


def transferred_by_hand(model, surrogate, source):
    """The fraction of images that a model classifies correctly, and still after 40 PGD steps on the surrogate."""
    images, labels = evaluation.first_images(source, SUBSET)
    point = images + tf.random.stateless_uniform(images.shape, (0, 0), -RADIUS, RADIUS)
    for _ in range(40):
        with tf.GradientTape() as tape:
            tape.watch(point)
            loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, surrogate(point)))
        point = point + 2.5 / 40 * RADIUS * tf.sign(tape.gradient(loss, point))
        point = tf.clip_by_value(tf.clip_by_value(point, images - RADIUS, images + RADIUS), 0, 1)
    return np.mean((np.argmax(model(images), 1) == labels) & (np.argmax(model(point), 1) == labels))


def test_transferred_attacks_are_those_of_the_surrogate_on_the_model(matrices, source, tmp_path, capsys):
    model, surrogate = without_gradients(matrices[0]), differentiable(matrices[1])
    result = api.evaluate(model, surrogate=surrogate, **OPTIONS)
    metric = f"robust/transfer/linf_{RADIUS}"
    assert f"robust/square/linf_{RADIUS}" in result.values and f"robust/linf_{RADIUS}" not in result.values
    assert result.values[metric] == pytest.approx(transferred_by_hand(model, surrogate, source), abs=1 / SUBSET)
    assert result.values[metric] < result.values["clean"] - 0.1
    assert result.evaluation["card"]["robust_transfer"]["surrogate"]
    assert "attacks are transferred from" in capsys.readouterr().out
    result.report(str(tmp_path / "report.html"))
    assert ", not white-box" in (tmp_path / "report.html").read_text("utf-8")


def test_the_scale_and_the_outputs_of_a_surrogate_are_found(matrices, source):
    plain, scaled = differentiable(matrices[1]), differentiable(matrices[1], [keras.layers.Rescaling(1 / 255)], [keras.layers.Softmax()])
    first, second = load_surrogate(plain, source), load_surrogate(scaled, source)
    assert (second.interface.input_range, second.interface.outputs) == ("0,255", "probabilities")
    assert first.interface.outputs == "logits"
    images, labels = evaluation.first_images(source, SUBSET)
    (attack,) = evaluation.adversarial.transferred_attacks("linf", [RADIUS])
    np.testing.assert_allclose(attack(first, images, labels), attack(second, images, labels), atol=1e-4)


def test_a_surrogate_of_another_size_gets_resized_images(matrices, source):
    small = keras.Sequential([keras.layers.Input((14, 14, 1)), keras.layers.Resizing(28, 28), differentiable(matrices[1])])
    assert load_surrogate(small, source).interface.input_size == 14


def test_an_image_that_the_surrogate_misclassifies_is_attacked_too(matrices, source):
    images, labels = evaluation.first_images(source, SUBSET)
    (attack,) = evaluation.adversarial.transferred_attacks("linf", [RADIUS])
    attacked = attack(differentiable(matrices[1]), images, (labels + 1) % 10)
    assert (np.abs(attacked - images).max(axis=(1, 2, 3)) > RADIUS / 2).all()


def test_unsuitable_surrogates_are_refused(matrices, source, tmp_path):
    with pytest.raises(ValueError, match="surrogate with gradients"):
        load_surrogate(without_gradients(matrices[0]), source)
    few = keras.Sequential([keras.layers.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(7)])
    with pytest.raises(ValueError, match="surrogate with the 10 classes of digits.* with 7 classes"):
        load_surrogate(few, source)
    with pytest.raises(ValueError, match="evaluations=adversarial with surrogate"):
        evaluation.EvalConfig(surrogate="model.keras").check_used(["evaluations", "surrogate"])
    (tmp_path / "model.keras").touch()
    with pytest.raises(FileNotFoundError, match="surrogate.*modle.keras"):
        checks.check_paths({"surrogate": str(tmp_path / "modle.keras")})


def test_cards_name_the_surrogate(matrices, source):
    config = evaluation.EvalConfig(evaluations=("adversarial",))
    cards = [evaluation.card_of(source, config, None, surrogate=load_surrogate(differentiable(matrix), source)) for matrix in matrices]
    assert [field for field, *_ in evaluation.difference(f"robust/transfer/linf_{RADIUS}", *cards)] == ["robust_transfer.surrogate"]


def test_a_function_has_one_digest_in_a_process():
    first, second = (lambda images: images), (lambda images: -images)
    digests = [loading.classifier_of(model, loading.ModelInterface()).digest() for model in (first, first, second)]
    assert digests[0] == digests[1] != digests[2]
