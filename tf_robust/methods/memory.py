"""A memory of embeddings for contrastive methods: MoCo's queue, the memory banks of InstDis and PIRL."""

import keras
import tensorflow as tf

from tf_robust.methods.checks import positive
from tf_robust.methods.contrastive import ContrastiveMethod
from tf_robust.ops import philox


class MemoryMethod(ContrastiveMethod):
    """Base class of contrastive methods with a memory: rows of length 1, saved in checkpoints like every other variable.

    Args:
        rows: number of rows of the memory.
        width: length of each row.
        temperature: of the softmax over similarities.
    """

    def __init__(self, classifier: keras.Model, *, rows: int, width: int, temperature: float = 0.07, **kwargs):
        super().__init__(classifier, **kwargs)
        if rows < 1:
            raise ValueError(f"Expected at least one row of memory (examples=, the size of the training set, or queue=). Received: {rows}")
        self.temperature = positive("temperature", temperature)
        start = tf.math.l2_normalize(philox.normal([rows, width], [self.seed, 0]), axis=1)
        self.memory = self.add_weight(
            shape=start.shape, trainable=False, name="memory", aggregation="only_first_replica", initializer="zeros"
        )
        self.memory.assign(start)

    def remember(self, rows: tf.Tensor, vectors: tf.Tensor) -> None:
        """Writes vectors [n, width] into rows int [n] of the memory, those of all replicas."""
        rows, vectors = self.all_gather(rows), self.all_gather(vectors)
        self.memory.assign(tf.tensor_scatter_nd_update(self.memory.value, rows[:, None], tf.stop_gradient(vectors)))
