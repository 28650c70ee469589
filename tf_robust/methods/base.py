"""The training step that all methods share."""

import contextlib
import contextvars
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_robust import losses
from tf_robust.data.pipeline import Batch
from tf_robust.data.source import Source
from tf_robust.methods.keras_fit import KerasFit
from tf_robust.models.batch_norms import fuse_batch_norms
from tf_robust.ops import philox
from tf_robust.training import optimizers
from tf_robust.utils import hyperparameters
from tf_robust.utils.errors import unknown

Terms = dict[str, tf.Tensor]  # loss terms by name: per example [N], or scalar
View = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # (images, seed) -> images
Gradients = tuple[list[tf.Tensor], Terms, tf.Tensor, list[tf.Tensor]]  # of the trainable variables; terms, logits, batch statistics
LossTerms = Callable[..., tuple[Terms, tf.Tensor]]  # `Method.loss_terms`
# [(variable, its value)] where gradients are computed at other weights, in this replica's thread; Keras' scopes do not see outer ones
_SHIFTED: contextvars.ContextVar[Sequence] = contextvars.ContextVar("_SHIFTED", default=())


class Method(KerasFit):
    """Base class: a classifier and its training method. A subclass overrides `loss_terms` and little else; one that changes the update
    rather than the loss overrides `gradients`.

    A term of rank 1 is per example: it is summed and divided once by the global batch. A scalar term is a mean over the global batch
    already (computed on features gathered over replicas) and is not summed again. The loss is the sum of the terms; each is logged
    under its name.
    Randomness comes from `random_seed(step, ...)`, a pure function of (seed, step, replica).

    Args:
        classifier: any keras.Model with one output, images -> logits or probabilities; or one of this package, images in [0, 1] ->
            {"logits", "embedding"}.
        seed: int, the run's seed.
        examples: int, size of the training set, for methods with a memory of each image.
        weight_decay: weight_decay * w is added to the gradient of every trainable variable w, including batch norm's and biases
            (L2 regularization by weight_decay / 2 |w|^2, as in PyTorch's SGD), unless a method states otherwise.
        label_smoothing: part of each label's probability that the cross-entropy spreads evenly over all classes, in [0, 1).
        class_weights: factor of the cross-entropy of each class's label, C numbers >= 0, or {class: factor}, 1 for others; None: all 1.
        views: names of views (`data.augment.VIEWS`) or functions (images, seed) -> images, which `fit` makes of each batch of
            images in [0, 1]; None: the method's usual ones.
        embedding: name of the layer whose output is the embedding; None: the input of the last Dense layer.
        stages: names of layers after which images can be mixed and noise added, in their order.
        input_range: (low, high) of the images that the classifier takes, such as (0, 255).
        from_logits: whether the classifier returns logits; None: inferred from its last layer's activation.

    Attributes:
        classifier: the model as given, which shares all weights.
        network: float32 images in [0, 1] -> {"logits", "embedding"}.

    Examples:
        >>> class SquaredError(tfr.methods.Method):
        ...     term_names = ("squared_error",)
        ...     def loss_terms(self, batch, training):
        ...         logits = self.encode(batch.views[0], training)["logits"]
        ...         errors = tf.nn.softmax(logits) - tf.one_hot(batch.labels, 4)
        ...         return {"squared_error": tf.reduce_sum(errors**2, axis=1)}, logits
        >>> network = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(4, kernel_initializer="zeros")])
        >>> model = SquaredError(network)
        >>> model.compile("adam")
        >>> model.fit(np.random.rand(20, 8, 8, 1), np.arange(20) % 4, verbose=0).history["loss"]  # 3/4^2 + 3 * 1/4^2
        [0.75]
    """

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.__signature__, cls.__doc__ = hyperparameters.signature(cls), hyperparameters.documentation(cls)  # for help()

    def __new__(cls, *args, **kwargs):
        known = hyperparameters.signature(cls).parameters
        for name in kwargs:
            if name not in known:
                raise TypeError(str(unknown(f"argument of {cls.__name__}", name, known)))
        return super().__new__(cls, *args, **kwargs)

    # arguments without annotation: annotated ones become flags
    def __init__(
        self,
        classifier: keras.Model,
        *,
        seed=0,
        examples=0,
        weight_decay: float = 0.0,
        label_smoothing: float = 0.0,
        class_weights=None,
        views=None,
        embedding=None,
        stages=(),
        input_range=(0.0, 1.0),
        from_logits=None,
    ):
        super().__init__()
        if not weight_decay >= 0:
            raise ValueError(f"Expected weight_decay >= 0. Received: {weight_decay}")
        self.use_model(classifier, views, embedding, stages, input_range, from_logits)
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"Expected label_smoothing in [0, 1). Received: {label_smoothing}")
        self.seed, self.weight_decay, self.label_smoothing = seed, weight_decay, label_smoothing
        self.class_weights = None if class_weights is None else self._weights_of_classes(class_weights)
        self.trackers = {name: keras.metrics.Mean(name=name) for name in ("total", *self.term_names)}
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
        self.built = True

    term_names: tuple[str, ...] = ("cross_entropy",)
    compiles = True  # whether XLA can compile the gradients
    compiled_gradients = None
    _compiles_gradients = False  # not Keras' `_jit_compile`, by which `fit` would compile the complete step
    loop_iterations = 1  # maximum number of iterations of the loops in a step

    def compile(
        self, optimizer: keras.optimizers.Optimizer | str = "rmsprop", loss: None = None, *, jit_compile: bool | str = False, **kwargs: Any
    ) -> None:
        """Configures training, as `keras.Model.compile` does.

        Args:
            optimizer: a Keras optimizer, or its name.
            loss: None; the method defines it.
            jit_compile: compile a step's gradients with XLA; the rest of the step is not compiled. `auto`: do not.
            **kwargs: `metrics` and other arguments of `keras.Model.compile`.

        Raises:
            ValueError: a loss, or XLA for a method that it cannot compile.
        """
        jit_compile = jit_compile is True
        if loss is not None:
            raise ValueError(f"Expected no loss, which {type(self).__name__} defines. Received: loss={loss!r}")
        if jit_compile and not self.compiles:
            raise ValueError(f"Expected jit_compile=false for {type(self).__name__}, which runs code outside TensorFlow. Received: true")
        super().compile(optimizer=optimizer, jit_compile=False, **kwargs)  # else the complete step, where XLA drops its checks
        optimizer = optimizers.updating(self.optimizer)
        if isinstance(optimizer, optimizers.LARS):
            optimizer.exclude_from_scaling(self.logits_layer.variables if self.logits_layer is not None else ())
        fuse_batch_norms(self)
        self._compiles_gradients = jit_compile
        if not self.optimizer.built:  # with its variables, `load_weights` restores the state of training
            with self.distribute_strategy.scope():
                self.optimizer.build(self.trainable_variables)
        with self.distribute_strategy.scope():
            _reset_optimizer(self.classifier)
        self.discard_graphs()

    def discard_graphs(self) -> None:
        """Discards the compiled graphs of a step, which hold attributes such as the start of a term as constants."""
        self.train_function = None
        self.compiled_gradients = tf.function(self.gradients, autograph=False, jit_compile=True) if self._compiles_gradients else None

    def loss_terms(self, batch: Batch, training: bool) -> tuple[Terms, tf.Tensor]:
        """Returns the terms of the loss for a batch.

        Args:
            batch: this replica's part of the batch.
            training: bool, the mode of the forward passes.

        Returns:
            ({name: per-example [N] or scalar} for every name in `term_names`, logits [N, C] of which the accuracy is logged)
        """
        raise NotImplementedError

    def cross_entropy(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Returns the cross-entropy of training, with label smoothing and class weights, [N].

        Attacks, the saliency of Puzzle Mix and the validation take the plain one, `losses.cross_entropy`.

        Args:
            labels: class indices int [N], or probabilities [N, C], whose weight is the mean of those of the classes.
            logits: [N, C].
        """
        loss = losses.cross_entropy(labels, logits, self.label_smoothing)
        if self.class_weights is None:
            return loss
        weights = tf.constant(self.class_weights, loss.dtype)
        return loss * (tf.gather(weights, labels) if labels.shape.rank == 1 else tf.linalg.matvec(tf.cast(labels, loss.dtype), weights))

    def _weights_of_classes(self, given):
        classes, weights = self.network.output["logits"].shape[-1], given
        if isinstance(given, Mapping):
            weights = [given.get(label, 1.0) for label in range(classes)] if set(given) <= set(range(classes)) else ()
        numbers = not isinstance(given, str) and len(weights) == classes and all(0 <= w < np.inf for w in weights)
        if not numbers or not any(weights):
            raise ValueError(f"Expected class_weights of {classes} classes, finite numbers >= 0, not all 0. Received: {given}")
        return tuple(float(weight) for weight in weights)

    def frozen_variables(self) -> list[keras.Variable]:
        """Returns the trainable variables that the optimizer does not update: frozen ones, or those with their own update rule."""
        return []

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        frozen = {id(v) for v in self.frozen_variables()}
        return [v for v in super().trainable_variables if id(v) not in frozen]

    @property
    def trainable_weights(self) -> list[keras.Variable]:
        return self.trainable_variables

    @property
    def non_trainable_variables(self) -> list[keras.Variable]:
        return [*super().non_trainable_variables, *self.frozen_variables()]

    @classmethod
    def views_of(cls, **hyperparameters: Any) -> tuple[str, ...]:
        """Returns the names of the views that the method takes with some hyperparameters, unless others are given."""
        del hyperparameters
        return cls.default_views

    def check_views(self, views: Sequence[str]) -> None:
        """Raises ValueError unless the method can train on these views, given by name (`TrainConfig.views`)."""
        if len(views) != 1:
            raise ValueError(f"Expected one view for the method {type(self).__name__}. Received: views={','.join(views)}")

    def check_batch(self, size: int) -> None:
        """Raises ValueError unless the method can train on batches of this size, over all replicas."""

    def schedule(self, steps_per_epoch: int, total_steps: int) -> list[str]:
        """Converts epochs to steps. Called before each training; until then an epoch counts as one step.

        A method that changes an attribute here that its terms read calls `discard_graphs`.

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

    def call(self, images: tf.Tensor | tuple[tf.Tensor, ...], training: bool = False) -> Terms:
        """Returns the classifier's outputs for images, or for the first of their views."""
        return self.classifier(images[0] if isinstance(images, tuple) else images, training=training)

    def decays(self, variable: keras.Variable) -> bool:
        """Returns whether weight decay applies to a trainable variable."""
        del variable
        return True

    def all_gather(self, features: tf.Tensor) -> tf.Tensor:
        """Gathers features: [n, ...] of this replica -> [N, ...] of all, in the replicas' order; gradients flow through."""
        if tf.distribute.get_strategy().num_replicas_in_sync == 1:
            return features
        self._check_not_compiled()
        # identity: tensors taken directly from a batch have no device, which gathering over several workers needs
        return tf.distribute.get_replica_context().all_gather(tf.identity(features), axis=0)

    def all_sum(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums of tensors over all replicas, such as gradients, of which each replica has a part."""
        if tf.distribute.get_strategy().num_replicas_in_sync == 1:
            return tensors
        self._check_not_compiled()
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensors)

    def _check_not_compiled(self):
        if self.compiled_gradients:
            raise ValueError(
                f"Expected jit_compile=false for {type(self).__name__} on several devices: code compiled by XLA cannot gather "
                "from other devices. Received: true"
            )

    def encode(self, images: tf.Tensor, training: bool, update_statistics: bool = True) -> Terms:
        """Returns the network's outputs {"logits", "embedding"}.

        Args:
            images: float32 [N, H, W, C] in [0, 1].
            training: bool.
            update_statistics: whether batch norm's moving averages are updated.
        """
        with contextlib.nullcontext() if update_statistics else self.without_updates():
            return self.network(images, training=training)

    def without_updates(self) -> keras.StatelessScope:
        """Returns a context in which batch norm's moving averages are those from before the step, and are not updated."""
        return keras.StatelessScope(_SHIFTED.get())

    def random_seed(self, step: tf.Tensor, purpose: int) -> tf.Tensor:
        """Returns a seed int64 [2] for stateless draws, different for every step, replica and purpose."""
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        seed = tf.stack([tf.constant(self.seed, tf.int64), tf.cast(step, tf.int64)])
        return philox.fold(philox.fold(seed, tf.cast(replica, tf.int64)), tf.constant(purpose, tf.int64))

    def shared_seed(self, step: tf.Tensor, purpose: int) -> tf.Tensor:
        """Returns a seed int64 [2] as `random_seed`, but the same on all replicas."""
        return philox.fold(tf.stack([tf.constant(self.seed, tf.int64), tf.cast(step, tf.int64)]), tf.constant(-1 - purpose, tf.int64))

    def train_step(self, data: Any) -> dict:
        """Updates weights, batch statistics and metrics by one batch; returns the metrics.

        Args:
            data: a `Batch`, or (images, labels) or (images, labels, sample weights) as in `fit`.

        Raises:
            tf.errors.InvalidArgumentError: a loss term or the gradient is not finite; nothing is updated. A `LossScaleOptimizer`
                skips a step whose gradient is not finite, and lowers the scale.
        """
        self.on_own_data = not isinstance(data, Batch)
        batch, y, weights = self.to_batch(data) if self.on_own_data else (data, None, None)
        gradients, terms, logits, statistics = (self.compiled_gradients or self.gradients)(batch, batch.step[0], weights)
        finite = [tf.debugging.check_numerics(terms[name], f"loss term '{name}'") for name in self.term_names]
        if not isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            with tf.control_dependencies(finite):
                finite = [tf.debugging.check_numerics(tf.add_n([tf.reduce_sum(g) for g in gradients]), "gradient")]
        with tf.control_dependencies(finite):  # a step that diverges changes nothing
            for variable, value in zip(self.non_trainable_variables, statistics):
                variable.assign(value)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        replicas, count = tf.distribute.get_strategy().num_replicas_in_sync, tf.shape(batch.labels)[0]
        if self.on_own_data:
            for name, value in terms.items():
                tracker = self._loss_tracker if name == "total" else self.trackers[name]
                tracker.update_state(value * replicas, sample_weight=count)
            self.update_metrics(batch.labels, y, logits if self.returns_logits else tf.nn.softmax(logits), weights)
            return self.get_metrics_result()
        for name, value in terms.items():  # a replica's part times the number of replicas, averaged over replicas
            self.trackers[name].update_state(value * replicas)
        self.accuracy.update_state(batch.labels, logits)
        return self.get_metrics_result()

    def gradients(
        self,
        batch: Batch,
        step: tf.Tensor | None = None,
        weights: tf.Tensor | None = None,
        *,
        shift: Sequence[tf.Tensor] | None = None,
        decay: bool = True,
        loss_terms: LossTerms | None = None,
    ) -> Gradients:
        """Returns one step's gradients, terms, logits and new batch statistics, at the trainable variables w or at w + shift; assigns
        nothing. A method that changes the update overrides it with `(batch, step, weights)` and calls this one, as `SAM` does.

        Every replica returns its part: the gradients of all replicas sum to that of the loss (`all_sum`). They are multiplied by
        the optimizer's loss scale. Layers draw the same dropout masks at each call within a step.

        Args:
            batch: this replica's part of the batch.
            step: int scalar, for overrides.
            weights: of the examples, [N]; None: all 1.
            shift: a tensor for each of `trainable_variables`, of its shape, the same on all replicas; None: no shift.
            decay: whether `weight_decay` * w is added, without the shift.
            loss_terms: function of the arguments of `loss_terms`; None: that.
        """
        variables = self.trainable_variables
        with tf.GradientTape() as tape:
            shifted = [] if shift is None else [(v, v.value + s) for v, s in zip(variables, shift, strict=True)]
            with keras.StatelessScope(shifted, collect_losses=True) as scope, _at(shifted):
                before = [scope.get_current_value(v) for v in variables]
                terms, logits = (loss_terms or self.loss_terms)(batch, training=True)
                if loss_terms is None and set(terms) != set(self.term_names):  # a term that is not named would not be trained
                    raise ValueError(
                        f"Expected the terms {self.term_names}, the term_names of {type(self).__name__}, from its loss_terms. "
                        f"Received: {tuple(terms)}"
                    )
                terms = {name: self._reduce(terms[name], weights) for name in self.term_names}
                loss = tf.add_n(list(terms.values()))
        if assigned := [v.path for v, value in zip(variables, before) if scope.get_current_value(v) is not value]:
            raise ValueError(
                f"Expected layers that leave their trainable weights to the optimizer. Received: {assigned[0]}, which its layer assigns in "
                "training (as keras.layers.SpectralNormalization does). Try: a model without this layer"
            )
        with tape:  # outside the scope, where regularizers would not see the variables
            further = [*scope.losses, *(v.regularizer(v) for v in variables if v.regularizer is not None)]
            loss = tf.add_n([loss, *(self._reduce(tf.cast(tf.reduce_sum(value), loss.dtype)) for value in further)])
            scaled_loss = self._scaled(loss)
        gradients = tape.gradient(scaled_loss, [v.value for v in variables], unconnected_gradients="zero")
        if self.weight_decay and decay:
            factor = self._scaled(self.weight_decay / tf.distribute.get_strategy().num_replicas_in_sync)
            gradients = [g + factor * v.value if self.decays(v) else g for g, v in zip(gradients, variables)]
        statistics = [scope.get_current_value(v) for v in self.non_trainable_variables]
        statistics = [v.value if s is None else s for v, s in zip(self.non_trainable_variables, statistics)]
        return gradients, {"total": loss, **terms}, logits, statistics

    def _scaled(self, loss):
        """Returns a loss times the optimizer's scale, by which it divides the gradients."""
        optimizer = getattr(self, "optimizer", None)
        return optimizer.scale_loss(loss) if optimizer else loss

    def _reduce(self, term, weights=None):
        """Returns this replica's part of a term; the parts of all replicas sum to the term."""
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if term.shape.rank not in (0, 1):
            raise ValueError(f"Expected a term [N] or a scalar from {type(self).__name__}.loss_terms. Received: shape {term.shape}")
        if term.shape.rank == 1 and weights is not None:
            weights = tf.cast(tf.reshape(weights, [-1]), term.dtype)
            term *= tf.tile(weights, tf.shape(term) // tf.maximum(tf.shape(weights), 1))  # of several views in one term
        if term.shape.rank == 1:
            count = tf.maximum(tf.shape(term)[0], 1)  # a replica may have no image of a small last batch of `fit`
            term = tf.reduce_sum(term) / tf.cast(count, term.dtype)
        return term / replicas

    @property
    def metrics(self) -> list[keras.Metric]:
        return self.own_metrics() if self.on_own_data else [*self.trackers.values(), self.accuracy]


@contextlib.contextmanager
def _at(shifted):
    """Context of `gradients`, whose values of variables hold in scopes inside it, too."""
    token = _SHIFTED.set(shifted)
    try:
        yield
    finally:
        _SHIFTED.reset(token)


def _reset_optimizer(model):
    """Gives a compiled model a new optimizer with the settings of its own, whose state would be that of another training."""
    if not getattr(model, "compiled", False) or model.optimizer is None:
        return
    config = model.optimizer.get_config()
    if isinstance(schedule := getattr(model.optimizer, "_learning_rate", None), keras.optimizers.schedules.LearningRateSchedule):
        config["learning_rate"] = schedule  # the schedule of a user may not be registered
    optimizer = type(model.optimizer).from_config(config)
    if model.optimizer.built:
        optimizer.build(optimizers.updating(model.optimizer)._trainable_variables)
    keras.Model.compile(model, **{**model._compile_config.config, "optimizer": optimizer})
