"""The configuration of a corrupted set, its units, and their division among processes; each unit is written atomically."""

import dataclasses
import math
import re
import typing
from collections.abc import Collection, Iterable

from tf_robust.corruptions import CORRUPTIONS
from tf_robust.metrics import SEVERITIES
from tf_robust.utils.errors import unknown


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


def part_of(shard: str) -> tuple[int, int]:
    """Parses `3/16` to (3, 16): the third of sixteen parts; the first is 1.

    Raises:
        ValueError: another form, or the part is not in 1..parts.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", shard.strip())
    part, parts = map(int, match.groups()) if match else (0, 0)
    if not 1 <= part <= parts:
        raise ValueError(f"Expected shard as PART/PARTS with PART in 1..PARTS (the first is 1), such as 3/16. Received: {shard!r}")
    return part, parts


@dataclasses.dataclass(frozen=True)
class WriterConfig:
    """Format, corruptions and division of the work of writing a corrupted set.

    Args:
        dataset_format: `npy`: one file NAME.npy with all five severities for each corruption, as CIFAR-10-C; `tfds`: a set of
            TFRecord files for each corruption and severity, which TFDS reads.
        corruptions: names of the corruptions; empty: the 19 of the common-corruption benchmark, without those of C-bar.
        shard: part of the work for this process: 3/16 is the third of sixteen.
        chunk_size: images written at once; with the format tfds, images per file.
        engine: `local`: this process; `beam`: an Apache Beam pipeline (extra [beam]), which divides the work itself.
        beam_options: of the pipeline, as on Beam's command line: --runner=FlinkRunner,--parallelism=8; empty: this
            machine.

    Raises:
        ValueError: unknown names, an invalid shard, or chunk_size < 1.
    """

    dataset_format: typing.Literal["npy", "tfds"] = "npy"
    corruptions: tuple[str, ...] = ()
    shard: str = "1/1"
    chunk_size: int = 1000
    engine: typing.Literal["local", "beam"] = "local"
    beam_options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.engine == "beam" and part_of(self.shard) != (1, 1):
            raise ValueError(f"Expected shard=1/1 with Beam, which divides the work itself. Received: {self.shard!r}")
        if self.chunk_size < 1:
            raise ValueError(f"Expected chunk_size >= 1. Received: {self.chunk_size}")
        chosen = {"dataset_format": (self.dataset_format,), "engine": (self.engine,), "corruption": self.corruptions}
        known: dict[str, Collection[str]] = {"dataset_format": ("npy", "tfds"), "engine": ("local", "beam"), "corruption": CORRUPTIONS}
        for kind, names in chosen.items():
            for name in names:
                if name not in known[kind]:
                    raise unknown(kind, name, known[kind])
        part_of(self.shard)
