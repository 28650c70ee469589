"""Training by `fit` of Keras on (x, y): batches, labels, sample weights and metrics of the user's own data."""

import logging
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tf_robust import losses, models
from tf_robust.data.augment import VIEWS
from tf_robust.data.pipeline import Batch
from tf_robust.ops import philox
from tf_robust.utils.errors import unknown

RANGE_TOLERANCE = 0.01


class KerasFit(keras.Model):
    """Base class of methods: `fit`, `evaluate`, `predict`, `save` and `summary`, with images and labels as the user's model takes them.

    Attributes:
        default_views: names of the views that are made of each batch.
        needs_positions: whether a step needs each image's position in the training set.
    """

    default_views: tuple[str, ...] = ("clean",)
    needs_positions = False
    closed_form = False  # trained by `solve`, not in epochs
    on_own_data = False  # whether the last step was on (x, y), not on a `Batch`

    def use_model(self, classifier: keras.Model, views, embedding, stages, input_range, from_logits) -> None:
        """Sets the classifier, its network with outputs {"logits", "embedding"}, and the views; arguments as of `Method`."""
        self.classifier, self.input_range = classifier, tuple(float(value) for value in input_range)
        self._wrapped = None
        if models.is_network(classifier):
            self.network = classifier
            if (embedding, tuple(stages), self.input_range, from_logits) != (None, (), (0.0, 1.0), None):
                raise ValueError(
                    f"Expected no embedding, stages, input_range or from_logits for {classifier.name}, which returns logits and embedding "
                    f"for images in [0, 1]. Received: {embedding}, {tuple(stages)}, {self.input_range}, {from_logits}"
                )
            names = [layer.name for layer in classifier.layers]
            self.logits_layer = classifier.get_layer("logits") if "logits" in names else None
        else:
            self._wrapped = models.wrap(classifier, embedding=embedding, stages=stages, input_range=input_range, from_logits=from_logits)
            self.network, self.logits_layer = self._wrapped.network, self._wrapped.logits_layer
        self.views = tuple(views if views is not None else self.default_views)
        for view in self.views:
            if not callable(view) and view not in VIEWS:
                raise unknown("view", view, VIEWS)

    def pieces(self) -> list[keras.Model]:
        """Returns the network in pieces, see `models.stages`."""
        return self._wrapped.pieces if self._wrapped else models.stages(self.network)

    def fit(self, x: Any = None, y: Any = None, batch_size: int | None = None, epochs: int = 1, **kwargs) -> keras.callbacks.History:
        """Trains as `keras.Model.fit`, on arrays, or on a dataset of (images, labels) or (images, labels, sample weights).

        Images have the range of the classifier's input. Labels are class indices or one-hot. Sample and class weights multiply
        the terms of each example, not terms of pairs of examples. A dataset of `data.Batch` is taken as well.

        Args:
            x: images, or a dataset.
            y: labels of arrays.
            batch_size: of arrays.
            epochs: >= 1.
            **kwargs: of `keras.Model.fit`.

        Raises:
            ValueError: the method needs more than images and labels.
        """
        if not isinstance(getattr(x, "element_spec", None), Batch):
            self._check_own_data()
            steps = _steps_per_epoch(x, y, batch_size, **kwargs)
            if steps is not None:
                for warning in self.schedule(steps, steps * epochs):
                    logging.warning(warning)
                self.train_function = None  # the schedule is part of the compiled step
            elif getattr(self, "start_epoch", 0) or getattr(self, "warmup_epochs", 0):
                raise ValueError(
                    f"Expected start_step and warmup_steps for {type(self).__name__} on a dataset of unknown length. "
                    "Received: start_epoch or warmup_epochs. Try: steps_per_epoch in fit"
                )
        return super().fit(x, y, batch_size=batch_size, epochs=epochs, **kwargs)

    def _check_own_data(self):
        name = type(self).__name__
        if self.needs_positions:
            raise ValueError(f"Expected each image's position in the training set for {name}. Received: images and labels alone. "
                             "Try: tf_robust.training.loop.fit(method, data.ArraySource.of(...))")  # fmt: skip
        if self.closed_form:
            raise ValueError(f"Expected a method trained in epochs. Received: {name} with solver='lbfgs'. Try: solver='sgd'")
        self.check_views([getattr(view, "__name__", str(view)) for view in self.views])

    def summary(self, *args: Any, **kwargs: Any) -> None:
        """Prints the classifier's summary."""
        return self.classifier.summary(*args, **kwargs)

    def save(self, filepath: Any, overwrite: bool = True, **kwargs: Any) -> None:
        """Saves the classifier alone: a plain Keras model, which loads without this package. `save_weights` saves the state of training."""
        self.classifier.save(filepath, overwrite=overwrite, **kwargs)

    def to_batch(self, data: Any) -> tuple[Batch, tf.Tensor, tf.Tensor | None]:
        """Returns (batch with its views, labels as given, sample weights or None) of (images, labels[, sample weights]).

        Views are drawn as in the pipeline, by (seed, step, position in the batch), and on several devices by the replica.
        """
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        if y is None:
            raise ValueError(f"Expected images and labels, (x, y). Received: only images, for {type(self).__name__}")
        images, labels = self._unit_images(x), self._class_indices(y)
        optimizer = self.optimizer  # with gradient accumulation, `iterations` counts updates
        counter = optimizer._iterations if optimizer.gradient_accumulation_steps else optimizer.iterations
        step = tf.cast(tf.convert_to_tensor(counter), tf.int64)
        seed, context = tf.stack([tf.constant(self.seed, tf.int64), step]), tf.distribute.get_replica_context()
        if context.num_replicas_in_sync > 1:
            seed = philox.fold(seed, tf.cast(context.replica_id_in_sync_group, tf.int64))
        functions: list[Callable] = [VIEWS[view] if isinstance(view, str) else view for view in self.views]
        views = tuple(tf.ensure_shape(view(images, philox.fold(seed, 2000 + i)), images.shape) for i, view in enumerate(functions))
        return Batch(views, labels, tf.fill([tf.shape(images)[0]], step)), y, weights

    def _unit_images(self, x):
        """Returns images as float32 in [0, 1], after checking their range."""
        x, (low, high) = tf.convert_to_tensor(x), self.input_range
        if x.dtype.is_integer and (low, high) == (0.0, 1.0):
            raise ValueError(
                f"Expected float images in [0, 1]. Received: {x.dtype.name}. "
                "Try: divide them by 255, or input_range=(0, 255) if the model scales them itself"
            )
        images = tf.ensure_shape(tf.cast(x, tf.float32), [None, *self.network.input_shape[1:]])
        images = images if (low, high) == (0.0, 1.0) else (images - low) / (high - low)
        message = f"Expected images in [{low:g}, {high:g}]. Try: input_range=(low, high) of the images that the model takes"
        inside = tf.reduce_all((images >= -RANGE_TOLERANCE) & (images <= 1.0 + RANGE_TOLERANCE))
        with tf.control_dependencies([tf.debugging.Assert(inside, [message, "Received:", tf.reduce_min(x), tf.reduce_max(x)])]):
            return tf.identity(images)

    def _class_indices(self, y):
        """Returns labels int64 [N], of indices [N] or [N, 1], or of one-hot labels."""
        labels, classes = tf.convert_to_tensor(y), self.network.output["logits"].shape[-1]
        if labels.shape.rank == 2 and labels.shape[1] == classes:
            one_hot = tf.reduce_all(tf.reduce_max(labels, axis=1) == 1)
            with tf.control_dependencies([tf.debugging.Assert(one_hot, ["Expected class indices or one-hot labels. Received: others"])]):
                return tf.argmax(labels, axis=1)
        if labels.shape.rank == 1 or labels.shape.rank == 2 and labels.shape[1] == 1:
            return tf.cast(tf.reshape(labels, [-1]), tf.int64)
        raise ValueError(f"Expected class indices [N] or one-hot labels [N, {classes}]. Received shape: {labels.shape}")

    def test_step(self, data: Any) -> dict:
        """Updates loss and metrics by one batch of (x, y), in inference mode."""
        self.on_own_data = True
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        predictions = self.predictions(self(x, training=False))
        labels = self._class_indices(y)
        logits = predictions if self.returns_logits else tf.math.log(tf.clip_by_value(predictions, 1e-7, 1.0))
        loss = losses.cross_entropy(labels, tf.cast(logits, tf.float32))
        loss = tf.reduce_mean(loss if weights is None else loss * tf.cast(tf.reshape(weights, [-1]), loss.dtype))
        loss += self.regularization_loss()
        self._loss_tracker.update_state(loss, sample_weight=tf.shape(labels)[0])
        return {"loss": self._loss_tracker.result(), **self.update_metrics(labels, y, predictions, weights)}

    @property
    def returns_logits(self) -> bool:
        """Whether the classifier returns logits; otherwise probabilities."""
        return self._wrapped is None or self._wrapped.from_logits

    @staticmethod
    def predictions(outputs: Any) -> tf.Tensor:
        """Returns logits or probabilities of the classifier's outputs."""
        return outputs["logits"] if isinstance(outputs, dict) else outputs

    def regularization_loss(self) -> tf.Tensor:
        """Returns the sum of the losses of the classifier's layers, such as those of kernel regularizers."""
        return tf.add_n([tf.constant(0.0), *(tf.reduce_sum(tf.cast(loss, tf.float32)) for loss in self.classifier.losses)])

    def update_metrics(self, labels: tf.Tensor, y: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor | None) -> dict:
        """Updates the metrics given to `compile`, or else the accuracy; returns {name: value}."""
        if self._compile_metrics is None:
            self.accuracy.update_state(labels, predictions)
            return {"accuracy": self.accuracy.result()}
        self._compile_metrics.update_state(y, predictions, weights)
        return self._compile_metrics.result()

    def own_metrics(self) -> list[keras.Metric]:
        """Returns the metrics of training on (x, y): the loss, its terms where there are several, and those given to `compile`."""
        terms = [self.trackers[name] for name in self.term_names] if len(self.term_names) > 1 else []
        return [self._loss_tracker, *terms, self.accuracy if self._compile_metrics is None else self._compile_metrics]


def _steps_per_epoch(x, y, batch_size, steps_per_epoch=None, validation_split=0.0, validation_data=None, **_):
    """Returns the number of steps in an epoch of `fit`, or None if it is not known."""
    if steps_per_epoch is not None:
        return steps_per_epoch
    if isinstance(x, tf.data.Dataset):
        count = int(x.cardinality())
        return count if count >= 0 else None
    if y is None:
        return len(x) if isinstance(x, keras.utils.PyDataset) else None
    count = len(x) if validation_data is not None else int(len(x) * (1 - (validation_split or 0.0)))
    return -(-count // (batch_size or 32))
