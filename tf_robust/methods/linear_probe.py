"""Linear evaluation: logistic regression on the embeddings of an encoder that stays as it is."""

import typing

import numpy as np
import tensorflow as tf
from sklearn.linear_model import LogisticRegression

from tf_robust import data, losses
from tf_robust.methods.base import Method


class LinearProbe(Method):
    """Trains the logits alone; the encoder runs in inference mode. `--init_from` gives it.

    Args:
        solver: sgd, in epochs over augmented images, as MoCo does it; or lbfgs, to the minimum of the mean cross-entropy plus
            weight_decay / 2 times the squared kernel on the images as they are, in one go (scikit-learn's).
    """

    def __init__(self, classifier, *, solver: typing.Literal["sgd", "lbfgs"] = "sgd", **kwargs):
        super().__init__(classifier, **kwargs)
        if solver not in ("sgd", "lbfgs"):
            raise ValueError(f"Expected solver 'sgd' or 'lbfgs'. Received: {solver!r}")
        self.logits, self.closed_form = classifier.get_layer("logits"), solver == "lbfgs"

    def frozen_variables(self):
        own = {id(v) for v in self.logits.variables}
        return [v for v in self.classifier.trainable_variables if id(v) not in own]

    def loss_terms(self, batch, training):
        embedding = self.encode(batch.views[0], training=False)["embedding"]
        logits = self.logits(tf.stop_gradient(embedding))
        return {"cross_entropy": losses.cross_entropy(batch.labels, logits)}, logits

    def solve(self, source, iterations=1000):
        """Sets the logits to the regression's minimum on a source's images (solver lbfgs)."""
        encode = tf.function(lambda images: self.classifier(images, training=False)["embedding"])
        features, labels = (np.concatenate(parts) for parts in zip(*(
            (encode(images).numpy(), labels.numpy()) for images, labels in data.evaluation_batches(source))))
        two = len(np.unique(labels)) == 2
        strength = (2.0 if two else 1.0) / (self.weight_decay * len(labels)) if self.weight_decay else np.inf
        found = LogisticRegression(C=strength, max_iter=iterations, tol=1e-6).fit(features.astype(np.float64), labels)
        kernel, bias = found.coef_.T, found.intercept_
        if two:  # scikit-learn has one column, the difference w; the squared kernel of -w / 2 and w / 2 is half of w's
            kernel, bias = np.concatenate([-kernel, kernel], axis=1) / 2, np.concatenate([-bias, bias]) / 2
        every = np.zeros([kernel.shape[0], source.num_classes]), np.full([source.num_classes], bias.min() - 30.0)
        every[0][:, found.classes_], every[1][found.classes_] = kernel, bias
        for variable, value in zip((self.logits.kernel, self.logits.bias), every):
            variable.assign(value)
