"""PyTorch models as ONNX files with batch normalization and the names of their weights kept: `export`."""

import contextlib
import io
import os
import warnings
from collections.abc import Iterator

import numpy as np
import onnx
import onnx.numpy_helper

from tf_robust.conversion import state_dict
from tf_robust.utils.lazy import import_extra

OPSET = 17


def export(source, image_shape: tuple[int, int, int], path: str) -> dict[str, np.ndarray]:
    """Writes a PyTorch model as an ONNX file, in inference mode, and returns its `state_dict` as arrays.

    Args:
        source: a `torch.nn.Module`, a TorchScript file or a file of `torch.export` (`.pt2`).
        image_shape: height, width and channels of its images.
        path: of the ONNX file.

    Raises:
        ValueError: PyTorch cannot export the model; the message is PyTorch's.
    """
    torch = import_extra("torch", "torch")
    height, width, channels = image_shape
    images = torch.zeros(2, channels, height, width)
    names = {"input_names": ["images"], "output_names": ["scores"]}
    try:
        if isinstance(source, (str, os.PathLike)) and os.fspath(source).endswith(".pt2"):
            program = torch.export.load(os.fspath(source))
            entries = program.state_dict
            with _silence():
                torch.onnx.export(program, f=path, dynamo=True, optimize=False, external_data=False, verbose=False, **names)
        else:
            module = torch.jit.load(os.fspath(source), map_location="cpu") if isinstance(source, (str, os.PathLike)) else source
            entries = {key: value.clone() for key, value in module.state_dict().items()}
            training = module.training
            module.eval()
            with _silence(), _distinct_weights(torch, module, entries) as distinct:
                torch.onnx.export(
                    module,
                    (images.to(next(module.parameters()).device),),
                    path,
                    dynamo=False,
                    training=torch.onnx.TrainingMode.PRESERVE,
                    do_constant_folding=False,
                    keep_initializers_as_inputs=False,
                    opset_version=OPSET,
                    dynamic_axes={"images": {0: "n"}, "scores": {0: "n"}},
                    **names,
                )
            module.train(training)
            _set_weights(
                path, {key: _array(value) for key, value in distinct.items()}, {key: _array(value) for key, value in entries.items()}
            )
    except Exception as error:  # of any kind: the model's code is the user's
        name = source if isinstance(source, (str, os.PathLike)) else type(source).__name__
        raise ValueError(
            f"Expected a PyTorch model that torch.onnx.export can export. Received: {name}: {str(error).strip().splitlines()[0]}. Try: "
            "export it to ONNX by its own code"
        ) from error
    return {_without(key, ("module.", "_orig_mod.")): _array(value) for key, value in entries.items()}


def channels_of(source) -> int:
    """Returns the number of channels of a model's images, from its first convolution; 3 if that takes neither 1 nor 3."""
    torch = import_extra("torch", "torch")
    if not isinstance(source, (str, os.PathLike)):
        parameters = source.parameters()
    elif os.fspath(source).endswith(".pt2"):
        parameters = torch.export.load(os.fspath(source)).parameters()
    else:
        parameters = torch.jit.load(os.fspath(source), map_location="cpu").parameters()
    return next((int(one.shape[1]) for one in parameters if one.ndim == 4 and one.shape[1] in (1, 3)), 3)


def _array(tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


@contextlib.contextmanager
def _distinct_weights(torch, module, entries):
    """Gives a module distinct random weights, so that the exporter merges none."""
    random = torch.Generator().manual_seed(0)
    distinct = {
        key: (0.5 + torch.rand(value.shape, generator=random)).to(value.dtype) if value.is_floating_point() else value
        for key, value in entries.items()
    }
    module.load_state_dict(distinct)
    try:
        yield distinct
    finally:
        module.load_state_dict(entries)


def _set_weights(path, distinct, entries):
    """Replaces the distinct weights of a file by the model's."""
    model = onnx.load(path)
    initial = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    names = {name: (key, form) for key, (found, form) in state_dict.match(distinct, initial).items() for name in found}
    for tensor in model.graph.initializer:
        if tensor.name in names:
            key, form = names[tensor.name]
            array = form.forward(entries[key]).astype(initial[tensor.name].dtype)
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))
    onnx.save(model, path)


def _without(key, prefixes):
    for prefix in prefixes:
        key = key.removeprefix(prefix)
    return key


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keeps the warnings and the progress of PyTorch's exporters off the terminal."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
