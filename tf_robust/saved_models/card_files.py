"""Cards of models as files. Importing this module does not import TensorFlow."""

import contextlib
import json
import os


def training_data(path: str) -> str:
    """Returns the name of the data that a model of this package was trained on; empty for other models and for the workdir of a run.

    Args:
        path: of the model, which has a card, or zoo:DATA/MODEL.
    """
    if path.startswith("zoo:"):
        return path.removeprefix("zoo:").partition("/")[0]
    cards = (os.path.join(path, "card.json"), os.path.join(path, "saved_model", "card.json"), f"{path}.json")
    file = next(filter(os.path.isfile, cards), "")
    if not file or os.path.exists(os.path.join(path, "flags.txt")):
        return ""
    with contextlib.suppress(OSError, ValueError), open(file, encoding="utf-8") as opened:
        card = json.load(opened)
        return card["data"] if isinstance(card, dict) and isinstance(card.get("data"), str) else ""
    return ""
