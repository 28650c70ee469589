"""Open set: how well scores of a model separate images of its classes from those of other data sets."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from tf_robust import data, metrics
from tf_robust.data.source import Source
from tf_robust.data.subsets import stratified_subset
from tf_robust.evaluation.evaluation_set import EvaluationSet
from tf_robust.evaluation.metric_value import MetricValue, parse_metric
from tf_robust.evaluation.scoring import masked_logits
from tf_robust.saved_models.loading import Classifier
from tf_robust.utils.files import decoded, encoded

KNOWN = 10_000  # training images whose embeddings are known
NEIGHBORS = 0.001  # k as a fraction of them: 50 of 50,000 and 10 of 12,800 in Sun et al.
BASELINE = "max_softmax"  # the score of `ood/NAME/auroc`


@dataclasses.dataclass(frozen=True)
class OpenSets:
    """Data sets of other classes, and what scores of them need.

    Attributes:
        sources: {name in metrics: images}; their labels are not used.
        model: has an output `embedding`; None: there are no scores by nearest neighbors.
        known: training images for nearest neighbors; None: there are none.
    """

    sources: dict[str, Source] = dataclasses.field(default_factory=dict)
    model: Classifier | None = None
    known: Source | None = None

    def card(self) -> dict:
        """Returns what the metrics depend on, for JSON."""
        known = self.known.fingerprint() if self.model and self.known else "none"
        sets = {name: {"num_images": len(one), "fingerprint": one.fingerprint()} for name, one in self.sources.items()}
        return {"neighbors_among": known, "neighbors": self.neighbors, "sets": sets}

    @property
    def neighbors(self) -> int:
        """k of the nearest neighbors; 0: there are no scores by nearest neighbors."""
        return max(1, round(NEIGHBORS * len(self.known))) if self.model and self.known else 0


def known_images(training: Source) -> Source:
    """Returns the training images whose embeddings are known: all, a fixed stratified subset, or the first ones of a stream."""
    if len(training) <= KNOWN:
        return training
    return stratified_subset(training, KNOWN) if training.random_access else training.part(0, KNOWN)


def sets(open_sets: OpenSets, source: Source, batch_size: int) -> list[EvaluationSet]:
    """Returns the set of the model's own classes, `ood`, and those of other classes, `ood/NAME`; none if there are no others.

    Args:
        open_sets: the other classes.
        source: images of the model's classes.
        batch_size: images in a batch.
    """
    if not open_sets.sources:
        return []

    @functools.cache
    def known():
        if open_sets.model is None or open_sets.known is None:
            return None
        return np.concatenate(
            [open_sets.model.outputs(images)["embedding"] for images, _ in data.evaluation_batches(open_sets.known, batch_size)]
        )

    metric = functools.partial(_scores, known=known, open_sets=open_sets)
    return [
        EvaluationSet(name, functools.partial(data.evaluation_batches, one, batch_size), metric, source.class_mask)
        for name, one in {"ood": source, **{f"ood/{name}": one for name, one in open_sets.sources.items()}}.items()
    ]


def _scores(predict, evaluation_set, known, open_sets):
    """The record of a set: the scores of each image."""
    parts: list[dict] = []
    for images, _ in evaluation_set.open():
        if known() is None:
            parts.append(metrics.logit_scores(np.asarray(predict(images))))
            continue
        outputs = open_sets.model.outputs(images)
        scores = metrics.logit_scores(np.asarray(masked_logits(outputs["logits"], evaluation_set.class_mask)))
        parts.append({**scores, "knn": metrics.neighbor_scores(known(), np.asarray(outputs["embedding"]), open_sets.neighbors)})
    if not parts:
        raise ValueError(f"Expected images in {evaluation_set.name!r}. Received: none")
    scores = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    count = len(scores[BASELINE])
    return {"kind": "ood", "count": count, "scores": {name: encoded(one.astype(np.float32)) for name, one in scores.items()}}


def metric_values(records: Sequence[dict]) -> list[MetricValue]:
    """Returns `ood/NAME/auroc` and `ood/NAME/fpr95` by the largest probability, and `ood/NAME/SCORE/auroc` and `fpr95` by other scores.

    Args:
        records: of all sets.
    """
    by_name = {parse_metric(record["set"]).name: record for record in records if record["kind"] == "ood"}
    if "" not in by_name:
        return []
    own, found = by_name.pop(""), []
    for name, record in by_name.items():
        for score, text in record["scores"].items():
            inside, outside = (decoded(one, np.float32) for one in (own["scores"][score], text))
            prefix = name if score == BASELINE else f"{name}/{score}"
            count = own["count"] + record["count"]
            found.append(MetricValue("ood", f"{prefix}/auroc", value=metrics.auroc(inside, outside), count=count))
            found.append(MetricValue("ood", f"{prefix}/fpr95", value=metrics.false_positive_rate(inside, outside), count=count))
    return found
