"""Configuration of writing a corrupted set."""

import dataclasses
import re
import typing

from tf_robust.configs.evaluation import check_corruptions
from tf_robust.utils.errors import unknown


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
        for name, known in (("dataset_format", ("npy", "tfds")), ("engine", ("local", "beam"))):
            if getattr(self, name) not in known:
                raise unknown(name, getattr(self, name), known)
        check_corruptions(self.corruptions)
        part_of(self.shard)
