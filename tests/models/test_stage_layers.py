import keras
import pytest

from tf_robust import methods, models


def _resnet():
    inputs = x = keras.Input((16, 16, 3))
    for number in range(3):
        y = keras.layers.Conv2D(3, 3, padding="same", name=f"inner_{number}")(x)
        y = keras.layers.ReLU(name=f"inside_{number}")(y)
        y = keras.layers.Conv2D(3, 3, padding="same", name=f"last_{number}")(y)
        x = keras.layers.ReLU(name=f"stage_{number}")(keras.layers.Add(name=f"sum_{number}")([x, y]))
    return keras.Model(inputs, keras.layers.Dense(5)(keras.layers.GlobalAveragePooling2D()(x)))


def test_stages_lie_between_the_blocks_of_a_residual_network():
    names = models.stage_layers(_resnet())
    assert 2 <= len(names) <= 3 and all(name.startswith(("stage", "sum")) for name in names)
    assert names == tuple(sorted(names, key=lambda name: int(name[-1])))
    methods.NoisyMix(_resnet(), stages=(0, *names))


@pytest.mark.parametrize("count", (1, 2, 3))
def test_sequential_models(count):
    convolutions = [keras.layers.Conv2D(3, 3, name=f"convolution_{i}") for i in range(6)]
    model = keras.Sequential([keras.Input((32, 32, 3)), *convolutions, keras.layers.Flatten(), keras.layers.Dense(5)])
    names = models.stage_layers(model, count)
    assert len(names) == count and all(name.startswith("convolution") for name in names)
    methods.NoisyMix(model, stages=(0, *names))


def test_models_without_feature_maps_have_none():
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(4), keras.layers.Dense(3)])
    assert models.stage_layers(model) == ()
