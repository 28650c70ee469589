"""The two Gaussian baselines of the FCL paper (section 4.2): noise on every value of the image.

XE+Gaussian adds a second cross-entropy term on the perturbed images; CL+Gaussian contrasts them: the perturbed image
is the positive, the batch's other images are the negatives.
"""

import keras
import tensorflow as tf

from tf_robust import losses
from tf_robust.data.pipeline import Batch
from tf_robust.methods.base import Terms
from tf_robust.methods.checks import positive
from tf_robust.methods.further_views import AuxiliaryTermMethod
from tf_robust.ops import philox


class GaussianMethod(AuxiliaryTermMethod):
    """Base class of both: encodes the images with and without noise.

    Args:
        sigma: standard deviation of the noise on the [0, 1] scale; the images are not clipped.
    """

    auto_batch_norm = "own"

    def __init__(self, classifier: keras.Model, *, sigma: float = 0.3, **kwargs):
        super().__init__(classifier, **kwargs)
        self.sigma = positive("sigma", sigma)

    def encode_clean_and_noised(self, batch: Batch, training: bool) -> list[Terms]:
        """Returns the outputs for the images and for the images with noise."""
        images = batch.views[0]
        noise = philox.normal(tf.shape(images), self.random_seed(batch.step[0], 0))
        return self.encode_views([images, images + self.sigma * noise], training)


class Gaussian(GaussianMethod):
    """XE+Gaussian: L_xe(x) + lambda L_xe(x + noise).

    Args:
        weight: lambda, the weight of the cross-entropy on the images with noise.

    Examples:
        >>> network = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10, kernel_initializer="zeros")])
        >>> images, labels = np.random.rand(20, 8, 8, 1), np.arange(20) % 10
        >>> model = tfr.methods.Gaussian(network, sigma=0.3, weight=0.5)
        >>> model.compile("adam")
        >>> history = model.fit(images, labels, verbose=0).history
        >>> [round(history[name][0], 4) for name in ("cross_entropy", "noised_cross_entropy")]  # log(10), and half of it
        [2.3026, 1.1513]
    """

    term_names = ("cross_entropy", "noised_cross_entropy")

    def __init__(self, classifier: keras.Model, *, weight: float = 1.0, **kwargs):
        super().__init__(classifier, weight=weight, **kwargs)

    def loss_terms(self, batch: Batch, training: bool) -> tuple[Terms, tf.Tensor]:
        clean, noised = (view["logits"] for view in self.encode_clean_and_noised(batch, training))
        return {
            "cross_entropy": self.cross_entropy(batch.labels, clean),
            "noised_cross_entropy": self.weighted(self.cross_entropy(batch.labels, noised), batch.step[0]),
        }, clean


class ContrastiveGaussian(GaussianMethod):
    """CL+Gaussian: L_xe + lambda times FCL's eq. 5 with the noisy image as positive and no perturbed negative.

    Args:
        weight: lambda, the weight of the contrastive loss.
        temperature: of the contrastive loss.

    Examples:
        >>> network = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
        >>> images, labels = np.random.rand(20, 8, 8, 1), np.arange(20) % 10
        >>> model = tfr.methods.ContrastiveGaussian(network, sigma=0.3, weight=0.1, temperature=0.5)
        >>> model.compile("adam")
        >>> history = model.fit(images, labels, verbose=0).history
        >>> round(history["loss"][0] - history["cross_entropy"][0] - history["contrastive"][0], 4) == 0
        True
    """

    term_names = ("cross_entropy", "contrastive")

    def __init__(self, classifier: keras.Model, *, weight: float = 0.1, temperature: float = 0.5, **kwargs):
        super().__init__(classifier, weight=weight, **kwargs)
        self.temperature = positive("temperature", temperature)

    def loss_terms(self, batch: Batch, training: bool) -> tuple[Terms, tf.Tensor]:
        clean, noised = self.encode_clean_and_noised(batch, training)
        contrast = losses.feature_contrastive(clean["embedding"], noised["embedding"], temperature=self.temperature)
        return {
            "cross_entropy": self.cross_entropy(batch.labels, clean["logits"]),
            "contrastive": self.weighted(contrast, batch.step[0]),
        }, clean["logits"]
