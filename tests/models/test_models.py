"""Networks against their papers and published code, stages, heads, backbones, and resizing."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.conftest import sweep
from tf_robust import attacks, models
from tf_robust.models.torch_layers import Dropout, convolution
from tf_robust.saved_models import export, loading

NETWORKS = {  # name: (images, width of the embedding, number of stages)
    "lenet": ((28, 28, 1), 84, 2),
    "resnet8": ((16, 16, 3), 64, 3),
    "resnet20": ((16, 16, 3), 64, 3),
    "resnet56": ((16, 16, 3), 64, 3),
    "resnet50_v2": ((32, 32, 3), 2048, 4),
    "resnet50": ((32, 32, 3), 2048, 4),
    "resnet50_cifar": ((16, 16, 3), 2048, 4),
    "preact_resnet18": ((16, 16, 3), 512, 4),
    "preact_resnet18_ibn": ((16, 16, 3), 512, 4),
    "resnet20_ibn": ((16, 16, 3), 64, 3),
    "wide_resnet28_2": ((16, 16, 3), 128, 3),
    "wide_resnet28_4": ((16, 16, 3), 256, 3),
    "vit_tiny4": ((16, 16, 3), 192, 3),
    "mlp": ((1, 2, 1), 32, 1),
}
CLASSES = 5
PUBLISHED = {  # (trainable weights of PyTorch's models, of ResNet50V2 all of keras.applications, number of classes)
    "resnet50": (25_557_032, 1000),
    "resnet50_cifar": (23_520_842, 10),
    "preact_resnet18": (11_171_146, 10),
    "resnet50_v2": (23_564_800 + 2048 * CLASSES + CLASSES, CLASSES),  # He et al. (2016b)
}
QUICK = ["lenet", "resnet8", "preact_resnet18", "wide_resnet28_2", "vit_tiny4", "mlp"]


@pytest.fixture(scope="module")
def built():
    """Returns name -> the model with seed 0, built once."""
    cache = {}

    def build(name):
        if name not in cache:
            cache[name] = models.build(name, NETWORKS[name][0], CLASSES, seed=0)
        return cache[name]

    return build


def sample_images(shape, count=2):
    return np.random.RandomState(0).rand(count, *shape).astype(np.float32)


@pytest.mark.parametrize("name", sweep(models.MODELS, QUICK))
def test_outputs_stages_seed_and_file_of_each_network(built, name, tmp_path):
    """Normalization first, then stages, and the logits as a dense layer on the embedding."""
    model, (shape, width, stages) = built(name), NETWORKS[name]
    images = tf.constant(sample_images(shape))
    outputs = model(images)
    assert {key: value.shape for key, value in outputs.items()} == {"logits": (2, CLASSES), "embedding": (2, width)}
    kernel, bias = model.get_layer("logits").get_weights()
    np.testing.assert_allclose(outputs["logits"], outputs["embedding"] @ kernel + bias, rtol=1e-4, atol=1e-4)
    assert model.get_layer("embedding").output is model.output["embedding"]
    assert [layer.name for layer in model.layers[:2]] == ["images", "normalization"]

    pieces, x = models.stages(model), images
    assert len(pieces) == stages + 2
    for piece in pieces:
        x = piece(x)
    np.testing.assert_allclose(x["logits"], outputs["logits"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(pieces[0](images), model.get_layer("normalization")(images), rtol=1e-6)
    assert {id(v) for piece in pieces for v in piece.variables} <= {id(v) for v in model.variables}

    again = models.build(name, shape, CLASSES, seed=0)
    for first, second in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(first, second)
    if model.count_params() < 2e6:  # the others are built with the same layers; each takes seconds
        other = models.build(name, shape, CLASSES, seed=1)
        for index in (0, -2):  # the first kernel and the one of the logits
            assert np.abs(model.trainable_weights[index] - other.trainable_weights[index]).max() > 1e-3

    model.save(tmp_path / "model.keras")
    read = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(read(images)["logits"], outputs["logits"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["lenet", "resnet8"])
def test_normalization_subtracts_the_mean_and_divides_by_the_std(name):
    model = models.MODELS[name](NETWORKS[name][0], CLASSES, mean=0.3, std=0.2)
    images = sample_images(NETWORKS[name][0])
    np.testing.assert_allclose(model.get_layer("normalization")(images), (images - 0.3) / 0.2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("depth", sweep([8, 20, 56], [8]))
def test_the_name_of_a_resnet_is_its_number_of_weight_layers(built, depth):
    layers = built(f"resnet{depth}").layers
    convolutions = [layer for layer in layers if isinstance(layer, keras.layers.Conv2D)]
    projections = [layer for layer in convolutions if layer.kernel_size == (1, 1)]
    dense = [layer for layer in layers if isinstance(layer, keras.layers.Dense)]
    assert len(convolutions) - len(projections) + len(dense) == depth
    assert len(projections) == 2  # where the resolution changes


@pytest.mark.parametrize("name", sweep(["wide_resnet28_2", "wide_resnet28_4", *PUBLISHED], ["wide_resnet28_2", "preact_resnet18"]))
def test_networks_have_as_many_weights_as_their_published_code(built, name):
    """Wide-ResNet counted layer by layer."""
    count, classes = PUBLISHED.get(name) or (wide_resnet_weights(int(name[-1]), 10), 10)
    model = built(name)
    variables = model.variables if name == "resnet50_v2" else model.trainable_variables
    assert sum(int(np.prod(v.shape)) for v in variables) == count - (NETWORKS[name][1] + 1) * (classes - CLASSES)


def wide_resnet_weights(widening, classes):
    widths, total = (16, 16 * widening, 32 * widening, 64 * widening), 3 * 3 * 3 * 16 + 16
    for before, after in zip(widths, widths[1:]):
        for block in range(4):
            entering = before if block == 0 else after
            total += 2 * entering + 9 * entering * after + after + 2 * after + 9 * after * after + after
            total += entering * after + after if entering != after else 0
    return total + 2 * widths[-1] + widths[-1] * classes + classes


@pytest.mark.parametrize("batch_norm", [True, False])
def test_a_projection_head_is_dense_layers_with_relu_between(batch_norm):
    """As in SimCLR: batch norm after every layer, including the last one, which then has no bias."""
    head, x = models.heads.projection(6, 3, 4, "head", batch_norm=batch_norm), np.random.RandomState(0).normal(size=(5, 6))
    for number, variable in enumerate(head.trainable_variables):
        variable.assign(np.random.RandomState(number).normal(size=variable.shape))
    outputs, weights = head(x.astype(np.float32), training=True), iter([v.numpy() for v in head.trainable_variables])
    for layer in (1, 2, 3):
        x = x @ next(weights)
        if layer < 3 or not batch_norm:
            x = x + next(weights)
        if batch_norm:
            x = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5) * next(weights) + next(weights)
        x = np.maximum(x, 0) if layer < 3 else x
    assert next(weights, None) is None and outputs.shape == (5, 4)
    np.testing.assert_allclose(outputs, x, rtol=1e-4, atol=1e-4)


def test_preact_shortcuts_carry_the_activated_input():
    """A block whose convolutions give 0 passes on relu(bn(x)) where the shortcut is the identity."""
    model = models.build("preact_resnet18", (16, 16, 3), CLASSES)
    convolutions = [layer for layer in model.layers if isinstance(layer, keras.layers.Conv2D)]
    for layer in convolutions[1:5]:  # stage 1: two blocks of two
        layer.set_weights([0 * w for w in layer.get_weights()])
    images = sample_images((16, 16, 3))
    stem = keras.Model(model.input, convolutions[0].output)(images)
    stage_1 = keras.Model(model.input, model.get_layer("stage_1").output)(images)
    np.testing.assert_allclose(stage_1, np.maximum(stem, 0) / (1 + 1e-5), rtol=1e-3, atol=1e-4)


def test_strided_convolutions_are_padded_on_all_sides_as_in_pytorch():
    images = keras.Input((5, 5, 1))
    model = keras.Model(images, convolution(images, 1, 3, 2, initializer="ones"))
    sample_image = np.arange(25, dtype=np.float32).reshape(1, 5, 5, 1)
    padded = np.pad(sample_image[0, ..., 0], 1)
    expected = [[padded[r : r + 3, c : c + 3].sum() for c in (0, 2, 4)] for r in (0, 2, 4)]
    np.testing.assert_allclose(model(sample_image)[0, ..., 0], expected)


@pytest.mark.parametrize("name", ["preact_resnet18", "wide_resnet28_2"])
def test_initial_weights_are_uniform_within_the_inverse_root_of_the_fan_in(built, name):
    kernels = [v.numpy() for v in built(name).trainable_variables if v.ndim in (2, 4)]
    assert len(kernels) > 15
    for kernel in kernels:
        bound = np.prod(kernel.shape[:-1]) ** -0.5
        assert np.abs(kernel).max() <= bound and kernel.std() == pytest.approx(bound / 3**0.5, rel=0.15)


def test_batch_norms_constants(built):
    def momenta(name):
        return [layer.momentum for layer in built(name).layers if isinstance(layer, keras.layers.BatchNormalization)]

    assert set(momenta("resnet8")) == set(momenta("preact_resnet18")) == {0.9}
    assert set(momenta("wide_resnet28_2")[:-1]) == {0.9} and momenta("wide_resnet28_2")[-1] == 0.1


def test_dropout_differs_between_calls_and_replicas_and_keeps_the_mean(two_replicas):
    layer, ones = Dropout(0.3), np.ones((4, 1000), np.float32)
    first, second = (layer(ones, training=True).numpy() for _ in range(2))
    assert (first != second).any() and np.mean(first == 0) == pytest.approx(0.3, abs=0.05)
    np.testing.assert_allclose(first[first > 0], 1 / 0.7, rtol=1e-5)
    np.testing.assert_array_equal(layer(ones, training=False), ones)
    with two_replicas.scope():
        layer = Dropout(0.3)
    one, other = two_replicas.experimental_local_results(two_replicas.run(lambda: layer(ones, training=True)))
    assert (one.numpy() != other.numpy()).any()


def backbone_of(*output_shapes, size=4):
    """Returns a backbone [N, size, size, 3] -> its pixels in these shapes."""
    images = keras.Input((size, size, 3))
    outputs = [keras.layers.Reshape(shape)(images) for shape in output_shapes]
    return keras.Model(images, outputs[0] if len(outputs) == 1 else outputs, name="backbone")


@pytest.mark.parametrize("shape, axes", [([48], ()), ([16, 3], 1), ([8, 6], 1), ([4, 4, 3], (1, 2))])
def test_the_embedding_of_a_backbone_is_the_mean_of_its_tokens_or_feature_maps(shape, axes):
    model, images = models.from_backbone(backbone_of(shape), CLASSES, mean=0.4, std=0.2), sample_images((4, 4, 3))
    outputs = model(images)
    expected = ((images - 0.4) / 0.2).reshape(2, *shape).mean(axis=axes)
    np.testing.assert_allclose(outputs["embedding"], expected, atol=1e-5)
    assert outputs["logits"].shape == (2, CLASSES)


@pytest.mark.parametrize(
    "backbone, message",
    [
        (lambda: backbone_of([2, 2, 4, 3]), "output_shape=\\(None, 2, 2, 4, 3\\)"),
        (lambda: backbone_of([48], [16, 3]), "one output"),
        (lambda: backbone_of([-1, 3], size=None), "of known size.*Try: construct"),
    ],
)
def test_unsuitable_backbones_raise(backbone, message):
    with pytest.raises(ValueError, match=message):
        models.from_backbone(backbone(), CLASSES)


def test_gray_images_are_resized_and_three_equal_channels_to_a_network_in_color(tmp_path):
    model, plain = models.build("resnet8", (10, 9, 1), CLASSES, resize=16), models.build("resnet8", (16, 16, 3), CLASSES)
    models.write_weights(plain, str(tmp_path))
    models.load_encoder(model, str(tmp_path), head=True)
    gray = sample_images((10, 9, 1))
    np.testing.assert_allclose(model(gray)["logits"], plain(tf.image.resize(gray.repeat(3, axis=3), (16, 16)))["logits"], atol=1e-5)
    assert models.stages(model)[0](gray).shape == (2, 16, 16, 3)


@pytest.mark.parametrize("shape", [(40, 37, 3), (12, 40, 3), (16, 16, 3), (8, 8, 3)])
def test_images_of_any_size_are_resized_with_antialiasing(shape):
    """As TensorFlow and Pillow do it before the model without it, forwards and backwards."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Conv2D(4, 3, strides=2), keras.layers.Flatten(), keras.layers.Dense(3)]
    images = tf.constant(sample_images(shape))
    model, plain = (small_network(layers, size, resize) for size, resize in ((shape, 16), ((16, 16, 3), 0)))
    channels = [Image.fromarray(channel) for channel in np.moveaxis(images, 3, 1).reshape(-1, *shape[:2])]
    resized = [np.asarray(channel.resize((16, 16), Image.Resampling.BILINEAR)) for channel in channels]
    by_pillow = np.moveaxis(np.reshape(resized, (2, 3, 16, 16)), 1, 3)
    np.testing.assert_allclose(model(images), plain(by_pillow), rtol=1e-4, atol=1e-3)
    outputs, gradients = [], []
    for network, first in ((model, tf.identity), (plain, lambda x: tf.image.resize(x, (16, 16), antialias=True))):
        with tf.GradientTape() as tape:
            tape.watch(images)
            outputs.append(network(first(images)))
            total = tf.reduce_sum(outputs[-1] ** 2)
        gradients.append(tape.gradient(total, images))
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(*gradients, rtol=1e-3, atol=1e-5)


def small_network(layers, shape, resize):
    """Returns a network of these layers on normalized images."""
    images, x = models.heads.normalized_input(shape, 0.5, 0.5, 8, "small", resize=resize)
    for layer in layers:
        x = layer(x)
    return keras.Model(images, x)


def test_a_model_that_resizes_is_exported_reloaded_and_attacked(tmp_path):
    shape = (12, 40, 3)
    resizing, images = small_network([keras.layers.Flatten()], shape, 8), tf.constant(sample_images(shape))
    model = models.heads.classifier(resizing.input, resizing.output, CLASSES, "small")
    expected = model(images)["logits"]
    export.export(model, str(tmp_path / "exported"), {})
    reloaded = loading.load_classifier(str(tmp_path / "exported"))
    np.testing.assert_allclose(reloaded(images), expected, rtol=1e-4, atol=1e-5)
    attacked = attacks.FastGradient(norm="linf", radius=0.05)(reloaded, images, tf.argmax(expected, axis=1))
    assert 0.04 < np.abs(attacked - images).max() < 0.051
    model.save(tmp_path / "model.keras")
    np.testing.assert_allclose(loading.load_classifier(str(tmp_path / "model.keras"))(images), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("side", [8, 24])
def test_a_penalty_on_the_gradient_of_the_images_reaches_the_weights_through_the_resizing(side):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Conv2D(4, 3, activation="softplus"), keras.layers.Flatten(), keras.layers.Dense(3, activation="tanh")]
    model, images = small_network(layers, (16, 16, 3), side), tf.constant(sample_images((16, 16, 3)))

    def slope():
        with tf.GradientTape() as tape:
            tape.watch(images)
            total = tf.reduce_sum(model(images))
        return tf.reduce_sum(tape.gradient(total, images) ** 2)

    kernel = layers[0].kernel
    with tf.GradientTape() as outer:
        penalty = slope()
    gradient = outer.gradient(penalty, kernel)
    step = 1e-2 * gradient / tf.norm(gradient)
    kernel.assign_add(step)
    after = slope()
    kernel.assign_sub(2 * step)
    np.testing.assert_allclose((after - slope()) / 2e-2, tf.norm(gradient), rtol=0.01)


@pytest.mark.parametrize(
    "name, side, resize, message",
    [
        ("resnet51", 32, 0, "'resnet51'.*'resnet50'"),
        ("lenet", 32, 64, "can resize: resnet8, resnet20"),
        ("resnet50", 32, 8, "at least 32x32 for resnet50.*8x8"),
        *((name, side, 0, f"{name}.*{side}x40") for name, side in (("lenet", 15), ("resnet8", 7), ("resnet50_v2", 31))),
    ],
)
def test_unknown_names_and_sizes_that_a_model_cannot_take_are_refused(name, side, resize, message):
    with pytest.raises(ValueError, match=message):
        models.build(name, (side, 40, 3), CLASSES, resize=resize)


def test_depths_between_the_resnets_are_refused():
    with pytest.raises(ValueError, match="depth.*18"):
        models.resnet.cifar_resnet((16, 16, 3), CLASSES, depth=18)
