"""Evaluation of any `images -> logits` callable. Images are float32 in [0, 1], NHWC.

`sets` builds the evaluation sets, `scoring` computes a record for each set, `recording` stores them, `values` computes metrics from
the records, and `card` describes what they depend on.
"""

import dataclasses
from collections.abc import Callable, Sequence

from tf_robust.attacks.attack import Predict
from tf_robust.configs.evaluation import ALL_SEVERITIES, DEFAULT_EVALUATIONS, EVALUATIONS, EvalConfig
from tf_robust.data.source import Source
from tf_robust.data.sources import Shift
from tf_robust.evaluation import adversarial, confidence, scoring, smoothing
from tf_robust.evaluation.card import card_of, dependencies, difference, has_corruptions_of, image_sizes
from tf_robust.evaluation.confidence import OpenSets, known_images
from tf_robust.evaluation.metric_value import (
    CORRUPTION_FAMILIES,
    MetricValue,
    Outcome,
    check_metrics,
    check_requirements,
    outcomes,
    parse_metric,
    parse_requirements,
    shortfalls,
    write_junit,
)
from tf_robust.evaluation.recording import IMPORTANT, PER_IMAGE, images_of, own_records, per_image_folder, read_records, record_key, records
from tf_robust.evaluation.scoring import (
    SEED,
    EvaluationSet,
    batch_size_of,
    confidences,
    correctness,
    first_images,
    masked,
    stratified_groups,
    stratified_images,
)
from tf_robust.evaluation.sets import check, clean_name, evaluation_sets, noise_probabilities
from tf_robust.evaluation.values import (
    OTHER_ORDER,
    PerImage,
    confidence_values,
    metrics_of,
    open_set_values,
    read_evaluation,
    read_table,
    slice_values,
)
from tf_robust.models.outputs import Model
from tf_robust.utils.progress import print_line

__all__ = ["EvalConfig", "Evaluation", "MetricValue", "PerImage", "evaluate", "parse_metric", "read_evaluation"]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A model's evaluation.

    Examples:
        >>> network = tfr.load("zoo:digits/lenet_augmix")
        >>> source = tfr.data.open_source("digits", "test", examples=100)
        >>> config = tfr.evaluation.EvalConfig(evaluations=("clean",))
        >>> result = tfr.evaluation.evaluate(lambda images: network(images)["logits"], source, None, config, log=lambda line: None)
        >>> [one.name for one in result.sets], result.records[0]["correct"], [str(one) for one in result.metrics]
        (['clean'], 97, ['clean', 'clean/per_class'])
    """

    sets: list[EvaluationSet]
    records: list[dict]  # one for each set
    metrics: list[MetricValue]  # computed from the records
    fitted: dict | None = None  # the record of the validation images that confidences are fitted on; None: there are none


def evaluate(
    predict: Predict,
    source: Source,
    training_source: Source | None,
    eval_config: EvalConfig = EvalConfig(),
    log: Callable[[str], object] = print_line,
    data_dir: str | None = None,
    *,
    path: str | None = None,
    depends: Callable[[str], object] | None = None,
    shifts: Sequence[Shift] = (),
    surrogate: Predict | None = None,
    encoder: Model | None = None,
    validation: Source | None = None,
    open_sets: OpenSets = OpenSets(),
) -> Evaluation:
    """Evaluates a model.

    Args:
        predict: float32 [N, H, W, C] in [0, 1] -> logits [N, C] (any scores: the largest wins).
        source: images to evaluate on.
        training_source: images from which NUN computes its standard deviation per location; may be None without noise.
        eval_config: what is measured, and how.
        log: called with a line after each set.
        data_dir: folder of a corrupted TFDS data set; None: TFDS' default.
        path: file of the records; those that it already has are not computed again. None: records are not written.
        depends: name of a set -> what its record depends on, for JSON.
        shifts: shifted data sets to evaluate on too.
        surrogate: differentiable model from which attacks are transferred; None: there are none.
        encoder: model with an output "embedding", for the evaluation sensitivity.
        validation: images that confidences are fitted on; None: `eval_config` fits none.
        open_sets: data sets of other classes.

    Raises:
        ValueError: as in `records`.

    Examples:
        >>> network = tfr.load("zoo:digits/lenet_cross_entropy")
        >>> source = tfr.data.open_source("digits", "test", examples=100)
        >>> config = tfr.evaluation.EvalConfig(evaluations=("clean", "corruptions"), corruptions=("contrast",), severities=(5,))
        >>> result = tfr.evaluation.evaluate(lambda images: network(images)["logits"], source, None, config)
          clean                            0.9600  100 images  1/2
          corruptions/contrast/5           0.9300  100 images  2/2
        >>> [(str(one), round(one.value, 2)) for one in result.metrics]
        [('clean', 0.96), ('clean/per_class', 0.96), ('corruptions/contrast', 0.93), ('corruptions/contrast/5', 0.93)]
    """
    sets = evaluation_sets(source, training_source, eval_config, data_dir, shifts, surrogate, encoder)
    fitted: list[dict] = []
    if validation is not None:
        fitted = records(predict, [confidence.validation_set(validation, eval_config)], path=path, depends=depends, log=log)
        positions = {f"shift/{shift.name}": shift.source.positions for shift in shifts}
        sets = [confidence.with_confidence(one, fitted[0], eval_config, positions.get(one.name, source.positions)) for one in sets]
    if open_sets.sources:
        sets += open_sets.evaluation_sets(source)
    set_records = records(predict, sets, path=path, depends=depends, log=log, per_image=eval_config.per_image)
    metrics = metrics_of(set_records, eval_config, imagenet=is_imagenet(source, eval_config))
    if "slices" in eval_config.evaluations:
        clean = next(record for one, record in zip(sets, set_records) if parse_metric(one.name).is_clean)
        metrics += slice_values(source, correctness(clean), eval_config.groups)
    metrics += [*confidence_values([*fitted, *set_records]), *open_set_values(set_records)]
    return Evaluation(sets, set_records, metrics, fitted[0] if fitted else None)


def is_imagenet(source: Source, eval_config: EvalConfig) -> bool:
    """Returns whether AlexNet's errors on ImageNet-C and flips on ImageNet-P may normalize metrics.

    This holds for all 1,000 classes, declared as ImageNet's, with ImageNet-C's constants.
    """
    classes: Sequence[int] | Sequence[str] = source.label_columns or source.class_mask or source.class_names
    return source.label_set == "imagenet" and len(classes) == 1000 and eval_config.constants(source.image_shape) == "imagenet"


def why_no_mce(source: Source, eval_config: EvalConfig, metrics: Sequence[MetricValue]) -> str:
    """Returns the reason why the corruptions of a classifier of ImageNet's classes were measured without the mCE; else ""."""
    expected = source.label_set == "imagenet" and "corruptions" in eval_config.evaluations
    if not expected or any(str(metric) == "corruptions/mce" for metric in metrics):
        return ""
    if eval_config.severities != ALL_SEVERITIES:
        needs = f"all five severities, not {', '.join(map(str, eval_config.severities))} (severities=1,2,3,4,5)"
    elif eval_config.constants(source.image_shape) != "imagenet":
        needs = "ImageNet-C's constants (corruption_constants=imagenet)"
    else:
        needs = "images of all 1,000 classes" if not is_imagenet(source, eval_config) else "all 15 corruptions of the benchmark"
    return f"no mCE (corruptions/mce), which needs {needs}"
