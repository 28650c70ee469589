"""PuzzleMix (Kim et al., 2020): each block shows the image that has more to say there.

1. Saliency: how much the loss of the image moves with its pixels.
2. Costs of a block's label, which is the share of its own image that it shows: the saliency that is hidden, seams
   between neighbours, and the drawn share as a prior.
3. The labelling of least cost: the mask.
4. Transport: blocks of each image move to where the mask shows them, the less far the better.
5. The mix under the mask, and the loss to both labels by the mask's mean.

Adversarial Puzzle Mix adds noise to the images of a step before step 4, with some probability. The clean loss term that the
paper adds on Tiny-ImageNet is not here. Steps 3 and 4 run in
NumPy, so a step cannot be compiled by XLA.
"""

import functools
import math
import typing

import keras
import tensorflow as tf

from tf_robust import losses
from tf_robust.methods import mixing, puzzle_masks, puzzle_noise
from tf_robust.methods.base import Method
from tf_robust.methods.checks import positive
from tf_robust.ops import philox

_LONGEST_ROW = 16  # moving blocks


class PuzzleMix(Method):
    """Saliency-guided mixing of blocks. An image that is its own partner keeps its content; its blocks may move.

    Args:
        alpha: the prior prefers masks with a mean of Beta(alpha, alpha), one draw a step.
        labels: levels of the mask, from 0 to 1: 3 for 0, 1/2 and 1.
        block_counts: blocks along each side of the grid; one is drawn at each step, of those that divide both sides.
        beta: price of neighbours with different labels.
        gamma: price, in units of beta, of the differences between pixels on both sides of a seam. Above 1 it could pay
            to have a seam, which the minimum cut does not allow: then the seam is free.
        eta: weight of the prior.
        neighbourhood: side in pixels of the squares that are averaged before they are compared, made smaller where it
            does not divide the block's.
        transport: move blocks.
        transport_epsilon: price of a move, from one end of the image to the other, in units of its whole saliency.
        transport_size: least side in pixels of the blocks that move: the smallest size that divides the mask's blocks and
            leaves at most 16 blocks along a side of the image, or else the mask's blocks. 0: the mask's blocks move, as in
            the published code for ImageNet and Tiny-ImageNet.
        loss: `cross_entropy`, or `binary_cross_entropy` of the softmax outputs, mean over classes, as in the published
            code, whose learning rates are tuned to it: its gradient is about 2 / classes of the other's.
        adversarial_probability: of adding adversarial noise to all images of a step, and, drawn apart, to all their partners.
            0: Puzzle Mix without noise. The authors take 0.1 on CIFAR-100 and 0.15 on Tiny-ImageNet.
        adversarial_radius: largest absolute value of the noise, on the [0, 1] pixel scale.
    """

    compiles = False

    def __init__(self, classifier, *, alpha: float = 1.0, labels: int = 3,
                 block_counts: tuple[int, ...] = (2, 4, 8, 16), beta: float = 1.2, gamma: float = 0.5, eta: float = 0.2,
                 neighbourhood: int = 4, transport: bool = True, transport_epsilon: float = 0.8,
                 transport_size: int = 4,
                 loss: typing.Literal["cross_entropy", "binary_cross_entropy"] = "cross_entropy",
                 adversarial_probability: float = 0.0, adversarial_radius: float = 10 / 255, **kwargs):
        super().__init__(classifier, **kwargs)
        for name, value, least in (("labels", labels, 2), ("beta", beta, 0), ("gamma", gamma, 0), ("eta", eta, 0),
                                   ("neighbourhood", neighbourhood, 1), ("transport_size", transport_size, 0),
                                   ("transport_epsilon", transport_epsilon, 0)):
            if not least <= value < math.inf:
                raise ValueError(f"Expected {name} >= {least}. Received: {value}")
        for name, value in (("adversarial_probability", adversarial_probability), ("adversarial_radius", adversarial_radius)):
            if not 0 <= value <= 1:
                raise ValueError(f"Expected {name} in [0, 1]. Received: {value}")
        if loss not in ("cross_entropy", "binary_cross_entropy"):
            raise ValueError(f"Expected loss 'cross_entropy' or 'binary_cross_entropy'. Received: {loss!r}")
        self.alpha, self.labels, self.beta, self.gamma, self.eta = positive("alpha", alpha), labels, beta, gamma, eta
        self.neighbourhood, self.transport, self.transport_epsilon = neighbourhood, transport, transport_epsilon
        self.transport_size, self.loss_form = transport_size, loss
        self.adversarial_probability, self.adversarial_radius = adversarial_probability, adversarial_radius
        self.block_counts = dividing(block_counts, classifier.input_shape[1:3])

    def loss_terms(self, batch, training):
        step, images = batch.step[0], batch.views[0]
        partner = mixing.partners(self.random_seed(step, 0), tf.shape(images)[0])
        share = mixing.beta(self.shared_seed(step, 0), self.alpha, self.alpha)
        drawn = philox.uniform([], self.shared_seed(step, 1), 0, len(self.block_counts), tf.int32)
        saliency, noise = self.saliency_and_noise(images, batch.labels, step)
        mixed, share = tf.switch_case(drawn, [functools.partial(self.mix, images, saliency, partner, share, count, noise)
                                              for count in self.block_counts])
        logits = self.encode(mixed, training)["logits"]
        return {"cross_entropy": self.mixed_loss(batch.labels, partner, share, logits)}, logits

    def saliency_and_noise(self, images, labels, step):
        """Returns the saliency [N, H, W] and the noise [2, N, H, W, C] for images and partners, None without adversarial noise.

        In a step with noise the saliency is that of the images with the random start, as in the published code.
        """
        if not self.adversarial_probability:
            return self.saliency(images, labels), None
        noisy = tf.cast(philox.uniform([2], self.shared_seed(step, 2)) < self.adversarial_probability, tf.float32)
        start = puzzle_noise.random_start(images, self.adversarial_radius, self.random_seed(step, 1)) * tf.reduce_max(noisy)
        gradient = self.gradient(images + start, labels)
        noise = puzzle_noise.one_step(start, gradient, self.adversarial_radius, philox.uniform([], self.shared_seed(step, 3)))
        return root_mean_square(gradient), noisy[:, None, None, None, None] * noise

    def saliency(self, images, labels):
        """Root of the mean over channels of the squared gradient of the cross-entropy, in inference mode: [N, H, W]."""
        return root_mean_square(self.gradient(images, labels))

    def gradient(self, images, labels):
        """Gradient of the cross-entropy with respect to the images [N, H, W, C], in inference mode."""
        with tf.GradientTape() as tape:
            tape.watch(images)
            loss = losses.cross_entropy(labels, self.encode(images, training=False)["logits"])
        return tf.stop_gradient(tf.debugging.check_numerics(tape.gradient(loss, images), "saliency"))

    def mix(self, images, saliency, partner, share, count, noise=None):
        """Images [N, H, W, C] mixed on a grid of count x count blocks, and the share of each's own image, [N].

        Args:
            images: [N, H, W, C] in [0, 1]. saliency: [N, H, W]. partner: int [N]. share: a number, the prior's.
            noise: [2, N, H, W, C], added to images and to partners once the mask is chosen, before blocks move; or None.
        """
        others, (height, width) = tf.gather(images, partner), images.shape[1:3]
        mask = self.mask(images, block_shares(saliency, count, count), partner, share)
        if noise is not None:
            images = tf.clip_by_value(images + noise[0], 0.0, 1.0)
            others = tf.clip_by_value(others + tf.gather(noise[1], partner), 0.0, 1.0)
        if self.transport:
            rows, columns = (side // moving_side(self.transport_size, side, side // count) for side in (height, width))
            salient, shown = block_shares(saliency, rows, columns), enlarged(mask, rows, columns)
            images = self.transported(images, salient, shown)
            others = self.transported(others, tf.gather(salient, partner), 1.0 - shown)
        pixels = enlarged(mask, height, width)[..., None]
        return pixels * images + (1.0 - pixels) * others, tf.reduce_mean(mask, axis=[1, 2])

    def mask(self, images, salient, partner, share):
        """What each block shows of its own image, [N, B, B]. salient: [N, B, B], with sum 1; others as for `mix`."""
        count = salient.shape[1]
        sides = [math.gcd(self.neighbourhood, side // count) for side in images.shape[1:3]]
        pooled = block_means(images, *(side // size for side, size in zip(images.shape[1:3], sides)))
        beta, eta = self.beta / count / 16, self.eta / count**2
        prior = eta * tf.math.log(puzzle_masks.binomial(share, self.labels) + 1e-8)
        costs = puzzle_masks.block_costs(pooled, salient, partner, prior, beta, self.gamma)
        drawn = tf.numpy_function(puzzle_masks.optimal_labels, costs, tf.int32, stateful=False)
        return tf.cast(tf.reshape(drawn, [-1, count, count]), tf.float32) * (1.0 / (self.labels - 1))

    def transported(self, images, salient, shown):
        """Images whose blocks have moved to where they are shown. salient, shown: [N, rows, columns]."""
        rows, columns = salient.shape[1:]
        sources = tf.numpy_function(puzzle_masks.optimal_sources, [salient, shown, self.transport_epsilon], tf.int32,
                                    stateful=False)
        return rearranged(images, tf.reshape(sources, [-1, rows * columns]), rows, columns)

    def mixed_loss(self, labels, partner, share, logits):
        if self.loss_form == "cross_entropy":
            return mixing.mixed_cross_entropy(labels, partner, share, logits)
        targets = mixing.blend(tf.one_hot(labels, logits.shape[-1]), partner, share[:, None])
        return keras.losses.binary_crossentropy(targets, tf.nn.softmax(logits))


def dividing(counts, size):
    """Those of the block counts that divide height and width alike.

    Raises:
        ValueError: there is none, or one is below 2.
    """
    if min(counts, default=0) < 2:
        raise ValueError(f"Expected block_counts of at least 2. Received: {counts}")
    fitting = tuple(count for count in counts if not any(side % count for side in size))
    if not fitting:
        raise ValueError(f"Expected one of block_counts to divide the images' sides, {size[0]} and {size[1]}. "
                         f"Received: {counts}")
    return fitting


def moving_side(least, side, block):
    """Returns the side in pixels of the blocks that move, a divisor of the mask's block. least: `transport_size`.

    Transport takes time in the number of moving blocks cubed; the published code has at most 16 along a side, too.
    """
    sizes = (size for size in range(max(1, least), block) if block % size == 0 and size * _LONGEST_ROW >= side)
    return next(sizes, block) if least else block


def root_mean_square(gradient):
    """[N, H, W, C] -> [N, H, W]"""
    return tf.sqrt(tf.reduce_mean(gradient**2, axis=-1))


def block_means(images, rows, columns):
    """[N, H, W, ...] -> [N, rows, columns, ...]"""
    height, width, *rest = images.shape[1:]
    return tf.reduce_mean(tf.reshape(images, [-1, rows, height // rows, columns, width // columns, *rest]), axis=[2, 4])


def block_shares(saliency, rows, columns):
    """Each block's share of the image's saliency, [N, H, W] -> [N, rows, columns]; without any, all have the same."""
    means = block_means(saliency, rows, columns)
    total = tf.reduce_sum(means, axis=[1, 2], keepdims=True)
    return tf.where(total > 0.0, means / total, tf.fill(tf.shape(means), 1.0 / (rows * columns)))


def enlarged(mask, height, width):
    """[N, rows, columns] -> [N, height, width], multiples of them."""
    return tf.repeat(tf.repeat(mask, height // mask.shape[1], axis=1), width // mask.shape[2], axis=2)


def rearranged(images, sources, rows, columns):
    """Images put together anew: at each place the block that `sources` names.

    Args:
        images: [N, H, W, C]. sources: int [N, rows * columns], numbers of blocks, row after row.
    """
    height, width, channels = images.shape[1] // rows, images.shape[2] // columns, images.shape[3]
    blocks = tf.transpose(tf.reshape(images, [-1, rows, height, columns, width, channels]), [0, 1, 3, 2, 4, 5])
    blocks = tf.gather(tf.reshape(blocks, [-1, rows * columns, height * width * channels]), sources, batch_dims=1)
    blocks = tf.reshape(blocks, [-1, rows, columns, height, width, channels])
    return tf.reshape(tf.transpose(blocks, [0, 1, 3, 2, 4, 5]), [-1, *images.shape[1:]])
