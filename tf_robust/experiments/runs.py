"""The runs that flags describe, and flags that no run uses."""

import logging
from collections.abc import Collection, Sequence

from absl import flags

from tf_robust import corrupted_datasets, data, evaluation, methods
from tf_robust.configs import DataConfig
from tf_robust.data.augment import AUGMENTATIONS, VIEWS
from tf_robust.experiments import selecting
from tf_robust.experiments.config import UNRECORDED_FLAGS, TrainConfig
from tf_robust.experiments.flags import flag_names, text_of, values_of
from tf_robust.experiments.run import Run
from tf_robust.hardening.config import HardenConfig
from tf_robust.methods.base import Method
from tf_robust.utils.hyperparameters import parameters

_SELECTION = ("select_every", "select_images")
_RECEIVED = {
    "validation_fraction": ("data",),
    **dict.fromkeys(_SELECTION, ("select", "early_stopping")),
    **dict.fromkeys(("momentum", "nesterov"), ("optimizer",)),
    **dict.fromkeys(("decay_rate", "decay_epochs", "decay_factor"), ("schedule",)),
    "init_head": ("init_from", "init_from_row"),
}  # {ignored flag: flags to which the reason is due}


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

    data_config = DataConfig(**arguments_of(DataConfig, ""))
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
            data_config,
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
        if values["validation_fraction"].present and data.kind_of(data_config.data).fixed_splits:
            run.ignored["validation_fraction"] = f"{data_config.data} has a validation split of its own"
        run.ignored |= {name: f"it belongs to {owner}" for name, owner in _unused(config).items() if _differs(values[name])}
    return runs


def _unused(config):
    """{flag: the flag that makes it effective} of the flags of a training that have no effect with the values of others."""
    with_momentum = config.optimizer in ("sgd", "lars")
    conditions = {
        "--select or --early_stopping": (config.select or config.early_stopping, _SELECTION),
        "--optimizer=sgd or lars": (with_momentum, ("momentum", "nesterov")),
        "--schedule=exponential": (config.schedule == "exponential", ("decay_rate",)),
        "--schedule=steps": (config.schedule == "steps", ("decay_epochs", "decay_factor")),
        "--init_from or --init_from_row": (config.init_from or config.init_from_row, ("init_head",)),
    }
    return {name: owner for owner, (is_met, names) in conditions.items() if not is_met for name in names}


def warn_of_unused_options(values: flags.FlagValues, eval_configs: Sequence[evaluation.EvalConfig], used: Collection[str] = ()) -> None:
    """Logs a warning for each given option that has no effect on any of some evaluations.

    Args:
        values: flags that were given.
        eval_configs: the evaluations, of runs perhaps with further flags.
        used: options that have another effect.
    """
    for name, reason in eval_configs[0].unused.items():
        has_effect = name in used or any(name not in other.unused for other in eval_configs)
        if _differs(values[name]) and not has_effect:
            logging.warning("--%s has no effect: %s", name, reason)


def warn_of_unused_flags(values: flags.FlagValues, runs: Sequence[Run], evaluated: bool = True) -> None:
    """Logs a warning for each given flag that has no effect on any of some runs.

    Args:
        values: flags that were given.
        runs: of one table.
        evaluated: whether the trained models are evaluated.
    """
    warn_of_ignored_flags(runs)
    if evaluated:
        chosen_by = {option for run in runs for option in selecting.options_of(run.config)}
        warn_of_unused_options(values, [run.eval_config for run in runs], chosen_by)


def _differs(flag):
    """Whether a flag was given with another value than its default."""
    return flag.present and flag.value != flag.default


def warn_of_training_options(values: flags.FlagValues, purpose: str) -> None:
    """Logs a warning if options of training, of written sets or of hardening were given that a command for trained models ignores.

    Args:
        values: flags that were given.
        purpose: of the command.
    """
    ignored = {*parameters(TrainConfig), *parameters(Method), *_owners()} - {"strategy"}
    ignored |= {*parameters(corrupted_datasets.WriterConfig), *(parameters(HardenConfig) if purpose != "hardening" else ())}
    ignored -= {*parameters(evaluation.EvalConfig)}
    if given := [name for name in sorted(ignored) if name in values and values[name].present]:
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


def warn_of_ignored_flags(runs: Sequence[Run]) -> None:
    """Logs a warning for each given flag that no run uses: it belongs to another method or view, or has no effect on the data."""
    reasons = {name: (reason, run) for run in runs for name, reason in run.ignored.items()}
    for name, (reason, run) in reasons.items():
        if not any(name not in other.ignored and name in other.flags for other in runs):
            names = _RECEIVED.get(name, ("method", "augmentations", "views"))
            received = ", ".join(f"--{flag}={text_of(getattr(run.data_config if flag == 'data' else run.config, flag))}" for flag in names)
            logging.warning("--%s has no effect: %s. Received: %s", name, reason, received)
