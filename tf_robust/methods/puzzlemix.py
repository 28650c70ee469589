"""PuzzleMix (Kim et al., 2020): each block shows the image that is more salient there.

1. Saliency: the gradient of the loss with respect to the pixels.
2. Costs of a block's label, the fraction of its own image that it shows: the saliency that is hidden, seams
   between neighbors, and the mixing coefficient as a prior.
3. The labeling of minimum cost: the mask.
4. Transport: salient blocks of each image move to positions where the mask shows them, at a cost that grows with the distance.
5. The images mixed by the mask, and the loss to both labels, weighted by the mask's mean.

Adversarial Puzzle Mix adds noise to the images of a step before step 4, with some probability. The clean loss term that the
paper adds on Tiny-ImageNet is not included. Steps 3 and 4 run in NumPy, so XLA cannot compile a step.
"""

import functools
import math
import typing
from collections.abc import Sequence

import keras
import tensorflow as tf

from tf_robust import losses
from tf_robust.data.pipeline import Batch
from tf_robust.methods import mixing, puzzle_masks
from tf_robust.methods.base import Method, Terms
from tf_robust.methods.checks import positive
from tf_robust.ops import philox

_MAX_MOVING_BLOCKS = 16  # along a side


class PuzzleMix(Method):
    """Puzzle Mix: saliency-guided mixing of blocks. An image that is its own partner only has its blocks moved.

    Args:
        alpha: the prior favors masks whose mean is the mixing coefficient, drawn from Beta(alpha, alpha) once per step.
        labels: levels of the mask, from 0 to 1: 3 for 0, 1/2 and 1.
        block_counts: blocks along each side of the grid; one of those that divide both sides of the images is drawn at each step.
        beta: cost of neighbors with different labels.
        gamma: cost, in units of beta, of the differences between pixels on both sides of a seam. Above 1 the cost of a seam
            could be negative, which the minimum cut does not allow: then it is 0.
        eta: weight of the prior.
        neighbourhood: side in pixels of the squares that are averaged before seams are compared, reduced where it does not divide
            the block's side.
        transport: move blocks.
        transport_epsilon: cost of a move from one end of the image to the other, in units of the image's total saliency.
        transport_size: minimum side in pixels of the blocks that move: the smallest size that divides the mask's blocks and
            leaves at most 16 blocks along a side of the image, or else the mask's blocks. 0: the mask's blocks move, as in
            the published code for ImageNet and Tiny-ImageNet.
        loss: `cross_entropy`, or `binary_cross_entropy` of the softmax outputs, mean over classes, as in the published
            code, whose learning rates are tuned to it: its gradient is about 2 / classes times that of cross-entropy.
        adversarial_probability: of adding adversarial noise to all images of a step and, drawn independently, to all their partners.
            0: no noise. The authors use 0.1 on CIFAR-100 and 0.15 on Tiny-ImageNet.
        adversarial_radius: maximum absolute value of the noise, on the [0, 1] pixel scale.

    Examples:
        >>> network = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
        >>> images, labels = np.random.rand(20, 8, 8, 1), np.arange(20) % 10
        >>> model = tfr.methods.PuzzleMix(network, block_counts=(2, 4, 8, 16))
        >>> model.block_counts  # those that divide the sides of the images
        (2, 4, 8)
        >>> model.compile("adam", run_eagerly=True)  # for one step; many are faster in a graph
        >>> sorted(model.fit(images, labels, verbose=0).history)
        ['accuracy', 'loss']
    """

    compiles = False

    def __init__(
        self,
        classifier: keras.Model,
        *,
        alpha: float = 1.0,
        labels: int = 3,
        block_counts: tuple[int, ...] = (2, 4, 8, 16),
        beta: float = 1.2,
        gamma: float = 0.5,
        eta: float = 0.2,
        neighbourhood: int = 4,
        transport: bool = True,
        transport_epsilon: float = 0.8,
        transport_size: int = 4,
        loss: typing.Literal["cross_entropy", "binary_cross_entropy"] = "cross_entropy",
        adversarial_probability: float = 0.0,
        adversarial_radius: float = 10 / 255,
        **kwargs,
    ):
        super().__init__(classifier, **kwargs)
        for name, value, minimum in (
            ("labels", labels, 2),
            ("beta", beta, 0),
            ("gamma", gamma, 0),
            ("eta", eta, 0),
            ("neighbourhood", neighbourhood, 1),
            ("transport_size", transport_size, 0),
            ("transport_epsilon", transport_epsilon, 0),
        ):
            if not minimum <= value < math.inf:
                raise ValueError(f"Expected {name} >= {minimum}. Received: {value}")
        for name, value in (("adversarial_probability", adversarial_probability), ("adversarial_radius", adversarial_radius)):
            if not 0 <= value <= 1:
                raise ValueError(f"Expected {name} in [0, 1]. Received: {value}")
        if loss not in ("cross_entropy", "binary_cross_entropy"):
            raise ValueError(f"Expected loss 'cross_entropy' or 'binary_cross_entropy'. Received: {loss!r}")
        self.alpha, self.labels, self.beta, self.gamma, self.eta = positive("alpha", alpha), labels, beta, gamma, eta
        self.neighbourhood, self.transport, self.transport_epsilon = neighbourhood, transport, transport_epsilon
        if loss != "cross_entropy" and (self.label_smoothing or self.class_weights):
            raise ValueError(f"Expected loss='cross_entropy' with label_smoothing or class_weights. Received: {loss!r}")
        self.transport_size, self.loss_form = transport_size, loss
        self.adversarial_probability, self.adversarial_radius = adversarial_probability, adversarial_radius
        self.block_counts = fitting_block_counts(block_counts, self.network.input_shape[1:3])

    def loss_terms(self, batch: Batch, training: bool) -> tuple[Terms, tf.Tensor]:
        step, images = batch.step[0], batch.views[0]
        partner = mixing.partners(self.random_seed(step, 0), tf.shape(images)[0])
        lam = mixing.beta(self.shared_seed(step, 0), self.alpha, self.alpha)
        index = philox.uniform([], self.shared_seed(step, 1), 0, len(self.block_counts), tf.int32)
        saliency, noise = self.saliency_and_noise(images, batch.labels, step)
        mixed, lam = tf.switch_case(
            index, [functools.partial(self.mix, images, saliency, partner, lam, count, noise) for count in self.block_counts]
        )
        logits = self.encode(mixed, training)["logits"]
        return {"cross_entropy": self.mixed_loss(batch.labels, partner, lam, logits)}, logits

    def saliency_and_noise(self, images: tf.Tensor, labels: tf.Tensor, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns the saliency and the adversarial noise of a step.

        In a step with noise the saliency is that of the images with the random start, as in the published code.

        Args:
            images: float32 [N, H, W, C] in [0, 1].
            labels: int [N].
            step: the global step.

        Returns:
            (saliency [N, H, W], noise [2, N, H, W, C] for images and partners, or None without adversarial noise)
        """
        if not self.adversarial_probability:
            return self.saliency(images, labels), None
        noisy = tf.cast(philox.uniform([2], self.shared_seed(step, 2)) < self.adversarial_probability, tf.float32)
        start = random_start(images, self.adversarial_radius, self.random_seed(step, 1)) * tf.reduce_max(noisy)
        gradient = self.gradient(images + start, labels)
        noise = one_step(start, gradient, self.adversarial_radius, philox.uniform([], self.shared_seed(step, 3)))
        return root_mean_square(gradient), noisy[:, None, None, None, None] * noise

    def saliency(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Returns the root mean square over channels of the cross-entropy's gradient, in inference mode: [N, H, W]."""
        return root_mean_square(self.gradient(images, labels))

    def gradient(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Returns the gradient of the cross-entropy with respect to the images [N, H, W, C], in inference mode."""
        with tf.GradientTape() as tape:
            tape.watch(images)
            loss = losses.cross_entropy(labels, self.encode(images, training=False)["logits"])
        return tf.stop_gradient(tf.debugging.check_numerics(tape.gradient(loss, images), "saliency"))

    def mix(
        self, images: tf.Tensor, saliency: tf.Tensor, partner: tf.Tensor, lam: tf.Tensor, count: int, noise: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mixes images on a grid of count x count blocks.

        Args:
            images: [N, H, W, C] in [0, 1].
            saliency: [N, H, W].
            partner: int [N].
            lam: a number, the mixing coefficient that the prior favors.
            count: number of blocks along a side.
            noise: [2, N, H, W, C], added to images and to partners after the choice of the mask, before blocks move; or None.

        Returns:
            (mixed images [N, H, W, C], mixing coefficients [N], the means of the masks)
        """
        others, (height, width) = tf.gather(images, partner), images.shape[1:3]
        mask = self.mask(images, block_fractions(saliency, count, count), partner, lam)
        if noise is not None:
            images = tf.clip_by_value(images + noise[0], 0.0, 1.0)
            others = tf.clip_by_value(others + tf.gather(noise[1], partner), 0.0, 1.0)
        if self.transport:
            rows, columns = (side // moving_side(self.transport_size, side, side // count) for side in (height, width))
            fractions, shown = block_fractions(saliency, rows, columns), enlarge(mask, rows, columns)
            images = self.transport_blocks(images, fractions, shown)
            others = self.transport_blocks(others, tf.gather(fractions, partner), 1.0 - shown)
        pixel_mask = enlarge(mask, height, width)[..., None]
        return pixel_mask * images + (1.0 - pixel_mask) * others, tf.reduce_mean(mask, axis=[1, 2])

    def mask(self, images: tf.Tensor, saliency: tf.Tensor, partner: tf.Tensor, lam: tf.Tensor) -> tf.Tensor:
        """Returns the fraction of its own image that each block shows, [N, B, B].

        Args:
            images: [N, H, W, C] in [0, 1].
            saliency: [N, B, B], of the blocks, with sum 1.
            partner: int [N].
            lam: a number, the mixing coefficient that the prior favors.
        """
        count = saliency.shape[1]
        sides = [math.gcd(self.neighbourhood, side // count) for side in images.shape[1:3]]
        pooled = block_means(images, *(side // size for side, size in zip(images.shape[1:3], sides)))
        beta, eta = self.beta / count / 16, self.eta / count**2
        prior = eta * tf.math.log(puzzle_masks.binomial(lam, self.labels) + 1e-8)
        costs = puzzle_masks.block_costs(pooled, saliency, partner, prior, beta, self.gamma)
        labels = tf.numpy_function(puzzle_masks.optimal_labels, costs, tf.int32, stateful=False)
        return tf.cast(tf.reshape(labels, [-1, count, count]), tf.float32) * (1.0 / (self.labels - 1))

    def transport_blocks(self, images: tf.Tensor, saliency: tf.Tensor, shown: tf.Tensor) -> tf.Tensor:
        """Moves the images' salient blocks to positions where they are shown.

        Args:
            images: [N, H, W, C].
            saliency: [N, rows, columns], of the blocks, with sum 1.
            shown: [N, rows, columns], the fraction of the image that the mask shows.
        """
        rows, columns = saliency.shape[1:]
        sources = tf.numpy_function(puzzle_masks.optimal_sources, [saliency, shown, self.transport_epsilon], tf.int32, stateful=False)
        return rearrange(images, tf.reshape(sources, [-1, rows * columns]), rows, columns)

    def mixed_loss(self, labels: tf.Tensor, partner: tf.Tensor, lam: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Returns the loss to both labels, [N]; lam: [N], the weight of the first."""
        if self.loss_form == "cross_entropy":
            return mixing.mixed(self.cross_entropy, labels, partner, lam, logits)
        targets = labels if labels.shape.rank == 2 else tf.one_hot(labels, logits.shape[-1])
        targets = mixing.blend(targets, partner, lam[:, None])
        return keras.losses.binary_crossentropy(targets, tf.nn.softmax(logits))


def fitting_block_counts(counts: Sequence[int], size: Sequence[int]) -> tuple[int, ...]:
    """Returns the block counts that divide both height and width.

    Args:
        counts: numbers of blocks along a side.
        size: (H, W).

    Raises:
        ValueError: there is none, or one is below 2.
    """
    if min(counts, default=0) < 2:
        raise ValueError(f"Expected block_counts of at least 2. Received: {counts}")
    fitting = tuple(count for count in counts if not any(side % count for side in size))
    if not fitting:
        raise ValueError(f"Expected one of block_counts to divide the images' sides, {size[0]} and {size[1]}. Received: {counts}")
    return fitting


def moving_side(minimum: int, side: int, block: int) -> int:
    """Returns the side in pixels of the blocks that move, a divisor of the mask's blocks.

    The time of the transport is cubic in the number of moving blocks; the published code has at most 16 along a side, too.

    Args:
        minimum: `transport_size`.
        side: of the image.
        block: side of the mask's blocks.
    """
    sizes = (size for size in range(max(1, minimum), block) if block % size == 0 and size * _MAX_MOVING_BLOCKS >= side)
    return next(sizes, block) if minimum else block


def root_mean_square(gradient: tf.Tensor) -> tf.Tensor:
    """Returns the root mean square over channels: [N, H, W, C] -> [N, H, W]."""
    return tf.sqrt(tf.reduce_mean(gradient**2, axis=-1))


def block_means(images: tf.Tensor, rows: int, columns: int) -> tf.Tensor:
    """Returns the mean of each block: [N, H, W, ...] -> [N, rows, columns, ...]."""
    height, width, *rest = images.shape[1:]
    return tf.reduce_mean(tf.reshape(images, [-1, rows, height // rows, columns, width // columns, *rest]), axis=[2, 4])


def block_fractions(saliency: tf.Tensor, rows: int, columns: int) -> tf.Tensor:
    """Returns each block's fraction of its image's saliency: [N, H, W] -> [N, rows, columns]; equal ones if the saliency is 0."""
    means = block_means(saliency, rows, columns)
    total = tf.reduce_sum(means, axis=[1, 2], keepdims=True)
    return tf.where(total > 0.0, means / total, tf.fill(tf.shape(means), 1.0 / (rows * columns)))


def enlarge(mask: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Repeats values: [N, rows, columns] -> [N, height, width], which are multiples of rows and columns."""
    return tf.repeat(tf.repeat(mask, height // mask.shape[1], axis=1), width // mask.shape[2], axis=2)


def rearrange(images: tf.Tensor, sources: tf.Tensor, rows: int, columns: int) -> tf.Tensor:
    """Returns images assembled from their blocks in another order.

    Args:
        images: [N, H, W, C].
        sources: int [N, rows * columns], the block to put at each position; blocks are numbered row by row.
        rows: blocks along the height.
        columns: blocks along the width.
    """
    height, width, channels = images.shape[1] // rows, images.shape[2] // columns, images.shape[3]
    blocks = tf.transpose(tf.reshape(images, [-1, rows, height, columns, width, channels]), [0, 1, 3, 2, 4, 5])
    blocks = tf.gather(tf.reshape(blocks, [-1, rows * columns, height * width * channels]), sources, batch_dims=1)
    blocks = tf.reshape(blocks, [-1, rows, columns, height, width, channels])
    return tf.reshape(tf.transpose(blocks, [0, 1, 3, 2, 4, 5]), [-1, *images.shape[1:]])


OVERSHOOT = 2 / 255  # by which the step is longer than the radius


def random_start(images: tf.Tensor, radius: float, seed: tf.Tensor) -> tf.Tensor:
    """Returns noise uniform in +-radius, clipped where an image would leave [0, 1].

    Args:
        images: float32 [N, H, W, C] in [0, 1].
        radius: maximum absolute value.
        seed: int64 [2].
    """
    noise = philox.uniform(tf.shape(images), seed, -radius, radius)
    return tf.clip_by_value(images + noise, 0.0, 1.0) - images


def one_step(start: tf.Tensor, gradient: tf.Tensor, radius: float, fraction: tf.Tensor) -> tf.Tensor:
    """Returns noise after a step of radius + 2/255 along the gradient's signs, clipped at +-radius, times a fraction.

    Args:
        start: [N, H, W, C], of `random_start`.
        gradient: [N, H, W, C], of the loss at the images with that noise.
        radius: maximum absolute value.
        fraction: in [0, 1].
    """
    return fraction * tf.clip_by_value(start + (radius + OVERSHOOT) * tf.sign(gradient), -radius, radius)
