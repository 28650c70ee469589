import pytest
import tensorflow as tf

from tf_robust import models
from tf_robust.runs import graphs


def graph_of(function, *shapes):
    return tf.function(function).get_concrete_function(*(tf.TensorSpec(shape) for shape in shapes)).graph


def profiled(graph):
    """TensorFlow's own count, of graphs without calls."""
    options = tf.compat.v1.profiler.ProfileOptionBuilder(tf.compat.v1.profiler.ProfileOptionBuilder.float_operation())
    return tf.compat.v1.profiler.profile(graph, options=options.with_empty_output().select(["float_ops"]).build()).total_float_ops


def test_operations_equal_those_of_the_tensorflow_profiler():
    def step(x, kernel, depthwise, dense):
        with tf.GradientTape() as tape:
            tape.watch((x, kernel, depthwise, dense))
            y = tf.nn.depthwise_conv2d(tf.nn.conv2d(x, kernel, 2, "SAME"), depthwise, [1, 1, 1, 1], "VALID")
            total = tf.matmul(tf.reshape(y, [4, -1]), dense)
        return total, tape.gradient(total, (x, kernel, depthwise, dense))

    graph = graph_of(step, (4, 16, 16, 3), (3, 3, 3, 8), (3, 3, 8, 1), (288, 5))
    forward = [2 * 4 * 8 * 8 * 8 * 27, 2 * 4 * 6 * 6 * 8 * 9, 2 * 4 * 5 * 288]  # by hand
    assert graphs.flops(graph) == 3 * sum(forward)
    assert graphs.flops(graph_of(lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"), (2, 9, 7, 3), (5, 5, 3, 4))) == profiled(
        graph_of(lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"), (2, 9, 7, 3), (5, 5, 3, 4))
    )


def test_operations_of_a_network_equal_the_published_number():
    model = models.build("resnet20", (32, 32, 3), 10)
    count = graphs.flops(graph_of(lambda x: model(x, training=False)["logits"], (1, 32, 32, 3)))
    assert count / 2 == pytest.approx(40.8e6, rel=0.02)  # He et al. (2016): 41 million multiply-adds


def test_branches_are_averaged_and_calls_are_included():
    def choose(x, a, b):
        return tf.switch_case(tf.cast(x[0, 0], tf.int32), [lambda: x @ a, lambda: (x @ b)[:, :4]])

    graph = graph_of(lambda x, a, b: tf.function(choose)(x, a, b), (2, 8), (8, 4), (8, 12))
    assert graphs.flops(graph) == (2 * 2 * 8 * 4 + 2 * 2 * 8 * 12) / 2


def test_kept_bytes_are_those_of_the_largest_branch():
    def branch(x, kernel, turns):
        for _ in range(turns):
            x = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME"))
        return x

    graph = graph_of(lambda x, k: tf.cond(x[0, 0, 0, 0] > 0, lambda: branch(x, k, 3), lambda: branch(x, k, 1)), (2, 8, 8, 4), (3, 3, 4, 4))
    assert graphs.kept_bytes(graph) == 3 * 2 * (2 * 8 * 8 * 4) * 4  # three times a convolution and a ReLU, in float32
    products = 2 * 2 * 8 * 8 * 4 * 36
    assert [graphs.flops(graph, choose) for choose in (max, min)] == [3 * products, products]


def test_loops_are_multiplied():
    def climb(x, kernel):
        return tf.while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x @ kernel), (0, x))[1]

    graph = graph_of(climb, (2, 4), (4, 4))
    assert graphs.flops(graph, iterations=5) == 5 * graphs.flops(graph) == 5 * 2 * 2 * 4 * 4
