"""Fine-tuning: training a classifier from pretrained weights (`--init_from`), with regularization towards them.

`finetune` is plain cross-entropy; `l2_sp` penalizes the distance of the weights to their start (Li et al., 2018), `similarity`
changes of the similarities between images (URRL, eq. 4).
"""

import typing

import keras
import tensorflow as tf

from tf_robust import losses, models
from tf_robust.data.pipeline import Batch
from tf_robust.methods.base import Method, Terms


class FineTune(Method):
    """Cross-entropy, optionally with frozen stages and a hidden layer in the head.

    Args:
        frozen_stages: stages 1 to this one are frozen, including batch norm's averages; 0: none.
        head_width: of a hidden layer with ReLU between embedding and logits; 0: none, a linear head. The hidden layer and the
            logits after it are initialized at random.

    Examples:
        >>> features = [keras.Input((8, 8, 1)), keras.layers.Conv2D(4, 3, name="conv"), keras.layers.Flatten()]
        >>> network = keras.Sequential([*features, keras.layers.Dense(10)])
        >>> images, labels = np.random.rand(20, 8, 8, 1), np.arange(20) % 10
        >>> model = tfr.methods.FineTune(network, stages=["conv"], frozen_stages=1)
        >>> model.compile("sgd")
        >>> before = network.get_weights()
        >>> history = model.fit(images, labels, verbose=0)
        >>> [np.array_equal(*pair) for pair in zip(before, network.get_weights())]  # "conv" is frozen
        [True, True, False, False]
    """

    def __init__(self, classifier: keras.Model, *, frozen_stages: int = 0, head_width: int = 0, **kwargs):
        if head_width and not models.is_network(classifier):
            raise ValueError(f"Expected head_width=0 for a model of your own. Received: {head_width}. Try: add the layer to the model")
        if head_width < 0:
            raise ValueError(f"Expected head_width >= 0. Received: {head_width}")
        super().__init__(models.with_hidden_layer(classifier, head_width) if head_width else classifier, **kwargs)
        pieces = self.pieces() if frozen_stages else []
        if frozen_stages and not 0 < frozen_stages <= len(pieces) - 2:
            raise ValueError(f"Expected frozen_stages in 0..{len(pieces) - 2}, the stages of {classifier.name}. Received: {frozen_stages}")
        self._frozen, self._trained = pieces[: frozen_stages + 1], pieces[frozen_stages + 1 :]

    def frozen_variables(self) -> list[keras.Variable]:
        return [v for piece in self._frozen for v in piece.trainable_variables]

    def outputs(self, images: tf.Tensor, training: bool) -> Terms:
        """Returns the classifier's outputs {"logits", "embedding"}; frozen stages run in inference mode."""
        if not self._frozen:
            return self.encode(images, training)
        for piece in self._frozen:
            images = piece(images, training=False)
        for piece in self._trained:
            images = piece(images, training=training)
        return images

    def loss_terms(self, batch: Batch, training: bool) -> tuple[Terms, tf.Tensor]:
        outputs = self.outputs(batch.views[0], training)
        terms = {"cross_entropy": self.cross_entropy(batch.labels, outputs["logits"])}
        return {**terms, **self.regularization(batch.views[0], outputs)}, outputs["logits"]

    def regularization(self, images: tf.Tensor, outputs: Terms) -> Terms:
        """Returns {name: term}, the terms that keep the classifier near its start.

        Args:
            images: float32 [N, H, W, C].
            outputs: the classifier's, for these images.
        """
        del images, outputs
        return {}


class L2SP(FineTune):
    """L2-SP: alpha / 2 |w - w0|^2 + beta / 2 |v|^2 for the encoder's weights w, their start w0, the head's v (Li et al., 2018, eq. 3).

    Args:
        alpha: weight of the distance to the start; 0.1 in Li et al.
        beta: weight decay of the head; 0.01 in Li et al.

    Examples:
        >>> features = [keras.Input((8, 8, 1)), keras.layers.Conv2D(4, 3, name="conv"), keras.layers.Flatten()]
        >>> network = keras.Sequential([*features, keras.layers.Dense(10)])
        >>> images, labels = np.random.rand(20, 8, 8, 1), np.arange(20) % 10
        >>> model = tfr.methods.L2SP(network, alpha=0.1, beta=0.0)
        >>> model.compile("sgd")
        >>> distances = model.fit(images, labels, epochs=2, verbose=0).history["l2_sp"]
        >>> distances[0], distances[1] > 0  # at the start, and after one step
        (0.0, True)
    """

    term_names = ("cross_entropy", "l2_sp")

    def __init__(self, classifier: keras.Model, *, alpha: float = 0.1, beta: float = 0.01, **kwargs):
        super().__init__(classifier, **kwargs)
        if not (alpha >= 0 and beta >= 0):
            raise ValueError(f"Expected alpha >= 0 and beta >= 0. Received: {alpha}, {beta}")
        self.alpha, self.beta = alpha, beta
        layers = [layer for layer in self.network.layers if layer.name in models.HEAD_LAYERS]
        head = {id(v) for layer in (*layers, self.logits_layer) if layer is not None for v in layer.variables}
        self.head_variables = [v for v in self.trainable_variables if id(v) in head]
        self.encoder_variables = [v for v in self.trainable_variables if id(v) not in head]
        if not self.encoder_variables:
            raise ValueError(
                f"Expected trained weights in the encoder for {type(self).__name__}, which keeps them near their start. Received: none, "
                f"with frozen_stages={kwargs.get('frozen_stages', 0)} of {classifier.name}. Try: fewer frozen stages, or FineTune"
            )
        self.starts = [
            self.add_weight(shape=v.shape, trainable=False, name=f"start_{i}", initializer=keras.initializers.Zeros())
            for i, v in enumerate(self.encoder_variables)
        ]
        for start, variable in zip(self.starts, self.encoder_variables):
            start.assign(variable.value)

    def regularization(self, images: tf.Tensor, outputs: Terms) -> Terms:
        del images, outputs
        distance = tf.add_n([tf.reduce_sum((v.value - start.value) ** 2) for v, start in zip(self.encoder_variables, self.starts)])
        head = tf.add_n([tf.constant(0.0, distance.dtype), *(tf.reduce_sum(v.value**2) for v in self.head_variables)])
        return {"l2_sp": self.alpha / 2 * distance + self.beta / 2 * head}


class Similarity(FineTune):
    """URRL's similarity regularization: weight * |S - S*| for the embeddings' inner products S over the batch (URRL, eq. 4).

    S* are those of the frozen initial encoder, in inference mode.

    Args:
        weight: of the term.
        form: frobenius, the norm as in the paper; mean_squared, the mean of the squared entries.

    Examples:
        >>> features = [keras.Input((8, 8, 1)), keras.layers.Conv2D(4, 3, name="conv"), keras.layers.Flatten()]
        >>> network = keras.Sequential([*features, keras.layers.Dense(10)])
        >>> images, labels = np.random.rand(20, 8, 8, 1), np.arange(20) % 10
        >>> model = tfr.methods.Similarity(network, weight=0.1)
        >>> model.compile("sgd")
        >>> changes = model.fit(images, labels, epochs=2, verbose=0).history["similarity"]
        >>> round(changes[0], 4), changes[1] > 0  # at the start, and after one step
        (0.0, True)
    """

    term_names = ("cross_entropy", "similarity")

    def __init__(
        self, classifier: keras.Model, *, weight: float = 0.1, form: typing.Literal["frobenius", "mean_squared"] = "frobenius", **kwargs
    ):
        super().__init__(classifier, **kwargs)
        if not weight >= 0 or form not in ("frobenius", "mean_squared"):
            raise ValueError(f"Expected weight >= 0 and form 'frobenius' or 'mean_squared'. Received: {weight}, {form!r}")
        self.weight, self.form = weight, form
        self.encoder = keras.Model(self.network.input, self.network.output["embedding"], name="encoder")
        self.starts = [
            self.add_weight(shape=v.shape, dtype=v.dtype, trainable=False, name=f"start_{i}", initializer="zeros")
            for i, v in enumerate(self.encoder.variables)
        ]
        for start, variable in zip(self.starts, self.encoder.variables):
            start.assign(variable.value)

    def start_embedding(self, images: tf.Tensor) -> tf.Tensor:
        """Returns the embeddings of the initial encoder, in inference mode. Its layers are not copied, so any model will do."""
        with keras.StatelessScope([(v, start.value) for v, start in zip(self.encoder.variables, self.starts)]):
            return self.encoder(images, training=False)

    def regularization(self, images: tf.Tensor, outputs: Terms) -> Terms:
        features, frozen = self.all_gather(outputs["embedding"]), self.all_gather(self.start_embedding(images))
        return {"similarity": self.weight * losses.similarity(features, frozen, self.form == "mean_squared")}
