"""Reads SavedModel folders, with signatures or with a callable alone. A SavedModel is a program that runs with its user's rights."""

import functools

import tensorflow as tf

from tf_robust.saved_models.signatures import Signature
from tf_robust.utils.errors import readable


def read(path: str, trust: bool) -> tuple[dict[str, Signature], object]:
    """Reads the signatures of a SavedModel; one without any has `serving_default` if it can be called with a batch."""
    with readable(path, "Try: copy it or export it again."):
        loaded = tf.saved_model.load(path)
        signatures = {
            name: Signature(call, call.structured_input_signature[1], call.structured_outputs) for name, call in loaded.signatures.items()
        }
        return signatures or _callable(loaded), loaded


def _callable(loaded):
    """The first saved function of the object itself that takes one tensor; its other arguments, such as `training`, as they were saved."""
    for function in getattr(getattr(loaded, "__call__", None), "concrete_functions", ()):  # noqa: B004
        (first, *others), named = function.structured_input_signature if function.structured_input_signature[0] else ((None,), {})
        fixed = not any(isinstance(value, tf.TensorSpec) for value in tf.nest.flatten([others, named])) and True not in others
        if isinstance(first, tf.TensorSpec) and fixed and named.get("training") is not True:
            outputs = function.structured_outputs
            names = outputs if isinstance(outputs, dict) else {f"output_{i}": spec for i, spec in enumerate(tf.nest.flatten(outputs))}
            return {"serving_default": Signature(functools.partial(_call, loaded, others, named), {"images": first}, names)}
    return {}


def _call(loaded, others, named, images):
    result = loaded(images, *others, **named)
    return result if isinstance(result, dict) else {f"output_{i}": tensor for i, tensor in enumerate(tf.nest.flatten(result))}
