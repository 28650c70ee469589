"""Scaling of logits that is fitted on validation data (Guo et al., "On Calibration of Modern Neural Networks", 2017, section 4.2).

Both fits minimize the negative log-likelihood, which is convex in their parameters. Classes with logits of -infinity
cannot occur; these logits stay.
"""

import numpy as np
import scipy.optimize
import scipy.special
from numpy.typing import ArrayLike

from tf_robust.metrics import checks

_INVERSE_TEMPERATURES = (0.01, 100.0)
_SCALES, _BIASES = (0.001, 100.0), (-100.0, 100.0)


def fit_temperature(logits: ArrayLike, labels: ArrayLike) -> float:
    """Returns the temperature > 0 by which logits are divided: the one with the lowest negative log-likelihood.

    It leaves the predicted class of every example unchanged.

    Args:
        logits: [N, C]; -infinity in all rows of a column: the class cannot occur.
        labels: int [N], of at least two classes.

    Raises:
        ValueError: bad shapes, labels of one class, or no prediction that is wrong, where ever lower temperatures are better.

    Examples:
        >>> logits, labels = np.array([[4.0, 0.0]] * 4), np.array([0, 0, 0, 1])  # confidence 0.98, accuracy 0.75
        >>> temperature = tfr.metrics.fit_temperature(logits, labels)
        >>> round(temperature, 2), round(float(tf.nn.softmax(logits / temperature)[0, 0]), 2)
        (3.64, 0.75)
    """
    logits, labels, _ = _checked(logits, labels)

    def slope(inverse):  # of the negative log-likelihood, which is convex in the inverse temperature
        return _mean_gradient(inverse * logits, labels, logits)

    low, high = _INVERSE_TEMPERATURES
    if slope(low) >= 0:  # random or reversed predictions
        return 1 / low
    return 1 / (high if slope(high) <= 0 else float(scipy.optimize.brentq(slope, low, high, xtol=1e-10)))


def fit_vector_scaling(logits: ArrayLike, labels: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Returns (scale [C], bias [C]) of logits * scale + bias with the lowest negative log-likelihood.

    It can change predicted classes. A scale is in [0.001, 100] and a bias in [-100, 100]; classes that cannot occur have 1 and 0. With few
    images of a class it overfits: 2 C numbers are fitted.

    Args:
        logits: [N, C]; -infinity in all rows of a column: the class cannot occur.
        labels: int [N], at least one of every class that can occur.

    Raises:
        ValueError: as in `fit_temperature`, or a class without examples, whose bias would have no lower bound.

    Examples:
        >>> logits = np.array([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 1.0]])
        >>> scale, bias = tfr.metrics.fit_vector_scaling(logits, [0, 0, 1, 1])
        >>> scale.shape, bias.shape
        ((2,), (2,))
        >>> tf.nn.softmax(logits * scale + bias).numpy()[0].round(2)
        array([0.67, 0.33])
    """
    logits, labels, columns = _checked(logits, labels)
    absent = np.setdiff1d(columns, labels)
    if len(absent):
        raise ValueError(
            f"Expected validation images of all {len(columns)} classes for vector scaling. Received: none of {len(absent)}, such as class "
            f"{absent[0]}. Try: temperature scaling, or more validation images"
        )
    present, targets = logits[:, columns], np.searchsorted(columns, labels)
    count = len(columns)

    def loss(parameters):
        scaled = present * parameters[:count] + parameters[count:]
        residual = scipy.special.softmax(scaled, axis=1)
        value = np.mean(scipy.special.logsumexp(scaled, axis=1) - scaled[np.arange(len(targets)), targets])
        residual[np.arange(len(targets)), targets] -= 1
        return value, np.concatenate([(residual * present).mean(axis=0), residual.mean(axis=0)])

    start = np.concatenate([np.full(count, 1 / fit_temperature(logits, labels)), np.zeros(count)])
    bounds = [_SCALES] * count + [_BIASES] * count
    fitted = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 1000}).x
    scale, bias = np.ones(logits.shape[1]), np.zeros(logits.shape[1])
    scale[columns], bias[columns] = fitted[:count], fitted[count:] - fitted[count:].mean()  # a constant added to all changes nothing
    return scale, bias


def _checked(logits, labels):
    """(float64 logits [N, C], labels [N], columns that can occur [K])."""
    logits = np.asarray(logits, np.float64)
    columns = np.flatnonzero(~np.isneginf(logits).all(axis=0)) if logits.ndim == 2 and len(logits) else np.arange(0)
    present, _ = checks.labelled(logits[:, columns] if len(columns) else logits, np.zeros(len(logits), int), "logits")
    _, labels = checks.labelled(np.zeros(logits.shape), labels, "logits")
    if not np.isin(labels, columns).all():
        raise ValueError(f"Expected labels of classes that can occur. Received: label {np.setdiff1d(labels, columns)[0]}")
    if len(np.unique(labels)) < 2:
        raise ValueError(f"Expected validation images of at least two classes. Received: {len(labels)} of class {labels[0]}")
    if (logits.argmax(axis=1) == labels).all():
        raise ValueError(
            f"Expected validation images of which some are misclassified. Received: {len(labels)}, all correct: nothing is known about "
            "wrong predictions. Try: more validation images"
        )
    return logits, labels, columns


def _mean_gradient(scaled, labels, logits):
    """The mean over examples of the expected logit under softmax(scaled) minus the label's logit."""
    probabilities = scipy.special.softmax(scaled, axis=1)
    finite = np.where(np.isneginf(logits), 0.0, logits)
    return float(np.mean((probabilities * finite).sum(axis=1) - logits[np.arange(len(labels)), labels]))
