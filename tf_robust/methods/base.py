"""The training step that all methods share, and the terms that several of them use."""

import contextlib
import typing

import keras
import tensorflow as tf

from tf_robust import losses
from tf_robust.ops import philox
from tf_robust.training import distribution


class Method(keras.Model):
    """A classifier and how it is trained. A method overrides `loss_terms`, and little else.

    A term of rank 1 is per example: it is summed and divided once by the global batch. A scalar term is final,
    computed on features gathered over replicas. The loss is the sum of the terms; each is logged under its name.
    Randomness comes from `random_seed(step, ...)`, a pure function of (seed, step, replica).

    Args:
        classifier: keras.Model, [0, 1] images -> {"logits", "embedding"}.
        seed: int, the run's seed. examples: size of the training set, for methods that remember each image.
        weight_decay: weight * w is added to the gradient of every trainable variable w, batch norm's and biases
            included (L2 regularization of weight / 2 |w|^2, as PyTorch's SGD does it) unless a method says otherwise.
    """

    def __init__(self, classifier, *, seed=0, examples=0, weight_decay: float = 0.0):
        super().__init__()
        if not weight_decay >= 0:
            raise ValueError(f"Expected weight_decay >= 0. Received: {weight_decay}")
        self.classifier, self.seed, self.weight_decay = classifier, seed, weight_decay
        self.trackers = {name: keras.metrics.Mean(name=name) for name in ("total", *self.term_names)}
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
        self.built = True

    term_names = ("cross_entropy",)
    compiles = True  # XLA has all that its gradients are made of
    compiled_gradients = None
    loop_turns = 1  # how often, at most, a step runs the body of its loops
    closed_form = False  # trained by `solve`, not in epochs

    def compile(self, optimizer, jit_compile=False):
        """As Keras' own. jit_compile: XLA compiles a step's gradients; the rest of the step stays as it is.

        Raises:
            ValueError: XLA cannot compile this method.
        """
        if jit_compile and not self.compiles:
            raise ValueError(f"Expected jit_compile=false for {type(self).__name__}, part of which is not TensorFlow's. Received: true")
        super().compile(optimizer=optimizer, jit_compile=False)  # Keras would compile the whole step, with its checks
        self.compiled_gradients = tf.function(self.gradients, autograph=False, jit_compile=True) if jit_compile else None

    def loss_terms(self, batch, training):
        """{name: per-example [N] or scalar} for every name in `term_names`, and the clean logits.

        Returns:
            (dict of terms, logits [N, C])
        """
        raise NotImplementedError

    def frozen_variables(self):
        """The trainable variables that no gradient moves: what is frozen, or follows by a rule of its own."""
        return []

    @property
    def trainable_variables(self):
        left_out = {id(v) for v in self.frozen_variables()}
        return [v for v in super().trainable_variables if id(v) not in left_out]

    @property
    def non_trainable_variables(self):
        return [*super().non_trainable_variables, *self.frozen_variables()]

    def check_views(self, views):
        """Raises ValueError unless the method can train on these views, a name each (`Settings.views`)."""
        if len(views) != 1:
            raise ValueError(f"Expected one view for the method {type(self).__name__}. Received: views={','.join(views)}")

    def check_batch(self, size):
        """Raises ValueError unless the method can train on batches of this size, over all replicas."""

    def schedule(self, steps_per_epoch, total_steps):
        """Told once, before training, how long it is; until then an epoch counts as one step. Returns warnings."""
        return []

    def monitors(self, source, validation, views):
        """{name: number} that is logged beside the validation's loss and accuracy.

        Args:
            source, validation: `Source`s. views: functions (images, seed) -> images.
        """
        del source, validation, views
        return {}

    def call(self, images, training=False):
        return self.classifier(images, training=training)

    def decays(self, variable):
        """Whether weight decay applies to a trainable variable."""
        del variable
        return True

    def all_gather(self, features):
        """Features [n, ...] of this replica -> [N, ...] of all, in the replicas' order; gradients flow through."""
        if tf.distribute.get_strategy().num_replicas_in_sync == 1:
            return features
        if self.compiled_gradients:
            raise ValueError(f"Expected jit_compile=false for {type(self).__name__} on several devices: what XLA compiles cannot gather "
                             "from the others. Received: true")
        # identity: what comes straight from a batch names no device, which several workers' gathering needs
        return tf.distribute.get_replica_context().all_gather(tf.identity(features), axis=0)

    def encode(self, images, training, update_statistics=True):
        """The classifier's outputs; without moving batch norm's statistics if so asked."""
        with contextlib.nullcontext() if update_statistics else keras.StatelessScope():
            return self.classifier(images, training=training)

    def random_seed(self, step, purpose):
        """int64 [2] for stateless draws, different for every step, replica and purpose (an int)."""
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        seed = tf.stack([tf.constant(self.seed, tf.int64), tf.cast(step, tf.int64)])
        return philox.fold(philox.fold(seed, tf.cast(replica, tf.int64)), tf.constant(purpose, tf.int64))

    def shared_seed(self, step, purpose):
        """int64 [2] as `random_seed`, the same on all replicas."""
        return philox.fold(tf.stack([tf.constant(self.seed, tf.int64), tf.cast(step, tf.int64)]), tf.constant(-1 - purpose, tf.int64))

    def train_step(self, batch):
        step = batch.step[0]
        gradients, terms, logits, statistics = (self.compiled_gradients or self.gradients)(batch, step)
        finite = [tf.debugging.check_numerics(terms[name], f"loss term '{name}'") for name in self.term_names]
        with tf.control_dependencies(finite):
            finite = tf.debugging.check_numerics(tf.add_n([tf.reduce_sum(g) for g in gradients]), "gradient")
        with tf.control_dependencies([finite]):  # nothing changes in a step that diverges
            for variable, value in zip(self.non_trainable_variables, statistics):
                variable.assign(value)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        for name, value in terms.items():  # a replica's share times the number of replicas, averaged over replicas
            self.trackers[name].update_state(value * replicas)
        self.accuracy.update_state(batch.labels, logits)
        return self.get_metrics_result()

    def gradients(self, batch, step):
        """One step's gradients, terms, logits and new batch statistics; nothing is assigned."""
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
        """This replica's share of a term: over all replicas the shares add up to it."""
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if term.shape.rank == 1:
            term = tf.reduce_sum(term) / tf.cast(tf.shape(term)[0], term.dtype)
        return term / replicas

    @property
    def metrics(self):
        return [*self.trackers.values(), self.accuracy]


class FurtherViewsMethod(Method):
    """Base class of methods that encode further views of the images, beside the batch's own.

    Batch norm couples the images that are normalized together, so which statistics normalize the further views is part of the method.

    Args:
        batch_norm: statistics by which batch norm normalizes the further views. `own`: those of the view's own batch, which do not
            move the moving averages. `joint`: those of the images and all further views together, which move the moving averages.
            `inference`: the moving averages, as in the exported model, with gradients through scale and offset. `auto`: the
            method's default.
    """

    auto_batch_norm = "inference"
    batch_norm_choices = ("own", "joint", "inference")

    def __init__(self, classifier, *, batch_norm: typing.Literal["auto", "own", "joint", "inference"] = "auto", **kwargs):
        super().__init__(classifier, **kwargs)
        choices = ("auto", *self.batch_norm_choices)
        if batch_norm not in choices:
            raise ValueError(f"Expected batch_norm in {choices} for {type(self).__name__}. Received: {batch_norm!r}")
        self.batch_norm = self.auto_batch_norm if batch_norm == "auto" else batch_norm

    def encode_further(self, images, training, network=None):
        """Returns the outputs for one further view, normalized as `own` or `inference`; the moving averages stay.

        Args:
            images: [N, ...]. training: bool. network: the classifier, or a part of it; None: the classifier.
        """
        with keras.StatelessScope():  # reads the moving averages from before the step, as constants
            return (network or self.classifier)(images, training=training and self.batch_norm != "inference")

    def encode_views(self, views, training, network=None):
        """Returns a list of the outputs for each view; the first view is the batch's own.

        Args:
            views: tensors [N, ...], all of one shape. training, network: as `encode_further`.
        """
        first, *further = views
        if self.batch_norm == "joint":
            outputs = (network or self.classifier)(tf.concat(views, axis=0), training=training)
            parts = [tf.split(part, len(views)) for part in tf.nest.flatten(outputs)]
            return [tf.nest.pack_sequence_as(outputs, list(of_view)) for of_view in zip(*parts)]
        return [(network or self.classifier)(first, training=training), *(self.encode_further(v, training, network) for v in further)]


class AuxiliaryTermMethod(FurtherViewsMethod):
    """Cross-entropy plus lambda times one further term, switched on late: L = L_xe + lambda(step) L_term.

    Until the start a step is a plain cross-entropy step and costs no more.

    Args:
        weight: lambda, the weight of the term.
        reduction: how the term is reduced over the batch, `mean` or `sum` (FCL's Algorithm 1 says sum, which is the
            mean with a lambda larger by the batch size).
        start_epoch: epochs before the term is switched on; added to `start_step`.
        start_step: steps before the term is switched on; added to `start_epoch`.
        warmup_epochs: epochs over which lambda rises linearly from 0 after the start; added to `warmup_steps`.
        warmup_steps: steps over which lambda rises linearly from 0 after the start; added to `warmup_epochs`.
    """

    def __init__(self, classifier, *, weight: float = 0.001, reduction: typing.Literal["mean", "sum"] = "mean",
                 start_epoch: float = 0.0, start_step: int = 0, warmup_epochs: float = 0.0, warmup_steps: int = 0,
                 **kwargs):
        super().__init__(classifier, **kwargs)
        if reduction not in ("mean", "sum"):
            raise ValueError(f"Expected reduction 'mean' or 'sum'. Received: {reduction!r}")
        for name, value in (("weight", weight), ("start_epoch", start_epoch), ("start_step", start_step),
                            ("warmup_epochs", warmup_epochs), ("warmup_steps", warmup_steps)):
            if not 0 <= value < float("inf"):
                raise ValueError(f"Expected {name} >= 0 and finite. Received: {value}")
        self.weight, self.reduction = weight, reduction
        self.start_epoch, self.start_step = start_epoch, start_step
        self.warmup_epochs, self.warmup_steps = warmup_epochs, warmup_steps
        self.schedule(1, 0)

    def check_batch(self, size):
        """Raises ValueError unless the method can train on batches of this size, over all replicas."""

    def schedule(self, steps_per_epoch, total_steps):
        self.start = round(self.start_epoch * steps_per_epoch) + self.start_step
        self.warmup = round(self.warmup_epochs * steps_per_epoch) + self.warmup_steps
        if self.start and self.distribute_strategy.num_replicas_in_sync > 1 and any(b.synchronized for b in distribution.batch_norms(self)):
            raise ValueError(f"Expected the term {self.term_names[-1]!r} from the first step on, with synchronized batch norm on several "
                             f"devices: what begins later cannot be gathered. Received: a start at step {self.start}")
        if total_steps and self.start >= total_steps:
            return [f"The term {self.term_names[-1]!r} starts at step {self.start}, but training ends at step "
                    f"{total_steps}: it is never switched on."]
        if total_steps and self.start + self.warmup > total_steps:
            reached = (total_steps - self.start) / self.warmup
            return [f"The ramp of {self.term_names[-1]!r} takes {self.warmup} steps from step {self.start}, but training "
                    f"ends at step {total_steps}: lambda only reaches {reached:.0%} of {self.weight:g}."]
        return []

    def ramp(self, step):
        """lambda at a global step: 0 before the start, then linear over the warm-up, reached at its last step."""
        risen = tf.cast(tf.cast(step, tf.int64) - self.start + 1, tf.float32) / max(1, self.warmup)
        return self.weight * tf.clip_by_value(risen, 0.0, 1.0)

    def weighted(self, term, step):
        """lambda times a per-example term [N], so that its mean over the global batch is the chosen reduction."""
        count = tf.shape(term)[0] * tf.distribute.get_strategy().num_replicas_in_sync
        return term * tf.cast(self.ramp(step), term.dtype) * (tf.cast(count, term.dtype) if self.reduction == "sum" else 1.0)

    def gradients(self, batch, step):
        if self.start == 0:
            return self._differentiate(batch, self.loss_terms)
        return tf.cond(step >= self.start, lambda: self._differentiate(batch, self.loss_terms),
                       lambda: self._differentiate(batch, self._plain_terms))

    def _plain_terms(self, batch, training):
        logits = self.encode(batch.views[0], training)["logits"]
        return {"cross_entropy": losses.cross_entropy(batch.labels, logits), self.term_names[-1]: tf.constant(0.0)}, logits
