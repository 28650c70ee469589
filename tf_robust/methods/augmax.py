"""AugMax (Wang et al., NeurIPS 2021): AugMix with adversarial mixing weights.

AugMix draws an image's mixture, (1 - m) x + m * sum over i of w_i chain_i(x), at random. AugMax starts from random w and
m and takes signed gradient steps that increase the cross-entropy. The loss is cross-entropy on the clean image plus the
Jensen-Shannon divergence between the predictions for the clean image, the AugMax mixture and one AugMix mixture of other
chains. Constants, and details that the paper leaves open, follow the authors' code (VITA-Group/AugMax).

DuBIN, the paper's normalization, has two parts. Its two batch norms are here: AugMax mixtures have their own batch norm
layers, with separate moving averages, scale and offset; the exported classifier has those of the other images. Its
instance norm is in the network: the models `preact_resnet18_ibn` and `resnet20_ibn`.
"""

from collections.abc import Sequence

import keras
import tensorflow as tf

from tf_robust import losses
from tf_robust.data.pipeline import Batch
from tf_robust.methods.base import Method, Terms
from tf_robust.methods.checks import positive
from tf_robust.models.batch_norms import with_own_batch_norm
from tf_robust.ops import image_ops, philox


class AugMax(Method):
    """AugMax: AugMix with adversarial mixing weights.

    Takes the views clean,augmix_chain,augmix_chain,augmix_chain,augmix: an image, its chains, and another AugMix of it.

    Args:
        jsd_weight: lambda, the weight of the Jensen-Shannon divergence.
        steps: maximum number of gradient steps for the mixing weights.
        step_size: of the signed steps in m and in the scores whose softmax is w.
        friendly: stop for an image once its mixture is misclassified (Zhang et al., 2020); otherwise take all steps.
        dual_batch_norm: normalize AugMax mixtures by their own batch norm layers, in the search for them (by the moving
            averages) and in the loss (by the batch). If false, they share the other images' layers: the search uses the moving
            averages, and in the loss the statistics of their batch do not update the averages.

    Examples:
        >>> network = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10, kernel_initializer="zeros")])
        >>> images, labels = np.random.rand(20, 8, 8, 1), np.arange(20) % 10
        >>> model = tfr.methods.AugMax(network, jsd_weight=10.0, steps=1, views=("clean", "augmix_chain", "augmix"))
        >>> model.compile("adam", run_eagerly=True)  # for one step; many are faster in a graph
        >>> history = model.fit(images, labels, verbose=0).history
        >>> round(history["cross_entropy"][0], 4), abs(history["stability"][0]) < 1e-4  # log(10); equal predictions for all views
        (2.3026, True)
    """

    term_names = ("cross_entropy", "stability")
    default_views = ("clean", "augmix_chain", "augmix_chain", "augmix_chain", "augmix")

    def __init__(
        self,
        classifier: keras.Model,
        *,
        jsd_weight: float = 10.0,
        steps: int = 5,
        step_size: float = 0.1,
        friendly: bool = True,
        dual_batch_norm: bool = True,
        **kwargs,
    ):
        super().__init__(classifier, **kwargs)
        if steps < 1:
            raise ValueError(f"Expected steps >= 1 for {type(self).__name__}, the number of its steps. Received: {steps}")
        self.jsd_weight, self.step_size = positive("jsd_weight", jsd_weight), positive("step_size", step_size)
        self.steps, self.friendly = steps, friendly
        self.auxiliary = with_own_batch_norm(self.network) if dual_batch_norm else None

    @property
    def loop_iterations(self) -> int:  # type: ignore[override]
        return self.steps

    def check_views(self, views: Sequence[str]) -> None:
        first, *chains, last = views if len(views) > 1 else ("", "")
        if (first, last) != ("clean", "augmix") or not chains or set(chains) != {"augmix_chain"}:
            raise ValueError(
                "Expected the views clean, one or more augmix_chain, and augmix for AugMax, such as "
                f"clean,augmix_chain,augmix_chain,augmix_chain,augmix. Received: views={','.join(views)}"
            )

    def loss_terms(self, batch: Batch, training: bool) -> tuple[Terms, tf.Tensor]:
        clean, *chains, augmix = batch.views
        scores, fraction = self.ascend(clean, chains, batch.labels, self.random_seed(batch.step[0], 0))
        hard = tf.stop_gradient(mixture(clean, chains, scores, fraction))
        # separately, as in the authors' code: each with its own batch's statistics, the clean images' update the averages last
        hardest = self.mixture_logits(hard, training)
        random = self.encode(augmix, training)["logits"]
        logits = self.encode(clean, training)["logits"]
        divergence = losses.jensen_shannon([tf.nn.softmax(view) for view in (logits, hardest, random)])
        return {"cross_entropy": self.cross_entropy(batch.labels, logits), "stability": self.jsd_weight * divergence}, logits

    def mixture_logits(self, mixtures: tf.Tensor, training: bool) -> tf.Tensor:
        """Returns the logits of AugMax mixtures, with their own batch norm if `dual_batch_norm` is set."""
        if self.auxiliary:
            return self.auxiliary(mixtures, training=training)["logits"]
        return self.encode(mixtures, training, update_statistics=False)["logits"]

    def ascend(self, clean: tf.Tensor, chains: Sequence[tf.Tensor], labels: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the mixing weights after the last step, for a batch of N images with K chains each.

        Args:
            clean: [N, H, W, C].
            chains: K tensors [N, H, W, C].
            labels: int [N].
            seed: int [2].

        Returns:
            (scores [N, K], whose softmax is w; fraction [N] in [0, 1], m)
        """
        count = tf.shape(clean)[0]
        scores, fraction = initial_weights(seed, count, len(chains))

        def step(scores, fraction, active):
            score_gradient, fraction_gradient, logits = self.mixture_gradients(clean, chains, labels, scores, fraction)
            if self.friendly:
                active = active & (tf.argmax(logits, axis=1) == losses.class_indices(labels))
            size = self.step_size * tf.cast(active, tf.float32)
            fraction = tf.clip_by_value(fraction + size * tf.sign(fraction_gradient), 0.0, 1.0)
            return scores + size[:, None] * tf.sign(score_gradient), fraction, active

        scores, fraction, _ = tf.while_loop(
            lambda scores, fraction, active: tf.reduce_any(active),
            step,
            (scores, fraction, tf.fill([count], True)),
            maximum_iterations=self.steps,
        )
        return scores, fraction

    def mixture_gradients(
        self, clean: tf.Tensor, chains: Sequence[tf.Tensor], labels: tf.Tensor, scores: tf.Tensor, fraction: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the gradients of the cross-entropy with respect to the mixing weights.

        Batch norm uses its moving averages, so images are independent of each other.

        Args:
            clean: [N, H, W, C].
            chains: K tensors [N, H, W, C].
            labels: int [N].
            scores: [N, K].
            fraction: [N].

        Returns:
            (gradient with respect to the scores [N, K] and to the fraction [N], logits [N, C] of the mixtures)
        """
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([scores, fraction])
            mixed = mixture(clean, chains, scores, fraction)
            logits = self.mixture_logits(mixed, training=False)
            loss = tf.reduce_sum(losses.cross_entropy(labels, logits))
        score_gradient, fraction_gradient = tape.gradient(loss, [scores, fraction])
        return score_gradient, fraction_gradient, logits


def initial_weights(seed: tf.Tensor, count: tf.Tensor | int, chains: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the initial (scores [count, chains], fraction [count]), uniform in [0, 1), by a seed int [2]."""
    return (philox.uniform([count, chains], seed), philox.uniform([count], image_ops.fold(seed, 1)))


def mixture(clean: tf.Tensor, chains: Sequence[tf.Tensor], scores: tf.Tensor, fraction: tf.Tensor) -> tf.Tensor:
    """Returns (1 - m) x + m * sum over i of w_i chain_i with w = softmax(scores), m = fraction.

    Args:
        clean: [N, H, W, C].
        chains: K tensors [N, H, W, C].
        scores: [N, K].
        fraction: [N] in [0, 1].

    Returns:
        [N, H, W, C], in the range of the images.
    """
    weights = tf.nn.softmax(scores) * fraction[:, None]
    weights = tf.concat([1.0 - fraction[:, None], weights], axis=1)[:, :, None, None, None]  # [N, 1 + K, 1, 1, 1]
    return tf.add_n([weights[:, i] * image for i, image in enumerate((clean, *chains))])
