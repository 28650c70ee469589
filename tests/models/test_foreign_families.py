"""Networks of other libraries, as they come: trained by two methods, saved, loaded and evaluated. Random weights, 10 classes, 64 px."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_digits

import tf_robust as tfr
from tests.models.keras_hub_models import resnet_backbone

pytestmark = pytest.mark.slow
SHAPE, CLASSES = (64, 64, 3), 10


def first_blocks(name, last, activation=None):
    """Returns a function that builds a model of keras.applications up to the layer `last`, with a head of its own."""

    def build():
        complete = getattr(keras.applications, name)(weights=None, include_top=False, input_shape=SHAPE)
        x = keras.layers.GlobalAveragePooling2D()(complete.get_layer(last).output)
        return keras.Model(complete.input, keras.layers.Dense(CLASSES, activation)(x))

    return build


def mobilenet():
    return keras.applications.MobileNetV2(weights=None, input_shape=SHAPE, classes=CLASSES, alpha=0.35, classifier_activation=None)


def hub_vit():
    hub = pytest.importorskip("keras_hub")
    backbone = hub.models.ViTBackbone(
        image_shape=SHAPE, patch_size=(16, 16), num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, name="backbone"
    )
    return hub.models.ViTImageClassifier(backbone, CLASSES)


def hub_resnet():
    backbone = resnet_backbone(SHAPE)
    return pytest.importorskip("keras_hub").models.ResNetImageClassifier(backbone, CLASSES)


# name: (build, input_range, stages besides the image)
FAMILIES = {
    "MobileNetV2": (mobilenet, (-1, 1), ("block_3_project_BN", "out_relu")),
    # scales and normalizes inside
    "EfficientNetB0": (first_blocks("EfficientNetB0", "block3a_project_bn", "softmax"), (0, 255), ("block2a_project_bn",)),
    "ConvNeXtTiny": (first_blocks("ConvNeXtTiny", "convnext_tiny_downsampling_block_1"), (0, 255), ("convnext_tiny_downsampling_block_0",)),
    "DenseNet121": (first_blocks("DenseNet121", "pool3_pool"), (0, 1), ("pool2_pool",)),
    "ResNet50V2": (first_blocks("ResNet50V2", "conv3_block2_out"), (-1, 1), ("conv2_block3_out",)),
    "keras_hub ViT": (hub_vit, (0, 1), ("backbone",)),
    "keras_hub ResNet": (hub_resnet, (0, 1), ("backbone",)),
}


def digits(count=10):
    """Returns handwritten digits as color images of 64 px in [0, 1], and their labels."""
    images, labels = load_digits(return_X_y=True)
    images = tf.image.resize(images[:count].reshape(-1, 8, 8, 1) / 16, SHAPE[:2])
    return np.repeat(np.clip(images, 0, 1), 3, axis=-1).astype(np.float32), labels[:count].astype(np.int64)


def accuracy(scores, labels):
    return float(np.mean(np.argmax(scores, axis=1) == labels))


@pytest.mark.parametrize("name", FAMILIES)
def test_networks_of_keras_train_and_save_and_evaluate(name, tmp_path):
    build, (low, high), stages = FAMILIES[name]
    keras.utils.set_random_seed(0)
    model, (images, labels) = build(), digits()
    scaled = images * (high - low) + low
    methods = [
        tfr.methods.NoisyMix(model, views=("clean", "patch_gaussian"), stages=(0, *stages), input_range=(low, high)),
        tfr.methods.Gaussian(model, input_range=(low, high)),
    ]
    for method in methods:
        before = [v.numpy() for v in model.trainable_variables]
        method.compile(keras.optimizers.SGD(0.01), run_eagerly=True)  # one step: tracing would take longer
        history = method.fit(scaled, labels, batch_size=10, verbose=0).history
        assert np.isfinite(history["loss"][0])
        changed = [np.abs(v.numpy() - b).max() > 0 for v, b in zip(model.trainable_variables, before, strict=True)]
        assert np.mean(changed) > 0.9  # not all: a bias before batch norm has no gradient
    method.save(tmp_path / "model.keras")
    scores = np.asarray(model(scaled))
    loaded = np.asarray(keras.models.load_model(tmp_path / "model.keras")(scaled))
    np.testing.assert_allclose(loaded, scores, atol=1e-4 * np.abs(scores).max())
    result = tfr.evaluate(
        str(tmp_path / "model.keras"),
        data=(images, labels),
        evaluations="clean",
        input_range=f"{low},{high}",
        outputs="logits" if method.returns_logits else "probabilities",
        check_inputs=False,  # hardly trained
    )
    assert result.values["clean"] == pytest.approx(accuracy(scores, labels))


def torch_resnet18(torch):
    """ResNet-18 (He et al., 2016), channels first."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
                nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
                nn.BatchNorm2d(outputs),
            )
            self.shortcut = nn.Sequential()
            if stride != 1:
                self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

        def forward(self, x):
            return torch.relu(self.body(x) + self.shortcut(x))

    torch.manual_seed(0)
    widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
    blocks = [Block(*pair, 2 if pair[0] < pair[1] else 1) for pair in zip(widths, widths[1:])]
    stem = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


def test_a_torch_resnet18_as_torchscript_and_onnx(tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    network, (images, labels) = torch_resnet18(torch), digits()
    optimizer, batch = torch.optim.SGD(network.parameters(), 0.01), torch.tensor(images.transpose(0, 3, 1, 2).copy())
    for _ in range(2):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(batch), torch.tensor(labels)).backward()
        optimizer.step()
    network.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Torch's advice to use its newer exporters
        torch.jit.trace(network, batch).save(str(tmp_path / "model.pt"))
        torch.onnx.export(
            network, (batch,), str(tmp_path / "model.onnx"), dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "batch"}}
        )
    with torch.no_grad():
        expected = accuracy(network(batch).numpy(), labels)
    for name in ("model.pt", "model.onnx"):
        result = tfr.evaluate(str(tmp_path / name), data=(images, labels), evaluations="clean", check_inputs=False)
        assert result.values["clean"] == pytest.approx(expected)
