"""Configuration of a run: data, training, evaluation, and the hyperparameters of its method and augmentations."""

import dataclasses
from collections.abc import Callable, Mapping

from tf_robust import methods, models
from tf_robust.configs import UNRECORDED_FLAGS, DataConfig, TrainConfig
from tf_robust.data.augment import AUGMENTATIONS, VIEWS
from tf_robust.evaluation import EvalConfig
from tf_robust.integrations import tracking
from tf_robust.methods.base import Method
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
        method: keyword arguments of the method.
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
        """The parameters that the run has, by the names of their flags."""
        return run_parameters(self.train.method, (*self.train.augmentations, *self.train.views))

    @property
    def flags(self) -> dict[str, str]:
        """{name: text} of everything that the run depends on, as in `flags.txt`: no paths."""
        values = {name: value for config in (self.data, self.train, self.evaluation) for name, value in vars(config).items()}
        given = {**values, **_prefixed(self.train.method, self.method)}
        for name, options in self.augmentations.items():
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
    found = {name: parameter for config in (*CONFIGS, Method) for name, parameter in parameters(config).items()}
    return found | own_parameters(method, augmentations)


def own_parameters(method: str, augmentations: tuple[str, ...] = ()) -> dict[str, Parameter]:
    """Returns the hyperparameters of a method, augmentations and views alone; unknown names have none. Arguments as in `run_parameters`."""
    found = prefixed_parameters(method, methods.METHODS[method]) if method in methods.METHODS else {}
    for name in augmentations:
        found |= prefixed_parameters(name, VIEWS[name]) if name in VIEWS else {}
    return found


def prefixed_parameters(name: str, target: Callable) -> dict[str, Parameter]:
    """Returns the parameters of a method or view, but for those that all methods share, by the names of their flags: `fcl_k`."""
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
    shared = {name: one.default for name, one in parameters(Method).items()} | arguments_of(Method, values)
    own = arguments_of(methods.METHODS[train.method], values, f"{train.method}_")
    augmentations = {name: arguments_of(VIEWS[name], values, f"{name}_") for name in (*train.augmentations, *train.views)}
    return dataclasses.replace(config, method={**shared, **own}, augmentations=augmentations)


def _prefixed(method, options):
    """Hyperparameters of a method by the names of their flags."""
    shared = parameters(Method)
    return {name if name in shared else f"{method}_{name}": value for name, value in options.items()}
