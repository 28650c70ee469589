"""Base classes of methods that encode further views of the images, or add an auxiliary term to the cross-entropy."""

import contextlib
import functools
import typing
from collections.abc import Sequence

import keras
import tensorflow as tf

from tf_robust.data.pipeline import Batch
from tf_robust.methods.base import Gradients, Method
from tf_robust.training import distribution

BatchNorm = typing.Literal["auto", "own", "joint", "inference", "updating"]


class FurtherViewsMethod(Method):
    """Base class of methods that encode further views of the images in addition to the batch's own.

    Batch norm couples the images that are normalized together, so the statistics that normalize the further views are part of
    the method.

    Args:
        batch_norm: statistics by which batch norm normalizes the further views. `own`: those of the view's own batch, which do not
            update the moving averages. `joint`: those of the images and all further views together, which update the moving
            averages. `inference`: the moving averages, as in the exported model, with gradients through scale and offset.
            `updating`: as `own`, but every view updates the moving averages, as a call of a Keras model in training mode does.
            `auto`: the method's default.
    """

    auto_batch_norm = "inference"
    batch_norm_choices: tuple[str, ...] = ("own", "joint", "inference", "updating")

    def __init__(self, classifier: keras.Model, *, batch_norm: BatchNorm = "auto", **kwargs):
        super().__init__(classifier, **kwargs)
        choices = ("auto", *self.batch_norm_choices)
        if batch_norm not in choices:
            raise ValueError(f"Expected batch_norm in {choices} for {type(self).__name__}. Received: {batch_norm!r}")
        self.batch_norm = self.auto_batch_norm if batch_norm == "auto" else batch_norm

    def encode_further(self, images: tf.Tensor, training: bool, network: keras.Model | None = None) -> typing.Any:
        """Returns the outputs for one further view, normalized as `batch_norm` says, `own` in place of `joint`.

        Dropout draws the same mask as in the first view.

        Args:
            images: [N, ...].
            training: bool.
            network: the network, or a part of it; None: the network.
        """
        with contextlib.nullcontext() if self.batch_norm == "updating" else self.without_updates():
            return (network or self.network)(images, training=training and self.batch_norm != "inference")

    def encode_views(self, views: Sequence[tf.Tensor], training: bool, network: keras.Model | None = None) -> list:
        """Returns a list of the outputs for each view; the first view is the batch's own.

        Args:
            views: tensors [N, ...], all of one shape.
            training: bool.
            network: the network, or a part of it; None: the network.
        """
        first, *further = views
        if self.batch_norm == "joint":
            outputs = (network or self.network)(tf.concat(views, axis=0), training=training)
            parts = [tf.split(part, len(views)) for part in tf.nest.flatten(outputs)]
            return [tf.nest.pack_sequence_as(outputs, list(of_view)) for of_view in zip(*parts)]
        return [(network or self.network)(first, training=training), *(self.encode_further(v, training, network) for v in further)]


class AuxiliaryTermMethod(FurtherViewsMethod):
    """Cross-entropy plus lambda times one further term that may start late: L = L_xe + lambda(step) L_term.

    Until the start, a step is a plain cross-entropy step, at the same cost.

    Args:
        weight: lambda, the weight of the term.
        reduction: of the term over the batch, `mean` or `sum` (FCL's Algorithm 1 has the sum, which equals the mean with
            lambda times the batch size).
        start_epoch: epochs before the term is switched on; added to `start_step`.
        start_step: steps before the term is switched on; added to `start_epoch`.
        warmup_epochs: epochs over which lambda rises linearly from 0 after the start; added to `warmup_steps`.
        warmup_steps: steps over which lambda rises linearly from 0 after the start; added to `warmup_epochs`.
    """

    def __init__(
        self,
        classifier: keras.Model,
        *,
        weight: float,
        reduction: typing.Literal["mean", "sum"] = "mean",
        start_epoch: float = 0.0,
        start_step: int = 0,
        warmup_epochs: float = 0.0,
        warmup_steps: int = 0,
        **kwargs,
    ):
        super().__init__(classifier, **kwargs)
        if reduction not in ("mean", "sum"):
            raise ValueError(f"Expected reduction 'mean' or 'sum'. Received: {reduction!r}")
        for name, value in (
            ("weight", weight),
            ("start_epoch", start_epoch),
            ("start_step", start_step),
            ("warmup_epochs", warmup_epochs),
            ("warmup_steps", warmup_steps),
        ):
            if not 0 <= value < float("inf"):
                raise ValueError(f"Expected {name} >= 0 and finite. Received: {value}")
        self.weight, self.reduction = weight, reduction
        self.start_epoch, self.start_step = start_epoch, start_step
        self.warmup_epochs, self.warmup_steps = warmup_epochs, warmup_steps
        self.start = self.warmup = 0
        self.schedule(1, 0)

    def schedule(self, steps_per_epoch: int, total_steps: int) -> list[str]:
        before = self.start, self.warmup
        self.start = round(self.start_epoch * steps_per_epoch) + self.start_step
        self.warmup = round(self.warmup_epochs * steps_per_epoch) + self.warmup_steps
        if (self.start, self.warmup) != before:
            self.discard_graphs()
        if self.start and self.distribute_strategy.num_replicas_in_sync > 1 and any(b.synchronized for b in distribution.batch_norms(self)):
            raise ValueError(
                f"Expected the term {self.term_names[-1]!r} from the first step on, with synchronized batch norm on several "
                f"devices: a term that starts later cannot be synchronized. Received: a start at step {self.start}"
            )
        if total_steps and self.start >= total_steps:
            return [
                f"The term {self.term_names[-1]!r} starts at step {self.start}, but training ends at step "
                f"{total_steps}: it is never switched on."
            ]
        if total_steps and self.start + self.warmup > total_steps:
            reached = (total_steps - self.start) / self.warmup
            return [
                f"The ramp of {self.term_names[-1]!r} takes {self.warmup} steps from step {self.start}, but training "
                f"ends at step {total_steps}: lambda only reaches {reached:.0%} of {self.weight:g}."
            ]
        return []

    def ramp(self, step: tf.Tensor | int) -> tf.Tensor:
        """Returns lambda at a global step: 0 before the start, then linear over the warm-up, `weight` from its last step on."""
        fraction = tf.cast(tf.cast(step, tf.int64) - self.start + 1, tf.float32) / max(1, self.warmup)
        return self.weight * tf.clip_by_value(fraction, 0.0, 1.0)

    def weighted(self, term: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """Returns lambda times a per-example term [N], so that its mean over the global batch is the chosen reduction."""
        count = tf.shape(term)[0] * tf.distribute.get_strategy().num_replicas_in_sync
        return term * tf.cast(self.ramp(step), term.dtype) * (tf.cast(count, term.dtype) if self.reduction == "sum" else 1.0)

    def gradients(  # type: ignore[override]
        self, batch: Batch, step: tf.Tensor, weights: tf.Tensor | None = None
    ) -> Gradients:
        if self.start == 0:
            return super().gradients(batch, step, weights)
        return tf.cond(
            step >= self.start,
            functools.partial(super().gradients, batch, step, weights),
            functools.partial(super().gradients, batch, step, weights, loss_terms=self._plain_terms),
        )

    def _plain_terms(self, batch, training):
        logits = self.encode(batch.views[0], training)["logits"]
        return {"cross_entropy": self.cross_entropy(batch.labels, logits), self.term_names[-1]: tf.constant(0.0)}, logits
