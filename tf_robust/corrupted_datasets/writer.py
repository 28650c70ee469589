"""`tf-robust corrupt`: writes a corrupted set, or one part of it.

Interrupted at any moment, the same command resumes with the same result.
"""

from collections.abc import Callable

from tf_robust.configs.data import WriterConfig, part_of
from tf_robust.corrupted_datasets.job import CorruptionConfig, Job
from tf_robust.data.source import Source
from tf_robust.utils.locks import file_lock
from tf_robust.utils.progress import Progress


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
    if writer_config.engine == "beam":
        try:
            from tf_robust.corrupted_datasets.beam import write_with_beam
        except ModuleNotFoundError as error:
            raise ValueError(f"Expected Apache Beam for engine=beam. Try: pip install 'tf_robust[beam]' ({error})") from error
        return write_with_beam(open_source, folder, writer_config, corruption_config)
    part, parts = part_of(writer_config.shard)
    source = open_source()
    job = Job(source, folder, writer_config, corruption_config)
    job.begin()
    with file_lock(job.layout.unfinished(f"lock-{part}-of-{parts}"), wait=False):
        units = job.layout.missing(job.plan.part(part, parts))
        if source.in_memory:  # corruption by corruption; where reading is expensive, chunk by chunk
            units.sort(key=lambda unit: (job.plan.names.index(unit.name), unit.severity, unit.chunk))
        job.check_disk_space(units)
        with job.explain_full_disk(units):
            _write_units(job, units)
            return job.conclude(len(units))


def _write_units(job, units):
    progress = Progress(sum(job.plan.images(unit.chunk) for unit in units), "images")
    groups = [job.layout.group(unit.name, unit.severity) for unit in units]
    for number, (unit, group) in enumerate(zip(units, groups)):
        progress.step(job.write(unit), f"{unit.name} {unit.severity}, chunk {unit.chunk + 1} of {job.plan.chunks}")
        if group not in groups[number + 1 :]:
            job.layout.finish(group)
