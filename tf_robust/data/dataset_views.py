"""Views of the images of a user's own dataset, drawn as in the training step."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_robust.data.augment import VIEWS
from tf_robust.ops import image_ops, philox
from tf_robust.utils.errors import unknown

FIRST_VIEW = 2000  # purpose of the first view's draws; those of augmentations begin at 1000
View = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # (images, seed) -> images


def views(
    dataset: tf.data.Dataset, views: Sequence[str | View], *, seed: int = 0, input_range: Sequence[float] = (0.0, 1.0)
) -> tf.data.Dataset:
    """Makes the views of a training method in a dataset instead of in the training step, in parallel to it.

    The views of step s are those that the method with the same seed makes in its step s, on one device. To draw anew in every
    epoch, the dataset is repeated without end: `fit` needs `steps_per_epoch`.

        views = tfr.data.views(dataset, model.views, seed=model.seed, input_range=model.input_range)
        model.fit(views, epochs=10, steps_per_epoch=len(dataset))

    Args:
        dataset: batches of (images, labels) or (images, labels, sample weights).
        views: names of views (`data.augment.VIEWS`) or functions (images, seed) -> images, of images in [0, 1].
        seed: int, of the method.
        input_range: (low, high) of the images, in and out.

    Returns:
        tf.data.Dataset of ((view 1, view 2, ...), labels[, sample weights]); views are float32 in `input_range`.

    Raises:
        ValueError: an unknown view, or a dataset that is not of batches of images and labels.
        tf.errors.InvalidArgumentError: in iteration, images outside `input_range`.
    """
    spec, functions = dataset.element_spec, view_functions(views)
    if not isinstance(spec, tuple) or len(spec) not in (2, 3) or getattr(spec[0], "shape", tf.TensorShape([])).rank != 4:
        raise ValueError(f"Expected a dataset of batches (images [N, H, W, C], labels[, sample weights]). Received: {spec}")
    low, high = (float(value) for value in input_range)
    if spec[0].dtype.is_integer and (low, high) == (0.0, 1.0):
        raise ValueError(f"Expected float images in [0, 1]. Received: {spec[0].dtype.name}. Try: input_range=(0, 255)")

    def make(step, batch):
        images, *rest = batch
        made = views_of(image_ops.unit_images(images, (low, high)), functions, tf.stack([tf.constant(seed, tf.int64), step]))
        return tuple(view * (high - low) + low for view in made), *rest

    return dataset.repeat().enumerate().map(make, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(2)


def views_of(images: tf.Tensor, functions: Sequence[View], seed: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Returns the views of images.

    Args:
        images: float32 [N, H, W, C] in [0, 1].
        functions: (images, seed) -> images, one for each view.
        seed: int64 [2], of the step.
    """
    return tuple(
        tf.ensure_shape(view(images, philox.fold(seed, FIRST_VIEW + number)), images.shape) for number, view in enumerate(functions)
    )


def view_functions(views: Sequence[str | View]) -> list[View]:
    """Returns the functions of views given by name or as functions.

    Raises:
        ValueError: an unknown name.
    """
    for view in views:
        if not callable(view) and view not in VIEWS:
            raise unknown("view", view, VIEWS)
    return [VIEWS[view] if isinstance(view, str) else view for view in views]
