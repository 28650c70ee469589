"""The training step that all methods share, and base classes for further views and auxiliary terms."""

import contextlib
import typing
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from tf_robust import losses
from tf_robust.data.pipeline import Batch
from tf_robust.data.source import Source
from tf_robust.ops import philox
from tf_robust.training import distribution

Terms = dict[str, tf.Tensor]  # loss terms by name: per example [N], or scalar
View = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # (images, seed) -> images


class Method(keras.Model):
    """Base class: a classifier and its training method. A subclass overrides `loss_terms` and little else.

    A term of rank 1 is per example: it is summed and divided once by the global batch. A scalar term is a mean over the global batch
    already (computed on features gathered over replicas) and is not summed again. The loss is the sum of the terms; each is logged
    under its name.
    Randomness comes from `random_seed(step, ...)`, a pure function of (seed, step, replica).

    Args:
        classifier: keras.Model, images in [0, 1] -> {"logits", "embedding"}.
        seed: int, the run's seed.
        examples: int, size of the training set, for methods with a memory of each image.
        weight_decay: weight_decay * w is added to the gradient of every trainable variable w, including batch norm's and biases
            (L2 regularization by weight_decay / 2 |w|^2, as in PyTorch's SGD), unless a method states otherwise.
    """

    # seed and examples are not annotated: annotated arguments become flags
    def __init__(self, classifier: keras.Model, *, seed=0, examples=0, weight_decay: float = 0.0):
        super().__init__()
        if not weight_decay >= 0:
            raise ValueError(f"Expected weight_decay >= 0. Received: {weight_decay}")
        self.classifier, self.seed, self.weight_decay = classifier, seed, weight_decay
        self.trackers = {name: keras.metrics.Mean(name=name) for name in ("total", *self.term_names)}
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
        self.built = True

    term_names: tuple[str, ...] = ("cross_entropy",)
    compiles = True  # whether XLA can compile the gradients
    compiled_gradients = None
    loop_iterations = 1  # maximum number of iterations of the loops in a step
    closed_form = False  # trained by `solve`, not in epochs

    def compile(self, optimizer: keras.optimizers.Optimizer, jit_compile: bool = False) -> None:
        """Configures training, as `keras.Model.compile` does.

        Args:
            optimizer: a Keras optimizer.
            jit_compile: compile a step's gradients with XLA; the rest of the step is not compiled.

        Raises:
            ValueError: XLA cannot compile this method.
        """
        if jit_compile and not self.compiles:
            raise ValueError(f"Expected jit_compile=false for {type(self).__name__}, which runs code outside TensorFlow. Received: true")
        super().compile(optimizer=optimizer, jit_compile=False)  # with True, Keras would compile the complete step, including its checks
        self.compiled_gradients = tf.function(self.gradients, autograph=False, jit_compile=True) if jit_compile else None

    def loss_terms(self, batch: Batch, training: bool) -> tuple[Terms, tf.Tensor]:
        """Returns the terms of the loss for a batch.

        Args:
            batch: this replica's part of the batch.
            training: bool, the mode of the forward passes.

        Returns:
            ({name: per-example [N] or scalar} for every name in `term_names`, logits [N, C] of which the accuracy is logged)
        """
        raise NotImplementedError

    def frozen_variables(self) -> list[keras.Variable]:
        """Returns the trainable variables that the optimizer does not update: frozen ones, or those with their own update rule."""
        return []

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        frozen = {id(v) for v in self.frozen_variables()}
        return [v for v in super().trainable_variables if id(v) not in frozen]

    @property
    def non_trainable_variables(self) -> list[keras.Variable]:
        return [*super().non_trainable_variables, *self.frozen_variables()]

    def check_views(self, views: Sequence[str]) -> None:
        """Raises ValueError unless the method can train on these views, given by name (`TrainConfig.views`)."""
        if len(views) != 1:
            raise ValueError(f"Expected one view for the method {type(self).__name__}. Received: views={','.join(views)}")

    def check_batch(self, size: int) -> None:
        """Raises ValueError unless the method can train on batches of this size, over all replicas."""

    def schedule(self, steps_per_epoch: int, total_steps: int) -> list[str]:
        """Converts epochs to steps. Called once before training; until then an epoch counts as one step.

        Returns:
            warnings, messages to log.
        """
        return []

    def monitors(self, source: Source, validation: Source, views: Sequence[View]) -> dict[str, float]:
        """Returns {name: value} to log in addition to the validation loss and accuracy.

        Args:
            source: the training set.
            validation: the validation set.
            views: functions (images, seed) -> images.
        """
        del source, validation, views
        return {}

    def call(self, images: tf.Tensor, training: bool = False) -> Terms:
        return self.classifier(images, training=training)

    def decays(self, variable: keras.Variable) -> bool:
        """Returns whether weight decay applies to a trainable variable."""
        del variable
        return True

    def all_gather(self, features: tf.Tensor) -> tf.Tensor:
        """Gathers features: [n, ...] of this replica -> [N, ...] of all, in the replicas' order; gradients flow through."""
        if tf.distribute.get_strategy().num_replicas_in_sync == 1:
            return features
        if self.compiled_gradients:
            raise ValueError(
                f"Expected jit_compile=false for {type(self).__name__} on several devices: code compiled by XLA cannot gather "
                "from other devices. Received: true"
            )
        # identity: tensors taken directly from a batch have no device, which gathering over several workers needs
        return tf.distribute.get_replica_context().all_gather(tf.identity(features), axis=0)

    def encode(self, images: tf.Tensor, training: bool, update_statistics: bool = True) -> Terms:
        """Returns the classifier's outputs {"logits", "embedding"}.

        Args:
            images: float32 [N, H, W, C] in [0, 1].
            training: bool.
            update_statistics: whether batch norm's moving averages are updated.
        """
        with contextlib.nullcontext() if update_statistics else keras.StatelessScope():
            return self.classifier(images, training=training)

    def random_seed(self, step: tf.Tensor, purpose: int) -> tf.Tensor:
        """Returns a seed int64 [2] for stateless draws, different for every step, replica and purpose."""
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        seed = tf.stack([tf.constant(self.seed, tf.int64), tf.cast(step, tf.int64)])
        return philox.fold(philox.fold(seed, tf.cast(replica, tf.int64)), tf.constant(purpose, tf.int64))

    def shared_seed(self, step: tf.Tensor, purpose: int) -> tf.Tensor:
        """Returns a seed int64 [2] as `random_seed`, but the same on all replicas."""
        return philox.fold(tf.stack([tf.constant(self.seed, tf.int64), tf.cast(step, tf.int64)]), tf.constant(-1 - purpose, tf.int64))

    def train_step(self, batch: Batch) -> dict:
        """Updates weights, batch statistics and metrics by one batch; returns the metrics.

        Raises:
            tf.errors.InvalidArgumentError: a loss term or the gradient is not finite; nothing is updated.
        """
        step = batch.step[0]
        gradients, terms, logits, statistics = (self.compiled_gradients or self.gradients)(batch, step)
        finite = [tf.debugging.check_numerics(terms[name], f"loss term '{name}'") for name in self.term_names]
        with tf.control_dependencies(finite):
            finite = tf.debugging.check_numerics(tf.add_n([tf.reduce_sum(g) for g in gradients]), "gradient")
        with tf.control_dependencies([finite]):  # a step that diverges changes nothing
            for variable, value in zip(self.non_trainable_variables, statistics):
                variable.assign(value)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        for name, value in terms.items():  # a replica's part times the number of replicas, averaged over replicas
            self.trackers[name].update_state(value * replicas)
        self.accuracy.update_state(batch.labels, logits)
        return self.get_metrics_result()

    def gradients(self, batch: Batch, step: tf.Tensor) -> tuple[list[tf.Tensor], Terms, tf.Tensor, list[tf.Tensor]]:
        """Returns one step's gradients, terms, logits and new batch statistics; assigns nothing."""
        return self._differentiate(batch, self.loss_terms)

    def _differentiate(self, batch, loss_terms):
        variables = self.trainable_variables
        with keras.StatelessScope() as scope, tf.GradientTape() as tape:
            terms, logits = loss_terms(batch, training=True)
            terms = {name: self._reduce(terms[name]) for name in self.term_names}
            loss = tf.add_n(list(terms.values()))
        gradients = tape.gradient(loss, [v.value for v in variables], unconnected_gradients="zero")
        if self.weight_decay:
            decay = self.weight_decay / tf.distribute.get_strategy().num_replicas_in_sync
            gradients = [g + decay * v.value if self.decays(v) else g for g, v in zip(gradients, variables)]
        statistics = [scope.get_current_value(v) for v in self.non_trainable_variables]
        statistics = [v.value if s is None else s for v, s in zip(self.non_trainable_variables, statistics)]
        return gradients, {"total": loss, **terms}, logits, statistics

    def _reduce(self, term):
        """Returns this replica's part of a term; the parts of all replicas sum to the term."""
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if term.shape.rank == 1:
            term = tf.reduce_sum(term) / tf.cast(tf.shape(term)[0], term.dtype)
        return term / replicas

    @property
    def metrics(self) -> list[keras.Metric]:
        return [*self.trackers.values(), self.accuracy]


class FurtherViewsMethod(Method):
    """Base class of methods that encode further views of the images in addition to the batch's own.

    Batch norm couples the images that are normalized together, so the statistics that normalize the further views are part of
    the method.

    Args:
        batch_norm: statistics by which batch norm normalizes the further views. `own`: those of the view's own batch, which do not
            update the moving averages. `joint`: those of the images and all further views together, which update the moving
            averages. `inference`: the moving averages, as in the exported model, with gradients through scale and offset.
            `auto`: the method's default.
    """

    auto_batch_norm = "inference"
    batch_norm_choices: tuple[str, ...] = ("own", "joint", "inference")

    def __init__(self, classifier: keras.Model, *, batch_norm: typing.Literal["auto", "own", "joint", "inference"] = "auto", **kwargs):
        super().__init__(classifier, **kwargs)
        choices = ("auto", *self.batch_norm_choices)
        if batch_norm not in choices:
            raise ValueError(f"Expected batch_norm in {choices} for {type(self).__name__}. Received: {batch_norm!r}")
        self.batch_norm = self.auto_batch_norm if batch_norm == "auto" else batch_norm

    def encode_further(self, images: tf.Tensor, training: bool, network: keras.Model | None = None) -> typing.Any:
        """Returns the outputs for one further view, normalized as `own` or `inference`; does not update the moving averages.

        Args:
            images: [N, ...].
            training: bool.
            network: the classifier, or a part of it; None: the classifier.
        """
        with keras.StatelessScope():  # reads the moving averages from before the step, as constants
            return (network or self.classifier)(images, training=training and self.batch_norm != "inference")

    def encode_views(self, views: Sequence[tf.Tensor], training: bool, network: keras.Model | None = None) -> list:
        """Returns a list of the outputs for each view; the first view is the batch's own.

        Args:
            views: tensors [N, ...], all of one shape.
            training: bool.
            network: the classifier, or a part of it; None: the classifier.
        """
        first, *further = views
        if self.batch_norm == "joint":
            outputs = (network or self.classifier)(tf.concat(views, axis=0), training=training)
            parts = [tf.split(part, len(views)) for part in tf.nest.flatten(outputs)]
            return [tf.nest.pack_sequence_as(outputs, list(of_view)) for of_view in zip(*parts)]
        return [(network or self.classifier)(first, training=training), *(self.encode_further(v, training, network) for v in further)]


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
        weight: float = 0.001,
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
        self.schedule(1, 0)

    def schedule(self, steps_per_epoch: int, total_steps: int) -> list[str]:
        self.start = round(self.start_epoch * steps_per_epoch) + self.start_step
        self.warmup = round(self.warmup_epochs * steps_per_epoch) + self.warmup_steps
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

    def gradients(self, batch: Batch, step: tf.Tensor) -> tuple[list[tf.Tensor], Terms, tf.Tensor, list[tf.Tensor]]:
        if self.start == 0:
            return self._differentiate(batch, self.loss_terms)
        return tf.cond(
            step >= self.start, lambda: self._differentiate(batch, self.loss_terms), lambda: self._differentiate(batch, self._plain_terms)
        )

    def _plain_terms(self, batch, training):
        logits = self.encode(batch.views[0], training)["logits"]
        return {"cross_entropy": losses.cross_entropy(batch.labels, logits), self.term_names[-1]: tf.constant(0.0)}, logits
