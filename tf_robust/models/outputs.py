"""What a model says about images: its logits or its embedding by name, and whether they can be used."""

import numpy as np

from tf_robust import data


def output(model, images, key):
    """A model's logits, or its dictionary's entry `key`."""
    outputs = model(images)
    return outputs[key] if isinstance(outputs, dict) else outputs


def checked_logits(logits, labels, where):
    """Logits as an array [N, C], or a ValueError that says what is wrong with them or the labels.

    -infinity is allowed (a class that is masked out), but not in all classes of an image. where: of which images, for
    the message.
    """
    logits = np.asarray(logits)
    if logits.ndim != 2 or len(logits) != len(labels):
        raise ValueError(f"Expected logits [{len(labels)}, classes] in {where}. Received shape: {logits.shape}")
    if np.isnan(logits).any() or np.isposinf(logits).any() or not np.isfinite(logits).any(axis=1).all():
        raise ValueError(f"Expected finite logits in {where}. Received NaN or infinity")
    data.check_labels(labels, logits.shape[1], f"{where}, by the columns of the logits")
    return logits
