"""`tf-robust corrupt`: writes a corrupted set, or one part of it.

Interrupted at any moment, the same command resumes with the same result.
"""

import dataclasses
import typing
from collections.abc import Callable, Mapping, Sequence

from tf_robust import corruptions
from tf_robust.corrupted_datasets.disk_space import check_disk_space, explain_full_disk
from tf_robust.corrupted_datasets.generator import CorruptionConfig
from tf_robust.corrupted_datasets.job import LAYOUTS, Job
from tf_robust.corrupted_datasets.plan import part_of
from tf_robust.data.source import Source
from tf_robust.utils.errors import unknown
from tf_robust.utils.locks import file_lock
from tf_robust.utils.progress import Progress


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
        _check_names("dataset_format", (self.dataset_format,), LAYOUTS)
        _check_names("engine", (self.engine,), ("local", "beam"))
        _check_names("corruption", self.corruptions, corruptions.CORRUPTIONS)
        part_of(self.shard)


def _check_names(kind: str, names: Sequence[str], known: Sequence[str] | Mapping[str, object]) -> None:
    for name in names:
        if name not in known:
            raise unknown(kind, name, known)


def write(open_source: Callable[[], Source], folder: str, writer_config: WriterConfig, corruption_config: CorruptionConfig) -> list[str]:
    """Writes a corrupted set, or a part of it, with the engine of `writer_config`. Prints progress.

    Args:
        open_source: () -> the clean images, a `Source`; picklable for Beam, such as
            `functools.partial(data.open_source, "cifar10", "test")`.
        folder: of the set; created if it is missing. On a file system shared by all processes, if there are many.
        writer_config: a `WriterConfig`.
        corruption_config: a `CorruptionConfig`.

    Returns:
        names of the files or folders that are not finished, because other parts of the work are not done

    Raises:
        ValueError: the folder holds something else, or Beam is not installed.
        OSError: the folder cannot be written or the disk is full; completed chunks stay valid.
        WorkdirLocked: another process writes the same part.
    """
    if writer_config.engine == "local":
        return write_locally(open_source(), folder, writer_config, corruption_config)
    try:
        from tf_robust.corrupted_datasets.beam import write_with_beam
    except ModuleNotFoundError as error:
        raise ValueError(f"Expected Apache Beam for engine=beam. Try: pip install 'tf_robust[beam]' ({error})") from error
    return write_with_beam(open_source, folder, writer_config, corruption_config)


def write_locally(source: Source, folder: str, writer_config: WriterConfig, corruption_config: CorruptionConfig) -> list[str]:
    """Runs `write` in this process, for an open source."""
    part, parts = part_of(writer_config.shard)
    job = Job(source, folder, writer_config, corruption_config)
    job.begin()
    with file_lock(job.layout.unfinished(f"lock-{part}-of-{parts}"), wait=False):
        units = job.order(job.layout.missing(job.plan.part(part, parts)))
        check_disk_space(job.layout, units)
        with explain_full_disk(job.layout, units):
            _write(job, units)
            return job.conclude(len(units))


def _write(job, units):
    progress = Progress(sum(job.plan.images(unit.chunk) for unit in units), "images")
    groups = [job.layout.group(unit.name, unit.severity) for unit in units]
    for number, (unit, group) in enumerate(zip(units, groups)):
        progress.step(job.write(unit), f"{unit.name} {unit.severity}, chunk {unit.chunk + 1} of {job.plan.chunks}")
        if group not in groups[number + 1 :]:
            job.layout.finish(group)
