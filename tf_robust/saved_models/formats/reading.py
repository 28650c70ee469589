"""Shared by the readers: optional packages, messages of failures, and models that compute outside of TensorFlow."""

import typing
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from tf_robust.saved_models.signatures import Signature
from tf_robust.utils.errors import cause, readable
from tf_robust.utils.lazy import import_extra

__all__ = ["Axes", "import_extra", "numpy_signature", "readable", "run_in_layout"]

Axes = tuple[int, int, int, int]
Result = typing.TypeVar("Result")
_LAYOUTS: dict[str, Axes] = {"channels first": (0, 3, 1, 2), "channels last": (0, 1, 2, 3)}


def run_in_layout(run: Callable[[Axes], Result], known: list[Axes]) -> Result:
    """Returns the result of a model on images [N, H, W, C] whose axes are reordered: channels first, unless it fails with these.

    Args:
        run: function of the order of the axes.
        known: the order that the model takes; empty: gets the first one with which it does not fail.

    Raises:
        RuntimeError: it fails with each.
    """
    failures: dict[str, Exception] = {}
    for name, axes in _LAYOUTS.items():
        if known and axes != known[0]:
            continue
        try:
            result = run(axes)
        except (MemoryError, ValueError):  # of this package
            raise
        except Exception as error:  # of any kind: runtimes have their own
            failures[name] = error
        else:
            known[:] = [axes]
            return result
    reasons = {name: cause(error).rpartition("RuntimeError: ")[2] for name, error in failures.items()}  # without TorchScript's traceback
    raise RuntimeError("; ".join(f"{name}: {reason}" for name, reason in reasons.items())) from next(iter(failures.values()))


def numpy_signature(
    run: Callable[[np.ndarray], list[np.ndarray]], inputs: Mapping[str, tf.TensorSpec], outputs: Mapping[str, tf.TensorSpec]
) -> Signature:
    """Returns the signature of a model that computes on NumPy arrays: it works in `tf.function` and has no gradients.

    Args:
        run: batch of the only input -> list of the outputs.
        inputs: {name: TensorSpec}; with a fixed batch size, batches are divided and the last part is padded.
        outputs: {name: TensorSpec}, in the order of the list.
    """
    specs = {name: tf.TensorSpec(_free(spec.shape), spec.dtype, name) for name, spec in outputs.items()}
    if len(inputs) != 1:
        return Signature(lambda **_: {}, dict(inputs), specs)
    ((name, spec),) = inputs.items()
    size = spec.shape[0] if spec.shape.rank else None

    def run_parts(batch):
        parts = np.split(batch, range(size, len(batch), size)) if size else [batch]
        if size:
            parts[-1] = np.concatenate([parts[-1], np.zeros([size - len(parts[-1]), *batch.shape[1:]], batch.dtype)])
        return [np.concatenate(results)[: len(batch)] for results in zip(*map(run, parts), strict=True)]

    def call(**images):
        if tf.executing_eagerly():  # errors are those of the runtime
            results = [tf.convert_to_tensor(one) for one in run_parts(np.asarray(images[name]))]
        else:
            results = tf.numpy_function(run_parts, [images[name]], [spec.dtype for spec in specs.values()])
            results = results if isinstance(results, (list, tuple)) else [results]  # one type in the list: one tensor
        return {key: tf.ensure_shape(result, spec.shape) for (key, spec), result in zip(specs.items(), results, strict=True)}

    return Signature(call, {name: tf.TensorSpec(_free(spec.shape), spec.dtype, name)}, specs, has_graph=False)


def _free(shape: tf.TensorShape) -> tf.TensorShape:
    """The shape with a free batch size."""
    return tf.TensorShape([None, *shape[1:]]) if shape.rank else shape
