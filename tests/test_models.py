import keras
import numpy as np
import pytest

from tf_robust import models

SHAPES = {"lenet": (28, 28, 1), "resnet8": (16, 16, 3), "resnet20": (16, 16, 3), "resnet56": (16, 16, 3),
          "resnet50_v2": (32, 32, 3)}
WIDTHS = {"lenet": 84, "resnet8": 64, "resnet20": 64, "resnet56": 64, "resnet50_v2": 2048}
CLASSES = 5
names = pytest.mark.parametrize("name", models.MODELS)


@pytest.fixture(scope="module")
def built():
    """name -> the model with seed 0, built once."""
    found = {}

    def build(name):
        if name not in found:
            found[name] = models.build(name, SHAPES[name], CLASSES, seed=0)
        return found[name]
    return build


def pictures(shape, count=2):
    return np.random.RandomState(0).rand(count, *shape).astype(np.float32)


@names
def test_the_logits_are_a_dense_layer_on_the_embedding(built, name):
    model = built(name)
    outputs = model(pictures(SHAPES[name]))
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
def test_normalization_subtracts_the_mean_and_divides_by_the_deviation(name):
    model = models.MODELS[name](SHAPES[name], CLASSES, mean=0.3, std=0.2)
    images = pictures(SHAPES[name])
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


@names
def test_the_seed_decides_the_weights(built, name):
    again, other = (models.build(name, SHAPES[name], CLASSES, seed=seed) for seed in (0, 1))
    for first, second in zip(built(name).get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(first, second)
    for place in (0, -2):  # the first kernel and the one of the logits
        first, second = (model.trainable_weights[place] for model in (built(name), other))
        assert np.abs(first - second).max() > 1e-3


def test_an_unknown_model_is_refused_with_the_nearest_names():
    with pytest.raises(ValueError, match="Unknown model: 'resnet50'. Did you mean .*'resnet50_v2'"):
        models.build("resnet50", (32, 32, 3), CLASSES)


@pytest.mark.parametrize("name, side", [("lenet", 15), ("resnet8", 7), ("resnet50_v2", 31)])
def test_pictures_that_are_too_small_are_refused(name, side):
    with pytest.raises(ValueError, match=f"at least .* for {name}. Received: {side}x40"):
        models.build(name, (side, 40, 3), CLASSES)


def test_depths_between_the_resnets_are_refused():
    with pytest.raises(ValueError, match=r"depth = 6n \+ 2 .*Received: 18"):
        models.resnet.cifar_resnet((16, 16, 3), CLASSES, depth=18)
