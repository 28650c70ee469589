"""Training a classifier that begins as another one, and keeping it near where it began.

`--init_from` gives the start. `finetune` is plain cross-entropy; `l2_sp` holds the weights near it (Li et al., 2018), `similarity`
the similarities between images (URRL, eq. 4).
"""

import typing

import keras
import tensorflow as tf

from tf_robust import losses, models
from tf_robust.methods.base import Method


class FineTune(Method):
    """Cross-entropy, with as much of the network trained, and with the head, that is asked for.

    Args:
        frozen_stages: stages 1 to this one stay as they are, batch norm's averages included; 0: all is trained.
        head_width: of a hidden layer with ReLU between embedding and logits; 0: none, a linear head. The hidden layer and the
            logits behind it begin at random.
    """

    def __init__(self, classifier, *, frozen_stages: int = 0, head_width: int = 0, **kwargs):
        if head_width < 0:
            raise ValueError(f"Expected head_width >= 0. Received: {head_width}")
        super().__init__(models.with_hidden_layer(classifier, head_width) if head_width else classifier, **kwargs)
        pieces = models.stages(self.classifier) if frozen_stages else []
        if frozen_stages and not 0 < frozen_stages <= len(pieces) - 2:
            raise ValueError(f"Expected frozen_stages in 0..{len(pieces) - 2}, the stages of {classifier.name}. "
                             f"Received: {frozen_stages}")
        self._frozen, self._trained = pieces[:frozen_stages + 1], pieces[frozen_stages + 1:]

    def frozen_variables(self):
        return [v for piece in self._frozen for v in piece.trainable_variables]

    def outputs(self, images, training):
        """The classifier's outputs {"logits", "embedding"}; frozen stages run in inference mode."""
        if not self._frozen:
            return self.encode(images, training)
        for piece in self._frozen:
            images = piece(images, training=False)
        for piece in self._trained:
            images = piece(images, training=training)
        return images

    def loss_terms(self, batch, training):
        found = self.outputs(batch.views[0], training)
        terms = {"cross_entropy": losses.cross_entropy(batch.labels, found["logits"])}
        return {**terms, **self.ties(batch.views[0], found)}, found["logits"]

    def ties(self, images, outputs):
        """{name: term} that hold the classifier near its start."""
        del images, outputs
        return {}


class L2SP(FineTune):
    """L2-SP: alpha / 2 |w - w0|^2 + beta / 2 |v|^2, w the encoder's weights, w0 their start, v the head's (Li et al., 2018, eq. 3).

    Args:
        alpha: of the distance to the start; Li et al.'s choice is 0.1.
        beta: of the head's weights; Li et al.'s choice is 0.01.
    """

    term_names = ("cross_entropy", "l2_sp")

    def __init__(self, classifier, *, alpha: float = 0.1, beta: float = 0.01, **kwargs):
        super().__init__(classifier, **kwargs)
        if not (alpha >= 0 and beta >= 0):
            raise ValueError(f"Expected alpha >= 0 and beta >= 0. Received: {alpha}, {beta}")
        self.alpha, self.beta = alpha, beta
        head = {id(v) for layer in self.classifier.layers if layer.name in models.HEAD_LAYERS for v in layer.variables}
        self.head_variables = [v for v in self.trainable_variables if id(v) in head]
        self.tied = [v for v in self.trainable_variables if id(v) not in head]
        self.starts = [self.add_weight(shape=v.shape, trainable=False, name=f"start_{i}", initializer=keras.initializers.Zeros())
                       for i, v in enumerate(self.tied)]
        for start, variable in zip(self.starts, self.tied):
            start.assign(variable.value)

    def ties(self, images, outputs):
        del images, outputs
        moved = tf.add_n([tf.reduce_sum((v.value - start.value) ** 2) for v, start in zip(self.tied, self.starts)])
        head = tf.add_n([tf.reduce_sum(v.value**2) for v in self.head_variables])
        return {"l2_sp": self.alpha / 2 * moved + self.beta / 2 * head}


class Similarity(FineTune):
    """URRL's similarity regularization: weight * |S - S*|, S the embeddings' inner products over the batch (URRL, eq. 4).

    S* is of the encoder as it was at the start, in inference mode.

    Args:
        weight: of the term.
        form: frobenius, the norm as printed; mean_squared, the mean of the squared entries.
    """

    term_names = ("cross_entropy", "similarity")

    def __init__(self, classifier, *, weight: float = 0.1, form: typing.Literal["frobenius", "mean_squared"] = "frobenius", **kwargs):
        super().__init__(classifier, **kwargs)
        if not weight >= 0 or form not in ("frobenius", "mean_squared"):
            raise ValueError(f"Expected weight >= 0 and form 'frobenius' or 'mean_squared'. Received: {weight}, {form!r}")
        self.weight, self.form = weight, form
        encoder = keras.Model(self.classifier.input, self.classifier.output["embedding"], name="encoder")
        self.frozen_encoder = keras.models.clone_model(encoder)
        self.frozen_encoder.set_weights(encoder.get_weights())
        self.frozen_encoder.trainable = False

    def ties(self, images, outputs):
        features, frozen = self.all_gather(outputs["embedding"]), self.all_gather(self.frozen_encoder(images, training=False))
        return {"similarity": self.weight * losses.similarity(features, frozen, self.form == "mean_squared")}
