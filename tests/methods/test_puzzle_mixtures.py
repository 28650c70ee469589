"""PuzzleMix's mixtures: costs, masks and transport against loops and brute force."""

import itertools

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tf_robust.methods import puzzle_masks, puzzlemix

SIZE = 16


def sample_images(count=6, channels=3, height=SIZE, width=SIZE, seed=0):
    return np.random.RandomState(seed).rand(count, height, width, channels).astype(np.float32)


def energies(labellings, unary, below, right):
    """Returns the energies [M] of labellings [M, R, C] of one image."""
    rows, columns, labels = unary.shape
    total = unary[np.arange(rows)[:, None], np.arange(columns), labellings].sum(axis=(1, 2))
    total += (below * (np.diff(labellings, axis=1) / (labels - 1)) ** 2).sum(axis=(1, 2))
    return total + (right * (np.diff(labellings, axis=2) / (labels - 1)) ** 2).sum(axis=(1, 2))


def all_labellings(rows, columns, labels):
    return np.array(list(itertools.product(range(labels), repeat=rows * columns))).reshape(-1, rows, columns)


@pytest.mark.parametrize("rows, columns, labels", [(3, 3, 3), (3, 3, 2), (2, 4, 3), (2, 2, 5), (4, 3, 2)])
@pytest.mark.parametrize("strength", [0.02, 0.3, 3.0])
def test_masks_are_optimal(rows, columns, labels, strength):
    random, count = np.random.RandomState(rows * labels), 40
    unary = random.randn(count, rows, columns, labels)
    below, right = (strength * random.gamma(0.5, size=(count, *shape)) for shape in ((rows - 1, columns), (rows, columns - 1)))
    masks, labellings = puzzle_masks.optimal_labels(unary, below, right), all_labellings(rows, columns, labels)
    assert masks.dtype == np.int32 and masks.shape == (count, rows, columns)
    for mask, *costs in zip(masks, unary, below, right):
        assert energies(mask[None], *costs)[0] == pytest.approx(energies(labellings, *costs).min(), abs=1e-6)
    assert len(np.unique(masks)) == labels


def test_masks_do_not_depend_on_the_batch():
    random = np.random.RandomState(0)
    costs = random.rand(300, 2, 3, 3), 0.1 * random.rand(300, 1, 3), 0.1 * random.rand(300, 2, 2)
    costs = [cost * 10.0 ** random.randint(-6, 6, size=[300] + [1] * (cost.ndim - 1)) for cost in costs]
    alone = [puzzle_masks.optimal_labels(*(cost[i : i + 1] for cost in costs))[0] for i in range(300)]
    np.testing.assert_array_equal(puzzle_masks.optimal_labels(*costs), alone)


def test_of_equal_costs_the_lowest_label_is_taken():
    assert not puzzle_masks.optimal_labels(np.zeros([2, 3, 3, 3]), np.ones([2, 2, 3]), np.ones([2, 3, 2])).any()


def scene(step=0, count=4, gamma=0.5, lam=0.3, labels=2, neighbourhood=2, rows=4):
    """Returns (method, images, saliency of blocks, partners, lam), the arguments of a mask."""
    random = np.random.RandomState(step)
    network = keras.Sequential([keras.Input((SIZE, SIZE, 3)), keras.layers.Flatten()])
    method = puzzlemix.PuzzleMix(network, gamma=gamma, labels=labels, neighbourhood=neighbourhood, block_counts=(rows,))
    salient = random.gamma(0.5, size=(count, rows, rows)).astype(np.float32)
    salient /= salient.sum(axis=(1, 2), keepdims=True)
    return method, sample_images(count, seed=step), salient, random.permutation(count), lam


def papers_cost(mask, own, other, salient, others_salient, lam, gamma, size):
    """Returns the objective of a mask of zeros and ones, by loops: hidden saliency, prior, boundaries, visible seams.

    size: side in pixels of the squares that are averaged.
    """
    count, block = len(mask), SIZE // len(mask)
    own, other = (p.reshape(SIZE // size, size, SIZE // size, size, 3).mean(axis=(1, 3)) for p in (own, other))
    shown = {1: own, 0: other}
    per, beta = block // size, 1.2 / count / 16
    total = (mask * others_salient + (1 - mask) * salient).sum()
    total -= 0.2 / count**2 * (mask * np.log(lam + 1e-8) + (1 - mask) * np.log(1 - lam + 1e-8)).sum()
    for i, j in itertools.product(range(count), repeat=2):
        for down in (True, False):
            k, m = (i + 1, j) if down else (i, j + 1)
            if max(k, m) == count:
                continue
            first, second = shown[mask[i, j]], shown[mask[k, m]]
            along = range((j if down else i) * per, (j if down else i) * per + per)
            edge = (i if down else j) * per + per - 1
            seam = [first[edge, at] - second[edge + 1, at] if down else first[at, edge] - second[at, edge + 1] for at in along]
            total += beta * (mask[i, j] != mask[k, m]) + beta * gamma * np.abs(seam).mean()
    return total


@pytest.mark.parametrize("size", [1, 2, 4])
def test_costs_equal_the_papers_objective(size):
    """The costs of masks of zeros and ones equal the objective up to a constant."""
    method, images, salient, partner, lam = scene(neighbourhood=size)
    pooled = puzzlemix.block_means(tf.constant(images), SIZE // size, SIZE // size)
    prior = 0.2 / 16 * np.log([1 - lam + 1e-8, lam + 1e-8])
    costs = puzzle_masks.block_costs(pooled, salient, partner, tf.constant(prior, tf.float32), 1.2 / 4 / 16, 0.5)
    masks = np.random.RandomState(1).randint(0, 2, size=(20, 4, 4))
    for i, p in enumerate(partner):
        ours = energies(masks, *(cost[i].numpy() for cost in costs))
        papers = [papers_cost(m, images[i], images[p], salient[i], salient[p], lam, 0.5, size) for m in masks]
        assert np.ptp(papers) > 0.1
        np.testing.assert_allclose(ours - ours[0], np.subtract(papers, papers[0]), atol=1e-6)


@pytest.mark.parametrize("rows, size", [(2, 4), (2, 8), (4, 1)])
def test_the_mask_has_minimum_cost(rows, size):
    method, images, salient, partner, lam = scene(3, neighbourhood=size, rows=rows)
    masks = method.mask(tf.constant(images), salient, partner, lam).numpy()
    others = all_labellings(2, 2, 2) if rows == 2 else np.random.RandomState(0).randint(0, 2, size=(300, 4, 4))
    for i, p in enumerate(partner):
        best, *rest = (
            papers_cost(m, images[i], images[p], salient[i], salient[p], lam, 0.5, size) for m in (masks[i].astype(int), *others)
        )
        assert best <= min(rest) + 1e-6


def test_only_negative_seam_costs_are_clipped():
    images = np.zeros([2, SIZE, SIZE, 3], np.float32)
    images[0, :8], images[1, 8:] = 1, 1  # both have an edge that their mixture does not have
    salient = np.full([2, 2, 2], 0.25, np.float32)
    weights = [puzzle_masks.block_costs(tf.constant(images), salient, [1, 0], tf.zeros([2]), 1.0, gamma)[1] for gamma in (0.5, 1.0, 3.0)]
    np.testing.assert_allclose(tf.stack(weights)[:, 0, 0, 0], [0.5, 0.0, 0.0], atol=1e-6)


@pytest.mark.parametrize("labels", [2, 3, 5])
def test_prior_is_binomial(labels):
    expected = scipy.stats.binom.pmf(np.arange(labels), labels - 1, 0.3)
    np.testing.assert_allclose(puzzle_masks.binomial(tf.constant(0.3), labels), expected, rtol=1e-5)
    np.testing.assert_array_equal(puzzle_masks.binomial(tf.constant(0.0), labels), np.eye(labels)[0])


def test_lam_is_the_prior_of_the_mask():
    """Without saliency and seams only the prior counts."""
    for lam, level in ((0.1, 0.0), (0.5, 0.5), (0.9, 1.0)):
        method, images, salient, partner, _ = scene(labels=3)
        mask = method.mask(0 * images, np.full_like(salient, 1 / 16), partner, tf.constant(lam))
        np.testing.assert_array_equal(mask, np.full([4, 4, 4], level))


@pytest.mark.parametrize("rows, columns", [(2, 2), (3, 3), (2, 4)])
def test_transport_is_optimal(rows, columns):
    random, count = np.random.RandomState(0), rows * columns
    saliency = random.gamma(0.3, size=(5, rows, columns)).astype(np.float32)
    mask = random.choice([0, 0.5, 1], size=(5, rows, columns)).astype(np.float32)
    all_sources = puzzle_masks.optimal_sources(saliency, mask, 0.3)
    positions = np.argwhere(np.ones([rows, columns]))
    for sources, salient, shown in zip(all_sources, saliency.reshape(5, -1), mask.reshape(5, -1)):

        def cost(order):
            of = np.asarray(order)[shown > 0]
            distances = ((positions[shown > 0] - positions[of]) ** 2).sum(axis=1)
            return 0.3 * distances.sum() / (max(rows, columns) - 1) ** 2 - salient[of].sum()

        assert sorted(sources) == list(range(count))
        permutations = itertools.permutations(range(count)) if count < 8 else (random.permutation(count) for _ in range(2000))
        assert cost(sources) <= min(map(cost, permutations)) + 1e-6
    assert (all_sources != np.arange(count)).any()


def test_moves_cost_their_distance():
    saliency, mask = np.zeros([1, 4, 4], np.float32), np.zeros([1, 4, 4], np.float32)
    saliency[0, 0, 0], mask[0, 0, 1:] = 1.0, 1.0
    for epsilon, source in ((8.0, 0), (10.0, 1)):  # a move by 1 of 3 costs epsilon / 9
        assert puzzle_masks.optimal_sources(saliency, mask, epsilon)[0, 1] == source


def test_blocks_shift_in_short_steps_where_one_long_move_does_not_pay():
    """A move by one block costs 0.2, by two 0.8. The hidden block has 0.5 more saliency than the last one."""
    saliency, mask = np.array([[[0.5, 0.4, 0.0]]]), np.array([[[0.0, 1.0, 0.5]]])
    np.testing.assert_array_equal(puzzle_masks.optimal_sources(saliency, mask, 0.8), [[2, 0, 1]])
    np.testing.assert_array_equal(puzzle_masks.optimal_sources(saliency, mask, 1.2), [[0, 1, 2]])


def test_solver_is_skipped_where_no_hidden_block_can_gain(monkeypatch):
    """A hidden block gains if it has more saliency than some shown block by more than the cost of a move by one block."""
    calls, solve = [], puzzle_masks._sources
    monkeypatch.setattr(puzzle_masks, "_sources", lambda *arguments: calls.append(1) or solve(*arguments))
    mask = np.tile([[1.0, 1.0], [1.0, 0.0]], [3, 1, 1])
    saliency = np.array([[[0.3, 0.3], [0.3, hidden]] for hidden in (0.1, 0.39, 0.41)])
    sources = puzzle_masks.optimal_sources(saliency, mask, 0.1)
    assert len(calls) == 1 and (sources[:2] == range(4)).all() and 3 in sources[2, :3]


@pytest.mark.parametrize(
    "minimum, side, blocks, expected",
    [
        (4, 32, (16, 8, 4, 2), (4, 4, 4, 2)),
        (4, 28, (14, 7), (7, 7)),
        (2, 28, (14, 7), (2, 7)),
        (1, 16, (8, 1), (1, 1)),
        (4, 224, (112, 56, 28, 14), (14, 14, 14, 14)),
        (0, 224, (112, 14), (112, 14)),
        (100, 32, (16, 2), (16, 2)),
        (4, 64, (32, 16, 8, 4), (4, 4, 4, 4)),
        (4, 224, (7,), (7,)),
    ],
)
def test_moving_blocks_divide_the_masks_and_are_at_most_16_along_a_side(minimum, side, blocks, expected):
    assert tuple(puzzlemix.moving_side(minimum, side, block) for block in blocks) == expected


@pytest.mark.parametrize("level", [0.0, 0.5, 1.0])
def test_nothing_moves_where_all_or_nothing_is_shown(level):
    saliency = np.random.RandomState(0).rand(2, 3, 3)
    sources = puzzle_masks.optimal_sources(saliency, np.full([2, 3, 3], level), 0.0)
    np.testing.assert_array_equal(sources, [range(9)] * 2)


def test_rearrange_moves_blocks():
    images = sample_images(3, height=8, width=12)
    sources = np.array([np.random.RandomState(i).permutation(6) for i in range(3)])
    moved = puzzlemix.rearrange(tf.constant(images), sources, 2, 3).numpy()
    for i, position in itertools.product(range(3), range(6)):
        row, column = np.divmod(position, 3) * np.array(4)
        source_row, source_column = np.divmod(sources[i, position], 3) * np.array(4)
        source = images[i, source_row : source_row + 4, source_column : source_column + 4]
        np.testing.assert_array_equal(moved[i, row : row + 4, column : column + 4], source)


@pytest.mark.parametrize(
    "count, transport, transport_size, size",
    [(2, False, 4, (16, 16)), (2, True, 4, (16, 16)), (4, True, 0, (16, 16)), (8, True, 4, (16, 16)), (4, True, 4, (16, 32))],
)
def test_mix_shows_the_moved_blocks_of_both_images_under_the_mask(count, transport, transport_size, size):
    height, width = size
    network = keras.Sequential([keras.Input((height, width, 3)), keras.layers.Flatten()])
    method = puzzlemix.PuzzleMix(network, transport=transport, transport_size=transport_size, transport_epsilon=0.01)
    images, partner, lam = sample_images(6, height=height, width=width), np.random.RandomState(0).permutation(6), 0.4
    saliency = np.random.RandomState(1).gamma(0.3, size=(6, height, width)).astype(np.float32)
    mixed, kept = method.mix(tf.constant(images), saliency, partner, lam, count)
    mask = method.mask(tf.constant(images), puzzlemix.block_fractions(saliency, count, count), partner, lam).numpy()
    assert set(np.unique(mask)) <= {0, 0.5, 1} and len(np.unique(mask)) > 1
    np.testing.assert_allclose(kept, mask.mean(axis=(1, 2)), rtol=1e-6)
    block = [side // count for side in size]
    moving = [min(transport_size, side) if transport_size else side for side in block]
    rows, columns = height // moving[0], width // moving[1]

    def moved(images, saliency, shown):
        if not transport:
            return images
        fine = saliency.reshape(6, rows, moving[0], columns, moving[1]).mean(axis=(2, 4))
        sources = puzzle_masks.optimal_sources(fine / fine.sum(axis=(1, 2), keepdims=True), shown, 0.01)
        return puzzlemix.rearrange(tf.constant(images), sources, rows, columns).numpy()

    shown, pixels = np.kron(mask, np.ones([1, rows // count, columns // count])), np.kron(mask, np.ones([1, *block]))[..., None]
    expected = pixels * moved(images, saliency, shown) + (1 - pixels) * moved(images[partner], saliency[partner], 1 - shown)
    np.testing.assert_allclose(mixed, expected, atol=1e-6)
