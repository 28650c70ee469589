"""Signatures of models of any format: names and types of input and output tensors, and how to call the model."""

import dataclasses
import typing
from collections.abc import Callable, Mapping

import tensorflow as tf

from tf_robust.saved_models.interface import OUTPUTS, Kind
from tf_robust.utils.errors import cause

__all__ = ["Signature"]

Axes = tuple[int, int, int, int]
Result = typing.TypeVar("Result")
_LAYOUTS: dict[str, Axes] = {"channels first": (0, 3, 1, 2), "channels last": (0, 1, 2, 3)}
BEFORE_SOFTMAX = "/before_softmax"  # after the name of an output: the logits of which it is the softmax, which `Signature.call` may add


@dataclasses.dataclass(frozen=True)
class Signature:
    """One way to call a model.

    Attributes:
        call: function of keyword arguments named after the inputs -> {name: tensor}.
        inputs: {name: TensorSpec}.
        outputs: {name: TensorSpec}.
        has_graph: whether `call` consists of TensorFlow operations, which a SavedModel can hold.
        float_type: function that returns the narrowest type of floats that it is known to compute in.

    Examples:
        >>> from tf_robust.saved_models.signatures import Signature
        >>> def call(images):
        ...     return {"logits": tf.reduce_sum(images, [1, 2]) * [[-1.0, 1.0]]}
        >>> takes, returns = tf.TensorSpec([None, 8, 8, 1], tf.float32), tf.TensorSpec([None, 2], tf.float32)
        >>> print(Signature(call, {"images": takes}, {"logits": returns}))
        images float32 [None, 8, 8, 1] -> logits float32 [None, 2]
    """

    call: Callable[..., dict[str, tf.Tensor]]
    inputs: dict[str, tf.TensorSpec]
    outputs: dict[str, tf.TensorSpec]
    has_graph: bool = True
    float_type: Callable[[], tf.DType] = lambda: tf.float32

    def __str__(self) -> str:
        return f"{described(self.inputs)} -> {described(self.outputs)}"

    def misfit(self) -> str:
        """Returns why this does not take a batch of images [N, H, W, C]; empty if it does."""
        if len(self.inputs) != 1:
            return f"takes {len(self.inputs)} tensors, not one: wrap it as a model of the images alone, with the other inputs constant"
        (spec,) = self.inputs.values()
        if spec.dtype == tf.string:
            return "takes strings (encoded images?), not pixels"
        if not spec.dtype.is_floating and spec.dtype != tf.uint8:
            return f"takes {spec.dtype.name}, neither floats nor uint8"
        if spec.shape.rank not in (None, 4):
            return f"takes tensors of rank {spec.shape.rank}, not 4"
        if spec.shape.rank and spec.shape[0] is not None:
            return f"takes exactly {spec.shape[0]} images at a time: export it with a free batch size (None)"
        return ""

    def channels_last(self) -> "Signature":
        """Returns a signature that takes [N, H, W, C]: this one, or one that transposes for a model that takes [N, C, H, W]."""
        ((name, spec),) = self.inputs.items()
        if spec.shape.rank != 4 or spec.shape[3] in (1, 3):
            return self
        count, channels, height, width = spec.shape
        if channels not in (1, 3) and (channels or not (height and width)):
            return self

        def call(**images):
            return self.call(**{name: tf.transpose(images[name], [0, 3, 1, 2])})

        inputs = {name: tf.TensorSpec([count, height, width, channels], spec.dtype, spec.name)}
        return dataclasses.replace(self, call=call, inputs=inputs)

    def kind(self, declared: Kind) -> Kind:
        """Returns the kind of output that is called for: logits or probabilities; auto if no output has such a name."""
        return next((kind for kind in OUTPUTS if kind in self.outputs), declared) if declared == "auto" else declared

    def output(self, kind: str) -> str:
        """Returns the name of the output with logits or probabilities: the output of that name, or else the only one.

        Raises ValueError if there is no such output, or it is not float [N, classes], or [N, 1] for two classes.
        """
        name = kind if kind in self.outputs else next(iter(self.outputs), "")
        others = [other for other in OUTPUTS if other in self.outputs and other != kind]
        if name in others or (name != kind and len(self.outputs) != 1):
            expected = repr(kind) if kind in OUTPUTS else " or ".join(map(repr, OUTPUTS))
            advice = f" For {others[0]!r}, pass outputs={others[0]}." if others else " Try: save a model with one of them."
            raise ValueError(f"Expected an output named {expected}, or only one output. Received: {described(self.outputs)}.{advice}")
        spec = self.outputs[name]
        classes = spec.shape[1] if spec.shape.rank == 2 else None
        if not spec.dtype.is_floating or spec.shape.rank not in (None, 2) or classes == 0:
            expected = kind if kind in OUTPUTS else "logits or probabilities"
            raise ValueError(f"Expected {expected} as floats [N, classes], or [N, 1] for 2 classes. Received: {described({name: spec})}")
        return name


def listed(signatures: Mapping[str, Signature]) -> str:
    """Returns all signatures with their inputs and outputs, one per line."""
    lines = "".join(f"\n  {name}: {signature}" for name, signature in signatures.items())
    return f"Its signatures:{lines}" if lines else "It has none: save it with signatures={'serving_default': ...}."


def described(specs: Mapping[str, tf.TensorSpec]) -> str:
    """Returns name, type and shape of each TensorSpec as text."""
    return ", ".join(f"{name} {spec.dtype.name} {shape_text(spec.shape)}" for name, spec in specs.items()) or "nothing"


def shape_text(shape: tf.TensorShape) -> str:
    """Returns a shape as text."""
    return "of any shape" if shape.rank is None else str(shape.as_list())


def run_in_layout(run: Callable[[Axes], Result], known: list[Axes]) -> Result:
    """Returns the result of a model on images [N, H, W, C] whose axes are reordered: channels first, unless it fails with these.

    known: the order that the model takes; empty: gets the first one with which it does not fail.
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
    reasons = [f"{name}: {cause(error).rpartition('RuntimeError: ')[2]}" for name, error in failures.items()]  # no TorchScript traceback
    raise RuntimeError("; ".join(reasons)) from next(iter(failures.values()))
