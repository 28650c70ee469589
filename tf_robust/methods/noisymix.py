"""NoisyMix (Erichson et al., 2022) and its parts: Mixup, Manifold Mixup, Noisy Feature Mixup, AugMix's stability loss.

At each step one stage of the network is drawn. At its output the views are mixed, all with the same mixing coefficient and the
same partners, and noise is added. The loss is cross-entropy to both labels on the first view plus the Jensen-Shannon
divergence between the predictions of the views. Without views, noise or mixing, the remaining parts are the methods that the
paper compares with.
"""

import functools
import logging
import typing
from collections.abc import Sequence

import keras
import tensorflow as tf

from tf_robust import losses, models
from tf_robust.data.pipeline import Batch
from tf_robust.methods import mixing
from tf_robust.methods.base import Method, Terms
from tf_robust.methods.checks import positive
from tf_robust.methods.further_views import BatchNorm, FurtherViewsMethod
from tf_robust.ops import image_ops, philox
from tf_robust.ops.draws import Draws

LAST_STAGE = 3  # of the default stages


class NoisyMix(FurtherViewsMethod):
    """NoisyMix: mixing and noise at a random stage, and the stability loss over views (eq. 2).

    Args:
        mixing: mix images with each other. If false, only noise and stability loss remain.
        alpha: the mixing coefficient is drawn from Beta(alpha, alpha).
        stages: candidates for mixing and noise: 0 is the normalized image, i the output of the model's stage i. One is
            drawn at each step. Empty: 0 to 3, or as many as the model has. Of your own model: 0 and names of its layers; empty: 0 and up
            to three layers with feature maps, evenly spaced.
        noise: `none`; `paper`: one draw and level for all views; `official`: as in the published code, independent draws
            for each view, additive levels times the view's number, levels times Beta(2, 5), some values without noise.
        additive_noise: standard deviation of the Gaussian noise, in units of the normalized image or of the features.
        multiplicative_noise: values are multiplied by 1 + this times a number uniform in [-1, 1].
        sparsity: fraction of the values without noise (`official`).
        jsd_weight: gamma, the weight of the stability loss; 0: none, and one view.
        own_stages: each view draws its own stage and noise: for views that are otherwise equal. Mixing coefficient and
            partners are the same for all.

    Examples:
        >>> features = [keras.Input((8, 8, 1)), keras.layers.Conv2D(4, 3, name="conv"), keras.layers.Flatten()]
        >>> network = keras.Sequential([*features, keras.layers.Dense(10)])
        >>> images, labels = np.random.rand(20, 8, 8, 1), np.arange(20) % 10
        >>> model = tfr.methods.NoisyMix(network, stages=(0, "conv"), jsd_weight=12.0)
        >>> model.compile("adam", run_eagerly=True)  # for one step; many are faster in a graph
        >>> sorted(model.fit(images, labels, verbose=0).history), model.views
        (['accuracy', 'cross_entropy', 'loss', 'stability'], ('clean', 'augmix', 'augmix'))
    """

    auto_batch_norm = "joint"  # as in the published code
    default_views: tuple[str, ...] = ("clean", "augmix", "augmix")

    def __init__(
        self,
        classifier: keras.Model,
        *,
        mixing: bool = True,
        alpha: float = 1.0,
        stages: tuple[int, ...] = (),
        noise: typing.Literal["none", "paper", "official"] = "official",
        additive_noise: float = 0.5,
        multiplicative_noise: float = 0.5,
        sparsity: float = 0.65,
        jsd_weight: float = 12.0,
        own_stages: bool = False,
        **kwargs,
    ):
        if not jsd_weight >= 0:
            raise ValueError(f"Expected jsd_weight >= 0. Received: {jsd_weight}")
        self.term_names = ("cross_entropy", "stability") if jsd_weight else ("cross_entropy",)
        self.default_views = self.views_of(jsd_weight=jsd_weight)
        stages = (stages,) if isinstance(stages, str) else stages
        if not stages and (mixing or noise != "none") and not models.is_network(classifier):
            stages = (0, *models.stage_layers(classifier))  # type: ignore[arg-type]  # names, of a user's model
        names = [stage for stage in stages if isinstance(stage, str)]
        super().__init__(classifier, stages=names, **kwargs)
        stages = tuple(names.index(stage) + 1 if isinstance(stage, str) else stage for stage in stages)
        self.mixing, self.alpha, self.jsd_weight = mixing, positive("alpha", alpha), jsd_weight
        self.noise, self.additive_noise, self.multiplicative_noise = noise, additive_noise, multiplicative_noise
        self.sparsity, self.own_stages = sparsity, own_stages
        if noise not in ("none", "paper", "official"):
            raise ValueError(f"Expected noise 'none', 'paper' or 'official'. Received: {noise!r}")
        if not (additive_noise >= 0 and multiplicative_noise >= 0) or noise != "none" and not additive_noise + multiplicative_noise:
            raise ValueError(
                f"Expected additive_noise and multiplicative_noise >= 0, one of them > 0. Received: "
                f"{additive_noise}, {multiplicative_noise}"
            )
        if not 0 <= sparsity < 1:
            raise ValueError(f"Expected sparsity in [0, 1). Received: {sparsity}")
        self._pieces = self.pieces()
        last = len(self._pieces) - 2
        self.stages = stages or tuple(range(min(LAST_STAGE, last) + 1))
        if len(set(self.stages)) != len(self.stages) or not set(self.stages) <= set(range(last + 1)):
            raise ValueError(f"Expected stages in 0..{last}, which {classifier.name} has, each once. Received: {self.stages}")
        if not last and not stages and (mixing or noise != "none"):
            logging.warning(
                "%s mixes the images themselves: %s has no stages. Try: stages=(0, 'name of a layer', ...)",
                type(self).__name__,
                classifier.name,
            )

    @classmethod
    def views_of(cls, *, jsd_weight: float | None = None, **hyperparameters: typing.Any) -> tuple[str, ...]:
        """Returns one view without stability loss, else the default."""
        return ("clean",) if jsd_weight == 0 else cls.default_views

    def check_views(self, views: Sequence[str]) -> None:
        expected = "at least 2 views, such as clean,augmix,augmix," if self.jsd_weight else "one view"
        if (len(views) > 1) != bool(self.jsd_weight):
            name = type(self).__name__
            raise ValueError(f"Expected {expected} for {name} with jsd_weight={self.jsd_weight:g}. Received: views={','.join(views)}")

    def loss_terms(self, batch: Batch, training: bool) -> tuple[Terms, tf.Tensor]:
        step, views = batch.step[0], len(batch.views)
        lam = mixing.beta(self.shared_seed(step, 0), self.alpha, self.alpha) if self.mixing else tf.constant(1.0)
        partner = mixing.partners(self.random_seed(step, 0), tf.shape(batch.labels)[0])
        logits = tf.split(self.encode_mixed(batch.views, partner, lam, step, training), views)
        terms = {"cross_entropy": mixing.mixed(self.cross_entropy, batch.labels, partner, lam, logits[0])}
        if self.jsd_weight:
            terms["stability"] = self.jsd_weight * losses.jensen_shannon([tf.nn.softmax(view) for view in logits])
        return terms, logits[0]

    def encode_mixed(self, views: Sequence[tf.Tensor], partner: tf.Tensor, lam: tf.Tensor, step: tf.Tensor, training: bool) -> tf.Tensor:
        """Returns the logits [V * N, C] of V views of N images, with mixing and noise at the stage drawn for the step (or view).

        With `joint` batch norm all views pass through the network as one batch.

        Args:
            views: V times float32 [N, H, W, C].
            partner: int [N].
            lam: the mixing coefficient.
            step: the global step.
            training: bool.
        """
        groups = len(views) if self.own_stages else 1  # each draws a stage
        draws = philox.uniform([groups], self.shared_seed(step, 1), 0, len(self.stages), tf.int32)
        drawn_stages = tf.unstack(tf.gather(tf.constant(self.stages), draws))
        noise = self._official_noise(len(views), step) if self.noise == "official" else []
        changed = self.stages if self.mixing or self.noise != "none" else ()
        *pieces, last = self._pieces
        x = tf.concat(views, axis=0)
        for stage, piece in enumerate(pieces):
            x = self._encode_concatenated(piece, x, len(views), training)
            if stage in changed:
                mix = functools.partial(
                    self._mix_and_noise, views=len(views) // groups, partner=partner, lam=lam, step=step, official_noise=noise
                )
                x = tf.concat(
                    [
                        tf.cond(drawn == stage, lambda x=x, first=first, mix=mix: mix(x, first=first), lambda x=x: x)
                        for first, (x, drawn) in enumerate(zip(tf.split(x, groups), drawn_stages), start=1)
                    ],
                    axis=0,
                )
        return self._encode_concatenated(last, x, len(views), training)["logits"]

    def _encode_concatenated(self, network, x, views, training):
        """Returns the outputs of a part of the network for V views in one tensor [V * N, ...]."""
        if self.batch_norm == "joint":
            return network(x, training=training)
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *self.encode_views(tf.split(x, views), training, network))

    def _official_noise(self, views, step):
        """Returns the seed and the two scales of the noise of each view, which are the same at every stage: drawn once."""
        seeds = [self.random_seed(step, number) for number in range(1, views + 1)]
        return [
            (seed, number * mixing.beta(image_ops.fold(seed, 3), 2.0, 5.0), mixing.beta(image_ops.fold(seed, 4), 2.0, 5.0))
            for number, seed in enumerate(seeds, start=1)
        ]

    def _mix_and_noise(self, x, views, partner, lam, step, official_noise, first=1):
        """Mixes views and adds noise, in one tensor [V * N, ...], numbered from `first`."""
        shape, parts = tf.shape(x), tf.split(x, views)
        if self.mixing:
            parts = [mixing.blend(view, partner, lam) for view in parts]
        if self.noise == "paper":
            parts = self._add_noise(parts, self.random_seed(step, first), 1.0, 1.0, 0.0)
        elif self.noise == "official":
            parts = [self._add_noise([view], *noise, self.sparsity)[0] for view, noise in zip(parts, official_noise[first - 1 :])]
        return tf.reshape(tf.concat(parts, axis=0), shape)

    def _add_noise(self, views, seed, additive_scale, multiplicative_scale, sparsity):
        """Adds the same noise to each view [N, ...]; the scales multiply the noise levels."""
        draws, shape = Draws(seed, tf.shape(views[0])[0], "noise"), views[0].shape[1:]
        uniform = draws.uniform(shape)
        factor = tf.cast(uniform > sparsity, tf.float32) * ((uniform - sparsity) * (2.0 / (1.0 - sparsity)) - 1.0)
        factor = 1.0 + (multiplicative_scale * self.multiplicative_noise) * factor
        noise = (additive_scale * self.additive_noise) * draws.normal(shape, sparsity)
        return [view * tf.cast(factor, view.dtype) + tf.cast(noise, view.dtype) for view in views]


class Mixup(NoisyMix):
    """Mixup (Zhang et al., 2018): images and labels are mixed with those of other images.

    Args:
        alpha: the mixing coefficient is drawn from Beta(alpha, alpha).

    Examples:
        >>> network = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
        >>> images, labels = np.random.rand(20, 8, 8, 1), np.arange(20) % 10
        >>> model = tfr.methods.Mixup(network, alpha=0.2)
        >>> model.stages  # 0: the images themselves are mixed
        (0,)
        >>> model.compile("adam")
        >>> sorted(model.fit(images, labels, verbose=0).history)
        ['accuracy', 'loss']
    """

    kwargs_of = Method
    default_views = ("clean",)

    def __init__(self, classifier: keras.Model, *, alpha: float = 1.0, **kwargs):
        super().__init__(classifier, alpha=alpha, stages=(0,), noise="none", jsd_weight=0.0, **kwargs)


class ManifoldMixup(NoisyMix):
    """Manifold Mixup (Verma et al., 2019): features of a random stage of the network are mixed, and labels with them.

    Args:
        alpha: the mixing coefficient is drawn from Beta(alpha, alpha).
        stages: candidates for mixing, one of which is drawn at each step; as of `NoisyMix`.

    Examples:
        >>> features = [keras.Input((8, 8, 1)), keras.layers.Conv2D(4, 3, name="conv"), keras.layers.Flatten()]
        >>> network = keras.Sequential([*features, keras.layers.Dense(10)])
        >>> images, labels = np.random.rand(20, 8, 8, 1), np.arange(20) % 10
        >>> model = tfr.methods.ManifoldMixup(network, alpha=2.0, stages=(0, "conv"))
        >>> model.stages  # the images, and the output of "conv"
        (0, 1)
        >>> model.compile("adam")
        >>> sorted(model.fit(images, labels, verbose=0).history)
        ['accuracy', 'loss']
    """

    kwargs_of = Method
    default_views = ("clean",)

    def __init__(self, classifier: keras.Model, *, alpha: float = 2.0, stages: tuple[int, ...] = (), **kwargs):
        super().__init__(classifier, alpha=alpha, stages=stages, noise="none", jsd_weight=0.0, **kwargs)


class NFM(NoisyMix):
    """Noisy Feature Mixup (Lim et al., 2022): Manifold Mixup, with noise on the mixed features. Defaults are the paper's.

    Args:
        alpha: the mixing coefficient is drawn from Beta(alpha, alpha).
        stages: candidates for mixing and noise, one of which is drawn at each step; as of `NoisyMix`.
        noise: `paper` or `official`; as of `NoisyMix`.
        additive_noise: standard deviation of the Gaussian noise, in units of the normalized image or of the features.
        multiplicative_noise: values are multiplied by 1 + this times a number uniform in [-1, 1].
        sparsity: fraction of the values without noise (`official`).

    Examples:
        >>> features = [keras.Input((8, 8, 1)), keras.layers.Conv2D(4, 3, name="conv"), keras.layers.Flatten()]
        >>> network = keras.Sequential([*features, keras.layers.Dense(10)])
        >>> images, labels = np.random.rand(20, 8, 8, 1), np.arange(20) % 10
        >>> model = tfr.methods.NFM(network, stages=("conv",), additive_noise=0.4, multiplicative_noise=0.2)
        >>> model.stages, model.jsd_weight  # the output of "conv", without a stability loss
        ((1,), 0.0)
        >>> model.compile("adam")
        >>> sorted(model.fit(images, labels, verbose=0).history)
        ['accuracy', 'loss']
    """

    kwargs_of = Method
    default_views = ("clean",)

    def __init__(
        self,
        classifier: keras.Model,
        *,
        alpha: float = 1.0,
        stages: tuple[int, ...] = (),
        noise: typing.Literal["paper", "official"] = "official",
        additive_noise: float = 0.4,
        multiplicative_noise: float = 0.2,
        sparsity: float = 0.0,
        **kwargs,
    ):
        super().__init__(
            classifier,
            alpha=alpha,
            stages=stages,
            noise=noise,
            additive_noise=additive_noise,
            multiplicative_noise=multiplicative_noise,
            sparsity=sparsity,
            jsd_weight=0.0,
            **kwargs,
        )


class AugMix(NoisyMix):
    """AugMix with its Jensen-Shannon stability loss (Hendrycks et al., 2020): cross-entropy, and equal predictions for AugMix views.

    Args:
        jsd_weight: the weight of the stability loss, > 0.
        batch_norm: as of `NoisyMix`.

    Examples:
        >>> network = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10, kernel_initializer="zeros")])
        >>> images, labels = np.random.rand(20, 8, 8, 1), np.arange(20) % 10
        >>> model = tfr.methods.AugMix(network, jsd_weight=12.0)
        >>> model.compile("adam", run_eagerly=True)  # for one step; many are faster in a graph
        >>> history = model.fit(images, labels, verbose=0).history
        >>> round(history["cross_entropy"][0], 4), abs(history["stability"][0]) < 1e-4  # log(10); equal predictions for all views
        (2.3026, True)
    """

    kwargs_of = Method

    def __init__(
        self,
        classifier: keras.Model,
        *,
        jsd_weight: float = 12.0,
        batch_norm: BatchNorm = "auto",
        **kwargs,
    ):
        super().__init__(
            classifier, mixing=False, noise="none", jsd_weight=positive("jsd_weight", jsd_weight), batch_norm=batch_norm, **kwargs
        )
