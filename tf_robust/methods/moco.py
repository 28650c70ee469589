"""MoCo (He et al., 2020; v2: Chen et al., 2020d): contrasts an image's query with its key against keys of earlier images.

Keys come from an encoder whose weights are an exponential moving average of the trained one's, updated before the keys of a step
are computed. The keys then enter a queue, where they are negatives until newer ones replace them.

L = -log exp(q k+ / t) / (exp(q k+ / t) + sum over the queue of exp(q k- / t)), all of length 1 (URRL, eq. 1)
"""

import keras
import tensorflow as tf

from tf_robust import losses
from tf_robust.data.pipeline import Batch
from tf_robust.methods import mixing
from tf_robust.methods.base import Terms
from tf_robust.methods.instdis import MemoryMethod
from tf_robust.models import heads


class MoCo(MemoryMethod):
    """MoCo, momentum contrast: the first view gives the query, the second the key. Defaults are v2's, with a shorter queue.

    Args:
        temperature: of the softmax; v1: 0.07.
        momentum: of the key encoder's weights; its batch norm has its own moving averages.
        queue: number of earlier keys, at least the batch size; of ImageNet in the paper 65536.
        projection_layers: of the head, without batch norm, all but the last of the embedding's width; v1: 1.
        projection_width: of queries and keys.
        batch_norm_groups: parts of a replica's batch, each with its own batch statistics, as on several GPUs; images are
            shuffled before they are divided for the keys, so that a query's statistics do not reveal its key. 1: not divided.

    Attributes:
        position: int64, the row of the queue that has the oldest key, which the next one replaces.

    Examples:
        >>> network = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
        >>> images, labels = np.random.rand(20, 8, 8, 1), np.arange(20) % 10
        >>> model = tfr.methods.MoCo(network, queue=64, momentum=0.99, projection_width=16)
        >>> model.compile("adam", run_eagerly=True)  # for one step; many are faster in a graph
        >>> history = model.fit(images, labels, verbose=0)
        >>> model.memory.shape, int(model.position)  # the queue, which has the keys of 20 images now
        (TensorShape([64, 16]), 20)
    """

    default_views = ("moco_v2", "moco_v2")

    def __init__(
        self,
        classifier: keras.Model,
        *,
        temperature: float = 0.2,
        momentum: float = 0.999,
        queue: int = 4096,
        projection_layers: int = 2,
        projection_width: int = 128,
        batch_norm_groups: int = 1,
        **kwargs,
    ):
        super().__init__(classifier, rows=queue, width=projection_width, temperature=temperature, **kwargs)
        if not 0 <= momentum < 1 or batch_norm_groups < 1:
            raise ValueError(f"Expected momentum in [0, 1) and batch_norm_groups >= 1. Received: {momentum}, {batch_norm_groups}")
        self.momentum, self.groups = momentum, batch_norm_groups
        self.position = self.add_weight(
            shape=(), dtype="int64", trainable=False, name="position", aggregation="only_first_replica", initializer="zeros"
        )
        images, embedding = self.network.input, self.network.output["embedding"]
        head = heads.projection(embedding.shape[-1], projection_layers, projection_width, "projection", batch_norm=False)
        self.query_encoder = keras.Model(images, [embedding, head(embedding)], name="query_encoder")
        self.key_encoder = keras.models.clone_model(self.query_encoder)
        self.key_encoder.set_weights(self.query_encoder.get_weights())

    def frozen_variables(self) -> list[keras.Variable]:
        return self.key_encoder.trainable_variables

    def check_batch(self, size: int) -> None:
        if size > self.memory.shape[0]:
            raise ValueError(f"Expected moco_queue of at least the batch, {size}. Received: {self.memory.shape[0]}")
        replica_batch = size // self.distribute_strategy.num_replicas_in_sync
        if replica_batch % self.groups:
            raise ValueError(
                f"Expected a batch that {self.groups} moco_batch_norm_groups divide equally. Received: {replica_batch} images on a replica"
            )

    def loss_terms(self, batch: Batch, training: bool) -> tuple[Terms, tf.Tensor]:
        step = batch.step[0]
        embeddings, query = self.encode_grouped(self.query_encoder, batch.views[0], training)
        for average, trained in zip(self.key_encoder.trainable_variables, self.query_encoder.trainable_variables):
            average.assign(self.momentum * average + (1.0 - self.momentum) * tf.stop_gradient(trained.value))
        _, key = self.encode_grouped(self.key_encoder, batch.views[1], training, self.random_seed(step, 0))
        query, key = tf.math.l2_normalize(query, axis=1), tf.stop_gradient(tf.math.l2_normalize(key, axis=1))
        candidates = tf.concat(
            [tf.reduce_sum(query * key, axis=1, keepdims=True), tf.matmul(query, self.memory.value, transpose_b=True)], axis=1
        )
        contrast = losses.cross_entropy(tf.zeros([tf.shape(query)[0]], tf.int64), candidates / self.temperature)
        self.enqueue(key)
        cross_entropy, logits = self.linear(embeddings, batch.labels)
        return {"contrastive": contrast, "linear": cross_entropy}, logits

    def encode_grouped(
        self, encoder: keras.Model, images: tf.Tensor, training: bool, shuffle_seed: tf.Tensor | None = None
    ) -> list[tf.Tensor]:
        """Encodes images in groups, each with its own batch statistics.

        Args:
            encoder: the query or the key encoder.
            images: float32 [N, H, W, C] in [0, 1].
            training: bool.
            shuffle_seed: int [2], for a random assignment of images to groups; None: in their order.

        Returns:
            [embeddings [N, E], projections [N, P]], in the order of the images.
        """
        if self.groups == 1:
            return encoder(images, training=training)
        count = tf.shape(images)[0]
        message = f"Expected a batch that {self.groups} moco_batch_norm_groups divide equally. Try: dataset.batch(N, drop_remainder=True)"
        with tf.control_dependencies([tf.debugging.Assert(count % self.groups == 0, [message, "Received:", count])]):
            order = tf.range(count)
        if shuffle_seed is not None:
            order = mixing.partners(shuffle_seed, tf.size(order))
        parts = [encoder(part, training=training) for part in tf.split(tf.gather(images, order), self.groups)]
        inverse = tf.math.invert_permutation(order)
        return [tf.gather(tf.concat(outputs, axis=0), inverse) for outputs in zip(*parts)]

    def enqueue(self, keys: tf.Tensor) -> None:
        """Replaces the oldest keys of the queue by those of a step, of all replicas in their order.

        The queue is filled from its beginning, and again from the beginning once its end is reached.

        Args:
            keys: [n, P] of this replica, of length 1; with n of all replicas at most the length of the queue.
        """
        keys = self.all_gather(keys)
        following = self.position.value + tf.range(tf.shape(keys, tf.int64)[0] + 1)
        rows = following % self.memory.shape[0]
        self.memory.assign(tf.tensor_scatter_nd_update(self.memory.value, rows[:-1, None], tf.stop_gradient(keys)))
        self.position.assign(rows[-1])
