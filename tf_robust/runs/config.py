"""Configuration of a run: data, training, evaluation, and the hyperparameters of its method and augmentations."""

import dataclasses
from collections.abc import Mapping

from tf_robust import methods, models
from tf_robust.configs import UNRECORDED_FLAGS, DataConfig, EvalConfig, TrainConfig
from tf_robust.data.augment import AUGMENTATIONS, VIEWS
from tf_robust.integrations import tracking
from tf_robust.methods.base import Method
from tf_robust.runs import selection
from tf_robust.utils.errors import unknown
from tf_robust.utils.hyperparameters import Parameter, arguments_of, parameters, text_of

CONFIGS = (DataConfig, TrainConfig, EvalConfig)


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that a run depends on besides its seed.

    Attributes:
        data: names the data.
        train: configuration of the training.
        evaluation: configuration of the evaluation.
        method: keyword arguments that the method alone has.
        augmentations: {name: keyword arguments} of augmentations and views.

    Raises:
        ValueError: an unknown method, model, augmentation, view or tracker.
    """

    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    evaluation: EvalConfig = EvalConfig()
    method: Mapping[str, object] = dataclasses.field(default_factory=dict)
    augmentations: Mapping[str, Mapping[str, object]] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        known = {"method": methods.METHODS, "augmentations": AUGMENTATIONS, "views": VIEWS, "tracker": tracking.TRACKERS}
        for field, names in known.items():
            chosen = getattr(self.train, field)
            for name in (chosen,) if isinstance(chosen, str) else chosen:
                if name not in names:
                    raise unknown(field.rstrip("s"), name, names)
        if self.train.model not in models.MODELS and not models.is_named(self.train.model):
            raise unknown("model", self.train.model, models.MODELS)

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The parameters that have an effect on the run, by the names of their flags."""
        unused = self.evaluation.unused.keys() - {*selection.options_of(self.train)}
        known = run_parameters(self.train.method, (*self.train.augmentations, *self.train.views))
        return {name: one for name, one in known.items() if name not in unused}

    @property
    def flags(self) -> dict[str, str]:
        """{name: text} of everything that the run depends on, as in `flags.txt`: no paths."""
        given = {name: value for config in (self.data, self.train, self.evaluation) for name, value in vars(config).items()}
        for name, options in {**self.augmentations, self.train.method: self.method}.items():
            given |= {f"{name}_{key}": value for key, value in options.items()}
        known = self.parameters
        return {name: text_of(given.get(name, one.default)) for name, one in sorted(known.items()) if name not in UNRECORDED_FLAGS}


def run_parameters(method: str, augmentations: tuple[str, ...] = ()) -> dict[str, Parameter]:
    """Returns the parameters of a run by the names of their flags: fields of configurations, and hyperparameters of its method and its
    augmentations and views, prefixed with their names.

    Args:
        method: one of `methods.METHODS`.
        augmentations: names of augmentations and views.
    """
    return {name: one for config in CONFIGS for name, one in parameters(config).items()} | own_parameters(method, augmentations)


def own_parameters(method: str, augmentations: tuple[str, ...] = ()) -> dict[str, Parameter]:
    """Returns the hyperparameters of a method, augmentations and views alone; unknown names have none. Arguments as in `run_parameters`."""
    found = _prefixed(method, methods.METHODS[method]) if method in methods.METHODS else {}
    for name in augmentations:
        found |= _prefixed(name, VIEWS[name]) if name in VIEWS else {}
    return found


def owners_of(flag: str) -> list[str]:
    """Returns the methods and views that have a flag, such as method=fcl."""
    return [
        f"{kind}={name}"
        for kind, known in (("method", methods.METHODS), ("views", VIEWS))
        for name in known
        if flag in _prefixed(name, known[name])
    ]


def _prefixed(name, target):
    """The parameters of a method or view, but for those that all methods share, by the names of their flags: `fcl_k`."""
    own = {f"{name}_{key}": one for key, one in parameters(target).items() if key not in parameters(Method)}
    return {flag: dataclasses.replace(one, name=flag) for flag, one in own.items()}


def run_config(values: Mapping[str, object]) -> RunConfig:
    """Returns the configuration of a run.

    Args:
        values: {name of a parameter as in `run_parameters`: its value, or text}; names that are none of the run's are ignored.

    Raises:
        ValueError: an unknown name of a method, ..., or an invalid value.
    """
    train = TrainConfig(**arguments_of(TrainConfig, values))
    config = RunConfig(DataConfig(**arguments_of(DataConfig, values)), train, EvalConfig(**arguments_of(EvalConfig, values)))
    method = arguments_of(methods.METHODS[train.method], values, f"{train.method}_")
    augmentations = {name: arguments_of(VIEWS[name], values, f"{name}_") for name in (*train.augmentations, *train.views)}
    return dataclasses.replace(config, method=method, augmentations=augmentations)
