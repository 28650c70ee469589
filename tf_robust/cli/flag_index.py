"""The parameters of configurations, methods and views, and the names that flags choose from, also without importing TensorFlow.

`flag_index.json` is generated: `python -m tf_robust.cli.flag_index`. The command line reads it, so that `--help` and errors in flags take
less than a second.
"""

import functools
import importlib
import importlib.metadata
import importlib.resources
import inspect
import json
import sys
import typing
from collections.abc import Iterable

from tf_robust.utils.hyperparameters import Parameter, parameters

_FILE = "flag_index.json"
_KINDS = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "tuple[int]": tuple[int, ...],
    "tuple[float]": tuple[float, ...],
    "tuple[str]": tuple[str, ...],
}


_plugins: list[str] = []  # that are loaded


def load_plugins(modules: Iterable[str]) -> None:
    """Imports modules that add methods, corruptions, attacks, formats, ... to the dictionaries of this package.

    Args:
        modules: their names, besides those of the entry points `tf_robust.plugins` of installed packages.

    Raises:
        ValueError: one cannot be imported.
    """
    installed = [entry.value for entry in importlib.metadata.entry_points(group="tf_robust.plugins")]
    for name in dict.fromkeys([*installed, *modules]):
        if "" not in sys.path:
            sys.path.insert(0, "")  # the folder of the command
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ValueError(
                f"Expected --plugin=MODULE that can be imported. Received: {name} ({error}). Try: its folder in PYTHONPATH"
            ) from error
        _plugins.append(name)


def is_recorded() -> bool:
    """Returns whether the recorded names and parameters are all there are: no program or plugin has added others."""
    return "tf_robust.methods" not in sys.modules and not _plugins


def config_parameters(name: str) -> dict[str, Parameter]:
    """Returns the parameters of a configuration: data, train, evaluation, harden, interface, writer; or those of all methods."""
    return _parameters(_recorded()["configs"][name])


def training_parameters(method: str, augmentations: Iterable[str]) -> dict[str, Parameter]:
    """Returns the parameters of a method, and of augmentations and views, by the names of their flags.

    Args:
        method: its name; an unknown one has none.
        augmentations: names of augmentations and views.
    """
    recorded = _recorded()
    if not is_recorded():
        from tf_robust.runs import config

        return config.own_parameters(method, tuple(augmentations))
    chosen = [recorded["methods"].get(method, {}), *(recorded["views"].get(name, {}) for name in augmentations)]
    return {name: parameter for one in chosen for name, parameter in _parameters(one).items()}


def owner_of(flag: str) -> str:
    """Returns the method, augmentation or view that has a flag; empty if none has."""
    recorded = _recorded()
    owners = [f"--method={name}" for name, own in recorded["methods"].items() if flag in own]
    owners += [f"--views={name}" for name, own in recorded["views"].items() if flag in own]
    return " or ".join(owners)


def names() -> dict[str, dict[str, str]]:
    """Returns {"models", "methods", "views", "corruptions", "attacks", "measures": {name: summary}}."""
    return _recorded()["names"] if is_recorded() else generate()["names"]


def known_values() -> dict[str, list[str]]:
    """Returns {flag: the names that it takes}, as recorded, of flags whose names are checked by the configurations."""
    return _recorded()["known_values"]


@functools.cache
def _recorded() -> dict:
    return json.loads(importlib.resources.files(__package__).joinpath(_FILE).read_text("utf-8"))


def _parameters(entries):
    return {
        name: Parameter(name, _KINDS[kind], tuple(default) if isinstance(default, list) else default, text, tuple(choices))
        for name, (kind, default, text, choices) in entries.items()
    }


def generate() -> dict:
    """Returns the content of `flag_index.json`."""
    from tf_robust import attacks, corrupted_datasets, corruptions, evaluation, methods, metrics, models
    from tf_robust.configs import DataConfig, TrainConfig
    from tf_robust.data.augment import AUGMENTATIONS, VIEWS
    from tf_robust.evaluation.measure import describe
    from tf_robust.evaluation.metric_table import examples
    from tf_robust.hardening.config import SHIFT, TARGETS, HardenConfig
    from tf_robust.methods.base import Method
    from tf_robust.runs.config import prefixed_parameters
    from tf_robust.saved_models import loading

    configs = {
        "data": DataConfig,
        "train": TrainConfig,
        "evaluation": evaluation.EvalConfig,
        "harden": HardenConfig,
        "interface": loading.ModelInterface,
        "writer": corrupted_datasets.WriterConfig,
        "method": Method,
    }
    groups = {name: group for group, members in metrics.GROUPS.items() for name in members}
    groups |= {name: "C-bar" for members in metrics.BAR.values() for name in members}
    content = {
        "configs": {name: _entries(parameters(target)) for name, target in configs.items()},
        "methods": {name: _entries(prefixed_parameters(name, target)) for name, target in methods.METHODS.items()},
        "views": {name: _entries(prefixed_parameters(name, target)) for name, target in VIEWS.items()},
        "names": {
            "models": _summaries(models.MODELS),
            "methods": _summaries(methods.METHODS),
            "views": {name + "*" * (name in AUGMENTATIONS): text for name, text in _summaries(VIEWS).items()},
            "corruptions": {name: groups.get(name, "extra") for name in corruptions.CORRUPTIONS},
            "attacks": _summaries(attacks.ATTACKS),
            "measures": {name: f"{describe(name).name}: {describe(name).meaning}" for names in examples().values() for name in names},
        },
        "known_values": {
            "model": list(models.MODELS),
            "method": list(methods.METHODS),
            "augmentations": list(AUGMENTATIONS),
            "views": list(VIEWS),
            "evaluations": list(evaluation.EVALUATIONS),
            "attack": list(evaluation.adversarial.ATTACKS),
            "corruptions": list(corruptions.CORRUPTIONS),
            "target": [*TARGETS, f"{SHIFT}DATA"],
        },
    }
    return json.loads(json.dumps(content))


def _entries(found):
    return {name: (_kind(one), one.default, one.help, one.choices) for name, one in sorted(found.items())}


def _kind(parameter: Parameter) -> str:
    if typing.get_origin(parameter.kind) is tuple:
        return f"tuple[{typing.get_args(parameter.kind)[0].__name__}]"
    return typing.cast(type, parameter.kind).__name__


def _summaries(registry: dict) -> dict[str, str]:
    return {name: (inspect.getdoc(getattr(target, "func", target)) or "").split("\n")[0] for name, target in registry.items()}


def _write(package: str, name: str, content: dict) -> None:
    with open(str(importlib.resources.files(package).joinpath(name)), "w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    import tensorflow_datasets as tfds

    _write("tf_robust.cli", _FILE, generate())
    _write("tf_robust.data", "tfds_names.json", {"version": tfds.__version__, "names": tfds.list_builders(with_community_datasets=False)})
