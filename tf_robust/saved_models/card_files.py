"""Cards of models as files, and the data that models were trained on. Importing this module does not import TensorFlow."""

import contextlib
import json
import os
import typing
from collections.abc import Mapping


def training_data(path: str) -> str:
    """Returns the name of the data that a model of this package was trained on; empty for other models and for the workdir of a run.

    Args:
        path: of the model, which has a card, or zoo:DATA/MODEL.
    """
    if path.startswith("zoo:"):
        return path.removeprefix("zoo:").partition("/")[0]
    cards = (os.path.join(path, "card.json"), os.path.join(path, "saved_model", "card.json"), f"{path}.json")
    file = next(filter(os.path.isfile, cards), "")
    if os.path.exists(os.path.join(path, "flags.txt")):
        return ""
    with contextlib.suppress(OSError, ValueError):
        card = {**(_read(file) if file else {}), **card_of_hardening(path)}
        return card["data"] if isinstance(card.get("data"), str) else ""
    return ""


def declared_range(card: Mapping[str, typing.Any]) -> str:
    """Returns the pixel scale of a model by its card, as a `ModelInterface.input_range`; empty: the card declares none."""
    entry = card.get("input")  # cards of other programs may have any type
    value = entry.get("range") if isinstance(entry, dict) else None
    if isinstance(value, list) and len(value) == 2 and all(isinstance(one, (int, float)) for one in value):
        return f"{value[0]:g},{value[1]:g}"
    return value if isinstance(value, str) else ""


def card_of_hardening(path: str) -> dict[str, typing.Any]:
    """Returns the fields of a card that the record `harden.json` beside a hardened model gives; {} for other models.

    Args:
        path: of the model.

    Raises:
        ValueError: the record is damaged.
    """
    folder, name = os.path.split(os.path.abspath(path))
    file = os.path.join(folder, "harden.json")
    record = _read(file) if os.path.isfile(file) else {}
    if record.get("model") != name:
        return {}
    data, fraction = record.get("data"), record.get("validation_fraction")
    interface = record.get("interface") or {}
    declared = {"input": {"range": interface["input_range"]}, "output": interface["outputs"]} if interface else {}
    known = {} if fraction is None else {"validation_fraction": fraction}
    own = [{"data": data, **known}] if data else []  # of a record without the field `trained_on`
    return {**declared, **({"data": data} if data else {}), "trained_on": record.get("trained_on", own)}


def _read(file):
    try:
        with open(file, encoding="utf-8") as opened:
            content = json.load(opened)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"Expected JSON in {file}. Received: a damaged file ({error}). Try: restore an intact copy") from error
    return content if isinstance(content, dict) else {}


def trainings(card: Mapping[str, typing.Any]) -> list[dict[str, typing.Any]]:
    """Returns the data that a model was trained on, by its card.

    Args:
        card: of the model.

    Returns:
        Dictionaries with `data`, the name of the data set; `validation_fraction` of its images, held out for validation and, of data
        without splits, for test (None: other images were held out than those of a split; missing: the usual fraction); and, of data
        without splits, `division`, which determines their division (`data.describe_division`).
    """
    entries = card.get("trained_on")
    if isinstance(entries, list):
        return [one for one in entries if isinstance(one, dict) and isinstance(one.get("data"), str)]
    name, flags = card.get("data"), card.get("flags")
    if not isinstance(name, str) or not name:
        return []
    known = isinstance(flags, dict) and "validation_fraction" in flags
    fraction = {"validation_fraction": float(flags["validation_fraction"])} if known else {}  # type: ignore[index]
    return [{"data": name, **fraction, **({"division": card["division"]} if "division" in card else {})}]
