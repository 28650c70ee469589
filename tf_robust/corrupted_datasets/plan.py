"""The units of a corrupted set, and their division among processes; each unit is written atomically."""

import dataclasses
import math
import typing
from collections.abc import Iterable

from tf_robust.metrics import SEVERITIES


class Unit(typing.NamedTuple):
    """One chunk of images under one corruption at one severity."""

    name: str
    severity: int
    chunk: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """The units of a corrupted set.

    Attributes:
        names: of the corruptions.
        size: number of images of the clean set.
        chunk_size: images written at once.
        image_shape: (H, W, C).
        class_names: one name per label.
        split: of the clean set.
        jpeg: images are stored as JPEG files, as in ImageNet-C.
    """

    names: tuple[str, ...]
    size: int
    chunk_size: int
    image_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    split: str
    jpeg: bool

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return -(-self.size // self.chunk_size)

    def range_of(self, chunk: int) -> tuple[int, int]:
        """Returns (first, last + 1) of the images of a chunk."""
        return chunk * self.chunk_size, min(self.size, (chunk + 1) * self.chunk_size)

    def images(self, chunk: int) -> int:
        """Returns the number of images of a chunk."""
        first, last = self.range_of(chunk)
        return last - first

    def values(self, units: Iterable[Unit]) -> int:
        """Returns pixels times channels of units: their bytes without compression."""
        return sum(self.images(unit.chunk) for unit in units) * math.prod(self.image_shape)

    def units(self) -> list[Unit]:
        """Returns all units, chunk by chunk, so that each chunk is read once."""
        return [Unit(name, severity, chunk) for chunk in range(self.chunks) for name in self.names for severity in SEVERITIES]

    def part(self, part: int, parts: int) -> list[Unit]:
        """Returns the units of one part of many, 1..parts: a range of `units`, so that few chunks are read by two parts."""
        units = self.units()
        return units[(part - 1) * len(units) // parts : part * len(units) // parts]
