"""A memory of embeddings that contrastive methods compare with: MoCo's queue, the banks of InstDis and PIRL."""

import tensorflow as tf

from tf_robust.methods.checks import positive
from tf_robust.methods.contrastive import ContrastiveMethod
from tf_robust.ops import philox


class MemoryMethod(ContrastiveMethod):
    """A contrastive method with rows of length 1 to compare with, which checkpoints hold like every other variable.

    Args:
        rows: of the memory. width: of each. temperature: of the softmax over similarities.
    """

    def __init__(self, classifier, *, rows, width, temperature: float = 0.07, **kwargs):
        super().__init__(classifier, **kwargs)
        if rows < 1:
            raise ValueError(f"Expected at least one row of memory. Received: {rows}")
        self.temperature = positive("temperature", temperature)
        start = tf.math.l2_normalize(philox.normal([rows, width], [self.seed, 0]), axis=1)
        self.memory = self.add_weight(shape=start.shape, trainable=False, name="memory", aggregation="only_first_replica",
                                      initializer="zeros")
        self.memory.assign(start)

    def remember(self, places, vectors):
        """Puts vectors [n, width] of this replica into the rows int [n], those of all replicas together."""
        places, vectors = self.all_gather(places), self.all_gather(vectors)
        self.memory.assign(tf.tensor_scatter_nd_update(self.memory.value, places[:, None], tf.stop_gradient(vectors)))
