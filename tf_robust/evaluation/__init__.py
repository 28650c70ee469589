"""Any `images -> logits` callable -> rows of measures. Images are float32 in [0, 1], NHWC.

`sets` makes what is measured on, `scoring` the record of each set, `rows` the measures out of the records, `card` what
they depend on.
"""

from tf_robust.evaluation import adversarial, boundary, utility
from tf_robust.evaluation.card import LABEL_FRACTION, card_of, dependencies, difference, family, image_sizes
from tf_robust.evaluation.config import EVALUATIONS, USUAL, Measuring
from tf_robust.evaluation.per_image import PerImage
from tf_robust.evaluation.requirements import requirements, shortfalls
from tf_robust.evaluation.rows import Row, read_evaluation, rows_of
from tf_robust.evaluation.scoring import confidences, correctness, masked, read_records, record_key, records
from tf_robust.evaluation.sets import NOISE_SEED, EvaluationSet, check, evaluation_sets, first_pictures, noise_probabilities


def evaluate(predict, source, training_source, measuring=Measuring(), say=print, data_dir=None):
    """Measures a model: a list of `Row`.

    Args:
        predict: float32 [N, H, W, C] in [0, 1] -> logits [N, C] (any scores: the largest wins).
        source: a `data` source to measure on. training_source: gives NUN its deviation per location.
        measuring: a `Measuring`: what and how. say: called with a line after each set.
        data_dir: folder of a corrupted TFDS data set; None for TFDS' default.

    Raises:
        ValueError: as `records`.
    """
    sets = evaluation_sets(source, training_source, measuring, data_dir)
    found = records(masked(predict, source.class_mask), sets, say=say)
    return rows_of(found, measuring, imagenet=is_imagenet(source, measuring))


def is_imagenet(source, measuring):
    """Whether AlexNet's errors on ImageNet-C and flips on ImageNet-P may normalize: all 1,000 classes, declared as ImageNet's, and
    ImageNet-C's constants."""
    counted = len(source.class_mask or source.class_names)
    return source.label_set == "imagenet" and counted == 1000 and measuring.constants(source.image_shape) == "imagenet"
