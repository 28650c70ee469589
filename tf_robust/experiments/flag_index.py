"""The flags that are derived from signatures, and the names that they choose from, also without importing TensorFlow.

`flag_index.json` is generated: `python -m tf_robust.experiments.flag_index`. The command line reads it, so that `--help`, `--list` and
errors in flags take less than a second.
"""

import dataclasses
import functools
import importlib.metadata
import importlib.resources
import inspect
import json
import sys
import typing

from tf_robust.data.kinds import DATA_KINDS
from tf_robust.utils.hyperparameters import Parameter, parameters

_FILE = "flag_index.json"
_DATA_FILE = "tfds_names.json"  # {"version": of TFDS, "names": [...]}
_KINDS = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "tuple[int]": tuple[int, ...],
    "tuple[float]": tuple[float, ...],
    "tuple[str]": tuple[str, ...],
}


def flag_parameters() -> dict[str, Parameter]:
    """Returns {flag: its type, default and help}: from the signatures if they are imported, else as recorded."""
    if "tf_robust.methods" in sys.modules and "tf_robust.experiments.config" in sys.modules:
        return signature_parameters()
    return {
        name: Parameter(name, _KINDS[kind], tuple(default) if isinstance(default, list) else default, text, tuple(choices))
        for name, (kind, default, text, choices) in _recorded()["flags"].items()
    }


def names() -> dict[str, dict[str, str]]:
    """Returns {"models", "methods", "views", "corruptions", "attacks", "measures": {name: summary}}, as recorded."""
    return _recorded()["names"]


def known_values() -> dict[str, list[str]]:
    """Returns {flag: the names that it takes}, as recorded, of flags whose names are checked by the configurations."""
    return _recorded()["known_values"]


def data_names() -> set[str]:
    """Returns the names of the embedded data sets, and of those of TFDS as recorded."""
    return {*(name for name, kind in DATA_KINDS.items() if kind.form == name), *_recorded(_DATA_FILE)["names"]}


def knows_all_data() -> bool:
    """Returns whether the recorded names are those of the installed TFDS, and no program has added others."""
    installed = importlib.metadata.version("tensorflow-datasets")
    return "tensorflow_datasets" not in sys.modules and installed == _recorded(_DATA_FILE)["version"]


@functools.cache
def _recorded(name: str = _FILE) -> dict:
    return json.loads(importlib.resources.files(__package__).joinpath(name).read_text("utf-8"))


def signature_parameters() -> dict[str, Parameter]:
    """Returns {flag: parameter} of the configurations, and of methods and views with their names as prefixes."""
    from tf_robust import corrupted_datasets, evaluation, methods
    from tf_robust.configs import DataConfig
    from tf_robust.data.augment import VIEWS
    from tf_robust.experiments.config import TrainConfig
    from tf_robust.hardening.config import HardenConfig
    from tf_robust.methods.base import Method
    from tf_robust.saved_models import loading

    shared = parameters(Method)
    configs = (DataConfig, TrainConfig, evaluation.EvalConfig, HardenConfig, loading.ModelInterface, corrupted_datasets.WriterConfig)
    found = {name: parameter for target in (*configs, Method) for name, parameter in parameters(target).items()}
    for prefix, target in (*methods.METHODS.items(), *VIEWS.items()):  # SimCLR is both, with different arguments
        for name, parameter in parameters(target).items():
            if name not in shared:
                found[f"{prefix}_{name}"] = dataclasses.replace(parameter, name=f"{prefix}_{name}")
    return found


def generate() -> dict:
    """Returns the content of `flag_index.json`."""
    from tf_robust import attacks, corruptions, evaluation, methods, metrics, models
    from tf_robust.data.augment import AUGMENTATIONS, VIEWS
    from tf_robust.evaluation.descriptions import MEASURES, describe
    from tf_robust.hardening.target import SHIFT, TARGETS
    from tf_robust.training import distribution, optimizers

    groups = {name: group for group, members in metrics.GROUPS.items() for name in members}
    groups |= {name: "C-bar" for members in metrics.BAR.values() for name in members}
    entries = {
        name: (_kind(parameter), parameter.default, parameter.help, parameter.choices)
        for name, parameter in sorted(signature_parameters().items())
    }
    content = {
        "flags": entries,
        "names": {
            "models": _summaries(models.MODELS),
            "methods": _summaries(methods.METHODS),
            "views": {name + "*" * (name in AUGMENTATIONS): text for name, text in _summaries(VIEWS).items()},
            "corruptions": {name: groups.get(name, "extra") for name in corruptions.CORRUPTIONS},
            "attacks": _summaries(attacks.ATTACKS),
            "measures": {name: f"{describe(name).name}: {describe(name).meaning}" for names in MEASURES.values() for name in names},
        },
        "known_values": {
            "model": list(models.MODELS),
            "method": list(methods.METHODS),
            "augmentations": list(AUGMENTATIONS),
            "views": list(VIEWS),
            "optimizer": list(optimizers.OPTIMIZERS),
            "schedule": list(optimizers.SCHEDULES),
            "strategy": list(distribution.STRATEGIES),
            "evaluations": list(evaluation.EVALUATIONS),
            "attack": list(evaluation.adversarial.ATTACKS),
            "corruptions": list(corruptions.CORRUPTIONS),
            "target": [*TARGETS, f"{SHIFT}DATA"],
        },
    }
    return json.loads(json.dumps(content))


def _kind(parameter: Parameter) -> str:
    if typing.get_origin(parameter.kind) is tuple:
        return f"tuple[{typing.get_args(parameter.kind)[0].__name__}]"
    return parameter.kind.__name__


def _summaries(registry: dict) -> dict[str, str]:
    return {name: (inspect.getdoc(getattr(target, "func", target)) or "").split("\n")[0] for name, target in registry.items()}


def _write(name: str, content: dict) -> None:
    with open(str(importlib.resources.files(__package__).joinpath(name)), "w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    import tensorflow_datasets as tfds

    _write(_FILE, generate())
    _write(_DATA_FILE, {"version": tfds.__version__, "names": tfds.list_builders(with_community_datasets=False)})
