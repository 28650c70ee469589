"""SimCLR: its loss against NumPy, its penalty against finite differences."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import tiny_network, tiny_source
from tests.methods.common import batches, build, last_logs, mirrored, two_views
from tests.methods.users_models import functional
from tf_robust import methods, metrics
from tf_robust.data import augment
from tf_robust.methods import contrastive
from tf_robust.models import heads
from tf_robust.training import callbacks, loop, optimizers

SHAPE = (8, 8, 1)


def projection_heads(*widths):
    return [heads.projection(width, 2, 5, f"projection_{level}", batch_norm=False) for level, width in enumerate(widths)]


def smooth(projection_layers=2, **options):
    """A method without batch norm, so that an image's projection depends on the image alone."""
    method = build("simclr", tiny_network(SHAPE, batch_norm=False), projection_layers=projection_layers, **options)
    if projection_layers:
        method.heads = projection_heads(8)
    method.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9))
    return method


def nt_xent(first, second, temperature):
    """Returns the batch's mean, by NumPy."""
    z = np.concatenate([first, second]).astype(np.float64)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    s, count = z @ z.T / temperature, len(first)
    np.fill_diagonal(s, -np.inf)
    return np.mean([np.log(np.exp(s[i]).sum()) - s[i, (i + count) % (2 * count)] for i in range(2 * count)])


def squared_gradients(projected, views, temperature):
    """Returns the sum of the squares of NT-Xent's gradient with respect to all pixels of both views, by finite differences."""
    step, squares = 1e-2, 0.0
    projections = [projected(view) for view in views]
    for number, view in enumerate(views):
        for i, image in enumerate(view.numpy()):
            steps = step * np.eye(image.size, dtype=np.float32).reshape(-1, *image.shape)
            sides = []
            for moved in (projected(image + steps), projected(image - steps)):
                pairs = [[projection.copy() for projection in projections] for _ in moved]
                for pair, vector in zip(pairs, moved):
                    pair[number][i] = vector
                sides.append(np.array([nt_xent(*pair, temperature) for pair in pairs]))
            squares += np.sum(((sides[0] - sides[1]) / (2 * step)) ** 2)
    return squares


@pytest.mark.parametrize("head", [True, False])
def test_loss_is_nt_xent_and_its_penalty_equals_finite_differences(head):
    """The penalty is not divided by the batch size. Without a head both are of the embeddings."""
    method, batch = smooth(temperature=0.7, gradient_weight=3.0, projection_layers=2 if head else 0), two_views(3, SHAPE)

    def projected(images):
        return method.heads[0](method.classifier(images)["embedding"]).numpy()

    terms, logits = method.loss_terms(batch, training=True)
    assert float(terms["contrastive"]) == pytest.approx(nt_xent(*map(projected, batch.views), 0.7), rel=1e-5)
    assert float(terms["input_gradient"]) == pytest.approx(3.0 / 2 * squared_gradients(projected, batch.views, 0.7) / 2, rel=2e-2)
    np.testing.assert_allclose(logits, method.classifier(batch.views[0])["logits"], atol=1e-6)
    assert head or {id(v) for v in method.trainable_variables} == {id(v) for v in method.classifier.trainable_variables}


def three_stages():
    """A smooth network of three stages, the last of them the embedding."""
    images, x = heads.normalized_input(SHAPE, 0.5, 0.5, 8, "smooth")
    for stage in (1, 2):
        x = keras.layers.Conv2D(4 * stage, 3, strides=stage, activation="softplus", name=f"stage_{stage}")(x)
    x = keras.layers.Dense(8, activation="tanh", name="stage_3")(keras.layers.Flatten()(x))
    return heads.classifier(images, x, 3, "smooth")


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_layers_loss_and_penalty_are_of_its_mean_over_positions(level):
    """L_k and R_k of eq. 4 and 5."""
    network, batch, one_hot = three_stages(), two_views(3, SHAPE), np.eye(3)[level]
    method = build("simclr", network, layer_weights=tuple(0.7 * one_hot), layer_gradient_weights=tuple(3.0 * one_hot))
    method.heads = projection_heads(4, 8, 8)
    stage = keras.Model(network.input, network.get_layer(f"stage_{level + 1}").output)

    def projected(images):
        levels = stage(images).numpy()
        return method.heads[level](levels.mean(axis=(1, 2)) if level < 2 else levels).numpy()

    terms, _ = method.loss_terms(batch, training=True)
    assert float(terms["contrastive"]) == pytest.approx(0.7 * nt_xent(*map(projected, batch.views), 0.5), rel=1e-5)
    assert float(terms["input_gradient"]) == pytest.approx(3.0 * squared_gradients(projected, batch.views, 0.5) / 2, rel=2e-2)


def test_penalty_gradients_of_the_weights_equal_finite_differences(float64):
    method, batch = smooth(gradient_weight=3.0), two_views(3, SHAPE)
    batch = batch._replace(views=tuple(tf.cast(view, tf.float64) for view in batch.views))
    loss = method.loss_terms

    def penalty():
        return loss(batch, training=True)[0]["input_gradient"]

    def only_penalty(batch, training):
        terms, logits = loss(batch, training)
        return {name: term * (name == "input_gradient") for name, term in terms.items()}, logits

    method.loss_terms = only_penalty
    gradients = dict(zip((v.path for v in method.trainable_variables), method.gradients(batch, batch.step[0])[0]))
    for index in ((1, 1, 0, 2), (5, 3)):  # of the convolution, of the embedding
        kernel = next(v for v in method.trainable_variables if len(v.shape) == len(index))
        value, penalties = kernel.numpy(), []
        for sign in (1, -1):
            moved = value.copy()
            moved[index] += sign * 1e-3
            kernel.assign(moved)
            penalties.append(float(penalty()))
        kernel.assign(value)
        slope = (penalties[0] - penalties[1]) / 2e-3
        assert float(gradients[kernel.path][index]) == pytest.approx(slope, rel=2e-3) and abs(slope) > 0.01


def test_no_gradient_flows_from_the_monitor_to_the_encoder():
    method, batch = smooth(), two_views(3, SHAPE)
    with tf.GradientTape() as tape:
        terms, _ = method.loss_terms(batch, training=True)
        loss = tf.reduce_mean(terms["linear"])
    gradients = tape.gradient(loss, [v.value for v in method.trainable_variables])
    reached = {v.path for v, g in zip(method.trainable_variables, gradients) if g is not None and np.abs(g).max() > 0}
    assert reached == {v.path for v in method.classifier.get_layer("logits").variables}


def test_losses_of_layers_add_up():
    network, batch, projections = three_stages(), two_views(4, SHAPE), projection_heads(4, 8, 8)

    def terms(level_heads=projections, **options):
        method = build("simclr", network, **options)
        method.heads = level_heads
        found, _ = method.loss_terms(batch, training=False)
        return float(found["contrastive"]), float(found.get("input_gradient", 0.0))

    losses, penalties = zip(*(terms(layer_weights=tuple(level), layer_gradient_weights=tuple(level)) for level in np.eye(3)))
    assert min(penalties) > 0
    combined, penalty = terms(layer_weights=(0.1, 0.5, 2.0), layer_gradient_weights=(3.0, 2.0, 0.0))
    assert combined == pytest.approx(np.dot([0.1, 0.5, 2.0], losses), rel=1e-5)
    assert penalty == pytest.approx(3 * penalties[0] + 2 * penalties[1], rel=1e-4)
    loss, penalty = terms(projections[2:], gradient_weight=2.0)  # eq. 3 is eq. 5 with beta = lambda / 2 at the embedding
    assert loss == pytest.approx(losses[2], rel=1e-5) and penalty == pytest.approx(penalties[2], rel=1e-4)


def test_weight_decay_excludes_biases_batch_norm_and_the_monitor():
    method = build("simclr", tiny_network(SHAPE))
    decayed = {v.path for v in method.trainable_variables if method.decays(v)}
    embedding = next(layer for layer in method.classifier.layers if layer.name.startswith("dense"))
    assert decayed == {"stage_1/kernel", embedding.kernel.path, "projection_1/dense_1/kernel", "projection_1/dense_2/kernel"}


def test_it_learns_to_discriminate_images():
    method = build("simclr", tiny_network(), temperature=0.2)
    method.optimizer.learning_rate = 0.01  # at 0.03 the result depends on the rounding of the CPU
    logs = last_logs(method, tiny_source(), steps=120, last=20, name="simclr")
    assert logs["accuracy"] > 0.8 and logs["contrastive"] < 0.4 * np.log(23), logs


def test_monitors_use_a_balanced_subset_of_large_sets(monkeypatch):
    monkeypatch.setattr(contrastive, "MONITORED", 12)
    embeddings, labels, _ = contrastive._embed(lambda images: images[:, 0, 0], tiny_source(60), ())
    assert len(embeddings) == 12 and np.bincount(labels).tolist() == [4, 4, 4]


def test_validation_logs_neighbours_alignment_and_uniformity(tmp_path):
    method, source, validation = build("simclr", tiny_network()), tiny_source(), tiny_source(30)
    history = callbacks.History(str(tmp_path / "history.json"))
    views = (augment.clean, mirrored)
    loop.fit(method, source, epochs=2, batch_size=12, views=views, validation=validation, callbacks=[history])
    logs = json.loads((tmp_path / "history.json").read_text())[-1]
    known, embeddings, flipped = (
        method.classifier(images / np.float32(255))["embedding"].numpy()
        for images in (source.images, validation.images, validation.images[:, :, ::-1])
    )
    assert logs["val_nearest_neighbours"] == metrics.nearest_neighbour_accuracy(known, source.labels, embeddings, validation.labels)
    assert logs["val_alignment"] == pytest.approx(metrics.alignment(embeddings, flipped), rel=1e-4)
    assert logs["val_uniformity"] == pytest.approx(metrics.uniformity(embeddings), rel=1e-4)


@pytest.mark.parametrize("loss_scale", [False, True])
@pytest.mark.parametrize("model", [tiny_network, functional])
def test_lars_takes_plain_steps_for_the_linear_monitor(model, loss_scale):
    """Also for a user's model, whose last layer has another name: the first step of each variable, by NumPy."""
    method, optimizer = methods.SimCLR(model()), optimizers.build("lars", 0.5)
    method.compile(keras.optimizers.LossScaleOptimizer(optimizer, 8.0) if loss_scale else optimizer)
    method.optimizer.build(method.trainable_variables)
    batch, monitor = next(batches(tiny_source(), 1, name="simclr")), method.logits_layer.kernel
    gradients = [g.numpy() / (8.0 if loss_scale else 1.0) for g in method.gradients(batch, batch.step[0])[0]]
    before = [v.numpy() for v in method.trainable_variables]
    method.train_step(batch)
    for variable, w, g in zip(method.trainable_variables, before, gradients, strict=True):
        scaled = w.ndim > 1 and variable is not monitor and np.linalg.norm(g) > 0
        ratio = 0.001 * np.linalg.norm(w) / np.linalg.norm(g) if scaled else 1.0
        np.testing.assert_allclose(variable.numpy(), w - 0.5 * ratio * g, rtol=1e-5, atol=1e-6)
    assert any(variable is monitor for variable in method.trainable_variables)
