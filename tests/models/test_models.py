"""Networks against their papers and published code, stages, heads, backbones, and resizing."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tf_robust import attacks, models
from tf_robust.models.torch_layers import Dropout, convolution
from tf_robust.saved_models import export, loading

SHAPES = {
    **dict.fromkeys(models.MODELS, (16, 16, 3)),
    "lenet": (28, 28, 1),
    "resnet50_v2": (32, 32, 3),
    "resnet50": (32, 32, 3),
    "mlp": (1, 2, 1),
}
WIDTHS = {
    "lenet": 84,
    "resnet8": 64,
    "resnet20": 64,
    "resnet56": 64,
    "resnet50_v2": 2048,
    "resnet50": 2048,
    "resnet50_cifar": 2048,
    "preact_resnet18": 512,
    "preact_resnet18_ibn": 512,
    "resnet20_ibn": 64,
    "wide_resnet28_2": 128,
    "wide_resnet28_4": 256,
    "vit_tiny4": 192,
    "mlp": 32,
}
STAGES = {
    "lenet": 2,
    "resnet50_v2": 4,
    "resnet50": 4,
    "resnet50_cifar": 4,
    "preact_resnet18": 4,
    "preact_resnet18_ibn": 4,
    "mlp": 1,
}  # the others: 3
CLASSES = 5
names = pytest.mark.parametrize("name", models.MODELS)


@pytest.fixture(scope="module")
def built():
    """Returns name -> the model with seed 0, built once."""
    cache = {}

    def build(name):
        if name not in cache:
            cache[name] = models.build(name, SHAPES[name], CLASSES, seed=0)
        return cache[name]

    return build


def sample_images(shape, count=2):
    return np.random.RandomState(0).rand(count, *shape).astype(np.float32)


@names
def test_the_logits_are_a_dense_layer_on_the_embedding(built, name):
    model = built(name)
    outputs = model(sample_images(SHAPES[name]))
    assert set(outputs) == {"logits", "embedding"}
    assert outputs["logits"].shape == (2, CLASSES) and outputs["embedding"].shape == (2, WIDTHS[name])
    kernel, bias = model.get_layer("logits").get_weights()
    np.testing.assert_allclose(outputs["logits"], outputs["embedding"] @ kernel + bias, rtol=1e-4, atol=1e-4)
    assert model.get_layer("embedding").output is model.output["embedding"]


@names
def test_the_input_is_normalized_first(built, name):
    model = built(name)
    assert [layer.name for layer in model.layers[:2]] == ["images", "normalization"]


@pytest.mark.parametrize("name", ["lenet", "resnet8"])
def test_normalization_subtracts_the_mean_and_divides_by_the_std(name):
    model = models.MODELS[name](SHAPES[name], CLASSES, mean=0.3, std=0.2)
    images = sample_images(SHAPES[name])
    np.testing.assert_allclose(model.get_layer("normalization")(images), (images - 0.3) / 0.2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("depth", [8, 20, 56])
def test_the_name_of_a_resnet_is_its_number_of_weight_layers(built, depth):
    layers = built(f"resnet{depth}").layers
    convolutions = [layer for layer in layers if isinstance(layer, keras.layers.Conv2D)]
    projections = [layer for layer in convolutions if layer.kernel_size == (1, 1)]
    dense = [layer for layer in layers if isinstance(layer, keras.layers.Dense)]
    assert len(convolutions) - len(projections) + len(dense) == depth
    assert len(projections) == 2  # where the resolution changes


def test_resnet50_v2_has_the_papers_size(built):
    backbone_and_head = 23_564_800 + 2048 * CLASSES + CLASSES  # He et al. (2016b), as in keras.applications
    assert built("resnet50_v2").count_params() == backbone_and_head


def test_networks_have_as_many_weights_as_their_published_code(built):
    """Trainable weights of PyTorch's models; Wide-ResNet counted layer by layer."""
    published = {
        ("resnet50", 1000): 25_557_032,
        ("resnet50_cifar", 10): 23_520_842,
        ("preact_resnet18", 10): 11_171_146,
        ("wide_resnet28_2", 10): wide_resnet_weights(2, 10),
        ("wide_resnet28_4", 100): wide_resnet_weights(4, 100),
    }
    for (name, classes), count in published.items():
        head = (WIDTHS[name] + 1) * (classes - CLASSES)
        assert sum(int(np.prod(v.shape)) for v in built(name).trainable_variables) == count - head, name


def wide_resnet_weights(widening, classes):
    widths, total = (16, 16 * widening, 32 * widening, 64 * widening), 3 * 3 * 3 * 16 + 16
    for before, after in zip(widths, widths[1:]):
        for block in range(4):
            entering = before if block == 0 else after
            total += 2 * entering + 9 * entering * after + after + 2 * after + 9 * after * after + after
            total += entering * after + after if entering != after else 0
    return total + 2 * widths[-1] + widths[-1] * classes + classes


@names
def test_stages_are_the_model_in_pieces(built, name):
    model, images = built(name), sample_images(SHAPES[name])
    pieces = models.stages(model)
    assert len(pieces) == STAGES.get(name, 3) + 2
    x = images
    for piece in pieces:
        x = piece(x)
    np.testing.assert_allclose(x["logits"], model(images)["logits"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(pieces[0](images), model.get_layer("normalization")(images), rtol=1e-6)
    owned = {id(v) for v in model.variables}
    assert all(id(v) in owned for piece in pieces for v in piece.variables)


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


def test_preact_shortcuts_carry_the_activated_input(built):
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

    assert set(momenta("resnet50")) == set(momenta("preact_resnet18")) == {0.9}
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


@names
def test_initial_weights_depend_on_the_seed(built, name):
    again = models.build(name, SHAPES[name], CLASSES, seed=0)
    for first, second in zip(built(name).get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(first, second)
    if built(name).count_params() > 2e6:
        return  # built with the same layers; each takes seconds
    other = models.build(name, SHAPES[name], CLASSES, seed=1)
    for index in (0, -2):  # the first kernel and the one of the logits
        first, second = (model.trainable_weights[index] for model in (built(name), other))
        assert np.abs(first - second).max() > 1e-3


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


def test_an_unknown_model_raises_with_the_nearest_names():
    with pytest.raises(ValueError, match="Unknown model: 'resnet51'. Did you mean .*'resnet50'"):
        models.build("resnet51", (32, 32, 3), CLASSES)


@pytest.mark.slow
def test_small_images_are_resized_inside_a_model_for_large_ones(tmp_path):
    """As TensorFlow's own bilinear resizing before the model without it, forwards and backwards."""
    model, plain = (models.build("resnet50", (side, side, 3), CLASSES, resize=resize) for side, resize in ((8, 64), (64, 0)))
    models.write_weights(plain, str(tmp_path))
    models.load_encoder(model, str(tmp_path), head=True)
    images = tf.constant(sample_images((8, 8, 3)))
    gradients, all_logits = [], []
    for network, first in ((model, tf.identity), (plain, lambda x: tf.image.resize(x, (64, 64)))):
        with tf.GradientTape() as tape:
            tape.watch(images)
            all_logits.append(network(first(images))["logits"])
            total = tf.reduce_sum(all_logits[-1] ** 2)
        gradients.append(tape.gradient(total, images))
    np.testing.assert_allclose(*all_logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(*gradients, rtol=1e-3, atol=1e-5)
    assert models.stages(model)[0](images).shape == (2, 64, 64, 3)


def test_gray_images_are_three_equal_channels_to_a_network_in_color(tmp_path):
    model, plain = models.build("resnet8", (10, 9, 1), CLASSES, resize=16), models.build("resnet8", (16, 16, 3), CLASSES)
    models.write_weights(plain, str(tmp_path))
    models.load_encoder(model, str(tmp_path), head=True)
    gray = sample_images((10, 9, 1))
    np.testing.assert_allclose(model(gray)["logits"], plain(tf.image.resize(gray.repeat(3, axis=3), (16, 16)))["logits"], atol=1e-5)


@pytest.mark.parametrize("shape, side", [((40, 37, 3), 16), ((12, 40, 3), 16), ((16, 16, 3), 16)])
def test_images_of_any_size_are_resized_inside_a_model_with_antialiasing(shape, side, tmp_path):
    """As TensorFlow and Pillow do it before the model without it, forwards, backwards, and after export and reload."""
    model, plain = models.build("resnet8", shape, CLASSES, resize=side), models.build("resnet8", (side, side, 3), CLASSES)
    models.write_weights(plain, str(tmp_path))
    models.load_encoder(model, str(tmp_path), head=True)
    images = tf.constant(sample_images(shape))
    resized = tf.image.resize(images, (side, side), antialias=True)
    by_pillow = np.stack(
        [
            np.stack(
                [
                    np.asarray(Image.fromarray(channel).resize((side, side), Image.Resampling.BILINEAR))
                    for channel in np.moveaxis(image, 2, 0)
                ],
                axis=2,
            )
            for image in images.numpy()
        ]
    )
    np.testing.assert_allclose(resized, by_pillow, atol=1e-3)
    expected = plain(resized)["logits"].numpy()
    np.testing.assert_allclose(model(images)["logits"], expected, rtol=1e-4, atol=1e-5)
    gradients = []
    for network, first in ((model, tf.identity), (plain, lambda x: tf.image.resize(x, (side, side), antialias=True))):
        with tf.GradientTape() as tape:
            tape.watch(images)
            total = tf.reduce_sum(network(first(images))["logits"] ** 2)
        gradients.append(tape.gradient(total, images))
    np.testing.assert_allclose(*gradients, rtol=1e-3, atol=1e-5)
    export.export(model, str(tmp_path / "exported"), {})
    reloaded = loading.load_classifier(str(tmp_path / "exported"))
    np.testing.assert_allclose(reloaded(images), expected, rtol=1e-4, atol=1e-5)
    attacked = attacks.FastGradient(norm="linf", radius=0.05)(reloaded, images, tf.constant([0, 1]))
    assert 0.04 < np.abs(attacked - images).max() < 0.051
    model.save(tmp_path / "model.keras")
    np.testing.assert_allclose(loading.load_classifier(str(tmp_path / "model.keras"))(images), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("side", [8, 24])
def test_a_penalty_on_the_gradient_of_the_images_reaches_the_weights_through_the_resizing(side):
    keras.utils.set_random_seed(0)
    inputs, x = models.heads.normalized_input((16, 16, 3), 0.5, 0.5, 8, "smooth", resize=side)
    x = keras.layers.Flatten()(keras.layers.Conv2D(4, 3, activation="softplus", name="convolution")(x))
    model, images = keras.Model(inputs, keras.layers.Dense(3, activation="tanh")(x)), tf.constant(sample_images((16, 16, 3)))

    def slope():
        with tf.GradientTape() as tape:
            tape.watch(images)
            total = tf.reduce_sum(model(images))
        return tf.reduce_sum(tape.gradient(total, images) ** 2)

    kernel = model.get_layer("convolution").kernel
    with tf.GradientTape() as outer:
        penalty = slope()
    gradient = outer.gradient(penalty, kernel)
    step = 1e-2 * gradient / tf.norm(gradient)
    kernel.assign_add(step)
    after = slope()
    kernel.assign_sub(2 * step)
    np.testing.assert_allclose((after - slope()) / 2e-2, tf.norm(gradient), rtol=0.01)


@pytest.mark.parametrize(
    "name, resize, message", [("lenet", 64, "can resize: resnet8, resnet20"), ("resnet50", 8, "at least 32x32 for resnet50. Received: 8x8")]
)
def test_what_cannot_be_resized_is_said(name, resize, message):
    with pytest.raises(ValueError, match=message):
        models.build(name, (32, 32, 3), CLASSES, resize=resize)


@pytest.mark.parametrize("name, side", [("lenet", 15), ("resnet8", 7), ("resnet50_v2", 31)])
def test_images_that_are_too_small_are_refused(name, side):
    with pytest.raises(ValueError, match=f"at least .* for {name}. Received: {side}x40"):
        models.build(name, (side, 40, 3), CLASSES)


def test_depths_between_the_resnets_are_refused():
    with pytest.raises(ValueError, match=r"depth = 6n \+ 2 .*Received: 18"):
        models.resnet.cifar_resnet((16, 16, 3), CLASSES, depth=18)


@names
def test_networks_are_read_from_keras_files(built, name, tmp_path):
    model = built(name)
    model.save(tmp_path / "model.keras")
    read, images = keras.saving.load_model(tmp_path / "model.keras"), tf.constant(sample_images(SHAPES[name]))
    np.testing.assert_allclose(read(images)["logits"], model(images)["logits"], rtol=1e-4, atol=1e-5)
