"""PyTorch models, with gradients by PyTorch's autograd: TorchScript files, programs of `torch.export` and modules in memory.

Such a file is a program: load only those that you trust.
"""

import math

import numpy as np
import tensorflow as tf

from tf_robust.conversion import torch_files
from tf_robust.saved_models.signatures import Axes, Signature, run_in_layout
from tf_robust.utils.lazy import import_extra

PIXELS = 1 << 18  # of the images that a CPU takes at once: with more, the features of a layer leave its caches, and a pass is slower


def read(path: str, trust: bool) -> tuple[dict[str, Signature], object]:
    """Reads a file as one signature, `serving_default`, of images [N, H, W, C]."""
    module = torch_files.load(path)
    for parameter in module.parameters():
        parameter.requires_grad_(False)  # gradients are of the images alone
    return {"serving_default": signature_of(module)}, module


def signature_of(module) -> Signature:
    """Returns the signature of a `torch.nn.Module` in inference mode, of images [N, H, W, C].

    They are transposed to channels first, unless the model fails with these and takes channels last.
    """
    torch = import_extra("torch", "torch")
    parameters = list(module.parameters())
    channels = next((int(p.shape[1]) for p in parameters if p.ndim == 4 and p.shape[1] in (1, 3)), None)  # of the first convolution
    kind, device = (parameters[0].dtype, parameters[0].device) if parameters else (torch.float32, torch.device("cpu"))
    layout: list[Axes] = []

    def scores(images):
        with torch_files.inference_mode(module):
            return run_in_layout(lambda axes: _only_output(torch, module(images.permute(*axes).to(device, kind))), layout)

    def forward(images):
        with torch.no_grad():
            return np.concatenate([scores(torch.tensor(part)).cpu().numpy() for part in parts(images, images.shape)])

    def backward(images, upstream):
        return np.concatenate([gradient(*pair) for pair in zip(parts(images, images.shape), parts(upstream, images.shape))])

    def gradient(images, upstream):
        images = torch.tensor(images, requires_grad=True)
        results = scores(images)
        return torch.autograd.grad(results, images, torch.tensor(upstream, device=results.device))[0].numpy()

    def parts(values, shape):  # of images of a shape
        size = max(1, PIXELS // math.prod(shape[1:3]) if device.type == "cpu" else len(values))
        return np.split(values, range(size, len(values), size))

    @tf.custom_gradient
    def logits(images):
        return _call(forward, images, shape=[images.shape[0], None]), lambda upstream: _call(backward, images, upstream, shape=images.shape)

    inputs = {"images": tf.TensorSpec([None, None, None, channels], tf.float32, "images")}
    outputs = {"output": tf.TensorSpec([None, None], tf.float32, "output")}
    float_type = {torch.float16: tf.float16, torch.bfloat16: tf.bfloat16}.get(kind, tf.float32)
    return Signature(lambda images: {"output": logits(images)}, inputs, outputs, has_graph=False, float_type=lambda: float_type)


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
        raise ValueError(f"Expected a PyTorch model with one output [N, classes]. Received: {received}")
    return result.to(torch.float32)
