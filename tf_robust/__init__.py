"""Train, measure and ship image classifiers that stay accurate on corrupted, shifted and adversarial images.

    import tf_robust as tfr
    result = tfr.train("runs/fcl", data="synthetic_digits", method="fcl", fcl_k=20, epochs=5)
    tfr.evaluate("model.keras", data="cifar10", evaluations="clean,corruptions").report("report.html")

The public names are imported when they are first used: `import tf_robust` alone does not import TensorFlow.
"""

import importlib
import typing

from tf_robust.utils.deprecation import moved_names

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
    from tf_robust.api import Comparison, Hardened, Result, attack, charts, compare, evaluate, frame, harden, images, load, train

__version__ = "0.1.0"

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
_OF_API = ("Comparison", "Hardened", "Result", "attack", "charts", "compare", "evaluate", "frame", "harden", "images", "load", "train")
_moved = moved_names(
    __name__,
    {
        "callbacks": "training.callbacks",
        "catalogue": "experiments.help",
        "checkpoints": "training.checkpoints",
        "command_line": "experiments.flags",
        "comparison": "experiments.comparison",
        "devices": "training.distribution",
        "dry_run": "experiments.dry_run",
        "errors": "utils.errors",
        "experiment": "experiments.run",
        "export": "saved_models.export",
        "figures": "experiments.figures",
        "files": "utils.files",
        "hyperparameters": "utils.hyperparameters",
        "loading": "saved_models.loading",
        "locks": "utils.locks",
        "model_files": "saved_models.formats",
        "optimizers": "training.optimizers",
        "outputs": "models.outputs",
        "philox": "ops.philox",
        "prepared": "corrupted_datasets",
        "progress": "utils.progress",
        "quiet": "utils.quiet",
        "settings": "experiments.config",
        "suites": "experiments.suites",
        "sweeps": "experiments.sweeps",
        "workdir": "experiments.workdir",
    },
)


def __getattr__(name: str) -> typing.Any:
    if name in _OF_API:
        return getattr(importlib.import_module("tf_robust.api"), name)
    return importlib.import_module(f"tf_robust.{name}") if name in __all__ else _moved(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
