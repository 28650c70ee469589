"""TorchScript models give the logits and input gradients of the same network in Torch; pickles are refused."""

import pickle
import warnings

import numpy as np
import pytest
import tensorflow as tf

from tests.saved_models.loading_models import CLASSES, SHAPE, sample_images
from tf_robust import attacks
from tf_robust.saved_models.formats import torch_models
from tf_robust.saved_models.input_check import batch_dependence
from tf_robust.saved_models.loading import ModelInterface, load_classifier

torch = pytest.importorskip("torch")


class ChannelsLast(torch.nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, images):
        return self.network(images.permute(0, 3, 1, 2))


class TwoOutputs(ChannelsLast):
    def forward(self, images):
        scores = self.network(images)
        return scores, scores


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    layers = (torch.nn.Conv2d(3, 5, 3), torch.nn.BatchNorm2d(5), torch.nn.SiLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    return torch.nn.Sequential(*layers, torch.nn.Dropout(), torch.nn.Linear(5, CLASSES)).eval()


def save(network, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Torch's advice to use torch.export
        torch.jit.script(network).save(str(path))
    return str(path)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("in_a_graph", [False, True])
@pytest.mark.parametrize("at_once", [3, 100])
def test_logits_and_gradients(network, channels_last, in_a_graph, at_once, tmp_path, monkeypatch):
    monkeypatch.setattr(torch_models, "PIXELS", at_once * SHAPE[0] * SHAPE[1])
    path = save(ChannelsLast(network) if channels_last else network, tmp_path / "m.pt")
    classify = load_classifier(path, ModelInterface(input_range="-1,1"))
    images = tf.constant(sample_images())

    def logits_and_gradient(images):
        with tf.GradientTape() as tape:
            tape.watch(images)
            logits = classify(images)
            total = tf.reduce_sum(logits[:, 2] ** 2)
        return logits, tape.gradient(total, images)

    logits, gradient = (tf.function(logits_and_gradient) if in_a_graph else logits_and_gradient)(images)
    values = torch.tensor(images.numpy(), requires_grad=True)
    expected = network((2 * values - 1).permute(0, 3, 1, 2))
    (expected[:, 2] ** 2).sum().backward()
    np.testing.assert_allclose(logits, expected.detach().numpy(), atol=1e-4)
    np.testing.assert_allclose(gradient, values.grad.numpy(), atol=1e-4)
    assert not classify.has_graph and classify.input_shape.as_list() == [None, None, None, 3]


def test_attacks_by_gradients(network, tmp_path):
    classify = load_classifier(save(network, tmp_path / "m.torchscript"))
    images = sample_images()
    logits = classify(images).numpy()
    attacked = attacks.FastGradient(norm="linf", radius=0.05)(classify, images, logits.argmax(axis=1))
    changed = classify(attacked).numpy()
    rows, labels = np.arange(len(images)), logits.argmax(axis=1)

    def loss(scores):
        return np.log(np.exp(scores).sum(axis=1)) - scores[rows, labels]

    assert (loss(changed) > loss(logits)).all()


def test_files_that_do_not_fit(network, tmp_path):
    with pytest.raises(ValueError, match="one output .N, classes.. Received: 2 outputs"):
        load_classifier(save(TwoOutputs(network), tmp_path / "two.pt"))(tf.zeros([1, *SHAPE]))
    torch.save(network.state_dict(), tmp_path / "state.pt")
    (tmp_path / "pickle.pth").write_bytes(pickle.dumps([1]))
    for name in ("state.pt", "pickle.pth"):
        with pytest.raises(ValueError, match="pickled model or state dictionary; these are not loaded"):
            load_classifier(tmp_path / name)


class OfOneImage(torch.nn.Module):
    def forward(self, images):
        return images.mean(dim=[2, 3]).reshape(1, 3)


class TrainingMode(torch.nn.Module):
    def forward(self, images):
        means = images.mean(dim=[2, 3])
        return means - means.mean(dim=0)


def test_a_failure_of_torch_names_the_model_and_the_shape(tmp_path):
    classify = load_classifier(save(OfOneImage(), tmp_path / "broken.pt"))
    with pytest.raises(ValueError, match=r"broken.pt .* images \[5, 8, 8, 3\]. Received: channels first: ") as caught:
        classify(sample_images())
    assert "\n" not in str(caught.value) and "Traceback" not in str(caught.value)


def test_outputs_that_depend_on_the_batch(network, tmp_path):
    dependent, plain = save(TrainingMode(), tmp_path / "dependent.pt"), save(network, tmp_path / "plain.pt")
    images = sample_images(count=16)
    found = batch_dependence(load_classifier(dependent), images)
    assert found["largest_difference"] == pytest.approx(
        np.abs(images[:2].mean(axis=(1, 2)) - images[:8].mean(axis=(0, 1, 2))).max(), rel=0.5
    )
    assert batch_dependence(load_classifier(plain), images) == {}
