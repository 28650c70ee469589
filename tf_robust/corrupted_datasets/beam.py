"""Writing a corrupted set with an Apache Beam pipeline (extra `[beam]`), whose workers write the units in any order.

Every worker needs the clean set and the folder on a shared file system. Units are written atomically and do not depend on
the worker: a repeated one does no harm, and the local writer can complete what a pipeline began.
"""

from collections.abc import Callable, Iterator, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

_LOCAL = "FnApiRunner"  # Beam's DirectRunner would first try to download another local runner


class WriteUnits(beam.DoFn):
    """Maps (number, number of parts) to the number of images written in that part; each worker opens the source once."""

    def __init__(self, open_job: Callable) -> None:
        self._open_job = open_job

    def setup(self) -> None:
        self._job = self._open_job()

    def process(self, element: tuple[int, int]) -> Iterator[int]:
        units = self._job.layout.missing(self._job.plan.part(*element))
        with self._job.explain_full_disk(units):
            yield sum(self._job.write(unit) for unit in units)


def write_with_beam(open_job: Callable, beam_options: Sequence[str]) -> list[str]:
    """Runs `job.write` as a Beam pipeline and waits for its end; `open_job`: () -> `Job`, picklable."""
    job = open_job()
    job.begin()
    units = job.layout.missing(job.plan.units())
    parts = job.plan.chunks * len(job.plan.names)  # one corruption of one chunk, at all severities
    named = any(option.startswith("--runner") for option in beam_options)
    try:
        with beam.Pipeline(options=PipelineOptions([*beam_options, *([] if named else [f"--runner={_LOCAL}"])])) as pipeline:
            (
                pipeline
                | "parts" >> beam.Create([(part, parts) for part in range(1, parts + 1)])
                | "reshuffle" >> beam.Reshuffle()
                | "write" >> beam.ParDo(WriteUnits(open_job))
            )
    except RuntimeError as error:  # errors of workers arrive as text
        raise OSError(f"The Beam pipeline failed. Completed chunks stay valid; the same command resumes: {error}") from error
    with job.explain_full_disk(units):
        return job.conclude(len(units))
