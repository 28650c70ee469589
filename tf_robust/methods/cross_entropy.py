"""The plain baseline, XE: softmax cross-entropy on the augmented images."""

import tensorflow as tf

from tf_robust.data.pipeline import Batch
from tf_robust.methods.base import Method, Terms


class CrossEntropy(Method):
    """Trains with cross-entropy only.

    Args:
        **kwargs: of `Method`.

    Examples:
        >>> network = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10, kernel_initializer="zeros")])
        >>> images, labels = np.random.rand(20, 8, 8, 1), np.arange(20) % 10
        >>> model = tfr.methods.CrossEntropy(network, label_smoothing=0.1)
        >>> model.compile("adam", metrics=["accuracy"])
        >>> history = model.fit(images, labels, verbose=0).history
        >>> round(history["loss"][0], 4)  # of equal probabilities: log(10)
        2.3026
    """

    def loss_terms(self, batch: Batch, training: bool) -> tuple[Terms, tf.Tensor]:
        logits = self.encode(batch.views[0], training)["logits"]
        return {"cross_entropy": self.cross_entropy(batch.labels, logits)}, logits
