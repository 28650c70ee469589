"""PuzzleMix's two small optimizations: which image a block shows, and where blocks move. Costs, and exact solutions.

The labelling's pairwise cost is convex in the difference of two labels, so a minimum cut between a source and a sink
gives the optimum (Ishikawa, 2003). The paper approximates it by alpha-beta swaps, and the assignment by a few rounds in
which rows compete for columns. The solutions are NumPy functions, the costs TensorFlow's.
"""

import functools

import numpy as np
import scipy.optimize
import scipy.sparse
import scipy.special
import tensorflow as tf

_LARGEST_CUT = 2**29  # so that an arc's capacity plus the flow against it stays well below 2**31
_BLOCKS_TOGETHER = 1024  # blocks cut at once: below, calls cost most; above, the longest search holds up all images


def block_costs(pooled, salient, partner, prior, beta, gamma):
    """Costs of the labels l = 0..K - 1, which show the share z = l / (K - 1) of the own image.

    z * own + (1 - z) * other - prior[l], plus weight * (z - z')^2 between neighbours. `own` has the partner's saliency,
    which it hides, and half of the seams with both images next to it. If all z are 0 or 1 this is the saliency that
    is hidden, plus beta for each two neighbours with different labels, plus beta * gamma times the seams that are seen,
    minus the prior, up to a constant. A weight that would be negative is 0: with gamma <= 1 none is.

    Args:
        pooled: [N, h, w, C], images in [0, 1], averaged over neighbourhoods. salient: [N, R, C], with sum 1.
        partner: int [N]. prior: [K]. beta, gamma: prices.

    Returns:
        (unary [N, R, C, K], weights of vertical neighbours [N, R - 1, C], of horizontal ones [N, R, C - 1])
    """
    turned = [0, 2, 1]
    below, own, other = seam_costs(pooled, partner, *salient.shape[1:])
    right, *across = seam_costs(tf.transpose(pooled, [0, 2, 1, 3]), partner, *salient.shape[:0:-1])
    right, own_across, other_across = (tf.transpose(costs, turned) for costs in (right, *across))
    own = tf.gather(salient, partner) + beta * gamma * (own + own_across)
    other = salient + beta * gamma * (other + other_across)
    levels = tf.constant(np.linspace(0.0, 1.0, prior.shape[0]), tf.float32)
    unary = levels * own[..., None] + (1.0 - levels) * other[..., None] - prior
    return [unary, *(beta * tf.nn.relu(1.0 + gamma * differing) for differing in (below, right))]


def seam_costs(pooled, partner, rows, columns):
    """How images differ across the lower sides of their blocks, in mean |difference| of pixels.

    Args:
        pooled: [N, h, w, C], of whole blocks. partner: int [N].

    Returns:
        (what it costs if neighbours show different images, more than if they show the same, [N, rows - 1, columns];
        what it costs each block to show its own image [N, rows, columns]; the other one, likewise)
    """
    def across(upper, lower):
        step = pooled.shape[1] // rows
        difference = tf.abs(upper[:, step - 1:-1:step] - lower[:, step::step])
        seam = difference.shape[2] // columns * difference.shape[3]
        return tf.reduce_mean(tf.reshape(difference, [-1, rows - 1, columns, seam]), axis=-1)

    def halves(upper, lower):
        return 0.5 * (tf.pad(upper, [[0, 0], [0, 1], [0, 0]]) + tf.pad(lower, [[0, 0], [1, 0], [0, 0]]))
    others = tf.gather(pooled, partner)
    own, other, own_above, other_above = (across(*pair) for pair in (
        (pooled, pooled), (others, others), (pooled, others), (others, pooled)))
    differing = 0.5 * (own_above + other_above - own - other)
    return differing, halves(own + own_above, own + other_above), halves(other + other_above, other + own_above)


def binomial(share, labels):
    """Probabilities of 0..labels - 1 successes in labels - 1 trials, [labels]. share: a number, that of a success."""
    successes = np.arange(labels)
    ways, won, lost = (tf.constant(numbers, tf.float32) for numbers in (
        scipy.special.comb(labels - 1, successes), successes, labels - 1 - successes))
    return ways * share**won * (1.0 - share)**lost


def optimal_labels(unary, below, right):
    """The labels l of least cost, on each image's grid of blocks.

    Cost: sum over blocks of unary[l] + sum over neighbours of weight * ((l - l') / (K - 1))^2. Costs are rounded to
    multiples of 2^-29 of an image's total, or less; of what is rounded this is the exact optimum.

    Args:
        unary: [N, R, C, K], the cost of each label.
        below: [N, R - 1, C], at least 0, weights of a block and the one below it.
        right: [N, R, C - 1], at least 0, weights of a block and the one right of it.

    Returns:
        int32 [N, R, C] in 0..K - 1; of equally good labellings the one with the lowest labels.
    """
    together = max(1, _BLOCKS_TOGETHER // (unary.shape[1] * unary.shape[2]))
    pieces = [slice(first, first + together) for first in range(0, len(unary), together)]
    return np.concatenate([_cut(*_capacities(unary[piece], below[piece], right[piece])) for piece in pieces])


def optimal_sources(saliency, mask, epsilon):
    """Returns which block moves where, so that salient blocks lie where the mask shows them.

    Cost of block i at a shown place: epsilon * (distance / longest side)^2 - saliency_i, distances in blocks, the
    longest side from the first to the last block. Hidden places take what is left, for nothing: if the way back had its
    price too, as the paper's permutation implies, next to no block would move; its code has none either.

    Only a hidden block can improve on leaving all blocks in place, and only if it has more saliency than some shown block,
    by more than the price of the shortest move. Images without such a block need no solver.

    Args:
        saliency: [N, R, C]. mask: [N, R, C], the fraction of this image at each place; > 0: shown. epsilon: price.

    Returns:
        int32 [N, R * C]: the block that comes to each place, a permutation of 0..R * C - 1 in each row.
    """
    count, rows, columns = mask.shape
    saliency, shown = (np.reshape(values, [count, rows * columns]) for values in (saliency.astype(np.float64), mask > 0))
    least = np.where(shown, saliency, np.inf).min(axis=1, keepdims=True)
    gaining = ~shown & (saliency > least + epsilon * _distances(rows, columns)[0, 1])
    sources = np.tile(np.arange(rows * columns, dtype=np.int32), [count, 1])
    for i in np.flatnonzero(gaining.any(axis=1)):
        sources[i] = _sources(saliency[i], shown[i], gaining[i], epsilon * _distances(rows, columns))
    return sources


def _sources(saliency, shown, gaining, prices):
    """`optimal_sources` of one image. saliency; shown; gaining, the hidden blocks that may be worth a move: [R * C]."""
    places, blocks = np.flatnonzero(shown), np.flatnonzero(shown | gaining)
    costs = prices[np.ix_(places, blocks)] - saliency[blocks]
    chosen = blocks[scipy.optimize.linear_sum_assignment(costs)[1]]
    sources, left = np.empty(len(shown), np.int32), np.ones(len(shown), bool)
    left[chosen] = False
    sources[shown], sources[~shown] = chosen, np.flatnonzero(left)
    return sources


def _capacities(unary, below, right):
    """Capacities of the arcs that `_arcs` lists, int32 [N, arcs], and the shape [N, R, C, K].

    With x_a = [l >= a] for a in 1..K - 1, (l - l')^2 is l^2 - (K - 1) l, plus l'^2 - (K - 1) l', plus the sum over a, b
    of |x_a - x'_b|: parts of one block alone, and one that is paid where a cut parts x_a from x'_b.
    """
    count, rows, columns, labels = unary.shape
    last, label = labels - 1, np.arange(labels)
    unary = unary - unary.min(axis=-1, keepdims=True).astype(np.float64)
    worst = unary.max(axis=-1).sum(axis=(1, 2))[:, None, None]  # of labellings without differences; more deters no more
    below, right = (np.minimum(weights / last**2, worst) for weights in (below, right))
    most = worst + last**2 / 2 * (below.sum(axis=(1, 2), keepdims=True) + right.sum(axis=(1, 2), keepdims=True))
    scale = _LARGEST_CUT / np.maximum(most, np.finfo(np.float32).tiny)
    below, right, unary = (np.rint(costs * factor).astype(np.int64) for costs, factor in (
        (below, scale), (right, scale), (unary, scale[..., None])))
    alone = unary + _beside(below, right)[..., None] * (label**2 - last * label)
    alone = np.moveaxis(alone - alone.min(axis=-1, keepdims=True), -1, 1)
    pairs = np.concatenate([below.reshape(count, -1), right.reshape(count, -1)], axis=1)
    capacities = np.concatenate([alone.reshape(count, -1), np.tile(pairs, 2 * last**2)], axis=1)
    return capacities.astype(np.int32), unary.shape


def _beside(below, right):
    """Sums over the neighbours of each block, [N, R, C], of weights [N, R - 1, C] and [N, R, C - 1]."""
    above, left = np.pad(below, [(0, 0), (1, 0), (0, 0)]), np.pad(right, [(0, 0), (0, 0), (1, 0)])
    return above + left + np.pad(below, [(0, 0), (0, 1), (0, 0)]) + np.pad(right, [(0, 0), (0, 0), (0, 1)])


@functools.lru_cache(maxsize=16)
def _arcs(rows, columns, labels):
    """Tails and heads of one image's arcs. Node a * R * C + i: is block i's label > a? -1: source, yes. -2: sink, no.

    They lead, for each label, from what is true to what is false if the block has it; and both ways between neighbours,
    at every two levels. None forbids that a label is > a + 1 and not > a: neighbours ask a price that is linear in the
    number of levels, so one of the two labels that such a block would pay for alone costs no more.
    """
    node = np.arange((labels - 1) * rows * columns).reshape(labels - 1, rows, columns)
    ends = np.full([1, rows, columns], -1)
    chain = np.concatenate([ends, node, ends - 1])
    arcs = [(chain[:-1], chain[1:])]
    for one in node:
        for other in node:
            there = [(one[:-1], other[1:]), (one[:, :-1], other[:, 1:])]
            arcs += there + [(head, tail) for tail, head in there]
    return tuple(np.concatenate([arc[end].ravel() for arc in arcs]) for end in (0, 1))


def _cut(capacities, shape):
    """Labels [N, R, C] of the minimum cuts of N graphs that share source and sink."""
    count, rows, columns, labels = shape
    nodes = (labels - 1) * rows * columns
    source, sink = count * nodes, count * nodes + 1
    first = nodes * np.arange(count)[:, None]  # of each graph
    tails, heads = (np.where(ends < 0, source - 1 - ends, ends + first).ravel()
                    for ends in _arcs(rows, columns, labels))
    graph = scipy.sparse.csr_array((capacities.ravel(), (tails, heads)), shape=(sink + 1, sink + 1))
    left = graph - scipy.sparse.csgraph.maximum_flow(graph, source, sink).flow
    left.eliminate_zeros()
    reached = np.zeros(sink + 1, bool)
    reached[scipy.sparse.csgraph.breadth_first_order(left, source, return_predecessors=False)] = True
    return reached[:source].reshape(count, labels - 1, rows, columns).sum(axis=1, dtype=np.int32)


@functools.lru_cache(maxsize=16)
def _distances(rows, columns):
    """Squared distances of every two blocks in units of the longest side, [R * C, R * C]."""
    places = np.stack(np.mgrid[:rows, :columns], axis=-1).reshape(-1, 2)
    squares = ((places[:, None] - places[None]) ** 2).sum(axis=-1)
    return squares / max(rows - 1, columns - 1, 1) ** 2
