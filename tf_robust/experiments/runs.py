"""The runs that flags describe, and flags that no run uses."""

import logging
from collections.abc import Iterable

from absl import flags

from tf_robust import data, evaluation, methods
from tf_robust.data.augment import AUGMENTATIONS, VIEWS
from tf_robust.experiments.config import DATA, UNRECORDED_FLAGS, TrainConfig
from tf_robust.experiments.flags import flag_names, text_of, values_of
from tf_robust.experiments.run import Run
from tf_robust.methods.base import Method
from tf_robust.utils.hyperparameters import parameters

_SELECTION = ("select_every", "select_images")
_SHARED = ("train_examples", "label_fraction", "strategy")  # options of training that evaluations have, too
_RECEIVED = {"validation_fraction": ("data",), **dict.fromkeys(_SELECTION, ("select", "early_stopping"))}  # {ignored flag: the reason's}


def runs_of(values: flags.FlagValues, row: str, shown_as: str = "") -> list[Run]:
    """Returns a `Run` for each seed. Its flags are those that it depends on: not those of other methods, no paths.

    Args:
        values: parsed flags.
        row: name of the row.
        shown_as: name of the row in tables; empty: `row`.

    Raises:
        ValueError: a value that its class refuses.
    """
    used: set[str] = set()

    def arguments_of(target, prefix):
        arguments = values_of(values, target, prefix)
        used.update(prefix + name for name in arguments)
        return arguments

    config = TrainConfig(**arguments_of(TrainConfig, ""))
    eval_config = evaluation.EvalConfig(**arguments_of(evaluation.EvalConfig, ""))
    options = {**arguments_of(Method, ""), **arguments_of(methods.METHODS[config.method], f"{config.method}_")}
    augmentations = {name: arguments_of(VIEWS[name], f"{name}_") for name in (*config.augmentations, *config.views)}
    names = flag_names()
    texts = {name: text_of(values[name].value) for name in names if name in used and name not in UNRECORDED_FLAGS}
    defaults = {name: text_of(values[name].default) for name in names}
    if not values.seeds or len(set(values.seeds)) != len(values.seeds):
        raise ValueError(f"Expected --seeds, each once. Received: {text_of(values.seeds) or 'none'}")
    runs = [
        Run(
            config,
            eval_config,
            {"method": options, "augmentations": augmentations},
            {**texts, "seeds": str(seed)},
            defaults,
            row,
            seed,
            shown_as,
        )
        for seed in values.seeds
    ]
    owners = _owners()
    for run in runs:
        run.ignored = {name: f"it belongs to {owner}" for name, owner in owners.items() if values[name].present and name not in used}
        if values["validation_fraction"].present and data.has_fixed_splits(config.data):
            run.ignored["validation_fraction"] = f"{config.data} has a validation split of its own"
        if not config.select and not config.early_stopping:
            run.ignored |= {name: "it belongs to --select or --early_stopping" for name in _SELECTION if values[name].present}
    return runs


def warn_of_unused_options(values: flags.FlagValues, eval_config: evaluation.EvalConfig) -> None:
    """Logs a warning for each given option that has no effect on an evaluation.

    Args:
        values: flags that were given.
        eval_config: the evaluation, of a run perhaps with further flags.
    """
    for name, reason in eval_config.unused.items():
        if values[name].present:
            logging.warning("--%s has no effect: %s", name, reason)


def warn_of_training_options(values: flags.FlagValues, purpose: str) -> None:
    """Logs a warning if options of training were given, which have no effect on a command for trained models.

    Args:
        values: flags that were given.
        purpose: of the command.
    """
    of_training = {*parameters(TrainConfig), *parameters(Method), *_owners()} - {*DATA, *_SHARED}
    if given := [name for name in sorted(of_training) if name in values and values[name].present]:
        logging.warning("No effect on %s: %s", purpose, ", ".join(f"--{name}" for name in given))


def _owners():
    """{flag: the flag that makes it effective} of the flags of methods, augmentations and views."""
    shared = parameters(Method)
    owners: dict[str, list[str]] = {}
    for flag, targets in (("method", methods.METHODS), ("augmentations", AUGMENTATIONS), ("views", VIEWS)):
        for name, target in targets.items():
            for parameter in parameters(target).keys() - shared.keys():
                owners.setdefault(f"{name}_{parameter}", []).append(f"--{flag}={name}")
    return {name: " or ".join(choices) for name, choices in owners.items()}


def warn_of_ignored_flags(runs: Iterable[Run]) -> None:
    """Logs a warning for each given flag that no run uses: it belongs to another method or view, or has no effect on the data."""
    runs = list(runs)
    reasons = {name: (reason, run) for run in runs for name, reason in run.ignored.items()}
    for name, (reason, run) in reasons.items():
        if not any(name not in other.ignored and name in other.flags for other in runs):
            names = _RECEIVED.get(name, ("method", "augmentations", "views"))
            received = ", ".join(f"--{flag}={text_of(getattr(run.config, flag))}" for flag in names)
            logging.warning("--%s has no effect: %s. Received: %s", name, reason, received)
