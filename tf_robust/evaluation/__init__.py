"""Any `images -> logits` callable -> rows of measures. Images are float32 in [0, 1], NHWC.

`sets` makes what is measured on, `scoring` the record of each set, `rows` the measures out of the records, `card` what
they depend on.
"""

import dataclasses

from tf_robust.evaluation import adversarial, boundary, utility
from tf_robust.evaluation.card import card_of, dependencies, difference, image_sizes
from tf_robust.evaluation.config import EVALUATIONS, USUAL, EvalConfig
from tf_robust.evaluation.measure import Measure, parse_measure
from tf_robust.evaluation.measures import measures_of, read_evaluation
from tf_robust.evaluation.per_image import PerImage
from tf_robust.evaluation.requirements import requirements, shortfalls
from tf_robust.evaluation.scoring import confidences, correctness, masked, read_records, record_key, records
from tf_robust.evaluation.sets import NOISE_SEED, EvaluationSet, check, evaluation_sets, first_images, noise_probabilities
from tf_robust.utils.deprecation import moved_names

__getattr__ = moved_names(__name__, {"Measuring": "evaluation.EvalConfig", "first_pictures": "evaluation.first_images"})


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What a model was measured on, the record of each set, and the measures that are computed from the records."""

    sets: list[EvaluationSet]
    records: list[dict]
    measures: list[Measure]


def evaluate(predict, source, training_source, eval_config=EvalConfig(), log=print, data_dir=None):
    """Measures a model: a list of `Measure`.

    Args:
        predict: float32 [N, H, W, C] in [0, 1] -> logits [N, C] (any scores: the largest wins).
        source: a `data` source to measure on.
        training_source: gives NUN its standard deviation per location; None where no noise is asked for.
        eval_config: what is measured, and how.
        log: called with a line after each set.
        data_dir: folder of a corrupted TFDS data set; None for TFDS' default.

    Raises:
        ValueError: as `records`.
    """
    return evaluate_records(predict, source, training_source, eval_config, log=log, data_dir=data_dir).measures


def evaluate_records(predict, source, training_source, eval_config, *, log=print, data_dir=None, path=None, depends=None):
    """Measures a model, as `evaluate`, and returns the `Evaluation` with the records.

    Args:
        path: file of the records; those that are there already are not computed again. None: records are not written.
        depends: name of a set -> what its record depends on, for JSON.
    """
    sets = evaluation_sets(source, training_source, eval_config, data_dir)
    found = records(masked(predict, source.class_mask), sets, path=path, depends=depends, log=log)
    return Evaluation(sets, found, measures_of(found, eval_config, imagenet=is_imagenet(source, eval_config)))


def is_imagenet(source, eval_config):
    """Whether AlexNet's errors on ImageNet-C and flips on ImageNet-P may normalize: all 1,000 classes, declared as ImageNet's, and
    ImageNet-C's constants."""
    counted = len(source.class_mask or source.class_names)
    return source.label_set == "imagenet" and counted == 1000 and eval_config.constants(source.image_shape) == "imagenet"
