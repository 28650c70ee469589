"""A set of images that a model is evaluated on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, MutableMapping, Sequence

import tensorflow as tf

from tf_robust.attacks.attack import Predict
from tf_robust.data.source import Source


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """Images to evaluate a model on.

    Attributes:
        name: `clean`, `bal`, `shift/NAME`, `un`, `nun`, `nun/floor_0.1`, `corruptions/NAME/SEVERITY`, `flips/NAME`,
            `bal/rare`, `utility`, `robust/NORM_RADIUS`, `robust/pgd/NORM_RADIUS`, `robust/transfer/NORM_RADIUS`, `fgsm/NORM_RADIUS`,
            `checks/NORM`, `distance/ATTACK_NORM`, `certified`, `smoothed/clean`, `smoothed/pgd/l2_RADIUS`, `confidence`, `ood` or
            `ood/NAME`.
        open: returns a Dataset of (float32 [B, H, W, C] in [0, 1], int64 [B]); for flips [B, frames, H, W, C]. Called only when the
            images are needed: a set that was measured before costs nothing.
        score: computes the record of a model on this set, a dictionary for JSON; None: `scoring.score_set`.
        class_mask: the columns of the model's output that count; None: all.
        parts: results of parts of a long evaluation, text by name, which are written as soon as they are set: an interrupted evaluation
            finds there what it set before.
        images: the source of the images, in the order of the set; None: the set cannot be evaluated in shards.
        open_range: (first, last) -> as `open`, for the images `first`..`last` - 1, without reading the others; None as for `images`.
        origin: returns the source that has the positions and paths of the images; None: `images`.
    """

    name: str
    open: Callable[[], tf.data.Dataset]
    score: ScoreSet | None = None
    class_mask: Sequence[int] | None = None
    parts: MutableMapping[str, str] = dataclasses.field(default_factory=dict, compare=False)
    images: Source | None = None
    open_range: Callable[[int, int], tf.data.Dataset] | None = None
    origin: Callable[[], Source] | None = None


ScoreSet = Callable[[Predict, EvaluationSet], dict]
