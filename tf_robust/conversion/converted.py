"""Models of ONNX and PyTorch as trainable Keras models, `convert`, and their trained weights in the format that they came in."""

import dataclasses
import os
import pathlib
import tempfile
import typing
import weakref
from collections.abc import Mapping

import keras
import numpy as np

from tf_robust.conversion import from_onnx, to_onnx
from tf_robust.conversion.builder import CHANNELS_LAST, Binding
from tf_robust.conversion.state_dict import trained_entries
from tf_robust.utils.files import atomic_file
from tf_robust.utils.lazy import import_extra

PROGRAM = ".pt2"  # of torch.export
SUFFIXES = (".onnx", ".pt", ".pth", ".torchscript", PROGRAM)
MAX_DIFFERENCE = 1e-3  # of the scores, relative to the largest
_NOISE = 4  # images by which a model is compared if none are given
_MODELS: "weakref.WeakKeyDictionary[keras.Model, Converted]" = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True, eq=False)
class Converted:
    """A Keras model with the file that it was converted from.

    Attributes:
        model: float [N, H, W, C] on the file's pixel scale -> what the file returns.
        name: of the file or module.
        entries: initial `state_dict` of a PyTorch model; None: an ONNX file.
        module: the `torch.nn.Module`, if the model was one.
        difference: largest difference of the scores from ONNX Runtime's, relative to the largest score.
        untrained: names of the weights of the file that are constants in the model.
    """

    model: keras.Model
    name: str
    entries: dict[str, np.ndarray] | None
    module: typing.Any
    difference: float
    untrained: tuple[str, ...]
    _graph: typing.Any
    _bindings: list[Binding]

    def save_onnx(self, path: str | os.PathLike) -> None:
        """Writes a copy of the ONNX file with the model's current weights.

        Raises:
            ValueError: operations share a weight in a way that cannot be taken apart, and differ now.
        """
        with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(path))) as folder:
            written = os.path.join(folder, os.path.basename(path))
            to_onnx.write(self._graph, self._bindings, written)
            for name in sorted(os.listdir(folder)):
                os.replace(os.path.join(folder, name), os.path.join(os.path.dirname(os.path.abspath(path)), name))

    def state_dict(self, entries: Mapping[str, np.ndarray] | None = None) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
        """Returns the `state_dict` with the model's current weights, and the keys of floats that no weight of the file has.

        Args:
            entries: initial `state_dict` from which the ONNX file was exported; None: the PyTorch model's.

        Raises:
            ValueError: there are none, or they do not fit; the message names the weights.
        """
        entries = self.entries if entries is None else entries
        if entries is None:
            raise ValueError(f"Expected the state_dict from which {self.name} was exported. Received: none. Try: state_dict=FILE")
        trained = {name: [array for _, array in parts] for name, parts in to_onnx.trained_arrays(self._graph, self._bindings).items()}
        result = trained_entries(entries, to_onnx.initial_arrays(self._graph), trained)
        return result.entries, result.unmatched

    def save_state_dict(self, path: str | os.PathLike, entries: Mapping[str, np.ndarray] | None = None) -> tuple[str, ...]:
        """Writes `state_dict` as `torch.load(path, weights_only=True)` reads it, and returns the keys that stay as they were."""
        torch = import_extra("torch", "torch")
        arrays, unmatched = self.state_dict(entries)
        with atomic_file(os.fspath(path), "wb") as file:
            torch.save({key: torch.from_numpy(np.array(value)) for key, value in arrays.items()}, file)
        return unmatched


def convert(source, image_size: tuple[int, int] | None = None, images: np.ndarray | None = None) -> Converted:
    """Converts a classifier of ONNX or PyTorch to a trainable Keras model, and compares their scores.

    Args:
        source: an ONNX file of opset 11 or later; or, with the extra `torch`, a TorchScript file, a `.pt2` file of `torch.export` or a
            `torch.nn.Module`.
        image_size: height and width of the images, for a model of any size; PyTorch models do not state theirs.
        images: float [N, H, W, C] on the file's pixel scale, on which scores are compared; None: noise.

    Raises:
        ValueError: the model cannot be converted, with the node; or its scores differ by more than `MAX_DIFFERENCE`, with the difference.
    """
    name = os.fspath(source) if isinstance(source, (str, os.PathLike)) else type(source).__name__
    if images is not None:
        image_size = tuple(images.shape[1:3])
    if name.lower().endswith(".onnx"):
        return _compared(from_onnx.to_keras(name, image_size), name, name, images)
    from tf_robust.conversion import torch_files

    if image_size is None:
        raise ValueError(f"Expected the size of the images of {name}, a PyTorch model. Received: none. Try: image_size=(224, 224)")
    channels = images.shape[3] if images is not None else torch_files.channels_of(source)
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder) / "model.onnx")
        entries = torch_files.export(source, (*image_size, channels), path)
        module = None if isinstance(source, (str, os.PathLike)) else source
        return _compared(from_onnx.to_keras(path), name, path, images, entries, module)


def converted(model: keras.Model) -> Converted | None:
    """Returns where a model was converted from; None: it was not converted in this process."""
    return _MODELS.get(model)


def _compared(found, name, path, images, entries=None, module=None):
    """The converted model, after its scores and its unchanged weights were compared with the file's."""
    runtime = import_extra("onnxruntime", "onnx")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    if images is None:
        images = np.random.RandomState(0).uniform(0, 1, (_NOISE, *found.model.input_shape[1:]))
    images = np.asarray(images, np.float32)
    (tensor,) = session.get_inputs()
    count = tensor.shape[0] if isinstance(tensor.shape[0], int) else len(images)
    images = np.resize(images, (max(count, len(images)), *images.shape[1:]))  # a file of a fixed batch may take more
    channels_first = found.order == CHANNELS_LAST
    given = np.ascontiguousarray(images.transpose(0, 3, 1, 2)) if channels_first else images
    given = given.astype({"tensor(float16)": np.float16, "tensor(double)": np.float64}.get(tensor.type, np.float32))
    parts = [given[start : start + count] for start in range(0, len(given) - count + 1, count)]
    expected = np.concatenate([session.run(None, {tensor.name: part})[0] for part in parts]).astype(np.float32)
    scores = np.asarray(found.model.predict_on_batch(images[: len(expected)]), np.float32)
    difference = float(np.abs(scores - expected).max() / max(np.abs(expected).max(), np.finfo(np.float32).tiny))
    if not difference <= MAX_DIFFERENCE:
        raise ValueError(
            f"Expected a Keras model with the scores of {name}. Received: scores that differ by {difference:.2g}, relative to the largest, "
            f"where {MAX_DIFFERENCE} is allowed"
        )
    to_onnx.check_unchanged(found.graph, found.bindings)
    result = Converted(found.model, name, entries, module, difference, found.untrained, found.graph, found.bindings)
    _MODELS[found.model] = result
    return result
