"""Contextual utility of the corners of FCL's corner digits (section 4.1 and Figure 4 of the FCL paper).

Whether a corner digit matters depends on the digit in the center: it decides between classes 0-4 and 10-14, and is irrelevant for
classes 5-9. A model that has learned this has utility in the corners of the former only.
"""

import numpy as np

from tf_robust import attribution
from tf_robust.attacks.attack import Predict
from tf_robust.data.corner_digits import CORNER_SIZE
from tf_robust.data.source import Source
from tf_robust.evaluation.evaluation_set import EvaluationSet

RARE = range(10, 15)  # the rare classes: a digit 0-4 in the center and one in a corner
DIGITS = 10
INFORMATIVE = slice(0, 5)  # digits in the center for which a corner digit decides the class


def check(source: Source) -> None:
    """Checks that a source holds corner digits.

    Raises:
        ValueError: it does not.
    """
    if source.num_classes != 15 or not source.name.startswith("synthetic_"):
        raise ValueError(
            f"Expected corner digits (data=synthetic_digits or synthetic_mnist) for the evaluation 'utility'. "
            f"Received: {source.name} with {source.num_classes} classes"
        )


def corners(height: int, width: int) -> np.ndarray:
    """Returns the locations of corner digits: bool [height, width]."""

    def ends(size):
        return np.minimum(np.arange(size), np.arange(size)[::-1]) < CORNER_SIZE

    return ends(height)[:, None] & ends(width)


def score(predict: Predict, evaluation_set: EvaluationSet) -> dict:
    """Returns the record of the contextual utility: its mean over the corners and over the rest, for each digit in the center.

    Args:
        predict: float32 [N, H, W, C] in [0, 1] -> logits [N, C].
        evaluation_set: corner digits.

    Returns:
        A dictionary {"count", "corner": [10], "center": [10]}: means over images, locations and channels; None for a digit without images.
    """
    sums, counts = np.zeros((2, DIGITS)), np.zeros(DIGITS, int)
    for images, labels in evaluation_set.open():
        utilities = attribution.contextual_utility(predict, images, labels).numpy().mean(axis=-1)
        inside = corners(*utilities.shape[1:])
        digits = labels.numpy() % DIGITS
        counts += np.bincount(digits, minlength=DIGITS)
        for total, region in zip(sums, (inside, ~inside)):
            total += np.bincount(digits, utilities[:, region].mean(axis=1, dtype=np.float64), DIGITS)
    corner, center = ([float(total / count) if count else None for total, count in zip(part, counts)] for part in sums)
    return {"kind": "utility", "count": int(counts.sum()), "corner": corner, "center": center}


def ratios(record: dict) -> dict[str, float]:
    """Returns the mean utility of the corners divided by that of the center.

    Args:
        record: as `score` returns it.

    Returns:
        {"corner_informative": for digits 0-4, "corner_uninformative": for digits 5-9}, without those that have no images or no utility.
    """
    values = {}
    for name, digits in (("corner_informative", INFORMATIVE), ("corner_uninformative", slice(INFORMATIVE.stop, DIGITS))):
        corner, center = ([value for value in record[part][digits] if value is not None] for part in ("corner", "center"))
        if sum(center) > 0:
            values[name] = float(sum(corner) / sum(center))
    return values
