"""Places the names of points in a chart, so that they cover little of other names, points and lines."""

from collections.abc import Mapping, Sequence

SIDES: dict[str, dict] = {  # properties of Vega-Lite's text marks
    "right": {"align": "left", "dx": 7, "dy": -4},
    "left": {"align": "right", "dx": -7, "dy": -4},
    "above": {"align": "center", "dy": -14},
    "below": {"align": "center", "dy": 14},
}
_WIDTH, _HEIGHT, _LETTER = 300, 280, 6.5  # of a chart on a narrow page and of a letter, in pixels

Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels


def name_sides(
    points: Mapping[str, tuple[float, float]],
    names: Sequence[str],
    line: Sequence[str],
    x_domain: Sequence[float],
    y_domain: Sequence[float],
) -> dict[str, str]:
    """Returns {name: the side of its point where it covers least}, one of `SIDES`.

    Args:
        points: {name: (x, y)}.
        names: those that are shown.
        line: names of the points that a step line joins, which goes down or up first, then to the right.
        x_domain: ends of the horizontal axis.
        y_domain: ends of the vertical axis.
    """
    (left, right), (bottom, top) = x_domain, y_domain
    pixels = {name: (_WIDTH * (x - left) / (right - left), _HEIGHT * (top - y) / (top - bottom)) for name, (x, y) in points.items()}
    occupied, sides = [(x - 5, y - 5, x + 5, y + 5) for x, y in pixels.values()], {}
    corners = sorted(pixels[name] for name in line)
    for (x, y), (next_x, next_y) in zip(corners, corners[1:]):
        occupied += [(x - 2, min(y, next_y), x + 2, max(y, next_y)), (x, next_y - 2, next_x, next_y + 2)]
    for name in names:
        x, y = pixels[name]
        width = _LETTER * len(name)
        middle = x - width / 2
        starts = {"right": (x + 7, y - 10), "left": (x - 7 - width, y - 10), "above": (middle, y - 20), "below": (middle, y + 8)}
        boxes = {side: (across, down, across + width, down + 12) for side, (across, down) in starts.items()}
        covered = {side: sum(_overlap(box, other) for other in occupied) + 2 * _outside(box) for side, box in boxes.items()}
        sides[name] = min(boxes, key=lambda side: covered[side])
        occupied.append(boxes[sides[name]])
    return sides


def _outside(box: Box) -> float:
    """The area of a box outside of the plot."""
    return (box[2] - box[0]) * (box[3] - box[1]) - _overlap(box, (0, 0, _WIDTH, _HEIGHT))


def _overlap(one: Box, other: Box) -> float:
    across, down = (min(one[i + 2], other[i + 2]) - max(one[i], other[i]) for i in (0, 1))
    return max(0, across) * max(0, down)
