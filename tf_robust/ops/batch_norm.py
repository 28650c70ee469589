"""Batch normalization in training mode by TensorFlow's fused kernels, which can be differentiated twice."""

from collections.abc import Sequence

import tensorflow as tf

KINDS = (tf.float32, tf.float16, tf.bfloat16)  # of the kernels
_AXES = (0, 1, 2)


def batch_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Normalizes each channel by its mean and variance over the batch (Ioffe and Szegedy, 2015, algorithm 1).

    Keras composes this of single operations, each of which reads and writes the whole batch.
    TensorFlow has no gradient of the kernels' gradient; here it is `second_gradient`.

    Args:
        x: [N, H, W, C], float32, float16 or bfloat16.
        gamma, beta: float32 [C], the scale and the offset.
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

        count = _count(x)
        variance *= tf.maximum(count - 1.0, 1.0) / count  # the kernel's is the sample variance

        def gradient(upstream, *_):
            return _gradient(upstream, x, gamma, (mean, tf.math.rsqrt(variance + epsilon)), kept, epsilon)

        return (normalized, mean, variance), gradient

    normalized, mean, variance = forward(x, gamma, beta)
    return normalized, tf.stop_gradient(mean), tf.stop_gradient(variance)


def _count(x):
    return tf.cast(tf.reduce_prod(tf.shape(x)[:-1]), tf.float32)


def _gradient(upstream, x, gamma, statistics, kept, epsilon):
    """Returns the gradients of x, gamma and beta. statistics: (mean, 1 / standard deviation); kept: last outputs of the kernel of x."""
    spaces = {f"reserve_space_{number}": values for number, values in enumerate(kept, 1)}

    def kernel(upstream, x, gamma):
        return tf.raw_ops.FusedBatchNormGradV3(y_backprop=upstream, x=x, scale=gamma, epsilon=epsilon, is_training=True, **spaces)[:3]

    first = kernel(upstream, x, gamma)

    @tf.custom_gradient
    def of_x(upstream, x, gamma):
        def second(v):
            return _last(second_gradient(v, (upstream, x, gamma), statistics, first[1:], kernel(v, x, gamma)))

        return first[0], second

    @tf.custom_gradient  # apart from that of x: most second gradients do not pass through these
    def of_parameters(upstream, x):
        def second(of_gamma, of_beta):
            mean, inverse = statistics
            slope = of_gamma * inverse
            of_upstream = tf.cast(x, tf.float32) * slope + (of_beta - mean * slope)
            return _last((tf.cast(of_upstream, x.dtype), kernel(upstream, x, of_gamma)[0]))

        return first[1:], second

    return of_x(upstream, x, gamma), *of_parameters(upstream, x)


def _last(gradients):
    """Returns gradients whose own gradients raise LookupError."""
    return [tf.raw_ops.PreventGradient(input=one, message="Batch normalization is differentiable twice.") for one in gradients]


def second_gradient(
    v: tf.Tensor,
    inputs: Sequence[tf.Tensor],
    statistics: Sequence[tf.Tensor],
    sums: Sequence[tf.Tensor],
    gradients: Sequence[tf.Tensor],
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the gradients of u, x and gamma in batch normalization's gradient of x, gamma / std * (u - E[u] - n E[u n]).

    Here n = (x - mean) / std, and E is the mean over the batch. With the upstream gradient v, c = E[u v] - E[u] E[v] - E[u n] E[v n] and
    q = -gamma / std * (E[v n] u + E[u n] v), they are

    - of u: gamma / std * (v - E[v] - n E[v n]),
    - of x: (q - E[q] - n E[q n]) / std - gamma / std^2 * c n,
    - of gamma: count / std * c.

    Args:
        v: [N, H, W, C].
        inputs: (u, gradient of the normalized images, [N, H, W, C]; x [N, H, W, C]; gamma, float32 [C]).
        statistics: (mean, 1 / std), float32 [C].
        sums: (sum(u n), sum(u)), float32 [C].
        gradients: (that of u [N, H, W, C]; sum(v n), sum(v), float32 [C]).
    """
    of_u, kind = gradients[0], inputs[1].dtype
    v, u, x = (tf.cast(values, tf.float32) for values in (v, *inputs[:2]))
    gamma, (mean, inverse), count = inputs[2], statistics, _count(x)
    un, u_mean, vn, v_mean = (total / count for total in (*sums, *gradients[1:]))
    covariance = tf.reduce_mean(u * v, _AXES) - u_mean * v_mean - un * vn
    factor = gamma * inverse**2
    slope = factor * inverse * (2.0 * un * vn - covariance)  # of x in its own gradient
    offset = factor * (vn * u_mean + un * v_mean) - slope * mean
    of_x = tf.add_n([u * (-factor * vn), v * (-factor * un), x * slope + offset])
    return of_u, tf.cast(of_x, kind), count * inverse * covariance
