"""Input and output conventions of a model: pixel scale, kind of output, signature, input size."""

import dataclasses
import typing
from collections.abc import Collection, Mapping

from tf_robust.ops import pixel_scale
from tf_robust.saved_models import card_files
from tf_robust.utils.errors import unknown

Kind = typing.Literal["auto", "logits", "probabilities"]
OUTPUTS: tuple[Kind, ...] = ("logits", "probabilities")
NAMED_RANGES = {
    "": "0,1",  # of models without a card
    "auto": "0,1",  # until it is found
    "imagenet": "mean=0.485,0.456,0.406 std=0.229,0.224,0.225",
    "caffe": "mean=0.48502,0.45795,0.40760 std=0.00392157 bgr",  # 255 x - (123.68, 116.779, 103.939), reversed
}


@dataclasses.dataclass(frozen=True)
class ModelInterface:
    """Input and output conventions of a model.

    Args:
        input_range: pixel scale of the model's input: LOW,HIGH (0,1 or -1,1 or 0,255), or a normalization of [0, 1] by
            one number or one per channel: "mean=0.485,0.456,0.406 std=0.229,0.224,0.225", for which imagenet is short; " bgr" at
            the end: blue first, as in "0,255 bgr"; caffe: blue first, 0 to 255 minus ImageNet's mean; auto: the one with which
            most images are classified correctly. Empty: that of the model's card, or 0,1.
        outputs: kind of the model's output; the output of that name is used, or else the only one. auto: that of the card, or
            inferred from the name or the first images (probabilities sum to 1). One output [N, 1] is that of the second of two classes:
            its probability, in [0, 1], or its logit.
        signature: of the SavedModel, to call.
        input_size: side in pixels that images are resized to for the model (bilinear, antialiased); 0: as they are.
        trust: run the Python code in a Keras file (Lambda layers).
        check_inputs: before an evaluation of a model from elsewhere, compare its accuracy on some images with those under other
            pixel scales and another order of the classes, and stop if one of them fits better.
    """

    input_range: str = ""
    outputs: Kind = "auto"
    signature: str = "serving_default"
    input_size: int = 0
    trust: bool = False
    check_inputs: bool = True

    def __post_init__(self):
        self.affine()
        if self.outputs not in ("auto", *OUTPUTS):
            raise unknown("outputs", self.outputs, ("auto", *OUTPUTS))
        if self.input_size < 0:
            raise ValueError(f"Expected input_size >= 0 (0: images as they are). Received: {self.input_size}")

    def with_card(self, card: Mapping[str, typing.Any], path: str, names: Collection[str] = ()) -> "ModelInterface":
        """Returns the interface with the pixel scale and the kind of output that the card of a model declares, or their defaults.

        Args:
            card: of the model.
            path: of the model, for messages.
            names: of the model's outputs, which `outputs` may name instead.

        Raises:
            ValueError: `input_range` or `outputs` contradicts the card.
        """
        declared = card_files.declared_range(card)
        kind = next((one for one in OUTPUTS if one == card.get("output")), None)
        try:
            ModelInterface(declared)
        except ValueError:  # a card of another program
            declared = ""
        automatic = self.input_range in ("", "auto")
        if declared and not automatic and not self._is_scale(declared):
            raise _contradiction("input_range", declared, self.input_range, path)
        if kind and self.outputs not in ("auto", kind, *names):
            raise _contradiction("outputs", kind, self.outputs, path)
        return dataclasses.replace(
            self,
            input_range=declared if declared and automatic else self.input_range or NAMED_RANGES[""],
            outputs=kind if kind and self.outputs == "auto" else self.outputs,
        )

    def _is_scale(self, text):
        other = ModelInterface(text)
        return (self.affine(), self.blue_first) == (other.affine(), other.blue_first)

    def conventions(self) -> dict[str, str | int]:
        """Returns the fields that determine the logits, for JSON."""
        return {name: getattr(self, name) for name in ("input_range", "outputs", "signature", "input_size")}

    @property
    def blue_first(self) -> bool:
        """Whether the model takes the channels in the order blue, green, red."""
        return NAMED_RANGES.get(self.input_range, self.input_range).endswith(" bgr")

    def affine(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Returns (scale, offset), tuples of 1 or C numbers: the model takes scale * image + offset, before channels are reversed."""
        text = NAMED_RANGES.get(self.input_range, self.input_range).removesuffix(" bgr")
        return pixel_scale.affine(NAMED_RANGES.get(text, text), "input_range", ", each also with ' bgr'; imagenet, caffe or auto")


def _contradiction(name: str, declared: str, given: str, path: str) -> ValueError:
    return ValueError(f"Expected {name}={declared}, as the card of {path} says. Received: {name}={given}. Try: leave out {name}")
