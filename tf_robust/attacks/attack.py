"""Base class of all attacks: checks, batches, the compiled graph, and a loss's gradients with respect to the images.

A model is a differentiable callable from float32 [N, H, W, C] in [0, 1] to logits [N, C] (or a dictionary with "logits"):
a Keras model, a reloaded SavedModel, a function. Sizes of perturbations are in that pixel scale, also of integers.
"""

import copy
import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_robust import data
from tf_robust.attacks import norms
from tf_robust.attacks.criterion import Criterion
from tf_robust.attacks.norms import per_image
from tf_robust.models.batch_norms import folded_batch_norms
from tf_robust.models.outputs import Model, are_probabilities, checked_logits, output
from tf_robust.ops import image_ops

Predict = Callable[[tf.Tensor], tf.Tensor]  # images [N, H, W, C] -> logits [N, C]
_BATCH, _BATCH_PIXELS = 256, 1 << 20  # of a batch, at most
_SCALED_GRADIENT = 32.0  # largest entry of a loss's gradient with respect to the logits, on its way through the model


class Attack:
    """Callable: (model, images, labels) -> attacked images. A subclass overrides `perturb`, graph code for one batch.

    The radius of a subclass is checked, and the size of its perturbations, if it sets `norm` (a `Norm` or its name) and `radius`.

    Args:
        seed: int; the draws for an image depend on it and on the image's index only.
        restarts: maximum number of attempts, each with other draws; stops for an image after the first success.
        batch_size: images per batch, which bounds the memory; 0: 256, or of larger images fewer, which have 2^20 pixels together.
        skip_misclassified: return images that the model already misclassifies (or assigns to the target class) unchanged.

    Examples:
        >>> class Invert(tfr.attacks.Attack):
        ...     def perturb(self, predict, images, criterion, seed, indices):
        ...         return 1.0 - images
        >>> def model(images):  # the class is the brightest of four pixels
        ...     return tf.reshape(images, [-1, 4])
        >>> Invert()(model, np.array([[[[0.75], [0.5]], [[0.25], [0.0]]]]), labels=[0]).numpy().ravel()
        array([0.25, 0.5 , 0.75, 1.  ])
    """

    def __init__(self, *, seed: int = 0, restarts: int = 1, batch_size: int = 0, skip_misclassified: bool = True):
        if batch_size < 0 or restarts < 1:
            raise ValueError(f"Expected batch_size >= 0 and restarts >= 1. Received: {batch_size}, {restarts}")
        self.seed, self.restarts, self.batch_size, self.skip_misclassified = seed, restarts, batch_size, skip_misclassified
        self._compiled: list = [None, None]  # what the graphs are for, and the graphs
        self._shares_graphs = False

    def images_per_batch(self, shape: Sequence[int]) -> int:
        """Returns the number of images of `shape` (H, W, C) that are attacked together."""
        return self.batch_size or max(1, min(_BATCH, _BATCH_PIXELS // (shape[0] * shape[1])))

    def attempts(self, classes: int, targeted: bool) -> int:
        """Returns the maximum number of attempts for a model of `classes` classes; `targeted`: target classes are given."""
        return self.restarts

    norm: Any = None  # a `Norm` or its name; None: perturbations of any size
    radius: Any = None  # float
    takes_radius_as_tensor = False  # of this very class: `self.radius` is all that depends on the radius, and may be a scalar tensor

    def _within(self, radius):
        """The attack with another radius, on the same graphs."""
        other = self._with_radius(float(radius))
        other._shares_graphs = True
        return other

    def _with_radius(self, radius):
        other = copy.copy(self)
        other.radius = radius
        return other

    @property
    def _norm(self):
        return norms.NORMS.get(self.norm, self.norm)

    def check(self, shape: Sequence[int]) -> None:
        """Raises ValueError if the attack cannot run on images of `shape` (H, W, C)."""
        if self._norm is not None and self.radius is not None:
            norms.check_radius(self.radius, self._norm, shape)

    def perturb(self, predict: Predict, images: tf.Tensor, criterion: Criterion, seed: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
        """Attacks one batch, as graph code.

        Args:
            predict: images -> logits.
            images: float32 [N, H, W, C] in [0, 1].
            criterion: the goal for these images.
            seed: int64 [2] for `Draws`, different for each attempt.
            indices: int64 [N] for `Draws`.

        Returns:
            float32 [N, H, W, C] in [0, 1].
        """
        raise NotImplementedError

    def __call__(
        self,
        model: Model,
        images: npt.ArrayLike,
        labels: npt.ArrayLike,
        *,
        targets: npt.ArrayLike | None = None,
        indices: npt.ArrayLike | None = None,
    ) -> tf.Tensor:
        """Attacks images.

        Args:
            model: differentiable callable, images -> logits; Keras models run in inference mode.
            images: [N, H, W, C], floats in [0, 1] or integers in 0..255.
            labels: int [N], the true classes.
            targets: int [N], target classes; None: any class but the label.
            indices: int [N], positions in the data set, which seed the draws; None: 0..N-1.

        Returns:
            tf.Tensor of the shape, the pixel scale and the type of the images. Integers are rounded, to the nearest or else towards the
            image, so that they stay within the radius; a perturbation that is small in every value may vanish.

        Raises:
            ValueError: images not finite or outside their range; labels or targets that are no class indices of the model; a radius that
                is negative, larger than the images allow or less than one level of integers; a model without gradients; logits that are not
                finite.
        """
        given, labels = np.asarray(images), _indices(labels, "labels")
        if given.dtype.kind not in "iu":
            return tf.constant(self._attacked(model, image_ops.check_images(given), labels, targets, indices).astype(given.dtype))
        self.check_level(1 / 255)
        attacked = self._attacked(model, image_ops.check_images(given / np.float32(255)), labels, targets, indices)
        return tf.constant(self._rounded(255 * attacked.astype(np.float64) - given, given))

    def check_level(self, level: float) -> None:
        """Raises ValueError if the radius, in any norm, is smaller than one level of integer images, on the [0, 1] pixel scale."""
        if self.radius and self.radius < level * (1 - 1e-6):
            raise ValueError(
                f"Expected radius >= {level:.4g}, one level of the integer images, which no attack can change by less. "
                f"Received: {self.radius:.4g}. Try: images as floats"
            )

    def _rounded(self, changes, images):
        """Integers in 0..255 near images + changes, within the radius if there is one."""
        nearest = np.round(changes)
        if self._norm is not None and self.radius is not None and len(images):
            outside = self._norm.size(tf.constant(nearest / 255)).numpy() > self.radius * (1 + 1e-6)
            nearest[outside] = np.trunc(changes[outside])
        return (images + nearest).astype(images.dtype)

    def _attacked(self, model, images, labels, targets, indices):
        """Attacks float32 images in [0, 1]; returns an array of them."""
        self.check(images.shape[1:])
        targeted, classes = targets is not None, labels if targets is None else _indices(targets, "targets")
        indices = np.arange(len(images)) if indices is None else np.asarray(indices, np.int64)
        if not len(images) == len(labels) == len(classes) == len(indices):
            raise ValueError(
                f"Expected as many labels, targets and indices as images, {len(images)}. Received: "
                f"{len(labels)}, {len(classes)}, {len(indices)}"
            )
        attacked = images.copy()
        size = self.images_per_batch(images.shape[1:])
        for start in range(0, len(images), size):
            batch = np.arange(start, min(start + size, len(images)))
            predict, attack = self._graphs(model, targeted)
            logits = checked_logits(predict(tf.constant(images[batch])), labels[batch], "the images to attack")
            if logits.shape[1] == 1:
                raise ValueError(
                    "Expected logits of at least two classes from the attacked model. Received: one output. Try: tf_robust.attack, which "
                    "reads it as that of the second class"
                )
            if not start and are_probabilities(logits):
                warnings.warn(
                    "The outputs of the attacked model look like probabilities, not logits: their gradients vanish where it is confident. "
                    "Try: tf_robust.attack, which takes probabilities, or a model without its softmax",
                    stacklevel=3,
                )
            data.check_labels(classes[batch], logits.shape[1], "the targets of an attack")
            reached = Criterion(tf.constant(classes[batch]), targeted).reached(tf.constant(logits)).numpy()
            active = batch[~reached] if self.skip_misclassified else batch
            columns = np.union1d(occurring_classes(logits), classes[batch])
            count, goals = self.attempts(len(columns), targeted), np.searchsorted(columns, classes)
            for attempt in range(count):
                if len(active):
                    graph = attack(count > 1, tuple(columns) if len(columns) < logits.shape[1] else None)
                    found, reached = self._attempt(graph, images[active], goals[active], attempt, indices[active])
                    self._check_result(found, images[active])
                    attacked[active] = found
                    active = active[~reached]
        return attacked

    def _attempt(self, graph, images, classes, attempt, indices):
        """Runs one attempt; returns the attacked images and bool [N], whether an image needs no further attempt."""
        try:
            return graph(images, classes, [self.seed, attempt], indices, self.radius or 0.0)
        except tf.errors.InvalidArgumentError as error:
            if NOT_FINITE not in error.message:
                raise
            raise ValueError(
                f"Expected finite logits from the model during {type(self).__name__}. Received: NaN "
                f"or infinity, in a batch of {len(images)} images from index {indices[0]} on"
            ) from error

    def _check_result(self, attacked, images):
        """Checks what `perturb` returned: an image out of range or out of the ball would count as a success."""
        least, most = attacked.min(), attacked.max()
        if not (least >= 0 and most <= 1):  # also for NaN
            raise ValueError(f"Expected images in [0, 1] from {type(self).__name__}.perturb. Received: from {least:g} to {most:g}")
        if self._norm is not None and self.radius is not None:
            largest = self._norm.size(tf.constant(attacked) - images).numpy().max()
            if largest > self.radius * (1 + 1e-4) + 1e-6:
                raise ValueError(
                    f"Expected images within radius={self.radius:g} from {type(self).__name__}.perturb. Received: one at {largest:g}. "
                    "Try: images + norm.projected(perturbation, radius), clipped to [0, 1]"
                )

    def _graphs(self, model, targeted):
        """Returns two graphs of `model`: images -> logits, and (images, classes, seed, indices, radius) -> (attacked images, reached).

        The attack is given by a function of whether there are several attempts, since only then is it computed what is reached, and of
        the columns of the logits to which it is restricted (None: all). It calls the graph of the logits, so that the model is traced
        only once. Keeps the last.
        """
        key = model, targeted, None if self._shares_graphs else self.radius
        if self._compiled[0] != key:

            @tf.function(autograph=False)
            def logits(images):
                with folded_batch_norms():
                    found = tf.convert_to_tensor(output(model, images, "logits"))
                return tf.cast(found, tf.float32) if found.dtype.size < 4 else found

            def predict(images):
                return logits.get_concrete_function(tf.TensorSpec([None, *images.shape[1:]], tf.float32))(images)

            @functools.cache
            def attack(several, columns):
                def predict_columns(images):
                    return predict(images) if columns is None else tf.gather(predict(images), columns, axis=1)

                @tf.function(autograph=False)  # nothing to convert, and the conversion takes longer than tracing
                def graph(images, classes, seed, indices, radius):
                    criterion, attacker = Criterion(classes, targeted), self._with_radius(radius) if self._shares_graphs else self
                    attacked = attacker.perturb(predict_columns, images, criterion, seed, indices)
                    reached = criterion.reached(finite(predict_columns(attacked))) if several else tf.zeros_like(classes, tf.bool)
                    return attacked, reached

                def call(images, classes, seed, indices, radius):
                    compiled = graph.get_concrete_function(
                        tf.TensorSpec([None, *images.shape[1:]], tf.float32),
                        tf.TensorSpec([None], tf.int64),
                        tf.TensorSpec([2], tf.int64),
                        tf.TensorSpec([None], tf.int64),
                        tf.TensorSpec([], tf.float32),
                    )
                    integers = (tf.constant(values, tf.int64) for values in (classes, seed, indices))
                    return [result.numpy() for result in compiled(tf.constant(images), *integers, tf.constant(radius, tf.float32))]

                return call

            self._compiled[:] = key, (predict, attack)
        return self._compiled[1]


def at_radii(attack: Callable[..., Attack], radii: Iterable[float], **options) -> list[Attack]:
    """Returns an attack, a class with its options, for each of some radii.

    Attacks of one class share their graphs, which take long to trace, if the class itself says that it takes the radius as a tensor.
    """
    if not vars(attack).get("takes_radius_as_tensor"):
        return [attack(radius=radius, **options) for radius in radii]
    first = attack(**options)
    return [first._within(radius) for radius in radii]


NOT_FINITE = "logits of an attacked model"  # in the message of an attack's graph


def _indices(labels, name):
    """Labels or targets as int64 [N], checked."""
    values = np.asarray(labels)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        of_rows = values.ndim == 2 and values.shape[1] > 1
        advice = f". Try: {name}.argmax(axis=1)" if of_rows else f". Try: {name}.reshape(-1).astype(int)"
        raise ValueError(f"Expected {name} as class indices, int [N]. Received: {values.dtype} {list(values.shape)}{advice}")
    return values.astype(np.int64)


def occurring_classes(logits: np.ndarray) -> np.ndarray:
    """Returns the columns of logits [N, C] that are not -infinity in all images: a class that is masked out is none to aim at."""
    return np.flatnonzero(np.isfinite(logits).any(axis=0))


def loss_and_gradient(
    predict: Predict,
    images: tf.Tensor,
    loss: Callable[[tf.Tensor], tf.Tensor],
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns a loss of the logits and its gradient with respect to the images.

    The gradient of each image is scaled while it passes through the model, as in training with mixed precision: in float16, values below
    6e-8 would be rounded to 0.

    Args:
        predict: images -> logits.
        images: float32 [N, H, W, C].
        loss: logits [N, C] -> [N].

    Returns:
        (loss [N], gradient [N, H, W, C], logits [N, C])

    Raises:
        ValueError: no gradient flows through the model.
    """
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(images)
        logits = finite(predict(images))
    with tf.GradientTape(watch_accessed_variables=False) as tape_of_loss:
        tape_of_loss.watch(logits)
        values = loss(logits)
    upstream = tf.convert_to_tensor(tape_of_loss.gradient(values, logits))
    scale = _SCALED_GRADIENT / tf.maximum(tf.reduce_max(tf.abs(upstream), axis=1), 1e-30)
    gradient = tape.gradient(logits, images, output_gradients=upstream * scale[:, None])
    if gradient is None:
        raise ValueError(
            "Expected a model that is differentiable with respect to its images. Received: a model without "
            "gradients (TensorFlow Lite, ONNX, images rounded to uint8, NumPy inside, or an argmax as output). Try: the attack "
            "'square' (attack=square), which needs none"
        )
    return values, gradient / tf.cast(per_image(scale), gradient.dtype), logits


def finite(logits: tf.Tensor) -> tf.Tensor:
    """Returns the logits; the graph fails if one is NaN or +infinity. -infinity is allowed: a class that is masked out."""
    invalid = tf.reduce_any(tf.math.is_nan(logits) | (logits == np.inf))
    with tf.control_dependencies([tf.debugging.Assert(~invalid, [NOT_FINITE])]):  # `assert_equal` would add a condition to the graph
        return tf.identity(logits)
