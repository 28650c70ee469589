"""PyTorch models: `load`, `scores`, and `export` as ONNX files with batch normalization and the names of their weights kept."""

import collections
import contextlib
import io
import os
import typing
import warnings
import zipfile
from collections.abc import Iterator, Mapping

import numpy as np

from tf_robust.conversion import state_dict
from tf_robust.utils.errors import readable
from tf_robust.utils.lazy import import_extra

OPSET = 17
PROGRAM = ".pt2"  # suffix of a file of torch.export
_PREFIXES = ("module.", "_orig_mod.")  # of keys, from parallel and compiled modules


def load(path: str) -> typing.Any:
    """Returns the module of a TorchScript file or of a program of `torch.export` (`.pt2`), which are programs: load those that you trust.

    Pickled models and state dictionaries are never loaded.
    """
    program = path.endswith(PROGRAM)
    if not program:
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
        return torch.export.load(path).module() if program else torch.jit.load(path, map_location="cpu").eval()


def is_module(model: typing.Any) -> bool:
    """Returns whether a model is a `torch.nn.Module`; does not import PyTorch."""
    return any(one.__module__.startswith("torch.nn.") and one.__name__ == "Module" for one in type(model).__mro__)


@contextlib.contextmanager
def inference_mode(module: typing.Any) -> Iterator[None]:
    """Context in which a module and its parts are in inference mode; a program of `torch.export` has no modes."""
    in_training = [one for one in module.modules() if one.training]
    with contextlib.suppress(NotImplementedError):
        module.eval()
    try:
        yield
    finally:
        for one in in_training:
            one.training = True


def scores(module: typing.Any, images: np.ndarray) -> np.ndarray:
    """Returns the scores float32 [N, classes] of a module for images [N, H, W, C] on its pixel scale."""
    torch = import_extra("torch", "torch")
    given = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    with torch.no_grad(), inference_mode(module):
        return _array(module(given.to(next(module.parameters()))))


def assign(module: typing.Any, entries: Mapping[str, np.ndarray]) -> None:
    """Gives a module the weights of a `state_dict`, whose keys may lack its prefixes."""
    torch = import_extra("torch", "torch")
    _set(torch, module, {key: torch.from_numpy(np.array(entries[_without_prefixes(key)])) for key in module.state_dict()})


def read_entries(path: str) -> dict[str, np.ndarray]:
    """Returns the `state_dict` of a file of weights, which is read with `weights_only=True`, or of a TorchScript or `.pt2` file.

    Raises:
        ValueError: the file cannot be read, or has no dictionary of tensors.
    """
    torch = import_extra("torch", "torch")
    try:
        entries = load(path).state_dict()
    except ValueError:
        with readable(path, "Try: torch.save(module.state_dict(), FILE)."):
            entries = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(entries, dict) or not all(isinstance(value, torch.Tensor) for value in entries.values()):
        raise ValueError(f"Expected a state_dict, names and tensors. Received: {path}. Try: torch.save(module.state_dict(), FILE)")
    return _arrays(entries)


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
        if isinstance(source, str) and source.endswith(PROGRAM):
            program = torch.export.load(source)
            entries = program.state_dict
            with _silence():
                torch.onnx.export(program, f=path, dynamo=True, optimize=False, external_data=False, verbose=False, **names)
        else:
            module = load(source) if isinstance(source, str) else source
            own = module.state_dict()
            entries = with_versions(collections.OrderedDict((key, value.clone()) for key, value in own.items()), own)
            with inference_mode(module), _silence(), _distinct_weights(torch, module, entries) as distinct:
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
            _set_weights(
                path, {key: _array(value) for key, value in distinct.items()}, {key: _array(value) for key, value in entries.items()}
            )
    except Exception as error:  # of any kind: the model's code is the user's
        name = source if isinstance(source, str) else type(source).__name__
        raise ValueError(
            f"Expected a PyTorch model that torch.onnx.export can export. Received: {name}: {str(error).strip().splitlines()[0]}. Try: "
            "export it to ONNX by its own code"
        ) from error
    return _arrays(entries)


def channels_of(source) -> int:
    """Returns the number of channels of a model's images, from its first convolution; 3 if that takes neither 1 nor 3."""
    parameters = (load(source) if isinstance(source, str) else source).parameters()
    return next((int(one.shape[1]) for one in parameters if one.ndim == 4 and one.shape[1] in (1, 3)), 3)


def _array(tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def _arrays(entries) -> dict[str, np.ndarray]:
    """Entries as arrays, with the versions of the modules that `load_state_dict` may ask for."""
    found = collections.OrderedDict((_without_prefixes(key), _array(value)) for key, value in entries.items())
    return with_versions(found, entries)


def with_versions(entries: dict, of_entries: typing.Any) -> dict:
    """Gives entries, an ordered dictionary, the versions of modules that another `state_dict` has."""
    if versions := getattr(of_entries, "_metadata", None):
        entries._metadata = versions  # type: ignore[attr-defined]
    return entries


@contextlib.contextmanager
def _distinct_weights(torch, module, entries):
    """Gives a module distinct random weights, so that the exporter merges none."""
    random = torch.Generator().manual_seed(0)
    distinct = {
        key: (0.5 + torch.rand(value.shape, generator=random)).to(value.dtype) if value.is_floating_point() else value
        for key, value in entries.items()
    }
    _set(torch, module, distinct)
    try:
        yield distinct
    finally:
        _set(torch, module, entries)


def _set(torch, module, entries):
    """Sets the weights of a module, without the code of its own that `load_state_dict` may run."""
    with torch.no_grad():
        for key, value in module.state_dict().items():
            value.copy_(entries[key])


def _set_weights(path, distinct, entries):
    """Replaces the distinct weights of a file by the model's."""
    import onnx

    model = onnx.load(path)
    initial = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    names = {name: (key, form) for key, (found, form) in state_dict.match(distinct, initial).items() for name in found}
    for tensor in model.graph.initializer:
        if tensor.name in names:
            key, form = names[tensor.name]
            array = form.forward(entries[key]).astype(initial[tensor.name].dtype)
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))
    onnx.save(model, path)


def _without_prefixes(key):
    for prefix in _PREFIXES:
        key = key.removeprefix(prefix)
    return key


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keeps the warnings and the progress of PyTorch's exporters off the terminal."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
