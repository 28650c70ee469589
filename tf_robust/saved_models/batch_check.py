"""Checks that the scores of an image do not depend on the other images of its batch."""

import typing

import numpy as np
import tensorflow as tf

from tf_robust.saved_models.classifier import Classifier
from tf_robust.saved_models.formats import FORMATS, format_of

BATCH = 8  # images whose scores are compared
ALONE = 2  # of them, each in a batch of its own
LAYERS, SUMMANDS = 100, 1e5  # of a large network; rounding errors add up like a random walk
_MODES = "export the model in inference mode (training=False in Keras and TensorFlow, model.eval() in PyTorch)"


def tolerance(float_type: tf.DType) -> float:
    """Returns the largest difference of two scores, relative to the largest score, that the rounding of a type of floats explains.

    Every layer rounds its outputs once to a half precision, and sums in float32 in an order that depends on the size of the batch.
    """
    relative = 2 * np.sqrt(LAYERS)
    if float_type == tf.float32:
        return float(relative * np.sqrt(SUMMANDS) * np.finfo(np.float32).eps)
    return float(relative * {tf.float16: 2.0**-11, tf.bfloat16: 2.0**-8}[float_type])


def batch_dependence(classify: Classifier, images: np.ndarray) -> dict[str, typing.Any]:
    """Returns how the scores of a model depend on the other images of a batch, for JSON; {} if they do not, up to rounding.

    The scores of some images in a batch are compared with those of the same batch again, of each image alone, and of another batch.

    Args:
        classify: the model.
        images: float32 [N, H, W, C] in [0, 1], preferably of all classes.

    Returns:
        {"largest_difference": of two scores of one image, "largest_score", "tolerance": relative to the largest score,
        "cause": the likely one}.
    """
    batch, others = images[:BATCH], images[BATCH : 2 * BATCH]
    kept = max(len(batch) // 2, 1)

    def scores(values):
        return np.asarray(classify.scores(values), np.float64)

    expected = scores(batch)
    again = np.abs(scores(batch) - expected).max()
    alone = max(np.abs(scores(batch[i : i + 1]) - expected[i]).max() for i in range(min(ALONE, len(batch))))
    mixed = np.abs(scores(np.concatenate([batch[:kept], others[: len(batch) - kept]]))[:kept] - expected[:kept]).max()
    difference, largest = max(again, alone, mixed), np.abs(expected).max()
    if not difference > tolerance(tf.float32) * largest:  # also if it is NaN
        return {}
    allowed = tolerance(classify.float_type(images.shape[1:]))
    if difference <= allowed * largest:
        return {}
    cause = "dropout or noise in training mode" if again > allowed * largest else "batch normalization in training mode"
    if format_of(classify.path) is FORMATS["onnx"] and again <= allowed * largest:
        cause += " or dynamic quantization, whose range is that of the batch"
    return {"largest_difference": float(difference), "largest_score": float(largest), "tolerance": allowed, "cause": cause}


def describe(classify: Classifier) -> str:
    """Returns a note on a model with `Classifier.batch_dependence`; empty for others."""
    found = classify.batch_dependence
    if not found:
        return ""
    return (
        f"the outputs of {classify.path} for an image depend on the other images of its batch or differ between calls: by up to "
        f"{found['largest_difference']:.2g}, with outputs up to {found['largest_score']:.2g}. Values depend on the order of the images. "
        f"Likely cause: {found['cause']}. Try: {_MODES}"
    )
