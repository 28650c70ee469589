"""The metric on validation images by which a run chooses its best epoch (`--select`)."""

import dataclasses
import functools
import typing
from collections.abc import Callable

import keras
import tensorflow as tf

from tf_robust import evaluation, metrics
from tf_robust.configs.evaluation import OPTIONS
from tf_robust.configs.train import TrainConfig
from tf_robust.data.source import Source
from tf_robust.data.subsets import stratified_subset
from tf_robust.evaluation import EvalConfig, EvaluationSet, MetricValue
from tf_robust.evaluation.metric_table import METRICS, find_metric
from tf_robust.evaluation.metric_value import CLEAN
from tf_robust.training.selection import Selection

# with metrics by which an epoch can be chosen
_EVALUATIONS = ("clean", "noise", "corruptions", "perturbations", "calibration", "adversarial", "attack_curves")
_REPLACED: dict[str, typing.Any] = {
    "subset": 0,
    "corrupted_dir": "",
    "groups": "",
    "surrogate": "",
}  # options that the choice of an epoch does not use
_UNUSED = (*_REPLACED, "per_image", "calibrate", "abstain_accuracy", "conformal")


def selection_of(
    config: TrainConfig,
    eval_config: EvalConfig,
    validation: Source | None,
    training_source: Source,
    data_dir: str | None = None,
) -> Selection | None:
    """Returns the selection of a run's best epoch; None unless the configuration asks for one.

    Args:
        config: names the metric.
        eval_config: how it is measured: severities, attacks, ...
        validation: the validation images; None: there are none.
        training_source: from which NUN computes its standard deviations.
        data_dir: folder of the TFDS data sets.

    Raises:
        ValueError: an unknown metric, or no validation images.
    """
    if not config.select and not config.early_stopping:
        return None
    if validation is None:
        raise ValueError(
            f"Expected validation images with select or early_stopping. Received: {training_source.name}, which has none. "
            "Try: validation_fraction=0.1"
        )
    name = check_metric(config.select or "clean")
    if 0 < config.select_images < len(validation):
        validation = stratified_subset(validation, config.select_images)
    wanted = dataclasses.replace(
        evaluation.parse_metric(name), family=evaluation.clean_name(validation) if name in CLEAN else name.split("/")[0]
    )
    return Selection(
        str(wanted),
        _score_of(wanted, eval_config, validation, training_source, data_dir),
        lower_is_better=wanted.lower_is_better,
        every=config.select_every,
        patience=config.early_stopping,
    )


def options_of(config: TrainConfig) -> tuple[str, ...]:
    """Returns the options of the evaluation on which the choice of the best epoch depends; none without a choice."""
    if not config.select and not config.early_stopping:
        return ()
    chosen_by = _evaluation(check_metric(config.select or "clean"))
    return tuple(name for name in OPTIONS.get(chosen_by, ()) if name not in _UNUSED)


def check_metric(name: str) -> str:
    """Returns the name of a metric that can choose an epoch.

    Raises:
        ValueError: it cannot, or is unknown.
    """
    if _evaluation(name) not in _EVALUATIONS or not find_metric(name).metric.text:
        families = dict.fromkeys(one.family for one in METRICS.values() if {*one.evaluations} & {*_EVALUATIONS})
        raise ValueError(
            f"Expected select to name a metric, of: {', '.join(families)}; such as un or corruptions/mean15. Received: {name!r}. "
            "Try: tf-robust list metrics"
        )
    return name


def _evaluation(name: str) -> str:
    """Returns the evaluation of a metric; empty if it has none."""
    return next(iter(find_metric(name).metric.evaluations), "")


def _score_of(
    wanted: MetricValue, eval_config: EvalConfig, validation: Source, training_source: Source, data_dir: str | None
) -> Callable[[keras.Model], float]:
    """Returns the function that measures a network."""
    radii = EvalConfig.attack_radii if wanted.family == "distance" else eval_config.attack_radii  # distances depend on none
    options = dataclasses.replace(
        eval_config,
        evaluations=(_evaluation(str(wanted)),),
        attack_radii=radii,
        **_REPLACED,
    )
    sets = [one for one in evaluation.evaluation_sets(validation, training_source, options, data_dir) if _is_needed(one, wanted)]
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
        value = values.get(str(wanted))
        if value is None:
            raise ValueError(f"Expected select to be one of: {', '.join(values)}. Received: {wanted}")
        return value

    return score


def _is_needed(one: EvaluationSet, wanted: MetricValue) -> bool:
    """Returns whether a metric depends on an evaluation set."""
    found = evaluation.parse_metric(one.name)
    if wanted.family in ("un", "nun", "robust", "fgsm", "distance"):
        return one.name == str(wanted)
    if wanted.family == "corruptions":
        return found.name in metrics.MEANS.get(wanted.name, (wanted.name,)) and wanted.severity in (None, found.severity)
    return True
