"""The 2-D data set of the NoisyMix paper (appendix A): noisy points of two concentric stars, one class each.

The paper's data are not published. Its description: 500 points, two classes with a band between them in the shape of a concave
polygon, scale factor 0.5, Gaussian noise of standard deviation 0.2. Ours: an outer star of five points and an inner one half its
size, points uniformly distributed along both outlines, noise in both coordinates.

`toy` labels a point by the outline that it was drawn from; no classifier can reach more than 0.885 on its test points. `toy_band` has
the paper's labels: 0 outside of the band and 1 inside, and at random on it. The band is not printed either: ours lies between the stars
of 0.64 and 0.86 times the outer one's size and holds 22 % of the points, so that an accuracy of 0.89 is the best to be expected; the
paper's methods reach 0.87 to 0.89.

A point is stored as an image [1, 2, 1]: coordinates in [-LIMIT, LIMIT], in 256 levels.
"""

import numpy as np

from tf_robust.data.kinds import ReadOptions
from tf_robust.data.source import ArraySource

LIMIT = 3.0
TIPS, TIP_RADIUS, NOTCH_RADIUS = 5, 1.5, 0.9
SCALE, STD = 0.5, 0.2
BAND = (0.64, 0.86)  # sizes of the stars between which labels are random, as fractions of the outer star's; the outlines' mean is 0.75
_COUNTS = {"train": 250, "test": 250, "validation": 250}  # validation is drawn after the paper's 500
_SEED = 2022


def open_toy(name: str, part: str, options: ReadOptions) -> ArraySource:
    """Opens a split of `toy` or `toy_band`."""
    del options
    return ArraySource.of(name, part, *split(part, band=name == "toy_band"), ("0", "1"))


def split(name: str, band: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Returns one split, the same at every call.

    Args:
        name: train, validation or test.
        band: label by the side of the band, and at random on it, instead of by the outline.

    Returns:
        (uint8 [250, 1, 2, 1], int64 [250]): 0 outside, 1 inside; half of the points each, about half with `band`. The points do not
        depend on `band`.
    """
    random = np.random.RandomState(_SEED)
    drawn = {part: _draw(random, count) for part, count in _COUNTS.items()}
    coins = {part: random.randint(0, 2, count) for part, count in _COUNTS.items()}
    points, labels = drawn[name]
    if band:
        sizes = star_size(points)
        labels = np.where(sizes > BAND[1], 0, np.where(sizes < BAND[0], 1, coins[name]))
    return to_images(points), labels


def star(positions: np.ndarray) -> np.ndarray:
    """Returns points of the outer star's outline at positions in [0, 1), measured by length along it: [N] -> [N, 2]."""
    corners = _corners()  # the last is the first; equal sides
    sides = np.linspace(0.0, 1.0, len(corners))
    return np.stack([np.interp(positions, sides, corners[:, axis]) for axis in range(2)], axis=1)


def star_size(points: np.ndarray) -> np.ndarray:
    """Returns the size of the star whose outline passes through each point, relative to the outer star: [N, 2] -> [N], >= 0."""
    corners = _corners()
    # [sides, 2, N]: a point as a combination of each side's two corners; both weights are >= 0 for the side in its direction
    weights = np.stack([np.linalg.solve(np.stack(side, axis=1), np.transpose(points)) for side in zip(corners, corners[1:])])
    facing = weights.min(axis=1).argmax(axis=0)
    return weights.sum(axis=1)[facing, np.arange(len(points))]


def _corners():
    """Returns the corners of the outer star, the first repeated at the end: [2 * TIPS + 1, 2]."""
    numbers = np.arange(2 * TIPS + 1)
    angles = np.pi / 2 + np.pi * numbers / TIPS
    radii = np.where(numbers % 2, NOTCH_RADIUS, TIP_RADIUS)
    return radii[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def to_images(points: np.ndarray) -> np.ndarray:
    """Converts points [N, 2] in [-LIMIT, LIMIT] (clipped) to uint8 [N, 1, 2, 1]."""
    levels = np.round(255.0 * np.clip((points + LIMIT) / (2 * LIMIT), 0.0, 1.0))
    return levels.astype(np.uint8).reshape(-1, 1, 2, 1)


def to_points(images: np.ndarray) -> np.ndarray:
    """Converts images [N, 1, 2, 1] in [0, 1] to points [N, 2]."""
    return LIMIT * (2.0 * np.reshape(images, (-1, 2)) - 1.0)


def _draw(random, count):
    labels = random.permutation(np.arange(count) % 2)
    outlines = star(random.rand(count)) * np.where(labels, SCALE, 1.0)[:, None]
    return outlines + STD * random.normal(size=(count, 2)), labels
