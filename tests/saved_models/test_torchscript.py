"""TorchScript models give the logits and input gradients of the same network in Torch; pickles are refused."""

import pickle
import warnings

import numpy as np
import pytest
import tensorflow as tf

from tests.saved_models.loading_models import CLASSES, SHAPE, input_gradient, sample_images
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


@pytest.mark.parametrize("channels_last, in_a_graph, at_once", [(False, False, 100), (False, True, 3), (True, False, 3), (True, True, 100)])
def test_logits_and_gradients(network, channels_last, in_a_graph, at_once, tmp_path, monkeypatch):
    monkeypatch.setattr(torch_models, "PIXELS", at_once * SHAPE[0] * SHAPE[1])
    path = save(ChannelsLast(network) if channels_last else network, tmp_path / "m.pt")
    classify = load_classifier(path, ModelInterface(input_range="-1,1"))

    def logits_and_gradient(images):
        return classify(images), input_gradient(lambda values: classify(values)[:, 2] ** 2, images)

    logits, gradient = (tf.function(logits_and_gradient) if in_a_graph else logits_and_gradient)(sample_images())
    values = torch.tensor(sample_images(), requires_grad=True)
    expected = network((2 * values - 1).permute(0, 3, 1, 2))
    (expected[:, 2] ** 2).sum().backward()
    np.testing.assert_allclose(logits, expected.detach().numpy(), atol=1e-4)
    np.testing.assert_allclose(gradient, values.grad.numpy(), atol=1e-4)
    assert not classify.has_graph and classify.input_shape.as_list() == [None, None, None, 3]


def test_files_that_do_not_fit(network, tmp_path):
    with pytest.raises(ValueError, match="2 outputs"):
        load_classifier(save(TwoOutputs(network), tmp_path / "two.pt"))(tf.zeros([1, *SHAPE]))
    torch.save(network.state_dict(), tmp_path / "state.pt")
    (tmp_path / "pickle.pth").write_bytes(pickle.dumps([1]))
    for name in ("state.pt", "pickle.pth"):
        with pytest.raises(ValueError, match=f"{name}.*not loaded"):
            load_classifier(tmp_path / name)


class TrainingMode(torch.nn.Module):
    def forward(self, images):
        means = images.mean(dim=[2, 3])
        return means - means.mean(dim=0)


def test_outputs_that_depend_on_the_batch(network, tmp_path):
    images = sample_images(count=16)
    found = batch_dependence(load_classifier(save(TrainingMode(), tmp_path / "dependent.pt")), images)
    expected = np.abs(images[:2].mean(axis=(1, 2)) - images[:8].mean(axis=(0, 1, 2))).max()
    assert found["largest_difference"] == pytest.approx(expected, rel=0.5)
    assert batch_dependence(load_classifier(save(network, tmp_path / "plain.pt")), images) == {}
