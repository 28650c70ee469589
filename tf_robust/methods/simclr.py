"""SimCLR (Chen et al., 2020), with the input-gradient penalty of Robustness of Contrastive Learning Models, eq. 3 to 5.

L = mean over the batch of NT-Xent between the projections of two views. The penalty is on the gradient of this scalar:
lambda / 2 * sum over the batch of (|dL/dx|^2 + |dL/dx'|^2) / 2, not divided by the batch size again.

The paper's losses per layer, L = sum of alpha_k L_k + sum of beta_k R_k, do not specify the features that a layer's loss compares.
Here they are the stage's output, averaged over its positions, through its own projection head.
"""

import keras
import tensorflow as tf

from tf_robust import losses
from tf_robust.data.pipeline import Batch
from tf_robust.methods.base import Terms
from tf_robust.methods.checks import positive
from tf_robust.methods.contrastive import ContrastiveMethod
from tf_robust.models import heads


class SimCLR(ContrastiveMethod):
    """SimCLR: NT-Xent of two views' projections, and penalties on its gradient with respect to the images.

    Both views pass through the network as one batch. Weight decay excludes biases, batch norm and the linear monitor.

    Args:
        temperature: of NT-Xent.
        projection_layers: of the head, all but the last of the embedding's width: 2 in SimCLR, 3 in its second version.
            0: no head, the loss compares the embeddings themselves, as in eq. 1 of Robustness of Contrastive Learning Models.
        projection_width: of the head's output.
        gradient_weight: lambda (eq. 3).
        layer_weights: alpha (eq. 4), weights of the loss at stage 1, 2, ... and, last, at the embedding instead of the model's
            last stage. Empty: only at the embedding, with weight 1.
        layer_gradient_weights: beta (eq. 5), as many as layer_weights; empty: no such penalties.

    Examples:
        >>> network = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
        >>> images, labels = np.random.rand(20, 8, 8, 1), np.arange(20) % 10
        >>> model = tfr.methods.SimCLR(network, temperature=0.5, projection_width=16, gradient_weight=0.1)
        >>> model.compile("adam", run_eagerly=True)  # for one step; many are faster in a graph
        >>> history = model.fit(images, labels, verbose=0).history  # the labels train the linear monitor alone
        >>> sorted(history), model.views
        (['accuracy', 'contrastive', 'input_gradient', 'linear', 'loss'], ('simclr', 'simclr'))
    """

    def __init__(
        self,
        classifier: keras.Model,
        *,
        temperature: float = 0.5,
        projection_layers: int = 2,
        projection_width: int = 128,
        gradient_weight: float = 0.0,
        layer_weights: tuple[float, ...] = (),
        layer_gradient_weights: tuple[float, ...] = (),
        **kwargs,
    ):
        penalized = bool(gradient_weight) or any(layer_gradient_weights)
        self.term_names = (*ContrastiveMethod.term_names, *(["input_gradient"] if penalized else []))
        super().__init__(classifier, **kwargs)
        self.temperature, self.gradient_weight = positive("temperature", temperature), gradient_weight
        self.layer_weights, self.layer_gradient_weights = tuple(layer_weights), tuple(layer_gradient_weights)
        self._pieces = self.pieces() if layer_weights else [self.network]
        if not gradient_weight >= 0:
            raise ValueError(f"Expected gradient_weight >= 0. Received: {gradient_weight}")
        if gradient_weight and layer_gradient_weights:
            raise ValueError("Expected gradient_weight or layer_gradient_weights. Received: both")
        if layer_gradient_weights and len(layer_gradient_weights) != len(layer_weights):
            raise ValueError(
                f"Expected as many layer_gradient_weights as layer_weights, {len(layer_weights)}. Received: {len(layer_gradient_weights)}"
            )
        stages = len(self._pieces) - 2
        if layer_weights and len(layer_weights) != stages:
            raise ValueError(f"Expected {stages} layer_weights, one for each stage of {classifier.name}. Received: {len(layer_weights)}")
        if any(not w >= 0 for w in (*layer_weights, *layer_gradient_weights)) or layer_weights and not any(layer_weights):
            raise ValueError(f"Expected layer weights >= 0, one of them > 0. Received: {layer_weights}, {layer_gradient_weights}")
        widths = [piece.output.shape[-1] for piece in self._pieces[1:-2]] + [self.network.output["embedding"].shape[-1]]
        if projection_layers < 0:
            raise ValueError(f"Expected projection_layers >= 0. Received: {projection_layers}")
        self.heads = [
            heads.projection(width, projection_layers, projection_width, f"projection_{level}")
            if projection_layers
            else keras.layers.Identity()
            for level, width in enumerate(widths, start=1)
        ]

    def decays(self, variable: keras.Variable) -> bool:
        return len(variable.shape) > 1 and variable is not getattr(self.logits_layer, "kernel", None)

    def loss_terms(self, batch: Batch, training: bool) -> tuple[Terms, tf.Tensor]:
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            tape.watch(batch.views)
            features = self.features(tf.concat(batch.views, axis=0), training)
            contrasts = [self.contrast(head(level, training=training)) for head, level in zip(self.heads, features)]
            loss = tf.add_n([weight * contrast for weight, contrast in zip(self.layer_weights or (1.0,), contrasts)])
            fraction = 1.0 / tf.distribute.get_strategy().num_replicas_in_sync  # each replica differentiates the total loss
            scaled = [fraction * contrast for contrast in (loss, *contrasts)]
        cross_entropy, logits = self.linear(features[-1], tf.concat([batch.labels, batch.labels], axis=0))
        terms = {"contrastive": loss, "linear": cross_entropy}
        if "input_gradient" in self.term_names:
            weights = (self.gradient_weight / 2, *self.layer_gradient_weights)
            terms["input_gradient"] = tf.add_n(
                [
                    weight / fraction * _squared_gradients(tape.gradient(contrast, batch.views)) / 2
                    for weight, contrast in zip(weights, scaled)
                    if weight
                ]
            )
        return terms, tf.split(logits, 2)[0]

    def features(self, images: tf.Tensor, training: bool) -> list[tf.Tensor]:
        """Returns the features [2N, E_k] of each level: the stages' outputs averaged over positions, last the embedding."""
        if not self.layer_weights:
            return [self.encode(images, training)["embedding"]]
        x, levels = self._pieces[0](images, training=training), []
        for piece in self._pieces[1:-1]:
            x = piece(x, training=training)
            levels.append(tf.reduce_mean(x, axis=list(range(1, len(x.shape) - 1))) if len(x.shape) > 2 else x)
        return [*levels[:-1], self._pieces[-1](x, training=training)["embedding"]]

    def contrast(self, projections: tf.Tensor) -> tf.Tensor:
        """Returns NT-Xent over the pairs of all replicas, a scalar.

        Args:
            projections: [2N, P], of this replica's first views, then of the second ones.
        """
        first, second = (self.all_gather(view) for view in tf.split(projections, 2))
        return tf.reduce_mean(losses.nt_xent(first, second, self.temperature))


def _squared_gradients(gradients):
    return tf.add_n([tf.reduce_sum(gradient**2) for gradient in gradients])
