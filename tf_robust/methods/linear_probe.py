"""Linear evaluation: logistic regression on the embeddings of a frozen encoder."""

import typing

import keras
import numpy as np
import tensorflow as tf
from sklearn.linear_model import LogisticRegression

from tf_robust import data
from tf_robust.data.pipeline import Batch
from tf_robust.data.source import Source
from tf_robust.methods.base import Method, Terms


class LinearProbe(Method):
    """Trains the logits only; the encoder, given by `--init_from`, is frozen and runs in inference mode.

    Args:
        solver: sgd, in epochs over augmented images, as in MoCo; or lbfgs, scikit-learn's, which minimizes the mean
            cross-entropy plus weight_decay / 2 times the squared kernel on the images without augmentation.

    Examples:
        >>> features = [keras.Input((8, 8, 1)), keras.layers.Conv2D(4, 3, name="conv"), keras.layers.Flatten()]
        >>> network = keras.Sequential([*features, keras.layers.Dense(10)])
        >>> images, labels = np.random.rand(20, 8, 8, 1), np.arange(20) % 10
        >>> model = tfr.methods.LinearProbe(network, solver="sgd")
        >>> model.compile("sgd")
        >>> before = network.get_weights()
        >>> history = model.fit(images, labels, verbose=0)
        >>> [np.array_equal(*pair) for pair in zip(before, network.get_weights())]  # the last layer alone changes
        [True, True, False, False]
    """

    def __init__(self, classifier: keras.Model, *, solver: typing.Literal["sgd", "lbfgs"] = "sgd", **kwargs):
        super().__init__(classifier, **kwargs)
        if self.logits_layer is None:
            raise ValueError("Expected a model whose last Dense layer takes the embedding for LinearProbe. Received: another")
        if solver not in ("sgd", "lbfgs"):
            raise ValueError(f"Expected solver 'sgd' or 'lbfgs'. Received: {solver!r}")
        if solver == "lbfgs" and (self.label_smoothing or self.class_weights):
            raise ValueError("Expected solver='sgd' with label_smoothing or class_weights. Received: 'lbfgs'")
        self.logits, self.closed_form = self.logits_layer, solver == "lbfgs"

    def frozen_variables(self) -> list[keras.Variable]:
        trained = {id(v) for v in self.logits.variables}
        return [v for v in self.network.trainable_variables if id(v) not in trained]

    def loss_terms(self, batch: Batch, training: bool) -> tuple[Terms, tf.Tensor]:
        embedding = self.encode(batch.views[0], training=False)["embedding"]
        logits = self.logits(tf.stop_gradient(embedding))
        return {"cross_entropy": self.cross_entropy(batch.labels, logits)}, logits

    def solve(self, source: Source, iterations: int = 1000) -> None:
        """Sets the logits to the minimum of the regression on a source's images (solver lbfgs).

        Args:
            source: the training set.
            iterations: maximum number of iterations.

        Raises:
            ValueError: the images are of one class.
        """
        encode = tf.function(lambda images: self.network(images, training=False)["embedding"])
        features, labels = (
            np.concatenate(parts)
            for parts in zip(*((encode(images).numpy(), labels.numpy()) for images, labels in data.evaluation_batches(source)))
        )
        binary = len(np.unique(labels)) == 2
        inverse_penalty = (2.0 if binary else 1.0) / (self.weight_decay * len(labels)) if self.weight_decay else np.inf
        if len(np.unique(labels)) < 2:
            raise ValueError(
                f"Expected training images of at least 2 classes for a linear probe. Received: images of 1 class in {source.name}"
            )
        with_bias = self.logits.bias is not None
        regression = LogisticRegression(C=inverse_penalty, max_iter=iterations, tol=1e-6, fit_intercept=with_bias)
        regression.fit(features.astype(np.float64), labels)
        kernel, bias = regression.coef_.T, regression.intercept_
        if binary:  # scikit-learn has one column, the difference w; the squared kernel of -w / 2 and w / 2 is half of w's
            kernel, bias = np.concatenate([-kernel, kernel], axis=1) / 2, np.concatenate([-bias, bias]) / 2
        full_kernel, full_bias = np.zeros([kernel.shape[0], source.num_classes]), np.full([source.num_classes], bias.min() - 30.0)
        full_kernel[:, regression.classes_], full_bias[regression.classes_] = kernel, bias
        self.logits.kernel.assign(full_kernel)
        if with_bias:
            self.logits.bias.assign(full_bias)
