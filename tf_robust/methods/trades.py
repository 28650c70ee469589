"""TRADES (Zhang et al., 2019): cross-entropy on the images, and the divergence of the predictions for attacked ones."""

import typing

import keras
import tensorflow as tf

from tf_robust import attacks, losses
from tf_robust.attacks.criterion import Criterion
from tf_robust.data.pipeline import Batch
from tf_robust.methods.base import Terms
from tf_robust.methods.further_views import FurtherViewsMethod


class TRADES(FurtherViewsMethod):
    """TRADES: L_xe(x) + beta max over x' in the ball of KL(p(x) || p(x')) (Zhang et al., 2019, eq. 5).

    The logged accuracy is that on the images. The attack starts at a uniform point of the ball and does not depend on the labels.
    Its passes are in inference mode by default; the passes of the loss, on the images and on the attacked ones, are normalized each
    by its own batch, and both update the moving averages.

    Args:
        beta: weight of the divergence; larger values trade clean for robust accuracy. The paper has 6 for CIFAR-10.
        norm: of the ball, `linf` or `l2`.
        radius: of the ball, on the [0, 1] pixel scale.
        steps: number of gradient steps of the attack.
        step_size: as a fraction of the radius; 0: 2.5 / steps.

    Examples:
        >>> network = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2)])
        >>> network.set_weights([np.array([[-9.0, 9.0]]), np.array([4.5, -4.5])])  # class 1: images brighter than 0.5
        >>> images, labels = np.stack([np.full((8, 8, 1), 0.45), np.full((8, 8, 1), 0.55)]), np.array([0, 1])
        >>> model = tfr.methods.TRADES(network, beta=6.0, radius=0.1, steps=3)
        >>> model.compile(keras.optimizers.SGD(0.0))
        >>> history = model.fit(images, labels, verbose=0).history
        >>> history["accuracy"], history["divergence"][0] > history["cross_entropy"][0]
        ([1.0], True)
    """

    term_names = ("cross_entropy", "divergence")
    batch_norm_choices = ("own", "inference")

    def __init__(
        self,
        classifier: keras.Model,
        *,
        beta: float = 6.0,
        norm: typing.Literal["linf", "l2"] = "linf",
        radius: float = 8 / 255,
        steps: int = 10,
        step_size: float = 0.0,
        **kwargs,
    ):
        super().__init__(classifier, **kwargs)
        if not 0 <= beta < float("inf"):
            raise ValueError(f"Expected beta >= 0 and finite. Received: {beta}")
        self.beta = beta
        self.attack = attacks.ProjectedGradientDescent(norm=norm, radius=radius, steps=steps, step_size=step_size, early_stop=False)
        self.attack.check(self.network.input_shape[1:])

    @property
    def loop_iterations(self) -> int:  # type: ignore[override]
        return self.attack.steps

    def loss_terms(self, batch: Batch, training: bool) -> tuple[Terms, tf.Tensor]:
        def predict(images):
            return self.encode_further(images, training)["logits"]

        images, seed = batch.views[0], self.random_seed(batch.step[0], 0)
        attacked = self.attack.perturb(predict, images, _Divergence(predict(images)), seed, tf.shape(images)[0])
        logits = self.encode(images, training)["logits"]
        divergence = losses.kl_divergence(logits, self.encode(tf.stop_gradient(attacked), training)["logits"])
        return {"cross_entropy": self.cross_entropy(batch.labels, logits), "divergence": self.beta * divergence}, logits


class _Divergence(Criterion):
    """The loss that the attack maximizes: the divergence from the predictions for the images, logits [N, C], up to their entropy."""

    def at(self, indices):
        return _Divergence(tf.gather(self.classes, indices))

    def cross_entropy(self, logits):
        return losses.cross_entropy(tf.nn.softmax(self.classes), logits)
