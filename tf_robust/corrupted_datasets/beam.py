"""The same corrupted set as an Apache Beam pipeline (extra `[beam]`): its workers do the units, in any order, anywhere.

Every worker needs the clean set, and the folder, on a file system that all share. Units are written whole, and are
the same whoever makes them: a repeated one does no harm, and what a pipeline began the local writer may end.
"""

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from tf_robust.corrupted_datasets.disk_space import explain_full_disk
from tf_robust.corrupted_datasets.job import Job

_LOCAL = "FnApiRunner"  # Beam's DirectRunner would first try to fetch another local runner from the network


class WriteUnits(beam.DoFn):
    """(number, number of parts) -> the images written in that part.

    Args:
        open_source: () -> the clean `Source`; called once by each worker. folder, writing, corruption_config: as `Job`.
    """

    def __init__(self, open_source, folder, writer_config, corruption_config):
        self._arguments = open_source, folder, writer_config, corruption_config
        self._job = None

    def setup(self):
        open_source, *rest = self._arguments
        self._job = Job(open_source(), *rest)

    def process(self, share):
        units = self._job.layout.missing(self._job.plan.share(*share))
        with explain_full_disk(self._job.layout, units):
            yield sum(self._job.write(unit) for unit in units)


def write_with_beam(open_source, folder, writer_config, corruption_config):
    """`writing.write` by a Beam pipeline; waits for its end."""
    job = Job(open_source(), folder, writer_config, corruption_config)
    job.begin()
    units = job.layout.missing(job.plan.units())
    parts = job.plan.chunks * len(job.plan.names)  # one corruption of one chunk, at all severities
    named = any(option.startswith("--runner") for option in writer_config.beam_options)
    options = PipelineOptions([*writer_config.beam_options, *(() if named else (f"--runner={_LOCAL}",))])
    try:
        with beam.Pipeline(options=options) as pipeline:
            (pipeline | "parts" >> beam.Create([(part, parts) for part in range(1, parts + 1)])
             | "spread" >> beam.Reshuffle()
             | "write" >> beam.ParDo(WriteUnits(open_source, folder, writer_config, corruption_config)))
    except RuntimeError as error:  # what workers raise arrives as text
        raise OSError("The Beam pipeline failed; what it wrote stays valid, and the same command goes on: "
                      f"{error}") from error
    with explain_full_disk(job.layout, units):
        return job.conclude(len(units))
