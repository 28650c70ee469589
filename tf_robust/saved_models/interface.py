"""Input and output conventions of a model: pixel scale, kind of output, signature, input size; and the cards that declare them.

Importing this module does not import TensorFlow.
"""

import contextlib
import dataclasses
import os
import typing
from collections.abc import Collection, Mapping

from tf_robust.ops import pixel_scale
from tf_robust.saved_models import zoo
from tf_robust.utils.errors import unknown
from tf_robust.utils.files import read_json

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

    Examples:
        >>> from tf_robust.saved_models.loading import ModelInterface
        >>> interface = ModelInterface(input_range="-1,1", outputs="probabilities", input_size=96)
        >>> (scale,), (offset,) = interface.affine()  # the model takes scale * image + offset
        >>> float(scale), float(offset)
        (2.0, -1.0)
        >>> ModelInterface(input_range="0,255 bgr").blue_first
        True
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

        Raises ValueError if `input_range` or `outputs` contradicts the card. names: of the outputs, which `outputs` may name instead.
        """
        declared = declared_range(card)
        kind = next((one for one in OUTPUTS if one == card.get("output")), None)
        try:
            other = ModelInterface(declared)
        except ValueError:  # a card of another program
            declared, other = "", ModelInterface()
        automatic = self.input_range in ("", "auto")
        differs = (self.affine(), self.blue_first) != (other.affine(), other.blue_first)
        for name, of_card, given, is_wrong in (
            ("input_range", declared, self.input_range, not automatic and differs),
            ("outputs", kind, self.outputs, self.outputs not in ("auto", kind, *names)),
        ):
            if of_card and is_wrong:
                raise ValueError(f"Expected {name}={of_card}, as the card of {path} says. Received: {name}={given}. Try: leave out {name}")
        return dataclasses.replace(
            self,
            input_range=declared if declared and automatic else self.input_range or NAMED_RANGES[""],
            outputs=kind if kind and self.outputs == "auto" else self.outputs,
        )

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


def declared_range(card: Mapping[str, typing.Any]) -> str:
    """Returns the pixel scale of a model by its card, as a `ModelInterface.input_range`; empty: the card declares none."""
    entry = card.get("input")  # cards of other programs may have any type
    value = entry.get("range") if isinstance(entry, dict) else None
    if isinstance(value, list) and len(value) == 2 and all(isinstance(one, (int, float)) for one in value):
        return f"{value[0]:g},{value[1]:g}"
    return value if isinstance(value, str) else ""


def read_card(path: str) -> dict[str, typing.Any]:
    """Returns the card of a model of a path or zoo:NAME; {} if it has none. What `harden` recorded beside the model is part of it."""
    if path.startswith("zoo:"):
        return zoo.card(path.removeprefix("zoo:"))
    file = next(filter(os.path.exists, (os.path.join(path, "card.json"), f"{path}.json")), "")
    own = _read(file)
    folder, name = os.path.split(os.path.abspath(path))
    record = _read(os.path.join(folder, "harden.json"))
    if record.get("model") != name:
        return own
    card = {**own, "trained_on": record.get("trained_on", [])}
    if data := record.get("data"):
        card["data"] = data
        if "trained_on" not in record:
            held_out = record.get("validation_fraction")
            card["trained_on"] = [{"data": data} if held_out is None else {"data": data, "validation_fraction": held_out}]
    if interface := record.get("interface"):
        card = {"input": {"range": interface["input_range"]}, "output": interface["outputs"], **card}
    return card


def _read(file):
    """The content of a JSON file; {} if there is none, or it is no object, as a file of other software may be."""
    content = read_json(file, schema=True, advice="Try: restore an intact copy") if os.path.isfile(file) else {}
    return content if isinstance(content, dict) else {}


def training_data(path: str) -> str:
    """Returns the name of the data that a model of this package was trained on; empty for other models and for the workdir of a run."""
    if path.startswith("zoo:"):
        return path.removeprefix("zoo:").partition("/")[0]
    if os.path.exists(os.path.join(path, "flags.txt")):
        return ""
    with contextlib.suppress(OSError, ValueError):
        card = read_card(path) or read_card(os.path.join(path, "saved_model"))
        return card["data"] if isinstance(card.get("data"), str) else ""
    return ""


def trainings(card: Mapping[str, typing.Any]) -> list[dict[str, typing.Any]]:
    """Returns the data that a model was trained on, by its card: dictionaries.

    They have `data`, the name of the data set; `validation_fraction` of its images, held out for validation and, of data without splits,
    for test (None: other images than a split; missing: the usual fraction); and, of data without splits, `division`
    (`data.describe_division`).
    """
    entries = card.get("trained_on")
    if isinstance(entries, list):
        return [one for one in entries if isinstance(one, dict) and isinstance(one.get("data"), str)]
    name, flags = card.get("data"), card.get("flags")
    if not isinstance(name, str) or not name:
        return []
    entry: dict[str, typing.Any] = {"data": name}
    if isinstance(flags, dict) and "validation_fraction" in flags:
        entry["validation_fraction"] = float(flags["validation_fraction"])
    return [{**entry, "division": card["division"]} if "division" in card else entry]
