"""The two optimization problems of PuzzleMix, the mask and the transport of blocks: costs and exact solutions.

The mask's pairwise cost is convex in the difference of two labels, so a minimum cut between a source and a sink is optimal
(Ishikawa, 2003). The paper approximates it by alpha-beta swaps, and the assignment of blocks by a few rounds in which rows
compete for columns. The costs are computed in TensorFlow, the solutions in NumPy.
"""

import functools

import numpy as np
import scipy.optimize
import scipy.sparse
import scipy.special
import tensorflow as tf

_LARGEST_CUT = 2**29  # an arc's capacity plus the flow against it stays well below 2**31
_BLOCKS_PER_CUT = 1024  # with fewer, the calls dominate the time; with more, the longest search delays all images


def block_costs(pooled: tf.Tensor, saliency: tf.Tensor, partner: tf.Tensor, prior: tf.Tensor, beta: float, gamma: float) -> list[tf.Tensor]:
    """Returns the costs of the labels l = 0..K - 1, which show a fraction z = l / (K - 1) of a block's own image.

    The cost is z * own + (1 - z) * other - prior[l], plus weight * (z - z')^2 between neighbors. `own` has the partner's
    saliency, which is hidden, and half of the seams with both images next to it. If all z are 0 or 1 this is the hidden
    saliency, plus beta for each two neighbors with different labels, plus beta * gamma times the visible seams,
    minus the prior, up to a constant. Negative weights are set to 0; with gamma <= 1 there are none.

    Args:
        pooled: [N, h, w, C], images in [0, 1], averaged over neighborhoods.
        saliency: [N, R, C], of the blocks, with sum 1.
        partner: int [N].
        prior: [K], log-probabilities times their weight.
        beta: cost of neighbors with different labels.
        gamma: cost of seams, in units of beta.

    Returns:
        (unary costs [N, R, C, K], weights of vertical neighbors [N, R - 1, C], of horizontal ones [N, R, C - 1])
    """
    transposed = [0, 2, 1]
    below, own, other = seam_costs(pooled, partner, *saliency.shape[1:])
    right, *across = seam_costs(tf.transpose(pooled, [0, 2, 1, 3]), partner, *saliency.shape[:0:-1])
    right, own_across, other_across = (tf.transpose(costs, transposed) for costs in (right, *across))
    own = tf.gather(saliency, partner) + beta * gamma * (own + own_across)
    other = saliency + beta * gamma * (other + other_across)
    levels = tf.constant(np.linspace(0.0, 1.0, prior.shape[0]), tf.float32)
    unary = levels * own[..., None] + (1.0 - levels) * other[..., None] - prior
    return [unary, *(beta * tf.nn.relu(1.0 + gamma * differing) for differing in (below, right))]


def seam_costs(pooled: tf.Tensor, partner: tf.Tensor, rows: int, columns: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns how much images differ across the lower sides of their blocks, in mean |difference| of pixels.

    Args:
        pooled: [N, h, w, C]; rows divides h, columns divides w.
        partner: int [N].
        rows: blocks along the height.
        columns: blocks along the width.

    Returns:
        (extra cost if neighbors show different images rather than the same one, [N, rows - 1, columns]; cost for each
        block of showing its own image [N, rows, columns]; of showing the other one, likewise)
    """

    def across(upper, lower):
        step = pooled.shape[1] // rows
        difference = tf.abs(upper[:, step - 1 : -1 : step] - lower[:, step::step])
        seam = difference.shape[2] // columns * difference.shape[3]
        return tf.reduce_mean(tf.reshape(difference, [-1, rows - 1, columns, seam]), axis=-1)

    def halves(upper, lower):
        return 0.5 * (tf.pad(upper, [[0, 0], [0, 1], [0, 0]]) + tf.pad(lower, [[0, 0], [1, 0], [0, 0]]))

    others = tf.gather(pooled, partner)
    own, other, own_above, other_above = (
        across(*pair) for pair in ((pooled, pooled), (others, others), (pooled, others), (others, pooled))
    )
    differing = 0.5 * (own_above + other_above - own - other)
    return differing, halves(own + own_above, own + other_above), halves(other + other_above, other + own_above)


def binomial(probability: tf.Tensor, labels: int) -> tf.Tensor:
    """Returns the probabilities [labels] of 0..labels - 1 successes in labels - 1 trials."""
    number = np.arange(labels)
    counts, successes, failures = (
        tf.constant(numbers, tf.float32) for numbers in (scipy.special.comb(labels - 1, number), number, labels - 1 - number)
    )
    return counts * probability**successes * (1.0 - probability) ** failures


def optimal_labels(unary: np.ndarray, below: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Returns the labels l of minimum cost, on each image's grid of blocks.

    Cost: sum over blocks of unary[l] + sum over neighbors of weight * ((l - l') / (K - 1))^2. Costs are rounded to
    multiples of 2^-29 of an image's total, or less; for the rounded costs the optimum is exact.

    Args:
        unary: [N, R, C, K], the cost of each label.
        below: [N, R - 1, C], at least 0, weights of a block and the one below it.
        right: [N, R, C - 1], at least 0, weights of a block and the one right of it.

    Returns:
        int32 [N, R, C] in 0..K - 1; of several optima the one with the lowest labels.
    """
    images = max(1, _BLOCKS_PER_CUT // (unary.shape[1] * unary.shape[2]))
    pieces = [slice(first, first + images) for first in range(0, len(unary), images)]
    return np.concatenate([_cut(*_capacities(unary[piece], below[piece], right[piece])) for piece in pieces])


def optimal_sources(saliency: np.ndarray, mask: np.ndarray, epsilon: float) -> np.ndarray:
    """Returns the permutation of blocks that moves salient blocks to positions where the mask shows them.

    Cost of block i at a shown position: epsilon * (distance / longest side)^2 - saliency_i, distances in blocks, the
    longest side from the first to the last block. Hidden positions take the remaining blocks at no cost: if their moves
    had a cost too, as the paper's permutation implies, hardly any block would move; the published code has none either.

    Only a hidden block can improve on leaving all blocks in place, and only if its saliency exceeds that of some shown block
    by more than the cost of the shortest move. Images without such a block need no solver.

    Args:
        saliency: [N, R, C], of the blocks.
        mask: [N, R, C], the fraction of this image at each position; > 0: shown.
        epsilon: cost of a move along the longest side.

    Returns:
        int32 [N, R * C]: the block at each position, a permutation of 0..R * C - 1 in each row.
    """
    count, rows, columns = mask.shape
    saliency, shown = (np.reshape(values, [count, rows * columns]) for values in (saliency.astype(np.float64), mask > 0))
    lowest = np.where(shown, saliency, np.inf).min(axis=1, keepdims=True)
    movable = ~shown & (saliency > lowest + epsilon * _distances(rows, columns)[0, 1])
    sources = np.tile(np.arange(rows * columns, dtype=np.int32), [count, 1])
    for i in np.flatnonzero(movable.any(axis=1)):
        sources[i] = _sources(saliency[i], shown[i], movable[i], epsilon * _distances(rows, columns))
    return sources


def _sources(saliency, shown, movable, move_costs):
    """Returns `optimal_sources` of one image; arguments are [R * C], `movable` the hidden blocks that may be worth a move."""
    positions, blocks = np.flatnonzero(shown), np.flatnonzero(shown | movable)
    costs = move_costs[np.ix_(positions, blocks)] - saliency[blocks]
    chosen = blocks[scipy.optimize.linear_sum_assignment(costs)[1]]
    sources, remaining = np.empty(len(shown), np.int32), np.ones(len(shown), bool)
    remaining[chosen] = False
    sources[shown], sources[~shown] = chosen, np.flatnonzero(remaining)
    return sources


def _capacities(unary, below, right):
    """Returns the capacities of the arcs of `_arcs`, int32 [N, arcs], and the shape [N, R, C, K].

    With x_a = [l >= a] for a in 1..K - 1, (l - l')^2 is l^2 - (K - 1) l, plus l'^2 - (K - 1) l', plus the sum over a, b
    of |x_a - x'_b|: parts of single blocks, and one that counts where a cut separates x_a from x'_b.
    """
    count, labels = unary.shape[0], unary.shape[-1]
    last, label = labels - 1, np.arange(labels)
    unary = unary - unary.min(axis=-1, keepdims=True).astype(np.float64)
    # the largest cost of a labeling without differences: larger weights would have the same effect
    worst = unary.max(axis=-1).sum(axis=(1, 2))[:, None, None]
    below, right = (np.minimum(weights / last**2, worst) for weights in (below, right))
    largest = worst + last**2 / 2 * (below.sum(axis=(1, 2), keepdims=True) + right.sum(axis=(1, 2), keepdims=True))
    scale = _LARGEST_CUT / np.maximum(largest, np.finfo(np.float32).tiny)
    below, right, unary = (
        np.rint(costs * factor).astype(np.int64) for costs, factor in ((below, scale), (right, scale), (unary, scale[..., None]))
    )
    single = unary + _neighbor_sums(below, right)[..., None] * (label**2 - last * label)
    single = np.moveaxis(single - single.min(axis=-1, keepdims=True), -1, 1)
    pairs = np.concatenate([below.reshape(count, -1), right.reshape(count, -1)], axis=1)
    capacities = np.concatenate([single.reshape(count, -1), np.tile(pairs, 2 * last**2)], axis=1)
    return capacities.astype(np.int32), unary.shape


def _neighbor_sums(below, right):
    """Returns sums over the neighbors of each block, [N, R, C], of weights [N, R - 1, C] and [N, R, C - 1]."""
    above, left = np.pad(below, [(0, 0), (1, 0), (0, 0)]), np.pad(right, [(0, 0), (0, 0), (1, 0)])
    return above + left + np.pad(below, [(0, 0), (0, 1), (0, 0)]) + np.pad(right, [(0, 0), (0, 0), (0, 1)])


@functools.lru_cache(maxsize=16)
def _arcs(rows, columns, labels):
    """Returns tails and heads of one image's arcs. Node a * R * C + i: is block i's label > a? -1: source, yes. -2: sink, no.

    For each label an arc leads from the last node that is true for it to the first that is false; between neighbors arcs lead
    both ways, at every two levels. No arc forbids that a label is > a + 1 and not > a: the cost between neighbors is linear in
    the number of levels, so one of the two labels that such a block would pay for alone costs no more.
    """
    node = np.arange((labels - 1) * rows * columns).reshape(labels - 1, rows, columns)
    ends = np.full([1, rows, columns], -1)
    chain = np.concatenate([ends, node, ends - 1])
    arcs = [(chain[:-1], chain[1:])]
    for level in node:
        for other in node:
            forward = [(level[:-1], other[1:]), (level[:, :-1], other[:, 1:])]
            arcs += forward + [(head, tail) for tail, head in forward]
    return tuple(np.concatenate([arc[end].ravel() for arc in arcs]) for end in (0, 1))


def _cut(capacities, shape):
    """Returns the labels [N, R, C] of the minimum cuts of N graphs that share source and sink."""
    count, rows, columns, labels = shape
    nodes = (labels - 1) * rows * columns
    source, sink = count * nodes, count * nodes + 1
    first = nodes * np.arange(count)[:, None]  # of each graph
    tails, heads = (np.where(ends < 0, source - 1 - ends, ends + first).ravel() for ends in _arcs(rows, columns, labels))
    graph = scipy.sparse.csr_array((capacities.ravel(), (tails, heads)), shape=(sink + 1, sink + 1))
    residual = graph - scipy.sparse.csgraph.maximum_flow(graph, source, sink).flow
    residual.eliminate_zeros()
    reached = np.zeros(sink + 1, bool)
    reached[scipy.sparse.csgraph.breadth_first_order(residual, source, return_predecessors=False)] = True
    return reached[:source].reshape(count, labels - 1, rows, columns).sum(axis=1, dtype=np.int32)


@functools.lru_cache(maxsize=16)
def _distances(rows, columns):
    """Returns the squared distances of every two blocks in units of the longest side, [R * C, R * C]."""
    positions = np.stack(np.mgrid[:rows, :columns], axis=-1).reshape(-1, 2)
    squares = ((positions[:, None] - positions[None]) ** 2).sum(axis=-1)
    return squares / max(rows - 1, columns - 1, 1) ** 2
