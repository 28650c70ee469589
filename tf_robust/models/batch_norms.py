"""Batch normalization of Keras models: a second set of layers, fused kernels in training, folding into convolutions in inference."""

import contextlib
import types
from collections.abc import Iterator

import keras
import tensorflow as tf

from tf_robust.ops import batch_norm

_KERAS_CALL = keras.layers.BatchNormalization.call
_ATTRIBUTES = ("strides", "dilations", "explicit_paddings")  # of the operation Conv2D, to be kept


def with_own_batch_norm(classifier: keras.Model) -> keras.Model:
    """Returns a classifier that shares every layer with another one, except for batch normalization, of which it has a copy.

    Both compute the same until one of them is trained; each has its own moving averages, scale and offset.

    Args:
        classifier: Functional or Sequential keras.Model, nested ones included.

    Raises:
        ValueError: a layer contains batch normalization that cannot be copied separately.
    """

    def copied(layer):
        return type(layer).from_config(layer.get_config()) if isinstance(layer, keras.layers.BatchNormalization) else layer

    try:
        copy = keras.models.clone_model(classifier, clone_function=copied, recursive=True)
    except ValueError as error:
        raise ValueError(
            f"Expected a Functional or Sequential model. Received: {type(classifier).__name__} "
            f"{classifier.name}. Try: augmax_dual_batch_norm=false"
        ) from error
    originals = {id(variable) for variable in classifier.variables}
    shared = [variable.path for variable in copy.variables if variable.name == "moving_mean" and id(variable) in originals]
    if shared:
        raise ValueError(
            "Expected batch normalization as layers of Functional or Sequential models, so that it can be copied. "
            f"Received: {', '.join(shared[:3])}, inside another kind of layer. Try: augmax_dual_batch_norm=false"
        )
    copy.set_weights(classifier.get_weights())
    return copy


def fuse_batch_norms(model: keras.Model) -> None:
    """Lets the model's `keras.layers.BatchNormalization` layers train by fused kernels; their class, weights and files stay as they are.

    Results are equal to those of Keras up to rounding. Layers remain Keras' own where the kernels do not apply: inputs that are not
    [N, H, W, C] or of double precision, masks, statistics synchronized over devices, subclasses; and in inference mode.

    Args:
        model: nested models and layers included.
    """
    for layer in model._flatten_layers():
        if type(layer) is keras.layers.BatchNormalization and not layer.synchronized and not getattr(layer, "renorm", False):
            layer.call = types.MethodType(_fused_call, layer)


def _fused_call(self, inputs, training=None, mask=None):
    images = inputs.shape.rank == 4 and self.axis in (-1, 3) and inputs.dtype in batch_norm.KINDS
    if not (training and self.trainable and images) or mask is not None:
        return keras.layers.BatchNormalization.call(self, inputs, training=training, mask=mask)
    channels = inputs.shape[-1]
    gamma = tf.cast(self.gamma, tf.float32) if self.scale else tf.ones([channels])
    beta = tf.cast(self.beta, tf.float32) if self.center else tf.zeros([channels])
    outputs, *statistics = batch_norm.batch_norm(inputs, gamma, beta, self.epsilon)
    for average, value in zip((self.moving_mean, self.moving_variance), statistics):
        average.assign(average * self.momentum + tf.cast(value, average.dtype) * (1.0 - self.momentum))
    return tf.cast(outputs, self.compute_dtype)


@contextlib.contextmanager
def folded_batch_norms() -> Iterator[None]:
    """While active, `keras.layers.BatchNormalization` in inference mode folds itself into the convolution whose output it normalizes.

    A convolution with kernel w, then scale s and offset o per channel, is one with kernel w * s and bias o. Neither the forward nor the
    backward pass reads the batch again for the normalization, and TensorFlow fuses convolution, bias and ReLU. Outputs and gradients are
    equal to those of Keras up to rounding, except for gradients of the output of the convolution itself, which is not computed. The kernel
    is multiplied within the graph: variables may change after tracing.

    Applies to whatever is traced within, whatever calls the layers. Layers that do not follow a convolution, eager execution and training
    mode remain Keras' own.
    """
    keras.layers.BatchNormalization.call = _folded_call
    try:
        yield
    finally:
        keras.layers.BatchNormalization.call = _KERAS_CALL


def _folded_call(self, inputs, training=None, mask=None):
    convolution, bias = _preceding_convolution(inputs)
    inference = not (training and self.trainable) and mask is None and self.axis in (-1, 3) and not getattr(self, "renorm", False)
    if convolution is None or not inference:
        return _KERAS_CALL(self, inputs, training=training, mask=mask)
    scale = tf.math.rsqrt(self.moving_variance + self.epsilon) * (self.gamma if self.scale else 1.0)
    offset = (self.beta if self.center else 0.0) + (tf.cast(bias, scale.dtype) - self.moving_mean) * scale
    images, kernel = convolution.inputs
    outputs = tf.raw_ops.Conv2D(
        input=images,
        filter=tf.cast(tf.cast(kernel, scale.dtype) * scale, kernel.dtype),
        padding=convolution.get_attr("padding").decode(),
        **{name: convolution.get_attr(name) for name in _ATTRIBUTES},
    )
    return tf.cast(tf.nn.bias_add(outputs, tf.cast(offset, outputs.dtype)), self.compute_dtype)


def _preceding_convolution(inputs):
    """Returns the operation Conv2D, channels last, that computes `inputs` in the current graph, or None; and the bias added to it."""
    if tf.executing_eagerly() or inputs.graph is not tf.compat.v1.get_default_graph():
        return None, 0.0
    operation, bias = inputs.op, 0.0
    if operation.type == "BiasAdd":
        operation, bias = operation.inputs[0].op, operation.inputs[1]
    folds = operation.type == "Conv2D" and operation.get_attr("data_format") == b"NHWC"
    return operation if folds else None, bias
