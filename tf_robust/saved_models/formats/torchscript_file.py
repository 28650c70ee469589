"""Reads TorchScript files, with gradients by Torch's autograd. A TorchScript file is a program: load only those that you trust.

Pickled models and state dictionaries are never loaded.
"""

import os
import zipfile

import tensorflow as tf

from tf_robust.saved_models.signatures import Axes, Signature, run_in_layout
from tf_robust.utils.errors import readable
from tf_robust.utils.lazy import import_extra


def read(path: str, trust: bool) -> tuple[dict[str, Signature], object]:
    """Reads a TorchScript file as one signature, `serving_default`, of images [N, H, W, C].

    They are transposed to channels first, unless the model fails with these and takes channels last.
    """
    names: list[str] = []
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    if not any("code" in os.path.dirname(name).split("/") for name in names):
        raise ValueError(
            f"Expected a TorchScript file, as torch.jit.trace(model.eval(), images).save writes it. Received: {path}, which may be a "
            "pickled model or state dictionary; these are not loaded. Try: write a TorchScript or ONNX file with the model's code"
        )
    torch = import_extra("torch", "torch")
    with readable(path, "Try: copy it or write it again."):
        module = torch.jit.load(path, map_location="cpu").eval()
        parameters = [parameter.requires_grad_(False) for parameter in module.parameters()]
    channels = next((int(p.shape[1]) for p in parameters if p.ndim == 4 and p.shape[1] in (1, 3)), None)  # of the first convolution
    kind = parameters[0].dtype if parameters else torch.float32
    layout: list[Axes] = []

    def scores(images):
        return run_in_layout(lambda axes: _only_output(torch, module(images.permute(*axes).to(kind))), layout)

    def forward(images):
        with torch.no_grad():
            return scores(torch.tensor(images)).numpy()

    def backward(images, upstream):
        images = torch.tensor(images, requires_grad=True)
        scores(images).backward(torch.tensor(upstream))
        return images.grad.numpy()

    @tf.custom_gradient
    def logits(images):
        return _call(forward, images, shape=[images.shape[0], None]), lambda upstream: _call(backward, images, upstream, shape=images.shape)

    inputs = {"images": tf.TensorSpec([None, None, None, channels], tf.float32, "images")}
    outputs = {"output": tf.TensorSpec([None, None], tf.float32, "output")}
    float_type = {torch.float16: tf.float16, torch.bfloat16: tf.bfloat16}.get(kind, tf.float32)
    signature = Signature(lambda images: {"output": logits(images)}, inputs, outputs, has_graph=False, float_type=lambda: float_type)
    return {"serving_default": signature}, module


def _call(function, *tensors, shape):
    """Calls a function of NumPy arrays; errors of eager calls are those of the function."""
    if tf.executing_eagerly():
        return tf.convert_to_tensor(function(*(tensor.numpy() for tensor in tensors)))
    return tf.ensure_shape(tf.numpy_function(function, tensors, tf.float32), shape)


def _only_output(torch, result):
    """The only output, or the one named logits, as float32."""
    if isinstance(result, dict):
        result = result["logits"] if "logits" in result else tuple(result.values())
    if isinstance(result, (tuple, list)) and len(result) == 1:
        result = result[0]
    if not isinstance(result, torch.Tensor) or result.ndim != 2:
        received = f"{len(result)} outputs" if isinstance(result, (tuple, list)) else f"shape {list(result.shape)}"
        raise ValueError(f"Expected a TorchScript model with one output [N, classes]. Received: {received}")
    return result.to(torch.float32)
