"""Square against the paper's algorithms written for one image in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tests.attacks.oracles import sizes
from tf_robust.attacks.criterion import Criterion
from tf_robust.attacks.square import Square, sides, two_bumps
from tf_robust.ops.draws import Draws

RADII = {"linf": 0.1, "l2": 0.6}


class Recorded:
    """Waves over images of any shape, in NumPy, with class 0 far ahead; no gradient flows through it, and it records its queries."""

    def __init__(self, shape):
        random = np.random.RandomState(0)
        self.weights, self.values, self.queries = random.randn(int(np.prod(shape)), 10), random.randn(10, 3), []

    def logits(self, images):
        waves = np.sin(images.reshape(len(images), -1).astype(np.float64) @ self.weights)
        return (waves @ self.values + [20.0, 0.0, 0.0]).astype(np.float32)

    def __call__(self, images):
        def record(images):
            self.queries.append(images.copy())
            return self.logits(images)

        logits = tf.numpy_function(record, [images], tf.float32)
        return tf.ensure_shape(logits, [None, 3])


def eta(h1, h2):
    """Equation 2 of the paper, with r and s from 1."""
    n = max(h1, h2) // 2
    return np.array(
        [
            [sum(1 / (n + 1 - k) ** 2 for k in range(n - max(abs(r - h1 // 2 - 1), abs(s - h2 // 2 - 1)) + 1)) for s in range(1, h2 + 1)]
            for r in range(1, h1 + 1)
        ]
    ).reshape(h1, h2)


def normalized_eta(side, transposed):
    both = np.concatenate([eta(side, side // 2), -eta(side, side - side // 2)], axis=1)
    both /= np.sqrt((both**2).sum())
    return both.T if transposed else both


def fraction(step, steps):
    scaled = int(step / steps * 10000)
    return 0.8 / 2 ** sum(scaled > mark for mark in (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000))


def algorithm(model, image, norm, radius, steps, index, seed):
    """Runs Algorithm 1 with 2 or 3 on one image of label 0, with the attack's draws; returns (all queries, the result)."""
    height, width, channels = image.shape
    sign = lambda u: -1.0 if u < 0.5 else 1.0  # noqa: E731

    def clipped(x):
        moved = x - image
        moved = np.clip(moved, -radius, radius) if norm == "linf" else moved * min(1, radius / np.linalg.norm(moved))
        return np.clip(image + moved, 0, 1)

    def margin(x):
        z = model.logits(x[None].astype(np.float32))[0]
        return max(z[1:]) - z[0]

    first = Draws(seed, [index], "square", "first")
    start = np.zeros(image.shape)
    if norm == "linf":
        drawn = first.uniform([1, width, channels]).numpy()[0]
        for column in range(width):
            for c in range(channels):
                start[:, column, c] = radius * sign(drawn[0, column, c])
    else:
        side = max(min(height, width) // 5, 1)
        rows, columns = height // side, width // side
        drawn = first.uniform([rows, columns, channels + 1]).numpy()[0]
        for i in range(rows):
            for j in range(columns):
                top, left = (height - rows * side) // 2 + i * side, (width - columns * side) // 2 + j * side
                for c in range(channels):
                    start[top : top + side, left : left + side, c] = sign(drawn[i, j, 1 + c]) * normalized_eta(side, drawn[i, j, 0] >= 0.5)
        start *= radius / np.linalg.norm(start)
    current = clipped(image + start)
    queries = [current]
    for step in range(steps):
        folded = tf.random.experimental.stateless_fold_in(tf.constant(seed, tf.int64), tf.constant(step, tf.int64))
        area = np.sqrt(fraction(step, steps) * height * width)
        side = min(max(round(area), 1 if norm == "linf" else 3), height, width)
        draws = Draws(folded, [index], "square")
        nu = current - image
        if norm == "linf":
            u = draws.uniform([2 + channels]).numpy()[0]
            r, s = int(u[0] * (height - side + 1)), int(u[1] * (width - side + 1))
            for c in range(channels):
                nu[r : r + side, s : s + side, c] += 2 * radius * sign(u[2 + c])
        else:
            u = draws.uniform([5 + channels]).numpy()[0]
            r1, r2 = (int(v * (height - side + 1)) for v in (u[0], u[2]))
            s1, s2 = (int(v * (width - side + 1)) for v in (u[1], u[3]))
            one, two = np.zeros((2, height, width), bool)
            one[r1 : r1 + side, s1 : s1 + side] = two[r2 : r2 + side, s2 : s2 + side] = True
            unused = radius**2 - (nu**2).sum()
            for c in range(channels):
                channel = nu[:, :, c]
                window = channel[r1 : r1 + side, s1 : s1 + side].copy()
                aimed = sign(u[5 + c]) * normalized_eta(side, u[4] < 0.5)
                if window.any():  # the paper does not say what 0 / 0 is
                    aimed += window / np.sqrt((window**2).sum())
                available = np.sqrt((channel[one | two] ** 2).sum() + unused / channels)
                channel[two] = 0
                channel[r1 : r1 + side, s1 : s1 + side] = aimed / np.sqrt((aimed**2).sum()) * available
        queries.append(clipped(image + nu))
        current = queries[-1] if margin(queries[-1]) > margin(current) else current
    return np.array(queries), current


@pytest.mark.parametrize("side", [1, 2, 3, 4, 7, 12])
def test_two_bumps_equal_the_papers_equation(side):
    np.testing.assert_allclose(two_bumps(side), normalized_eta(side, False), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(two_bumps(side)), 1, atol=1e-6)


def test_sides_follow_the_schedule_scaled_to_the_steps():
    marks = [0, 10, 11, 51, 201, 501, 1001, 2001, 4001, 6001, 8001]
    assert sides(10_000, (32, 32, 3))[marks].astype(str).tolist() == "29 29 20 14 10 7 5 4 3 2 1".split()
    assert list(sides(5, (20, 8, 3))) == [8, 2, 1, 1, 1] and min(sides(5000, (32, 32, 3), minimum=3)) == 3


@pytest.mark.parametrize("norm, shape", [("linf", (7, 9, 2)), ("l2", (7, 11, 2)), ("l2", (15, 12, 1))])
def test_every_query_equals_the_papers_algorithm(norm, shape):
    model, steps, indices = Recorded(shape), 40, np.array([5, 2, 17])
    images = np.random.RandomState(0).uniform(0, 1, (3, *shape)).astype(np.float32)
    attack = Square(norm=norm, radius=RADII[norm], steps=steps, seed=3)
    attacked = attack(model, images, [0, 0, 0], indices=indices).numpy()
    queries = np.stack(model.queries[1:], axis=1)  # [N, steps + 1, ...], after the one before the attack
    assert sizes((queries - images[:, None]).reshape(-1, *shape), norm).max() <= RADII[norm] * (1 + 1e-5)
    assert queries.min() >= 0 and queries.max() <= 1
    for i, image in enumerate(images.astype(np.float64)):
        expected, result = algorithm(model, image, norm, RADII[norm], steps, indices[i], [3, 0])
        np.testing.assert_allclose(queries[i], expected, atol=1e-4)
        np.testing.assert_allclose(attacked[i], result, atol=1e-4)
        margins = Criterion(tf.zeros([steps + 1], tf.int64)).margin(tf.constant(model.logits(queries[i]))).numpy()
        assert margins.argmax() > 0  # the result is the query of the highest margin
        np.testing.assert_array_equal(attacked[i], queries[i, margins.argmax()])


def test_tiny_images_and_zero_radius():
    for norm, shape in (("linf", (1, 1, 1)), ("l2", (1, 1, 1)), ("l2", (2, 5, 3))):
        model, images = Recorded(shape), np.full([2, *shape], 0.5, np.float32)
        attacked = Square(norm=norm, radius=0.3, steps=12)(model, images, [0, 0]).numpy()
        assert np.isfinite(attacked).all() and sizes(attacked - images, norm).max() <= 0.3 * (1 + 1e-5)
    np.testing.assert_array_equal(Square(norm="l2", radius=0.0, steps=12)(model, images, [0, 0]), images)
