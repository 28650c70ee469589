"""Train, measure and ship image classifiers that stay accurate on corrupted, shifted and adversarial images."""

import importlib
import warnings

# {name of an earlier version: where it is now}
_MOVED = {
    "callbacks": "training.callbacks", "catalogue": "experiments.help", "checkpoints": "training.checkpoints",
    "command_line": "experiments.flags", "comparison": "experiments.comparison", "devices": "training.distribution",
    "dry_run": "experiments.dry_run", "errors": "utils.errors", "experiment": "experiments.run", "export": "saved_models.export",
    "figures": "experiments.figures", "files": "utils.files", "hyperparameters": "utils.hyperparameters", "loading": "saved_models.loading",
    "locks": "utils.locks", "model_files": "saved_models.signatures", "optimizers": "training.optimizers", "outputs": "models.outputs",
    "philox": "ops.philox", "prepared": "corrupted_datasets", "progress": "utils.progress", "quiet": "utils.quiet",
    "settings": "experiments.config", "suites": "experiments.suites", "sweeps": "experiments.sweeps", "workdir": "experiments.workdir",
}


def __getattr__(name):
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    moved = f"{__name__}.{_MOVED[name]}"
    warnings.warn(f"{__name__}.{name} is now {moved}. The old name will be removed in the next release.", DeprecationWarning, stacklevel=2)
    return importlib.import_module(moved)
