"""Gives trained weights of an ONNX file back to the PyTorch `state_dict` that the file was exported from: `trained_entries`.

Entries are matched to weights of the file by value, never by name alone: exporters fold batch normalization into convolutions,
transpose the weights of dense layers, give computed weights names of their own and merge equal ones.
"""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

EPSILONS = (1e-5, 1e-3)  # of batch normalization: PyTorch's default, TensorFlow's
MIN_SCALE = 1e-3  # of a folded batch normalization, relative to its largest: channels with smaller ones get the scale 1
TOLERANCE = 1e-4  # relative, of a folded weight


@dataclasses.dataclass(frozen=True)
class Result:
    """A trained `state_dict`.

    Attributes:
        entries: {key: array}, of the keys, shapes and types of the initial one.
        unmatched: keys of floating-point entries that no weight of the file has; they are unchanged.
    """

    entries: dict[str, np.ndarray]
    unmatched: tuple[str, ...]


def trained_entries(
    entries: Mapping[str, np.ndarray], initial: Mapping[str, np.ndarray], trained: Mapping[str, list[np.ndarray]]
) -> Result:
    """Returns the entries of a `state_dict` after training.

    Args:
        entries: of the initial `state_dict`.
        initial: {name: array} of the file's weights before training.
        trained: {name: arrays} of those that were trained: several if operations that share the weight have different ones.

    Raises:
        ValueError: a trained weight fits no entry, or an entry fits several weights with different trained values; the message names them.
    """
    floats = _floats(entries)
    result, matched, used = {key: np.array(value) for key, value in entries.items()}, set(), set()
    for key, (found, form) in match(entries, initial).items():
        named = [name for name in found if name == key] or found
        candidates = [array for name in named for array in trained.get(name, [initial[name]])]
        if any(array.tobytes() != candidates[0].tobytes() for array in candidates[1:]):
            raise ValueError(
                f"Expected entries of the state_dict that differ from each other. Received: {key}, which has the values of several "
                f"weights of the file ({', '.join(named[:3])}). Try: export the model after its training, without merging equal weights"
            )
        result[key] = form.back(candidates[0], entries[key].shape).astype(entries[key].dtype)
        matched.add(key)
        used.update(found)
    left = {name: arrays[0] for name, arrays in trained.items() if name not in used and len(arrays) == 1}
    unfolded = _unfold({key: value for key, value in floats.items() if key not in matched}, initial, left, result)
    matched |= unfolded[0]
    used |= unfolded[1]
    if missing := [name for name in trained if name not in used]:
        raise ValueError(
            f"Expected an entry of the state_dict for each trained weight. Received: none for {', '.join(missing[:5])}. Try: "
            "the state_dict from which the file was exported, or an export with dynamo=False, training=torch.onnx.TrainingMode.PRESERVE"
        )
    return Result(result, tuple(key for key in floats if key not in matched))


@dataclasses.dataclass(frozen=True)
class Form:
    """How a weight of the file holds an entry: in its shape, transposed, or without axes of size 1."""

    forward: Callable[[np.ndarray], np.ndarray]
    back: Callable[[np.ndarray, tuple[int, ...]], np.ndarray]


FORMS = (
    Form(lambda array: array, lambda array, shape: array),
    Form(lambda array: array.T, lambda array, shape: array.T),
    Form(np.squeeze, lambda array, shape: array.reshape(shape)),
)


def match(entries: Mapping[str, np.ndarray], initial: Mapping[str, np.ndarray]) -> dict[str, tuple[list[str], Form]]:
    """Returns {key: (names of the weights with its values, how they hold them)} of the entries that a file holds."""
    names: dict[bytes, list[str]] = {}
    for name, array in initial.items():
        if array.dtype.kind == "f":
            names.setdefault(_digest(array), []).append(name)
    found = {}
    for key, value in _floats(entries).items():
        for form in FORMS:
            if same := _same_value(form.forward(value), names, initial):
                found[key] = same, form
                break
    return found


def _floats(entries):
    return {key: value for key, value in entries.items() if value.dtype.kind == "f" and value.size}


def _digest(array):
    """A key of the values in any order and type that holds float16."""
    return np.sort(array.astype(np.float16), axis=None).tobytes()


def _same_value(array, names, initial):
    """The names of weights with the values of an array, in the narrower one of both types."""
    return [
        name
        for name in names.get(_digest(array), [])
        if initial[name].shape == array.shape and np.array_equal(initial[name], array.astype(initial[name].dtype))
    ]


def _unfold(entries, initial, trained, result):
    """Entries of convolutions with a batch normalization that was folded into them: (keys, names of the weights), set in `result`.

    With scale s = gamma / sigma, the weights are W = W' / s and beta = b' - (b - mu) s. Where s is close to 0, it becomes 1.
    """
    keys, names = set(), set()
    norms = [key.removesuffix("running_var") for key in entries if key.endswith("running_var")]
    for name, new in trained.items():
        if initial[name].ndim != 4:
            continue
        for key, weight in entries.items():
            if weight.shape != initial[name].shape or key in keys:
                continue
            for prefix in norms:
                folded = _folded(weight, entries, prefix)
                near = [one for one in folded if np.allclose(one[2], initial[name], rtol=TOLERANCE, atol=TOLERANCE * abs(one[2]).max())]
                if not near:
                    continue
                scale, std, _ = min(near, key=lambda one: np.abs(one[2] - initial[name]).sum())
                bias = _bias_of(name, key, prefix, scale, entries, initial, trained)
                is_small = abs(scale) < MIN_SCALE * abs(scale).max()
                scale = np.where(is_small, 1, scale)
                result[key] = (new / scale[:, None, None, None]).astype(weight.dtype)
                result[f"{prefix}weight"][is_small] = std[is_small]
                offset = entries[f"{prefix}running_mean"] - entries.get(f"{key.removesuffix('weight')}bias", 0)
                result[f"{prefix}bias"] = (trained.get(bias, initial[bias]) + offset * scale).astype(entries[f"{prefix}bias"].dtype)
                keys |= {key, f"{key.removesuffix('weight')}bias"} & set(entries)
                keys |= {f"{prefix}{part}" for part in ("weight", "bias", "running_mean", "running_var")}
                names |= {name, bias}
                break
            if name in names:
                break
    return keys, names


def _folded(weight, entries, prefix):
    """(scale, standard deviation, folded weight) of a convolution with a batch normalization, for each usual epsilon."""
    gamma, variance = entries.get(f"{prefix}weight"), entries[f"{prefix}running_var"]
    if gamma is None or gamma.shape != weight.shape[:1]:
        return []
    stds = [np.sqrt(variance + epsilon) for epsilon in EPSILONS]
    return [(gamma / std, std, weight * (gamma / std)[:, None, None, None]) for std in stds]


def _bias_of(name, key, prefix, scale, entries, initial, trained):
    """The name of the bias that the batch normalization was folded into."""
    offset = entries.get(f"{key.removesuffix('weight')}bias", 0) - entries[f"{prefix}running_mean"]
    expected = entries[f"{prefix}bias"] + offset * scale
    for other, array in initial.items():
        if array.shape == expected.shape and np.allclose(array, expected, rtol=TOLERANCE, atol=TOLERANCE * abs(expected).max()):
            return other
    raise ValueError(f"Expected a bias of {name} in which {prefix}bias was folded. Received: none with its values")
