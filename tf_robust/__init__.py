"""Train, measure and ship image classifiers that stay accurate on corrupted, shifted and adversarial images."""

from tf_robust.utils.deprecation import moved_names

__version__ = "0.1.0"

__getattr__ = moved_names(
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
        "model_files": "saved_models.signatures",
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
