"""Reads TorchScript files, with gradients by Torch's autograd. A TorchScript file is a program: load only those that you trust.

Pickled models and state dictionaries are never loaded.
"""

import os
import zipfile

import numpy as np
import tensorflow as tf

from tf_robust.saved_models.signatures import Axes, Signature, run_in_layout
from tf_robust.utils.errors import readable
from tf_robust.utils.lazy import import_extra


def read(path: str, trust: bool) -> tuple[dict[str, Signature], object]:
    """Reads a TorchScript file as one signature, `serving_default`, of images [N, H, W, C].

    They are transposed to channels first, unless the model fails with these and takes channels last.
    """
    if not _is_torchscript(path):
        raise ValueError(
            f"Expected a TorchScript file, as torch.jit.trace(model.eval(), images).save writes it. Received: {path}, which may be a "
            "pickled model or state dictionary; these are not loaded. Try: write a TorchScript or ONNX file with the model's code"
        )
    torch = import_extra("torch", "torch")
    with readable(path, "Try: copy it or write it again."):
        network = _Network(torch, torch.jit.load(path, map_location="cpu").eval())

    @tf.custom_gradient
    def logits(images):
        def gradient(upstream):
            return _call(network.backward, images, upstream, shape=images.shape)

        return _call(network.forward, images, shape=[images.shape[0], None]), gradient

    inputs = {"images": tf.TensorSpec([None, None, None, network.channels], tf.float32, "images")}
    outputs = {"output": tf.TensorSpec([None, None], tf.float32, "output")}
    float_type = {torch.float16: tf.float16, torch.bfloat16: tf.bfloat16}.get(network.type, tf.float32)
    signature = Signature(lambda images: {"output": logits(images)}, inputs, outputs, has_graph=False, float_type=lambda: float_type)
    return {"serving_default": signature}, network.module


def _call(function, *tensors, shape):
    """Calls a function of NumPy arrays; errors of eager calls are those of the function."""
    if tf.executing_eagerly():
        return tf.convert_to_tensor(function(*(tensor.numpy() for tensor in tensors)))
    return tf.ensure_shape(tf.numpy_function(function, tensors, tf.float32), shape)


def _is_torchscript(path):
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any("code" in os.path.dirname(name).split("/") for name in archive.namelist())


class _Network:
    """A TorchScript module on NumPy arrays [N, H, W, C].

    Attributes:
        channels: of its images, those of the first convolution; None: unknown.
    """

    def __init__(self, torch, module):
        self.torch, self.module = torch, module
        parameters = [parameter.requires_grad_(False) for parameter in module.parameters()]
        self.channels = next((int(p.shape[1]) for p in parameters if p.ndim == 4 and p.shape[1] in (1, 3)), None)
        self.type = parameters[0].dtype if parameters else torch.float32
        self.layout: list[Axes] = []

    def forward(self, images: np.ndarray) -> np.ndarray:
        with self.torch.no_grad():
            return self._scores(self.torch.tensor(images)).numpy()

    def backward(self, images: np.ndarray, upstream: np.ndarray) -> np.ndarray:
        images = self.torch.tensor(images, requires_grad=True)
        self._scores(images).backward(self.torch.tensor(upstream))
        return images.grad.numpy()

    def _scores(self, images):
        return run_in_layout(lambda axes: self._only(self.module(images.permute(*axes).to(self.type))), self.layout)

    def _only(self, result):
        """The only output, or the one named logits, as float32."""
        if isinstance(result, dict):
            result = result["logits"] if "logits" in result else tuple(result.values())
        if isinstance(result, (tuple, list)) and len(result) == 1:
            result = result[0]
        if not isinstance(result, self.torch.Tensor) or result.ndim != 2:
            received = f"{len(result)} outputs" if isinstance(result, (tuple, list)) else f"shape {list(result.shape)}"
            raise ValueError(f"Expected a TorchScript model with one output [N, classes]. Received: {received}")
        return result.to(self.torch.float32)
