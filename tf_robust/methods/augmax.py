"""AugMax (Wang et al., NeurIPS 2021): AugMix whose mixing weights are chosen against the classifier.

AugMix draws an image's mixture, (1 - m) x + m * sum over i of w_i chain_i(x), at random. AugMax climbs: from a random w and
m it takes signed gradient steps that raise the cross-entropy. The loss is cross-entropy on the clean image plus the
Jensen-Shannon divergence between what clean image, AugMax mixture and one AugMix mixture of other chains are taken for.
Numbers, and what the paper leaves open, follow the authors' code (VITA-Group/AugMax).

DuBIN, the paper's normalization, is two parts. Its two batch norms are here: AugMax mixtures go through batch norm layers of
their own, with moving averages, scale and offset apart from those of the other images, and the classifier that is exported
keeps the others. Its instance norm is in the network: the models `preact_resnet18_ibn` and `resnet20_ibn`.
"""

import tensorflow as tf

from tf_robust import losses
from tf_robust.methods.base import Method
from tf_robust.methods.checks import positive
from tf_robust.models.batch_norms import with_own_batch_norm
from tf_robust.ops import image_ops, philox


class AugMax(Method):
    """Takes the views clean,augmix_chain,augmix_chain,augmix_chain,augmix: an image, its chains, another AugMix of it.

    Args:
        jsd_weight: lambda, the weight of the Jensen-Shannon divergence.
        steps: most gradient steps to the mixing weights.
        step_size: of the signed steps, in m and in the scores whose softmax is w.
        friendly: leave an image's mixture as it is once it is misclassified (Zhang et al., 2020); if not, take all steps.
        dual_batch_norm: normalize AugMax mixtures by batch norm layers of their own, while searching for them (by the moving
            averages) and in the loss (by the batch). If not, they share the other images' layers: scale and offset are common,
            the moving averages serve the search, and in the loss their own batch's statistics do not enter the averages.
    """

    term_names = ("cross_entropy", "stability")

    def __init__(self, classifier, *, jsd_weight: float = 10.0, steps: int = 5, step_size: float = 0.1, friendly: bool = True,
                 dual_batch_norm: bool = True, **kwargs):
        super().__init__(classifier, **kwargs)
        if steps < 1:
            raise ValueError(f"Expected steps >= 1 for {type(self).__name__}, the number of its steps. Received: {steps}")
        self.jsd_weight, self.step_size = positive("jsd_weight", jsd_weight), positive("step_size", step_size)
        self.steps, self.friendly = steps, friendly
        self.auxiliary = with_own_batch_norm(classifier) if dual_batch_norm else None

    @property
    def loop_turns(self):
        return self.steps

    def check_views(self, views):
        first, *chains, last = views if len(views) > 1 else ("", "")
        if (first, last) != ("clean", "augmix") or not chains or set(chains) != {"augmix_chain"}:
            raise ValueError("Expected the views clean, one or more augmix_chain, and augmix for AugMax, say "
                             f"clean,augmix_chain,augmix_chain,augmix_chain,augmix. Received: views={','.join(views)}")

    def loss_terms(self, batch, training):
        clean, *chains, augmix = batch.views
        scores, share = self.ascend(clean, chains, batch.labels, self.random_seed(batch.step[0], 0))
        hard = tf.stop_gradient(mixture(clean, chains, scores, share))
        # apart, as in the authors' code: each with its own batch's statistics, the clean images' enter the averages last
        hardest = self.mixture_logits(hard, training)
        random = self.encode(augmix, training)["logits"]
        logits = self.encode(clean, training)["logits"]
        divergence = losses.jensen_shannon([tf.nn.softmax(view) for view in (logits, hardest, random)])
        return {"cross_entropy": losses.cross_entropy(batch.labels, logits), "stability": self.jsd_weight * divergence}, logits

    def mixture_logits(self, mixtures, training):
        """Returns the logits of AugMax mixtures, by their own batch norm if it is dual."""
        if self.auxiliary:
            return self.auxiliary(mixtures, training=training)["logits"]
        return self.encode(mixtures, training, update_statistics=False)["logits"]

    def ascend(self, clean, chains, labels, seed):
        """The mixing weights after the last step, for a batch of N images with K chains each.

        Args:
            clean: [N, H, W, C]. chains: K times the same. labels: int [N]. seed: int [2].

        Returns:
            (scores [N, K], softmax of which is w; share [N] in [0, 1], m)
        """
        count = tf.shape(clean)[0]
        scores, share = started(seed, count, len(chains))

        def step(scores, share, climbing):
            scores_up, share_up, logits = self.ascent(clean, chains, labels, scores, share)
            if self.friendly:
                climbing = climbing & (tf.argmax(logits, axis=1, output_type=labels.dtype) == labels)
            size = self.step_size * tf.cast(climbing, tf.float32)
            share = tf.clip_by_value(share + size * tf.sign(share_up), 0.0, 1.0)
            return scores + size[:, None] * tf.sign(scores_up), share, climbing
        scores, share, _ = tf.while_loop(lambda scores, share, climbing: tf.reduce_any(climbing), step,
                                         (scores, share, tf.fill([count], True)), maximum_iterations=self.steps)
        return scores, share

    def ascent(self, clean, chains, labels, scores, share):
        """The cross-entropy's gradients by scores [N, K] and by share [N], and the logits [N, classes] of the mixtures.

        Batch norm uses its moving averages, so images do not depend on each other.
        """
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([scores, share])
            mixed = mixture(clean, chains, scores, share)
            logits = self.mixture_logits(mixed, training=False)
            loss = tf.reduce_sum(losses.cross_entropy(labels, logits))
        return *tape.gradient(loss, [scores, share]), logits


def started(seed, count, chains):
    """Where climbing starts: (scores [count, chains], share [count]), uniform in [0, 1)."""
    return (philox.uniform([count, chains], seed), philox.uniform([count], image_ops.fold(seed, 1)))


def mixture(clean, chains, scores, share):
    """(1 - m) x + m * sum over i of w_i chain_i, w = softmax(scores), m = share.

    Args:
        clean: [N, H, W, C]. chains: K times the same. scores: [N, K]. share: [N] in [0, 1].

    Returns:
        [N, H, W, C], in the range of the images.
    """
    weights = tf.nn.softmax(scores) * share[:, None]
    weights = tf.concat([1.0 - share[:, None], weights], axis=1)[:, :, None, None, None]  # [N, 1 + K, 1, 1, 1]
    return tf.add_n([weights[:, place] * image for place, image in enumerate((clean, *chains))])
