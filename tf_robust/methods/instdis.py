"""Instance discrimination (Wu et al., 2018) and PIRL (Misra and van der Maaten, 2020): a memory of every training image.

L = -log exp(v_i f / t) / sum over candidates of exp(v_j f / t), v_i the memory of image i, f its current embedding, all of
length 1. Candidates are image i and others drawn from the memory, or all. After a step v_i moves towards f. Both papers
approximate this softmax by noise-contrastive estimation; here, as in later code, it is computed over the drawn candidates.
"""

from collections.abc import Sequence

import keras
import tensorflow as tf

from tf_robust.data.pipeline import Batch
from tf_robust.methods.base import Terms
from tf_robust.methods.checks import positive
from tf_robust.methods.contrastive import ContrastiveMethod
from tf_robust.models import heads
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


class InstDis(MemoryMethod):
    """Instance discrimination (Wu et al., 2018): one view, whose projection is contrasted with its own image's memory.

    Args:
        temperature: of the softmax.
        momentum: fraction of a memory that is kept in an update.
        negatives: number of images drawn from the memory at each step; at least the size of the training set: all others.
        projection_layers: of the head, without batch norm.
        projection_width: of the projections and the memory.

    Examples:
        >>> network = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
        >>> model = tfr.methods.InstDis(network, examples=100, momentum=0.0, projection_width=4)
        >>> model.memory.shape  # a row for each training image
        TensorShape([100, 4])
        >>> model.update_memory(tf.constant([[0.5, 0.5, 0.5, 0.5]]), tf.constant([7]))  # by the projection of image 7
        >>> model.memory[7].numpy().round(4)
        array([0.5, 0.5, 0.5, 0.5], dtype=float32)
    """

    needs_positions = True

    def __init__(
        self,
        classifier: keras.Model,
        *,
        temperature: float = 0.07,
        momentum: float = 0.5,
        negatives: int = 65536,
        projection_layers: int = 1,
        projection_width: int = 128,
        **kwargs,
    ):
        super().__init__(classifier, rows=kwargs.get("examples", 0), width=projection_width, temperature=temperature, **kwargs)
        if not 0 <= momentum < 1 or negatives < 1:
            raise ValueError(f"Expected momentum in [0, 1) and negatives >= 1. Received: {momentum}, {negatives}")
        self.momentum, self.negatives = momentum, negatives
        self.head = heads.projection(
            self.network.output["embedding"].shape[-1], projection_layers, projection_width, "projection", batch_norm=False
        )

    def check_views(self, views: Sequence[str]) -> None:
        if len(views) != 1:
            raise ValueError(
                f"Expected one view for the method {type(self).__name__}, such as moco_v1 or urrl. Received: views={','.join(views)}"
            )

    def loss_terms(self, batch: Batch, training: bool) -> tuple[Terms, tf.Tensor]:
        embedding = self.encode(batch.views[0], training)["embedding"]
        projections = tf.math.l2_normalize(self.head(embedding, training=training), axis=1)
        contrast = self.contrast(projections, batch)
        self.update_memory(projections, batch.positions)
        cross_entropy, logits = self.linear(embedding, batch.labels)
        return {"contrastive": contrast, "linear": cross_entropy}, logits

    def contrast(self, projections: tf.Tensor, batch: Batch) -> tf.Tensor:
        """Returns -log of the softmax probability of each image's own memory among the candidates, [N].

        Args:
            projections: [N, P], of length 1.
            batch: the images' batch.
        """
        rows = self.memory.shape[0]
        own = tf.gather(self.memory.value, batch.positions)
        candidates = tf.range(rows, dtype=tf.int64)
        if self.negatives < rows:
            seed = self.shared_seed(batch.step[0], 0)
            candidates = philox.uniform([self.negatives], seed, 0, rows, tf.int64)
        others = tf.matmul(projections, tf.gather(self.memory.value, candidates), transpose_b=True) / self.temperature
        others = tf.where(candidates[None] == batch.positions[:, None], others.dtype.min, others)  # an image is not its own negative
        positive = tf.reduce_sum(projections * own, axis=1, keepdims=True) / self.temperature
        return tf.reduce_logsumexp(tf.concat([positive, others], axis=1), axis=1) - positive[:, 0]

    def update_memory(self, projections: tf.Tensor, positions: tf.Tensor) -> None:
        """Moves the memories of images at positions int [N] towards their projections [N, P]."""
        kept = self.momentum * tf.gather(self.memory.value, positions)
        self.remember(positions, tf.math.l2_normalize(kept + (1.0 - self.momentum) * projections, axis=1))


class PIRL(InstDis):
    """PIRL (Misra and van der Maaten, 2020): the image and a jigsaw of it are both contrasted with the image's memory.

    L = weight L(jigsaw) + (1 - weight) L(image). The jigsaw's nine tiles, each a third of the image's sides, are
    encoded separately (resized to the image's size if the encoder's layers require it); their projections, concatenated in a
    random order for each image, pass through a further layer.

    Args:
        weight: of the jigsaw's loss.

    Examples:
        >>> network = keras.Sequential([keras.Input((9, 9, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
        >>> model = tfr.methods.PIRL(network, examples=100, weight=0.5, projection_width=4)
        >>> model.tile  # height and width of the nine tiles of the jigsaw
        (3, 3)
        >>> model.jigsaw(tf.random.uniform([2, 9, 9, 1]), tf.constant(0)).shape  # projections of two images
        TensorShape([2, 4])
    """

    def __init__(self, classifier: keras.Model, *, weight: float = 0.5, **kwargs):
        super().__init__(classifier, **kwargs)
        if not 0 <= weight <= 1:
            raise ValueError(f"Expected weight in [0, 1]. Received: {weight}")
        self.weight = weight
        height, width, channels = self.network.input_shape[1:]
        self.tile = (height // 3, width // 3)
        self.tile_encoder = _tile_encoder(keras.Model(self.network.input, self.network.output["embedding"]), (*self.tile, channels))
        projected = self.memory.shape[1]
        self.tile_head = heads.projection(self.tile_encoder.output_shape[-1], 1, projected, "tile_projection", batch_norm=False)
        self.jigsaw_head = heads.projection(9 * projected, 1, projected, "jigsaw_projection", batch_norm=False)

    def check_views(self, views: Sequence[str]) -> None:
        if len(views) != 2:
            raise ValueError(
                f"Expected two views for the method PIRL, the second of which becomes the jigsaw, such as moco_v1,moco_v1. "
                f"Received: views={','.join(views)}"
            )

    def contrast(self, projections: tf.Tensor, batch: Batch) -> tf.Tensor:
        return self.weight * super().contrast(self.jigsaw(batch.views[1], batch.step[0]), batch) + (1.0 - self.weight) * super().contrast(
            projections, batch
        )

    def jigsaw(self, images: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """Returns the projections [N, P], of length 1, of the jigsaws of images [N, H, W, C]."""
        tiles = split_tiles(images, self.tile)
        count = tf.shape(images)[0]
        projected = self.tile_head(self.tile_encoder(tf.reshape(tiles, [-1, *tiles.shape[2:]]), training=True))
        order = tf.argsort(philox.uniform([count, 9], self.random_seed(step, 1)), axis=1)
        shuffled = tf.gather(tf.reshape(projected, [count, 9, projected.shape[-1]]), order, batch_dims=1)
        return tf.math.l2_normalize(self.jigsaw_head(tf.reshape(shuffled, [count, 9 * projected.shape[-1]])), axis=1)


def _tile_encoder(encoder, shape):
    """Returns an encoder with the same layers for tiles of another shape (h, w, C)."""
    tiles = keras.Input(shape, name="tiles")
    try:
        return keras.models.clone_model(encoder, input_tensors=tiles, clone_function=lambda layer: layer)
    except ValueError:  # a layer that needs the full size
        return keras.Sequential([tiles, keras.layers.Resizing(*encoder.input_shape[1:3]), encoder])


def split_tiles(images: tf.Tensor, tile: tuple[int, int]) -> tf.Tensor:
    """Returns the nine tiles of images, row by row: [N, H, W, C] -> [N, 9, h, w, C]; remaining pixels are cut off.

    Args:
        images: [N, H, W, C].
        tile: (h, w).
    """
    height, width = tile
    return tf.stack(
        [images[:, row * height : (row + 1) * height, column * width : (column + 1) * width] for row in range(3) for column in range(3)],
        axis=1,
    )
