"""What a corrupted set consists of, and how the work is divided: units, each written whole and at once."""

import dataclasses
import math
import re
import typing

SEVERITIES = (1, 2, 3, 4, 5)


class Unit(typing.NamedTuple):
    """One block of pictures under one corruption at one severity."""
    name: str
    severity: int
    block: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """A corrupted set.

    Attributes:
        names: of the corruptions. size: pictures of the clean set. block: pictures written at once.
        image_shape: (H, W, C). class_names: a name per label. split: of the clean set.
        jpeg: pictures are stored as JPEG files, as ImageNet-C is.
    """
    names: tuple
    size: int
    block: int
    image_shape: tuple
    class_names: tuple
    split: str
    jpeg: bool

    @property
    def blocks(self):
        return -(-self.size // self.block)

    def range_of(self, block):
        """(first, behind the last) picture of a block."""
        return block * self.block, min(self.size, (block + 1) * self.block)

    def pictures(self, block):
        first, last = self.range_of(block)
        return last - first

    def values(self, units):
        """Pixels times channels of units: their bytes when they are stored as they are."""
        return sum(self.pictures(unit.block) for unit in units) * math.prod(self.image_shape)

    def units(self):
        """All units, block after block: the pictures of a block are read once for all that is made of them."""
        return [Unit(name, severity, block)
                for block in range(self.blocks) for name in self.names for severity in SEVERITIES]

    def share(self, part, parts):
        """The units of one part of many, 1..parts: a range of `units`, so that few blocks are read by two parts."""
        units = self.units()
        return units[(part - 1) * len(units) // parts:part * len(units) // parts]


def part_of(shard):
    """`3/16` -> (3, 16): the third of sixteen parts; the first is 1.

    Raises:
        ValueError: not of that form, or the part is not in 1..parts.
    """
    found = re.fullmatch(r"(\d+)/(\d+)", shard.strip())
    part, parts = map(int, found.groups()) if found else (0, 0)
    if not 1 <= part <= parts:
        raise ValueError("Expected shard as PART/PARTS with PART in 1..PARTS (the first is 1), say 3/16. "
                         f"Received: {shard!r}")
    return part, parts
