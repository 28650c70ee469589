"""Configuration of a run: data, training, evaluation, the hyperparameters of its method and views, and the choice of its best epoch."""

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping, Sequence

import keras
import tensorflow as tf

from tf_robust import evaluation, methods, metrics, models
from tf_robust.configs import UNRECORDED_FLAGS, DataConfig, EvalConfig, TrainConfig
from tf_robust.configs.evaluation import OPTIONS
from tf_robust.data.augment import AUGMENTATIONS, VIEWS
from tf_robust.data.source import Source
from tf_robust.data.subsets import stratified_subset
from tf_robust.evaluation import MetricValue
from tf_robust.evaluation.metric_table import METRICS, find_metric
from tf_robust.evaluation.metric_value import CLEAN
from tf_robust.integrations import tracking
from tf_robust.methods.base import Method
from tf_robust.training.selection import Selection
from tf_robust.utils.errors import unknown
from tf_robust.utils.hyperparameters import Parameter, arguments_of, instances, parameters, text_of

CONFIGS = (DataConfig, TrainConfig, EvalConfig)
# with metrics by which an epoch can be chosen
_EVALUATIONS = ("clean", "noise", "corruptions", "perturbations", "calibration", "adversarial", "attack_curves")
# options that the choice of an epoch does not use
_REPLACED: dict[str, typing.Any] = {"subset": 0, "corrupted_dir": "", "groups": "", "surrogate": ""}
_UNUSED = (*_REPLACED, "per_image", "calibrate", "abstain_accuracy", "conformal")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that a run depends on besides its seed.

    Raises ValueError for an unknown method, model, augmentation, view or tracker.
    """

    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    evaluation: EvalConfig = EvalConfig()
    method: Mapping[str, object] = dataclasses.field(default_factory=dict)  # keyword arguments that the method alone has
    augmentations: Mapping[str, Mapping[str, object]] = dataclasses.field(default_factory=dict)  # {augmentation or view: arguments}

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
        unused = self.evaluation.unused.keys() - {*selection_options(self.train)}
        known = run_parameters(self.train.method, self.train.augmentations, self.views)
        return {name: one for name, one in known.items() if name not in unused}

    @property
    def views(self) -> tuple[str, ...]:
        """The views that are given, or those of the method."""
        return self.train.views or methods.METHODS[self.train.method].views_of(**self.method)

    @property
    def flags(self) -> dict[str, str]:
        """{name: text} of everything that the run depends on, as in `flags.txt`: no paths."""
        given = {name: value for config in (self.data, self.train, self.evaluation) for name, value in vars(config).items()}
        given["views"] = self.views
        for name, options in {**self.augmentations, self.train.method: self.method}.items():
            given |= {f"{name}_{key}": value for key, value in options.items()}
        known = self.parameters
        return {name: text_of(given.get(name, one.default)) for name, one in sorted(known.items()) if name not in UNRECORDED_FLAGS}


def run_parameters(method: str, augmentations: Sequence[str] = (), views: Sequence[str] = ()) -> dict[str, Parameter]:
    """Returns the parameters of a run by the names of their flags: fields of configurations, and those of `own_parameters`."""
    return {name: one for config in CONFIGS for name, one in parameters(config).items()} | own_parameters(method, augmentations, views)


def own_parameters(method: str, augmentations: Sequence[str] = (), views: Sequence[str] = ()) -> dict[str, Parameter]:
    """Returns the hyperparameters of a method, augmentations and views (none: the method's own), prefixed with their names."""
    found = {}
    if method in methods.METHODS:  # unknown names have none
        found, views = _prefixed(method, methods.METHODS[method]), views or methods.METHODS[method].default_views
    for name in (*augmentations, *views):
        found |= _prefixed(name, VIEWS[name]) if name in VIEWS else {}
    return found


def owners_of(flag: str) -> list[str]:
    """Returns the methods and views that have a flag, such as method=fcl."""
    kinds = {"method": methods.METHODS, "views": VIEWS}
    return [f"{kind}={name}" for kind, known in kinds.items() for name in known if flag in _prefixed(name, known[name])]


def _prefixed(name, target):
    """The parameters of a method or view, but for those that all methods share, by the names of their flags: `fcl_k`."""
    own = {f"{name}_{key}": one for key, one in parameters(target).items() if key not in parameters(Method)}
    return {flag: dataclasses.replace(one, name=flag) for flag, one in own.items()}


def run_config(values: Mapping[str, object]) -> RunConfig:
    """Returns the configuration of a run with {name of a parameter: its value, or text}; names that are none of the run's are ignored.

    Raises ValueError for an unknown name of a method, ..., or an invalid value.
    """
    data, train, eval_config = instances(values, *CONFIGS)
    config = RunConfig(data, train, eval_config)  # checks the names
    config = dataclasses.replace(config, method=arguments_of(methods.METHODS[train.method], values, f"{train.method}_"))
    augmentations = {name: arguments_of(VIEWS[name], values, f"{name}_") for name in (*train.augmentations, *config.views)}
    return dataclasses.replace(config, augmentations=augmentations)


def selection_options(config: TrainConfig) -> tuple[str, ...]:
    """Returns the options of the evaluation on which the choice of the best epoch depends; none without a choice."""
    if not config.select and not config.early_stopping:
        return ()
    return tuple(name for name in OPTIONS.get(_selecting_evaluation(config.select or "clean"), ()) if name not in _UNUSED)


def selection_of(
    config: TrainConfig, eval_config: EvalConfig, validation: Source | None, training_source: Source, data_dir: str | None = None
) -> Selection | None:
    """Returns the selection of a run's best epoch (`--select`); None unless the configuration asks for one.

    `eval_config` says how the metric is computed; NUN takes its standard deviations from `training_source`. Raises ValueError for an
    unknown metric, or without validation images.
    """
    if not config.select and not config.early_stopping:
        return None
    if validation is None:
        raise ValueError(
            f"Expected validation images with select or early_stopping. Received: {training_source.name}, which has none. "
            "Try: validation_fraction=0.1"
        )
    name = config.select or "clean"
    chosen_by = _selecting_evaluation(name)
    if 0 < config.select_images < len(validation):
        validation = stratified_subset(validation, config.select_images)
    family = evaluation.clean_name(validation) if name in CLEAN else name.split("/")[0]
    wanted = dataclasses.replace(evaluation.parse_metric(name), family=family)
    radii = EvalConfig.attack_radii if family == "distance" else eval_config.attack_radii  # distances depend on none
    options = dataclasses.replace(eval_config, evaluations=(chosen_by,), attack_radii=radii, **_REPLACED)
    return Selection(
        str(wanted),
        _score_of(wanted, options, validation, training_source, data_dir),
        lower_is_better=wanted.lower_is_better,
        every=config.select_every,
        patience=config.early_stopping,
    )


def _selecting_evaluation(name):
    """The evaluation of a metric that can choose an epoch; raises ValueError for others."""
    chosen_by = next(iter(find_metric(name).metric.evaluations), "")
    if chosen_by not in _EVALUATIONS or not find_metric(name).metric.text:
        families = dict.fromkeys(one.family for one in METRICS.values() if {*one.evaluations} & {*_EVALUATIONS})
        raise ValueError(
            f"Expected select to name a metric, of: {', '.join(families)}; such as un or corruptions/mean15. Received: {name!r}. "
            "Try: tf-robust list metrics"
        )
    return chosen_by


def _score_of(
    wanted: MetricValue, options: EvalConfig, validation: Source, training_source: Source, data_dir: str | None
) -> Callable[[keras.Model], float]:
    """Returns the function from a network to the value of a metric."""
    needed = metrics.MEANS.get(wanted.name, (wanted.name,))

    def is_needed(one):
        if wanted.family in ("un", "nun", "robust", "fgsm", "distance"):
            return one.name == str(wanted)
        found = evaluation.parse_metric(one.name)
        return wanted.family != "corruptions" or (found.name in needed and wanted.severity in (None, found.severity))

    sets = [*filter(is_needed, evaluation.evaluation_sets(validation, training_source, options, data_dir))]
    if not sets:
        raise ValueError(
            f"Expected select to name a metric of the evaluation {options.evaluations[0]} with these flags. Received: {wanted}. "
            "Try: severities or attack_radii"
        )

    @functools.cache
    def predictor(network):
        predict = tf.function(lambda images: network(images, training=False)["logits"], reduce_retracing=True)
        return evaluation.masked(predict, validation.class_mask)

    def score(network: keras.Model) -> float:
        records = evaluation.records(predictor(network), sets, log=lambda _: None)
        values = {str(one): one.value for one in evaluation.metrics_of(records, options)}
        if (value := values.get(str(wanted))) is None:
            raise ValueError(f"Expected select to be one of: {', '.join(values)}. Received: {wanted}")
        return value

    return score
