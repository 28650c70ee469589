"""Batch normalization in training mode by TensorFlow's fused kernels, which can be differentiated twice."""

import tensorflow as tf

KINDS = (tf.float32, tf.float16, tf.bfloat16)  # of the kernels
_AXES = (0, 1, 2)


def batch_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Normalizes each channel by its mean and variance over the batch (Ioffe and Szegedy, 2015, algorithm 1).

    Keras composes this of single operations, each of which reads and writes the whole batch.
    TensorFlow has no gradient of the kernels' gradient; here it is that of the formula.

    Args:
        x: [N, H, W, C], float32, float16 or bfloat16.
        gamma: float32 [C], the scale.
        beta: float32 [C], the offset.
        epsilon: added to the variance.

    Returns:
        (normalized images [N, H, W, C] of the type of x; mean, float32 [C]; biased variance, float32 [C]). Gradients do not pass through
        mean and variance.
    """

    @tf.custom_gradient
    def forward(x, gamma, beta):
        none = tf.zeros([0])
        normalized, mean, variance, *kept = tf.raw_ops.FusedBatchNormV3(
            x=x, scale=gamma, offset=beta, mean=none, variance=none, epsilon=epsilon, is_training=True
        )

        def gradient(upstream, *_):
            return _gradient(upstream, x, gamma, kept, epsilon)

        return (normalized, mean, variance), gradient

    normalized, mean, variance = forward(x, gamma, beta)
    count = tf.cast(tf.reduce_prod(tf.shape(x)[:-1]), tf.float32)
    biased = variance * (tf.maximum(count - 1.0, 1.0) / count)  # the kernel's is the sample variance
    return normalized, tf.stop_gradient(mean), tf.stop_gradient(biased)


def _gradient(upstream, x, gamma, kept, epsilon):
    """Returns the gradients of x, gamma and beta; `kept` are the kernel's last outputs."""

    @tf.custom_gradient
    def gradient(upstream, x, gamma):
        spaces = {f"reserve_space_{number}": values for number, values in enumerate(kept, 1)}
        found = tf.raw_ops.FusedBatchNormGradV3(y_backprop=upstream, x=x, scale=gamma, epsilon=epsilon, is_training=True, **spaces)[:3]

        def second(*upstreams):
            inputs = [upstream, x, gamma]
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                formula = gradient_formula(*inputs, epsilon)
            return tape.gradient(formula, inputs, upstreams)

        return found, second

    return gradient(upstream, x, gamma)


def gradient_formula(upstream: tf.Tensor, x: tf.Tensor, gamma: tf.Tensor, epsilon: float) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the gradients of x, gamma and beta as single operations, which have gradients themselves.

    Args:
        upstream: [N, H, W, C], gradient of the normalized images.
        x: [N, H, W, C].
        gamma: float32 [C].
        epsilon: added to the variance.
    """
    kind = x.dtype
    upstream, x = tf.cast(upstream, tf.float32), tf.cast(x, tf.float32)
    mean, variance = tf.nn.moments(x, _AXES)
    inverse = tf.math.rsqrt(variance + epsilon)
    normalized = (x - mean) * inverse
    of_gamma, of_beta = tf.reduce_sum(upstream * normalized, _AXES), tf.reduce_sum(upstream, _AXES)
    count = tf.cast(tf.reduce_prod(tf.shape(x)[:-1]), tf.float32)
    return tf.cast(gamma * inverse * (upstream - (of_beta + normalized * of_gamma) / count), kind), of_gamma, of_beta
