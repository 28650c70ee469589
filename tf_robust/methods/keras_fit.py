"""Training by `fit` of Keras on (x, y): batches, labels, sample weights and metrics of the user's own data."""

import itertools
import logging
import types
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_robust import losses, models
from tf_robust.data.pipeline import Batch, view_functions, views_of
from tf_robust.ops import image_ops, philox
from tf_robust.ops.image_ops import RANGE_TOLERANCE
from tf_robust.training import divergence, optimizers

CHECKED = 500  # images
SMALL_RANGE = 100  # of the classifier's input: images in [0, 1] do not belong to a larger one
DARK = 0.25  # of the range: first images none of whose values is as high belong to another one
PROBABILITY_TOLERANCE = 0.01  # of the sum of a label's probabilities, which may be float16


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
        if not np.shape(input_range) == (2,):
            raise ValueError(f"Expected input_range=(low, high) of the images that the model takes. Received: {input_range}")
        strategy = tf.distribute.get_strategy()
        if any(not strategy.extended.variable_created_in_scope(variable.value) for variable in getattr(classifier, "variables", ())[:1]):
            raise ValueError(
                f"Expected the model and the method in the scope of one strategy. Received: {classifier.name}, of another. "
                "Try: create both inside `with strategy.scope():`"
            )
        stages, views = (stages,) if isinstance(stages, str) else stages, (views,) if isinstance(views, str) else views
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
            models.check_input_range(classifier, self.input_range)
            self.network, self.logits_layer = self._wrapped.network, self._wrapped.logits_layer
        self.views = tuple(views if views is not None else self.default_views)
        view_functions(self.views)

    def pieces(self) -> list[keras.Model]:
        """Returns the network in pieces, see `models.stages`."""
        return self._wrapped.pieces if self._wrapped else models.stages(self.network)

    def fit(self, x: Any = None, y: Any = None, batch_size: int | None = None, epochs: int = 1, **kwargs) -> keras.callbacks.History:
        """Trains as `keras.Model.fit`, on arrays, or on a dataset or generator of (images, labels) or (images, labels, sample weights).

        In place of images a dataset may have tuples of their views, see `data.views`.

        Images have the range of the classifier's input. Labels are class indices, one-hot or probabilities of the classes. Sample and
        class weights multiply the terms of each example, not terms of pairs of examples. A dataset of `data.Batch` is taken as well.
        The first batch of a dataset is read once before training, to check it; so one that is shuffled with a seed continues with its
        second order.

        Args:
            x: images, or a dataset.
            y: labels of arrays.
            batch_size: of arrays.
            epochs: >= 1.
            **kwargs: of `keras.Model.fit`.

        Raises:
            ValueError: the method needs more than images and labels or cannot train on batches of this size, the first images do not
                have the range of the classifier's input, or labels are not those of its classes.
            TrainingDiverged: a loss term, the gradient or the logits under attack are not finite.
        """
        x = x[0] if isinstance(x, list | tuple) and len(x) == 1 else x  # as Keras takes the arrays of a model with one input
        if isinstance(spec := getattr(x, "element_spec", None), Batch):
            sizes = [spec.labels.shape[0]] if spec.labels.shape[0] else []
        else:
            self._check_own_data()
            (images, labels), x = self._first_batch(x, y)
            self._check_images(images)
            self._check_labels(labels)
            sizes = _batch_sizes(x, images, batch_size, **kwargs)
        if (given := kwargs.get("validation_data")) is not None:
            kwargs["validation_data"] = (
                self._check_validation(*given) if isinstance(given, tuple | list) else self._check_validation(given)[0]
            )
        for size in sizes:
            self.check_batch(size)
        steps = _steps_per_epoch(x, y, batch_size, **kwargs)
        if steps is not None:
            done = int(tf.convert_to_tensor(optimizers.updating(self.optimizer)._iterations)) if self.compiled else 0
            for warning in self.schedule(steps, done + steps * epochs):
                logging.warning(warning)
            self.train_function = None  # the schedule is part of the compiled step
        elif getattr(self, "start_epoch", 0) or getattr(self, "warmup_epochs", 0):
            raise ValueError(
                f"Expected start_step and warmup_steps for {type(self).__name__} on a dataset of unknown length. "
                "Received: start_epoch or warmup_epochs. Try: steps_per_epoch in fit"
            )
        with divergence.named(self, "the weights are those before the step"):
            return super().fit(x, y, batch_size=batch_size, epochs=epochs, **kwargs)

    def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Evaluates as `keras.Model.evaluate`, on data as of `fit`."""
        if "_use_cached_eval_dataset" not in kwargs:  # as `fit` calls it, which has checked the data
            x, y = self._check_validation(x, y)
        return super().evaluate(x, y, *args, **kwargs)

    def _first_batch(self, x, y):
        """Returns ((images or a tuple of their views, labels) of the first batch, or of all arrays, None where not known), the data)."""
        if hasattr(x, "shape") or isinstance(x, list | tuple) or not hasattr(x, "__iter__"):
            return (x[0] if isinstance(x, list) and len(x) == 1 else x, y), x
        first: Any
        if isinstance(x, types.GeneratorType):
            first = next(x, None)
            x = (batch for batch in itertools.chain([] if first is None else [first], x))  # Keras takes generators alone
        elif isinstance(x, keras.utils.PyDataset):
            first = x[0]
        else:  # a dataset, or a data loader
            first = next(iter(x.take(1) if isinstance(x, tf.data.Dataset) else x), ())
        if not isinstance(first, tuple | list) or not first:
            return (None, None), x
        images, labels = (self._of_one_replica(part) for part in (*first, None)[:2])
        return (images, labels), x

    def _of_one_replica(self, part):
        """Returns the images or labels of a batch, of a distributed one those of the first replica."""
        return tf.nest.map_structure(lambda value: self.distribute_strategy.experimental_local_results(value)[0], part)

    def _check_validation(self, x, y=None, *weights):
        """Returns the data after checking their first batch."""
        (images, labels), x = self._first_batch(x, y)
        self._check_images(images, "validation images")
        self._check_labels(labels)
        return x, y, *weights

    def _check_images(self, images, whose="images"):
        """Raises ValueError unless the first images span the range of the classifier's input; of validation images only by far."""
        (low, high), tolerance = self.input_range, RANGE_TOLERANCE * (self.input_range[1] - self.input_range[0])
        for view in images if isinstance(images, tuple) else (images,):
            if not hasattr(view, "shape") or not len(view):
                continue
            first = np.asarray(view[:CHECKED])
            least, most = float(first.min()), float(first.max())
            in_floats = first.dtype.kind not in "iub"  # `_unit_images` checks integers
            outside = whose == "images" and in_floats and (least < low - tolerance or most > high + tolerance)
            dark = high > SMALL_RANGE and least < most and (most <= 1 or most < low + DARK * (high - low))
            if outside or dark or whose != "images" and high <= 1 and most > SMALL_RANGE:
                raise ValueError(
                    f"Expected {whose} in [{low:g}, {high:g}]. Received: images in [{least:g}, {most:g}]. "
                    f"Try: {type(self).__name__}(model, input_range=(low, high)) with the range of the images that the model takes"
                )

    def _check_labels(self, labels):
        """Raises ValueError if class indices are not those of the classifier's outputs."""
        if not hasattr(labels, "shape") or not len(labels):
            return
        labels, classes = np.asarray(labels), self.network.output["logits"].shape[-1]
        is_index = labels.dtype.kind in "iu" or labels.dtype.kind == "f" and not self.has_one_output
        if is_index and (labels.ndim == 1 or labels.shape[1:] == (1,)) and not 0 <= labels.min() <= labels.max() < classes:
            raise ValueError(
                f"{_expected_labels(classes)} {labels.min():g} to {labels.max():g}. "
                f"Try: {'labels - 1' if labels.min() == 1 and labels.max() == classes else 'a model with an output for each class'}"
            )

    def _check_own_data(self):
        name = type(self).__name__
        if self.needs_positions:
            raise ValueError(f"Expected each image's position in the training set for {name}. Received: images and labels alone. "
                             "Try: tf_robust.training.loop.fit(method, data.ArraySource.of(...))")  # fmt: skip
        if self.closed_form:
            raise ValueError(f"Expected a method trained in epochs. Received: {name} with solver='lbfgs'. Try: solver='sgd'")
        self.check_views(self._view_names())

    def summary(self, *args: Any, **kwargs: Any) -> None:
        """Prints the classifier's summary."""
        return self.classifier.summary(*args, **kwargs)

    def save(self, filepath: Any, overwrite: bool = True, **kwargs: Any) -> None:
        """Saves the classifier alone: a plain Keras model, which loads without this package. `save_weights` saves the state of training."""
        self.classifier.save(filepath, overwrite=overwrite, **kwargs)

    def export(self, filepath: Any, **kwargs: Any) -> None:
        """Exports the classifier alone, as `keras.Model.export` does."""
        self.classifier.export(filepath, **kwargs)

    def to_batch(self, data: Any) -> tuple[Batch, tf.Tensor, tf.Tensor | None]:
        """Returns (batch with its views, labels as given, sample weights or None) of (images, labels[, sample weights]).

        Views are drawn as in the pipeline, by (seed, step, position in the batch), and on several devices by the replica; or they
        are given in place of the images, as a tuple, see `data.views`.
        """
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        if y is None:
            raise ValueError(f"Expected images and labels, (x, y). Received: only images, for {type(self).__name__}")
        optimizer: Any = optimizers.updating(self.optimizer)
        step = tf.cast(tf.convert_to_tensor(optimizer._iterations), tf.int64)  # `iterations` counts updates of accumulated gradients
        views = tuple(self._unit_images(view) for view in x) if isinstance(x, tuple) else self._draw_views(self._unit_images(x), step)
        if len(views) != len(self.views):
            raise ValueError(f"Expected {len(self.views)} views: {self._view_names()}. Received: a tuple of {len(views)}")
        count = tf.maximum(tf.shape(views[0])[0], 1)  # a replica may have no image of a small last batch, but has a step
        return Batch(views, self._labels(y), tf.fill([count], step)), y, weights

    def _draw_views(self, images, step):
        seed, context = tf.stack([tf.constant(self.seed, tf.int64), step]), tf.distribute.get_replica_context()
        if context.num_replicas_in_sync > 1:
            seed = philox.fold(seed, tf.cast(context.replica_id_in_sync_group, tf.int64))
        return views_of(images, view_functions(self.views), seed)

    def _view_names(self):
        return [getattr(view, "__name__", str(view)) for view in self.views]

    def _unit_images(self, x):
        """Returns images as float32 in [0, 1], after checking their range."""
        x, (low, high) = tf.convert_to_tensor(x), self.input_range
        if x.dtype.is_integer and (low, high) == (0.0, 1.0):
            raise ValueError(
                f"Expected float images in [0, 1]. Received: {x.dtype.name}. "
                "Try: divide them by 255, or input_range=(0, 255) if the model scales them itself"
            )
        shape = [None, *self.network.input_shape[1:]]
        x = x[..., None] if x.shape.rank == 3 and shape[-1] == 1 else x  # as Keras does
        return image_ops.unit_images(tf.ensure_shape(x, shape), (low, high), "images that the model takes")

    def _labels(self, y):
        """Returns labels int64 [N] of indices [N] or [N, 1], or float32 [N, classes] of one-hot labels or probabilities.

        Floating-point labels of a classifier with one output, [N] or [N, 1], are probabilities of the second class.
        """
        labels, classes = tf.convert_to_tensor(y), self.network.output["logits"].shape[-1]
        of_each = labels.shape.rank == 1 or labels.shape.rank == 2 and labels.shape[1] == 1
        if of_each and self.has_one_output and labels.dtype.is_floating:
            second = tf.cast(tf.reshape(labels, [-1]), tf.float32)
            labels = tf.stack([1.0 - second, second], axis=1)
        if labels.shape.rank == 2 and labels.shape[1] == classes:
            labels = tf.cast(labels, tf.float32)
            valid = tf.reduce_all(labels >= 0.0) & tf.reduce_all(tf.abs(tf.reduce_sum(labels, axis=1) - 1.0) <= PROBABILITY_TOLERANCE)
            message = "Expected class indices, one-hot labels or probabilities that sum to 1. Received labels up to"
            with tf.control_dependencies([tf.debugging.Assert(valid, [message, tf.reduce_max(labels)])]):
                return tf.identity(labels)
        if of_each:
            indices = tf.cast(tf.reshape(labels, [-1]), tf.int64)
            known = tf.reduce_all((indices >= 0) & (indices < classes))
            checks = [tf.debugging.Assert(known, [_expected_labels(classes), tf.reduce_min(indices), "to", tf.reduce_max(indices)])]
            if labels.dtype.is_floating:
                integers = tf.reduce_all(tf.cast(indices, labels.dtype) == tf.reshape(labels, [-1]))
                checks.append(tf.debugging.Assert(integers, ["Expected integers as class indices. Received:", labels]))
            with tf.control_dependencies(checks):
                return tf.identity(indices)
        raise ValueError(f"Expected class indices [N], or one-hot labels or probabilities [N, {classes}]. Received shape: {labels.shape}")

    def test_step(self, data: Any) -> dict:
        """Updates loss and metrics by one batch of (x, y), in inference mode."""
        self.on_own_data = True
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        scores = models.of_two_classes(self.predictions(self(x, training=False)), self.returns_logits)
        labels = self._labels(y)
        logits = scores if self.returns_logits else tf.math.log(tf.clip_by_value(scores, 1e-7, 1.0))
        loss = losses.cross_entropy(labels, tf.cast(logits, tf.float32))
        loss = loss if weights is None else loss * tf.cast(tf.reshape(weights, [-1]), loss.dtype)
        count = tf.shape(labels)[0]  # 0 on a replica that has no image of a small last batch
        loss = tf.reduce_sum(loss) / tf.cast(tf.maximum(count, 1), loss.dtype) + self.regularization_loss()
        self._loss_tracker.update_state(loss, sample_weight=count)
        return {"loss": self._loss_tracker.result(), **self.update_metrics(labels, y, scores, weights)}

    def _get_metrics_result_or_logs(self, logs):
        """The metrics that a step returned, of all devices; Keras would average those of the last step where a step returns not all."""
        results = self.get_metrics_result()
        return {name: results[name] for name in logs} if set(logs) <= set(results) else logs

    @property
    def has_one_output(self) -> bool:
        """Whether the classifier returns [N, 1], the logit or probability of the second of two classes."""
        return self._wrapped is not None and self._wrapped.has_one_output

    @property
    def returns_logits(self) -> bool:
        """Whether the classifier returns logits; otherwise probabilities."""
        return self._wrapped is None or self._wrapped.from_logits

    @staticmethod
    def predictions(outputs: Any) -> tf.Tensor:
        """Returns logits or probabilities of the classifier's outputs; one output may have any name."""
        return outputs.get("logits", next(iter(outputs.values()))) if isinstance(outputs, dict) else outputs

    def regularization_loss(self) -> tf.Tensor:
        """Returns the sum of the losses of the classifier's layers, such as those of kernel regularizers."""
        return tf.add_n([tf.constant(0.0), *(tf.reduce_sum(tf.cast(loss, tf.float32)) for loss in self.classifier.losses)])

    def update_metrics(self, labels: tf.Tensor, y: tf.Tensor, scores: tf.Tensor, weights: tf.Tensor | None) -> dict:
        """Updates the metrics given to `compile`, or else the accuracy; returns {name: value}.

        Args:
            labels: of `_labels`.
            y: labels as given.
            scores: logits or probabilities [N, classes], as the classifier returns them; metrics of a classifier with one output get that.
            weights: of the examples, or None.
        """
        if self._compile_metrics is None:
            self.accuracy.update_state(losses.class_indices(labels), scores)
            return {"accuracy": self.accuracy.result()}
        if self.has_one_output:
            scores = scores[:, 1:] - scores[:, :1] if self.returns_logits else scores[:, 1:]
        self._compile_metrics.update_state(y, scores, weights)
        return self._compile_metrics.result()

    def own_metrics(self) -> list[keras.Metric]:
        """Returns the metrics of training on (x, y): the loss, its terms where there are several, and those given to `compile`."""
        terms = [self.trackers[name] for name in self.term_names] if len(self.term_names) > 1 else []
        return [self._loss_tracker, *terms, self.accuracy if self._compile_metrics is None else self._compile_metrics]


def _expected_labels(classes):
    return f"Expected labels 0 to {classes - 1}, of the model's {classes} classes. Received: labels"


def _batch_sizes(x, images, batch_size, validation_split=0.0, validation_data=None, **_):
    """Returns the known numbers of images in the batches of an epoch: in the first one, and with arrays in a smaller last one."""
    images = images[0] if isinstance(images, tuple) and images else images
    if not hasattr(images, "shape"):
        return []
    if not hasattr(x, "shape"):  # a dataset or a generator
        return [len(images)]
    count = _training_images(images, validation_split, validation_data)
    size = min(batch_size or 32, count)
    return [size, *([count % size] if size and count % size else [])]


def _training_images(x, validation_split, validation_data):
    return len(x) if validation_data is not None else int(len(x) * (1 - (validation_split or 0.0)))


def _steps_per_epoch(x, y, batch_size, steps_per_epoch=None, validation_split=0.0, validation_data=None, **_):
    """Returns the number of steps in an epoch of `fit`, or None if it is not known."""
    if steps_per_epoch is not None:
        return steps_per_epoch
    if isinstance(x, tf.data.Dataset):
        count = int(x.cardinality())
        return count if count >= 0 else None
    if y is None:
        return len(x) if isinstance(x, keras.utils.PyDataset) else None
    return -(-_training_images(x, validation_split, validation_data) // (batch_size or 32))
