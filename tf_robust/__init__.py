"""Train, measure and ship image classifiers that stay accurate on corrupted, shifted and adversarial images.

    import tf_robust as tfr
    result = tfr.train("runs/fcl", data="synthetic_digits", method="fcl", fcl_k=20, epochs=5)
    tfr.evaluate("model.keras", data="cifar10", evaluations="clean,corruptions").report("report.html")

The public names are imported when they are first used: `import tf_robust` alone does not import TensorFlow.
"""

import importlib
import json
import os
import sys
import typing
import warnings

if typing.TYPE_CHECKING:
    from tf_robust import (
        attacks,
        attribution,
        corrupted_datasets,
        corruptions,
        data,
        evaluation,
        layers,
        losses,
        methods,
        metrics,
        models,
        report,
        saved_models,
    )
    from tf_robust.api import Comparison, Hardened, Result, attack, charts, compare, evaluate, export, frame, harden, images, load, train

__version__ = "0.2.0"

__all__ = [
    "Comparison",
    "Hardened",
    "Result",
    "attack",
    "attacks",
    "attribution",
    "charts",
    "compare",
    "corrupted_datasets",
    "corruptions",
    "data",
    "evaluate",
    "evaluation",
    "export",
    "frame",
    "harden",
    "images",
    "layers",
    "load",
    "losses",
    "methods",
    "metrics",
    "models",
    "report",
    "saved_models",
    "train",
]
_OF_API = "Comparison Hardened Result attack charts compare evaluate export frame harden images load train".split()


def _choose_backend() -> None:
    """Makes Keras import its TensorFlow backend, which this package needs, in this process.

    Raises:
        ImportError: Keras is already imported with another one.
    """
    if (keras := sys.modules.get("keras")) is not None:
        if (backend := keras.config.backend()) != "tensorflow":
            raise ImportError(f"Expected Keras with the backend tensorflow. Received: {backend}. Try: KERAS_BACKEND=tensorflow")
        return
    folder = os.environ.get("KERAS_HOME", os.path.join(os.path.expanduser("~"), ".keras"))
    try:
        with open(os.path.join(folder, "keras.json"), encoding="utf-8") as file:
            asked = json.load(file).get("backend")
    except (OSError, ValueError, AttributeError):
        asked = None
    asked = os.environ.get("KERAS_BACKEND") or asked or "tensorflow"
    if asked != "tensorflow":
        warnings.warn(f"Keras' backend is tensorflow in this process, not {asked} (KERAS_BACKEND or keras.json)", stacklevel=3)
    os.environ["KERAS_BACKEND"] = "tensorflow"


_choose_backend()


def __getattr__(name: str) -> typing.Any:
    if name in _OF_API:
        return getattr(importlib.import_module("tf_robust.api"), name)
    if name in __all__:
        return importlib.import_module(f"tf_robust.{name}")
    raise AttributeError(f"module 'tf_robust' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
