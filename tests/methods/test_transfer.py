"""Methods that start from a trained encoder: linear probe, fine-tuning, and regularization towards the start."""

import keras
import numpy as np
import pytest
import scipy.optimize
import scipy.special
import tensorflow as tf

from tests.conftest import tiny_network, tiny_source
from tests.methods.common import batches, build
from tests.methods.users_models import functional
from tf_robust import losses, methods, models
from tf_robust.models import heads
from tf_robust.saved_models import export
from tf_robust.training import checkpoints, loop

SHAPE = (16, 16, 1)


def named(variables):
    return {v.path: v.numpy() for v in variables}


def trained():
    method = build("cross_entropy", tiny_network())
    for batch in batches(tiny_source(), 4):
        method.train_step(batch)
    return method


@pytest.mark.parametrize("name", ["linear_probe", "finetune"])
def test_frozen_layers_and_their_batch_statistics_do_not_change(name):
    network = tiny_network()
    before = named(network.variables)
    method = build(name, network, **({"frozen_stages": 1} if name == "finetune" else {}), weight_decay=0.1)
    for batch in batches(tiny_source(), 3):
        method.train_step(batch)
    moved = {path.split("/")[0] for path, value in named(network.variables).items() if (value != before[path]).any()}
    behind = {layer.name for layer in network.layers if layer.weights and layer.name not in ("stage_1", "logits")}
    assert moved == {"logits", *(behind if name == "finetune" else ())}


def test_frozen_stages_see_batch_norm_in_inference_mode():
    network = models.build("resnet8", (8, 8, 3), 3)
    images = np.random.RandomState(0).rand(4, 8, 8, 3).astype(np.float32)
    for variable in network.non_trainable_variables:  # averages unlike any batch's
        variable.assign(variable + 0.5)
    method = build("finetune", network, frozen_stages=3)
    outputs = method.outputs(tf.constant(images), training=True)["embedding"]
    np.testing.assert_allclose(outputs, network(images, training=False)["embedding"], atol=1e-5)
    assert len(build("finetune", network).trainable_variables) == len(network.trainable_variables)
    assert [v.path for v in method.trainable_variables] == [v.path for v in network.get_layer("logits").variables]


def test_lbfgs_finds_the_minimum_of_the_regularized_cross_entropy():
    """Against SciPy on the same objective."""
    source = tiny_source(48)
    method = build("linear_probe", tiny_network(), solver="lbfgs", weight_decay=0.01)
    encoder = [v.numpy() for v in method.non_trainable_variables]
    result = loop.fit(method, source, epochs=1, batch_size=12)
    features = method.classifier(source.images / np.float32(255))["embedding"].numpy().astype(np.float64)

    def objective(flat):
        kernel, bias = flat[:24].reshape(8, 3), flat[24:]
        logits = features @ kernel + bias
        return np.mean(scipy.special.logsumexp(logits, axis=1) - logits[np.arange(48), source.labels]) + 0.005 * np.sum(kernel**2)

    value = objective(np.concatenate([method.logits.kernel.numpy().ravel(), method.logits.bias.numpy()]))
    assert value == pytest.approx(scipy.optimize.minimize(objective, np.zeros(27)).fun, rel=1e-4)
    assert result.steps == 1 and all((a == v.numpy()).all() for a, v in zip(encoder, method.non_trainable_variables))


def test_lbfgs_on_one_class_is_refused():
    source = tiny_source(48)
    with pytest.raises(ValueError, match="2 classes"):
        build("linear_probe", tiny_network(), solver="lbfgs").solve(source.subset(np.flatnonzero(source.labels == 1)))


@pytest.mark.parametrize("classes, use_bias", [(2, True), (3, True), (3, False)])
def test_lbfgs_ends_where_the_gradient_of_the_documented_loss_is_0(classes, use_bias):
    keras.utils.set_random_seed(0)
    source, inputs = tiny_source(48, classes=classes), keras.Input(SHAPE)
    embedding = keras.layers.Dense(8, activation="tanh")(keras.layers.Flatten()(inputs))
    model = keras.Model(inputs, keras.layers.Dense(classes, use_bias=use_bias)(embedding))
    build("linear_probe", model, solver="lbfgs", weight_decay=0.1).solve(source)
    images, kernel = source.images / np.float32(255), model.layers[-1].kernel.numpy()
    features, logits = keras.Model(inputs, embedding)(images).numpy(), model(images).numpy()
    errors = scipy.special.softmax(logits, axis=1) - np.eye(classes)[source.labels]
    np.testing.assert_allclose(features.T @ errors / 48 + 0.1 * kernel, 0.0, atol=1e-4)
    if use_bias:
        np.testing.assert_allclose(errors.mean(axis=0), 0.0, atol=1e-4)
    assert np.abs(kernel).max() > 0.1


def test_a_hidden_layer_is_exported_with_the_encoder(tmp_path):
    network = tiny_network()
    method = build("finetune", network, head_width=6)
    embedding = network(np.ones([1, *SHAPE], np.float32))["embedding"]
    outputs = method.classifier(np.ones([1, *SHAPE], np.float32))
    np.testing.assert_array_equal(outputs["embedding"], embedding)
    hidden, logits = (method.classifier.get_layer(name) for name in ("hidden", "logits"))
    expected = np.maximum(embedding @ hidden.kernel.numpy() + hidden.bias.numpy(), 0) @ logits.kernel.numpy() + logits.bias.numpy()
    np.testing.assert_allclose(outputs["logits"], expected, atol=1e-5)
    export.export(method.classifier, str(tmp_path / "m"), {})
    models.load_encoder(tiny_network(seed=3), str(tmp_path / "m"))  # heads differ, the encoder fits


def test_load_encoder_takes_the_weights_of_an_exported_model(tmp_path):
    first = trained().classifier
    export.export(first, str(tmp_path / "saved_model"), {})
    for path in (tmp_path, tmp_path / "saved_model"):
        fresh = tiny_network(seed=5, classes=3)
        logits = fresh.get_layer("logits").kernel.numpy()
        models.load_encoder(fresh, str(path))
        for a, b in zip(first.variables, fresh.variables):
            assert np.array_equal(a.numpy(), b.numpy()) == (a.path.split("/")[0] != "logits"), a.path
        np.testing.assert_array_equal(fresh.get_layer("logits").kernel.numpy(), logits)
    models.load_encoder(fresh, str(tmp_path), head=True)
    assert all((a.numpy() == b.numpy()).all() for a, b in zip(first.variables, fresh.variables))
    models.load_encoder(tiny_network(classes=7), str(tmp_path))
    with pytest.raises(ValueError, match="do not fit: logits/kernel .* for logits/kernel"):
        models.load_encoder(tiny_network(classes=7), str(tmp_path), head=True)
    with pytest.raises(ValueError, match="Expected weights of resnet8 without its logits .* do not fit: stage_1/kernel"):
        models.load_encoder(models.build("resnet8", SHAPE, 3), str(tmp_path))
    with pytest.raises(FileNotFoundError, match="saved_model"):
        models.load_encoder(fresh, str(tmp_path / "nowhere"))


def test_l2_sp_equals_the_papers_sum():
    method = build("l2_sp", trained().classifier, alpha=0.3, beta=0.2)
    batch = next(batches(tiny_source(), 1))
    starts = named(method.encoder_variables)
    for step_batch in batches(tiny_source(), 3):
        method.train_step(step_batch)
    moved = sum(np.sum((value - starts[path]) ** 2) for path, value in named(method.encoder_variables).items())
    head = sum(np.sum(v.numpy() ** 2) for v in method.classifier.get_layer("logits").variables)
    assert moved > 0 and {path.split("/")[0] for path in starts} == {
        layer.name for layer in method.classifier.layers if layer.weights and layer.name != "logits"
    }
    terms, _ = method.loss_terms(batch, training=False)
    assert float(terms["l2_sp"]) == pytest.approx(0.3 / 2 * moved + 0.2 / 2 * head, rel=1e-4)


@pytest.mark.parametrize("form", ["frobenius", "mean_squared"])
def test_similarity_starts_at_0_with_a_finite_gradient(form):
    method = build("similarity", tiny_network(batch_norm=False), form=form, weight=2.0)
    batch = next(batches(tiny_source(), 1))
    with tf.GradientTape() as tape:
        term = method.loss_terms(batch, training=True)[0]["similarity"]
    gradients = tape.gradient(term, [v.value for v in method.trainable_variables], unconnected_gradients="zero")
    assert float(term) == 0.0 and all(np.isfinite(g).all() and not np.any(g) for g in gradients)
    start = method.classifier(batch.views[0])["embedding"]
    for step_batch in batches(tiny_source(), 2):
        method.train_step(step_batch)
    now = method.classifier(batch.views[0])["embedding"]
    expected = 2.0 * losses.similarity(now, start, form == "mean_squared")
    assert float(method.loss_terms(batch, training=True)[0]["similarity"]) == pytest.approx(float(expected), rel=1e-4) != 0


def test_the_frozen_encoder_does_not_change_and_is_in_checkpoints(tmp_path):
    method = build("similarity", trained().classifier)
    frozen = [v.numpy() for v in method.starts]
    for batch in batches(tiny_source(), 3):
        method.train_step(batch)
    assert all((a == v.numpy()).all() for a, v in zip(frozen, method.starts))
    checkpoints.save(method, str(tmp_path), 3)
    other = build("similarity", tiny_network(seed=4))
    checkpoints.restore(other, str(tmp_path))
    assert all((a == v.numpy()).all() for a, v in zip(frozen, other.starts))


@pytest.mark.parametrize("name, options", [("similarity", {"weight": 0.03}), ("l2_sp", {"alpha": 10.0, "beta": 0.0})])
def test_a_large_weight_keeps_it_near_its_start(name, options):
    images, distances = tiny_source().images / np.float32(255), []
    networks = [tiny_network(batch_norm=False) for _ in range(2)]
    for method in (build("finetune", networks[0]), build(name, networks[1], **options)):
        method.optimizer.learning_rate = 0.01
        before = method.classifier(images)["embedding"].numpy()
        for batch in batches(tiny_source(), 20):
            method.train_step(batch)
        after = method.classifier(images)["embedding"].numpy()
        distances.append(np.linalg.norm(after @ after.T - before @ before.T))
    assert distances[1] < 0.6 * distances[0]


def small_backbone():
    return keras.Sequential([keras.Input(SHAPE), keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization()], name="backbone")


def backbone_of_keras_cv():
    keras_cv = pytest.importorskip("keras_cv")
    widths = {"stackwise_filters": [4, 8], "stackwise_blocks": [2, 2], "stackwise_strides": [1, 2]}
    return keras_cv.models.ResNetV2Backbone(**widths, include_rescaling=False, input_shape=SHAPE)


@pytest.mark.parametrize(
    "name, backbone",
    [*((name, small_backbone) for name in ("finetune", "similarity", "l2_sp", "linear_probe")), ("similarity", backbone_of_keras_cv)],
)
def test_any_keras_backbone_is_a_start(name, backbone):
    backbone, images = backbone(), np.random.RandomState(0).rand(2, *SHAPE).astype(np.float32)
    expected = backbone((images - 0.4) / 0.2, training=False).numpy().mean(axis=(1, 2))
    method = build(name, models.from_backbone(backbone, 3, mean=0.4, std=0.2))
    np.testing.assert_allclose(method.classifier(images)["embedding"], expected, atol=1e-5)
    for batch in batches(tiny_source(), 2):
        logs = method.train_step(batch)
    assert np.isfinite(float(logs["total"]))
    if name == "similarity":
        np.testing.assert_allclose(method.start_embedding(images), expected, atol=1e-5)
        assert np.abs(method.classifier(images)["embedding"] - expected).max() > 1e-3


def test_similarity_takes_a_model_inside_another_whose_layers_cannot_be_copied():
    layers = [keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization(), keras.layers.Conv2D(5, 3), keras.layers.Flatten()]
    inner, inputs = keras.Sequential([keras.Input((8, 8, 3)), *layers, keras.layers.Dense(3)]), keras.Input((8, 8, 3))
    method = build("similarity", keras.Model(inputs, inner(keras.layers.Rescaling(2.0, -1.0)(inputs))))
    with pytest.raises(ValueError, match="copies its layers"):
        keras.models.clone_model(method.encoder)
    images, labels = np.random.RandomState(0).rand(4, 8, 8, 3).astype(np.float32), np.array([0, 1, 2, 0])
    start = method.start_embedding(images)
    np.testing.assert_allclose(method.encode(images, False)["embedding"], start, atol=1e-5)
    layers[0].trainable = False  # after the method was made
    method.fit(images, labels, epochs=1, batch_size=4, verbose=0)
    np.testing.assert_allclose(method.start_embedding(images), start, atol=1e-5)
    assert np.abs(method.encode(images, False)["embedding"] - start).max() > 1e-4


def encoder_of_one_stage():
    images, x = heads.normalized_input(SHAPE, 0.5, 0.5, 8, "tiny")
    x = keras.layers.Conv2D(4, 3, strides=2, name="stage_1")(x)
    return heads.classifier(images, keras.layers.GlobalAveragePooling2D()(x), 3, "tiny")


def frozen_users_model():
    model = functional()
    for layer in model.layers[:-1]:
        layer.trainable = False
    return model


@pytest.mark.parametrize("build_model, options", [(encoder_of_one_stage, {"frozen_stages": 1}), (frozen_users_model, {})])
def test_l2_sp_needs_weights_of_the_encoder(build_model, options):
    frozen = options.get("frozen_stages", 0)
    with pytest.raises(ValueError, match=f"trained weights .* L2SP.* frozen_stages={frozen}"):
        build("l2_sp", build_model(), **options)


def test_l2_sp_of_a_frozen_head_is_the_distance_of_the_encoder():
    model = functional()
    model.layers[-1].trainable = False
    method = methods.L2SP(model, alpha=0.5, beta=10.0)
    for variable in method.encoder_variables:
        variable.assign_add(tf.ones_like(variable))
    batch = next(batches(tiny_source(), 1))
    terms, _ = method.loss_terms(batch, training=True)
    np.testing.assert_allclose(terms["l2_sp"], 0.25 * sum(np.prod(v.shape) for v in model.trainable_variables), rtol=1e-5)
