"""Models of ONNX and PyTorch as trainable Keras models, `convert`, and their trained weights in the format that they came in."""

import collections
import copy
import dataclasses
import os
import tempfile
import typing
from collections.abc import Mapping

import keras
import numpy as np

from tf_robust.conversion.state_dict import trained_entries
from tf_robust.utils.files import atomic_file
from tf_robust.utils.lazy import import_extra, lazy

if typing.TYPE_CHECKING:  # needs the package onnx, as the functions below
    from tf_robust.conversion.from_onnx import ConvertedGraph

__all__ = ["Converted", "convert", "converted"]

_check_unchanged, _initial_arrays, _trained_arrays, _write = (
    lazy(f"tf_robust.conversion.to_onnx:{name}") for name in ("check_unchanged", "initial_arrays", "trained_arrays", "write")
)
_to_keras = lazy("tf_robust.conversion.from_onnx:to_keras")
ONNX = ".onnx"
STATE_DICT = (".pt", ".pth")
MAX_DIFFERENCE = 1e-3  # of the scores, relative to the largest
_NOISE = 4  # images by which a model is compared if none are given
_RECORD = "_converted_from"  # attribute of a model


@dataclasses.dataclass(frozen=True, eq=False)
class Converted:
    """A Keras model with the file that it was converted from.

    Attributes:
        model: float [N, H, W, C] on the file's pixel scale -> what the file returns.
        source: path of the file, or the `torch.nn.Module`.
        entries: initial `state_dict` of a PyTorch model; None: an ONNX file.
        difference: largest difference of the scores from ONNX Runtime's, relative to the largest score.
        untrained: names of the weights of the file that are constants in the model.

    Examples:
        >>> import onnx
        >>> from tf_robust.conversion import converted
        >>> network = '<ir_version: 8, opset_import: ["" : 17]> net (float[n, 3, 8, 8] x) => (float[n, 2] y) '
        >>> network += "<float[3, 2] w = {1, 0, 0, 1, 0, 0}> {p = GlobalAveragePool(x) f = Flatten(p) y = MatMul(f, w)}"
        >>> onnx.save(onnx.parser.parse_model(network), "net.onnx")
        >>> record = converted.convert("net.onnx")
        >>> record.model.set_weights([2 * weight for weight in record.model.get_weights()])  # or by training
        >>> record.save("trained.onnx")  # returns the names of weights that stay as they were
        ()
        >>> record.difference_of("trained.onnx", np.ones([1, 8, 8, 3], np.float32)) < 1e-5
        True
    """

    model: keras.Model
    source: typing.Any
    entries: dict[str, np.ndarray] | None
    difference: float
    _found: "ConvertedGraph"

    @property
    def untrained(self) -> tuple[str, ...]:
        return self._found.untrained

    def save(self, path: str | os.PathLike, entries: Mapping[str, np.ndarray] | None = None) -> tuple[str, ...]:
        """Writes the model's current weights: by the suffix of the path as `save_onnx` or `save_state_dict`, and returns what they do."""
        if os.fspath(path).lower().endswith(ONNX):
            return self.save_onnx(path)
        return self.save_state_dict(path, entries)

    def save_onnx(self, path: str | os.PathLike) -> tuple[str, ...]:
        """Writes a copy of the ONNX file with the model's current weights, and returns the names of weights that stay as they were.

        Raises:
            ValueError: operations share a weight in a way that cannot be taken apart, and differ now.
        """
        with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(path))) as folder:
            written = os.path.join(folder, os.path.basename(path))
            _write(self._found.graph, self._found.bindings, written)
            for name in sorted(os.listdir(folder)):
                os.replace(os.path.join(folder, name), os.path.join(os.path.dirname(os.path.abspath(path)), name))
        return self.untrained

    def state_dict(self, entries: Mapping[str, np.ndarray] | None = None) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
        """Returns the `state_dict` with the model's current weights, and the keys of floats that no weight of the file has.

        Args:
            entries: initial `state_dict` from which the ONNX file was exported; None: the PyTorch model's.

        Raises:
            ValueError: there are none, or they do not fit; the message names the weights.
        """
        entries = self.entries if entries is None else entries
        if entries is None:
            raise ValueError(f"Expected the state_dict from which {self.source} was exported. Received: none. Try: state_dict=FILE")
        graph, bindings = self._found.graph, self._found.bindings
        trained = {name: [array for _, array in parts] for name, parts in _trained_arrays(graph, bindings).items()}
        result = trained_entries(entries, _initial_arrays(graph), trained)
        return result.entries, result.unmatched

    def save_state_dict(self, path: str | os.PathLike, entries: Mapping[str, np.ndarray] | None = None) -> tuple[str, ...]:
        """Writes `state_dict` as `torch.load(path, weights_only=True)` reads it, and returns the keys that stay as they were."""
        from tf_robust.conversion import torch_files

        arrays, unmatched = self.state_dict(entries)
        torch = import_extra("torch", "torch")
        tensors = collections.OrderedDict((key, torch.from_numpy(np.array(value))) for key, value in arrays.items())
        with atomic_file(os.fspath(path), "wb") as file:
            torch.save(torch_files.with_versions(tensors, self.entries if entries is None else entries), file)
        return unmatched

    def module(self) -> typing.Any:
        """Returns a copy of the PyTorch model with the model's current weights.

        Raises:
            ValueError: the model is an ONNX file.
        """
        return self._module_with(self.state_dict()[0])

    def _module_with(self, entries):
        from tf_robust.conversion import torch_files

        loaded = torch_files.load(self.source) if isinstance(self.source, str) else copy.deepcopy(self.source)
        torch_files.assign(loaded, entries)
        return loaded

    def difference_of(self, path: str | os.PathLike, images: np.ndarray) -> float | None:
        """Returns the largest difference of a written file's scores from the model's, relative to the largest; None: it has no graph.

        Args:
            path: of a file that `save` wrote.
            images: float [N, H, W, C] on the file's pixel scale.
        """
        if os.fspath(path).lower().endswith(ONNX):
            scores = _scores(os.fspath(path), self._found, images)
        elif self.entries is None:
            return None
        else:
            from tf_robust.conversion import torch_files

            scores = torch_files.scores(self._module_with(torch_files.read_entries(os.fspath(path))), images)
        return _relative_difference(self.model, images, scores)


def convert(source, image_size: tuple[int, int] | None = None, images: np.ndarray | None = None) -> Converted:
    """Converts a classifier of ONNX or PyTorch to a trainable Keras model, and compares their scores.

    Args:
        source: an ONNX file of opset 11 or later; or, with the extra `torch`, a TorchScript file, a `.pt2` file of `torch.export` or a
            `torch.nn.Module`.
        image_size: height and width of the images, for a model of any size; PyTorch models do not state theirs.
        images: float [N, H, W, C] on the file's pixel scale, on which scores are compared; None: noise.

    Raises:
        ValueError: the model cannot be converted, with the node; or its scores differ by more than `MAX_DIFFERENCE`, with the difference.

    Examples:
        >>> import onnx
        >>> from tf_robust.conversion import converted
        >>> network = '<ir_version: 8, opset_import: ["" : 17]> net (float[n, 3, 8, 8] x) => (float[n, 2] y) '
        >>> network += "<float[3, 2] w = {1, 0, 0, 1, 0, 0}> {p = GlobalAveragePool(x) f = Flatten(p) y = MatMul(f, w)}"
        >>> onnx.save(onnx.parser.parse_model(network), "net.onnx")
        >>> record = converted.convert("net.onnx")
        >>> record.model.input_shape, record.model.output_shape, record.difference < 1e-5
        ((None, 8, 8, 3), (None, 2), True)
    """
    import_extra("onnx", "onnx")
    source = os.fspath(source) if isinstance(source, os.PathLike) else source
    if images is not None:
        image_size = tuple(images.shape[1:3])
    if isinstance(source, str) and source.lower().endswith(ONNX):
        return _compared(_to_keras(source, image_size), source, source, images)
    from tf_robust.conversion import torch_files

    if image_size is None:
        name = source if isinstance(source, str) else type(source).__name__
        raise ValueError(f"Expected the size of the images of {name}, a PyTorch model. Received: none. Try: image_size=(224, 224)")
    channels = images.shape[3] if images is not None else torch_files.channels_of(source)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        entries = torch_files.export(source, (*image_size, channels), path)
        return _compared(_to_keras(path), source, path, images, entries)


def converted(model: keras.Model) -> Converted | None:
    """Returns where a model was converted from; None: it was not converted in this process.

    Examples:
        >>> from tf_robust.conversion.converted import converted
        >>> converted(tfr.load("zoo:digits/lenet_augmix")) is None  # a Keras model from the start
        True
    """
    return getattr(model, _RECORD, None)


def copy_origin(model: keras.Model, copied: keras.Model) -> None:
    """Makes a copy of a converted model, with the same weights in the same order, a converted model too."""
    if record := converted(model):
        variables = dict(zip(map(id, model.weights), copied.weights, strict=True))
        bindings = [dataclasses.replace(one, variable=variables[id(one.variable)]) for one in record._found.bindings]
        found = dataclasses.replace(record._found, model=copied, bindings=bindings)
        setattr(copied, _RECORD, dataclasses.replace(record, model=copied, _found=found))


def _compared(found, source, path, images, entries=None):
    """The converted model, after its scores and its unchanged weights were compared with the file's."""
    if images is None:
        images = np.random.RandomState(0).uniform(0, 1, (_NOISE, *found.model.input_shape[1:]))
    images = np.asarray(images, np.float32)
    difference = _relative_difference(found.model, images, _scores(path, found, images))
    if not difference <= MAX_DIFFERENCE:
        raise ValueError(
            f"Expected a Keras model with the scores of {source if isinstance(source, str) else type(source).__name__}. Received: scores "
            f"that differ by {difference:.2g}, relative to the largest, where {MAX_DIFFERENCE} is allowed"
        )
    _check_unchanged(found.graph, found.bindings)
    result = Converted(found.model, source, entries, difference, found)
    setattr(found.model, _RECORD, result)
    return result


def _scores(path, found, images):
    """The scores of an ONNX file by ONNX Runtime, for images [N, H, W, C]; a file of a fixed batch is given parts of its size."""
    session = import_extra("onnxruntime", "onnx").InferenceSession(path, providers=["CPUExecutionProvider"])
    (tensor,) = session.get_inputs()
    count = tensor.shape[0] if isinstance(tensor.shape[0], int) else len(images)
    given = np.resize(images, (-(-len(images) // count) * count, *images.shape[1:]))
    given = np.ascontiguousarray(given.transpose(0, 3, 1, 2)) if found.order == (0, 2, 3, 1) else given
    given = given.astype({"tensor(float16)": np.float16, "tensor(double)": np.float64}.get(tensor.type, np.float32))
    parts = [given[start : start + count] for start in range(0, len(given), count)]
    return np.concatenate([session.run(None, {tensor.name: part})[0] for part in parts])[: len(images)].astype(np.float32)


def _relative_difference(model, images, expected):
    scores = np.asarray(model.predict_on_batch(images), np.float32)
    return float(np.abs(scores - expected).max() / max(np.abs(expected).max(), np.finfo(np.float32).tiny))
