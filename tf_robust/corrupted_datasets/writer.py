"""`--mode=corrupt`: writes a corrupted set, or one part of many of it.

Interrupted at any moment, the same command goes on where it stopped, with the same result.
"""

import dataclasses
import typing

from tf_robust import corruptions
from tf_robust.corrupted_datasets.disk_space import check_disk_space, explain_full_disk
from tf_robust.corrupted_datasets.job import LAYOUTS, Job
from tf_robust.utils.locks import held
from tf_robust.corrupted_datasets.plan import part_of
from tf_robust.utils.errors import unknown
from tf_robust.utils.progress import Progress


@dataclasses.dataclass(frozen=True)
class WriterConfig:
    """What is written, and which part of it.

    Args:
        dataset_format: npy: a file NAME.npy of all five severities for each corruption, as CIFAR-10-C. tfds: a set of TFRecord
            files for each corruption and severity, which TFDS reads.
        corruptions: names of the corruptions; empty: all of them.
        shard: part of the work that this process does: 3/16 is the third of sixteen.
        chunk_size: images written at once; with the format tfds, images a file.
        engine: local: this process. beam: an Apache Beam pipeline (extra [beam]), which divides the work itself.
        beam_options: of the pipeline, as on Beam's command line: --runner=FlinkRunner,--parallelism=8; empty: this
            machine.
    """
    dataset_format: typing.Literal["npy", "tfds"] = "npy"
    corruptions: tuple[str, ...] = ()
    shard: str = "1/1"
    chunk_size: int = 1000
    engine: typing.Literal["local", "beam"] = "local"
    beam_options: tuple[str, ...] = ()

    def __post_init__(self):
        if self.engine == "beam" and part_of(self.shard) != (1, 1):
            raise ValueError(f"Expected shard=1/1 with Beam, which divides the work itself. Received: {self.shard!r}")
        if self.chunk_size < 1:
            raise ValueError(f"Expected chunk_size >= 1. Received: {self.chunk_size}")
        for what, words, known in (("dataset_format", (self.dataset_format,), LAYOUTS), ("engine", (self.engine,), ("local", "beam")),
                                   ("corruption", self.corruptions, corruptions.CORRUPTIONS)):
            for word in words:
                if word not in known:
                    raise unknown(what, word, known)
        part_of(self.shard)


def write(open_source, folder, writer_config, corruption_config):
    """Writes a corrupted set, or a part of it, with the engine that `writer_config` names. Prints how far it is.

    Args:
        open_source: () -> the clean images, a `Source`; picklable for Beam, say
            `functools.partial(data.open_source, "cifar10", "test")`.
        folder: of the set; made if it is missing. On a file system that all processes share, if there are many.
        writer_config: a `WriterConfig`. corruption_config: a `CorruptionConfig`.

    Returns:
        names of the files or folders that are not finished, because other parts of the work are not done

    Raises:
        ValueError: the folder holds something else, or Beam is not installed.
        OSError: the folder cannot be written or is full; what is written stays valid.
        WorkdirLocked: another process writes the same part.
    """
    if writer_config.engine == "local":
        return write_here(open_source(), folder, writer_config, corruption_config)
    try:
        from tf_robust.corrupted_datasets.beam import write_with_beam
    except ModuleNotFoundError as error:
        raise ValueError(f"Expected Apache Beam for engine=beam: pip install 'tf_robust[beam]' ({error})") from error
    return write_with_beam(open_source, folder, writer_config, corruption_config)


def write_here(source, folder, writer_config, corruption_config):
    """`write` in this process, of a source that is open."""
    part, parts = part_of(writer_config.shard)
    job = Job(source, folder, writer_config, corruption_config)
    job.begin()
    with held(job.layout.unfinished(f"lock-{part}-of-{parts}"), wait=False):
        units = job.order(job.layout.missing(job.plan.share(part, parts)))
        check_disk_space(job.layout, units)
        with explain_full_disk(job.layout, units):
            _write(job, units)
            return job.conclude(len(units))


def _write(job, units):
    progress = Progress(sum(job.plan.images(unit.chunk) for unit in units), "images")
    groups = [job.layout.group(unit.name, unit.severity) for unit in units]
    for number, (unit, group) in enumerate(zip(units, groups)):
        progress.step(job.write(unit), f"{unit.name} {unit.severity}, chunk {unit.chunk + 1} of {job.plan.chunks}")
        if group not in groups[number + 1:]:
            job.layout.finish(group)
