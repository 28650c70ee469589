"""Adversarial training (Madry et al., 2018): cross-entropy on the batch attacked by PGD."""

import typing

import keras
import tensorflow as tf

from tf_robust import attacks
from tf_robust.attacks.criterion import Criterion
from tf_robust.data.pipeline import Batch
from tf_robust.methods.base import Terms
from tf_robust.methods.further_views import FurtherViewsMethod


class AdversarialTraining(FurtherViewsMethod):
    """Adversarial training: min over the weights of max over the ball of L_xe.

    The logged accuracy is that on attacked images.

    The attack's passes are the further views: by default in inference mode, so that images are attacked independently of each
    other and on the network that is exported. The pass that trains on the attacked images updates the moving averages as usual.

    Args:
        norm: of the ball, `linf` or `l2`.
        radius: of the ball, on the [0, 1] pixel scale.
        steps: number of gradient steps of the attack.
        step_size: as a fraction of the radius; 0: 2.5 / steps.
        random_start: start the attack anywhere in the ball, not at the image.

    Examples:
        >>> network = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2)])
        >>> network.set_weights([np.array([[-9.0, 9.0]]), np.array([4.5, -4.5])])  # class 1: images brighter than 0.5
        >>> images, labels = np.stack([np.full((8, 8, 1), 0.45), np.full((8, 8, 1), 0.55)]), np.array([0, 1])
        >>> model = tfr.methods.AdversarialTraining(network, norm="linf", radius=0.1, steps=3)
        >>> model.compile(keras.optimizers.SGD(0.0))
        >>> model.evaluate(images, labels, verbose=0, return_dict=True)["accuracy"]
        1.0
        >>> model.fit(images, labels, verbose=0).history["accuracy"]  # of attacked images
        [0.0]
    """

    def __init__(
        self,
        classifier: keras.Model,
        *,
        norm: typing.Literal["linf", "l2"] = "linf",
        radius: float = 8 / 255,
        steps: int = 7,
        step_size: float = 0.0,
        random_start: bool = True,
        **kwargs,
    ):
        super().__init__(classifier, **kwargs)
        self.attack = attacks.ProjectedGradientDescent(
            norm=norm, radius=radius, steps=steps, step_size=step_size, random_start=random_start, early_stop=False
        )
        self.attack.check(self.network.input_shape[1:])

    batch_norm_choices = ("own", "inference")

    @property
    def loop_iterations(self) -> int:  # type: ignore[override]
        return self.attack.steps

    def loss_terms(self, batch: Batch, training: bool) -> tuple[Terms, tf.Tensor]:
        def predict(images):
            return self.encode_further(images, training)["logits"]

        images, seed = batch.views[0], self.random_seed(batch.step[0], 0)
        attacked = self.attack.perturb(predict, images, Criterion(batch.labels), seed, tf.shape(images)[0])
        logits = self.encode(tf.stop_gradient(attacked), training)["logits"]
        return {"cross_entropy": self.cross_entropy(batch.labels, logits)}, logits
