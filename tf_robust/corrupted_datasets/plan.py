"""What a corrupted set consists of, and how the work is divided: units, each written whole and at once."""

import dataclasses
import math
import re
import typing

SEVERITIES = (1, 2, 3, 4, 5)


class Unit(typing.NamedTuple):
    """One chunk of images under one corruption at one severity."""
    name: str
    severity: int
    chunk: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """A corrupted set.

    Attributes:
        names: of the corruptions. size: images of the clean set. chunk_size: images written at once.
        image_shape: (H, W, C). class_names: a name per label. split: of the clean set.
        jpeg: images are stored as JPEG files, as ImageNet-C is.
    """
    names: tuple
    size: int
    chunk_size: int
    image_shape: tuple
    class_names: tuple
    split: str
    jpeg: bool

    @property
    def chunks(self):
        return -(-self.size // self.chunk_size)

    def range_of(self, chunk):
        """(first, behind the last) image of a chunk."""
        return chunk * self.chunk_size, min(self.size, (chunk + 1) * self.chunk_size)

    def images(self, chunk):
        first, last = self.range_of(chunk)
        return last - first

    def values(self, units):
        """Pixels times channels of units: their bytes when they are stored as they are."""
        return sum(self.images(unit.chunk) for unit in units) * math.prod(self.image_shape)

    def units(self):
        """All units, chunk after chunk: the images of a chunk are read once for all that is made of them."""
        return [Unit(name, severity, chunk)
                for chunk in range(self.chunks) for name in self.names for severity in SEVERITIES]

    def share(self, part, parts):
        """The units of one part of many, 1..parts: a range of `units`, so that few chunks are read by two parts."""
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
