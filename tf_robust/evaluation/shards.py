"""Evaluation of a set in shards, with the results of each image as Parquet (extra `[parquet]`), for sets of any size.

A shard has whole batches of the set, so that every image gets the result that it gets without shards, bit for bit. Each shard is one
file, written atomically. Processes that have the same folder share the shards of a set; the record is computed when all are there.
"""

import contextlib
import dataclasses
import functools
import glob
import os
from collections.abc import Callable

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet

from tf_robust.attacks.attack import Predict
from tf_robust.data.source import Source
from tf_robust.evaluation.evaluation_set import EvaluationSet, batch_size_of
from tf_robust.evaluation.metric_value import parse_metric
from tf_robust.evaluation.scoring import ImageResults, masked, record_of, results_of
from tf_robust.utils.files import atomic_file, path_text

IMAGES = 10_000  # of a shard, at least


def read(folder: str, depends: str) -> pandas.DataFrame | None:
    """Returns the results of the images of a set in a folder of Parquet files, or None if there are none with these dependencies."""
    paths = sorted(glob.glob(os.path.join(glob.escape(folder), "*.parquet")))
    tables = [pyarrow.parquet.read_table(path, partitioning=None) for path in paths]
    own = [table for table in tables if _key_of(table.schema).startswith(f"{depends} ")]
    return pyarrow.concat_tables(own).to_pandas() if own else None


def _key_of(schema):
    """The dependencies and the range of the images of a file; empty if it is not one of ours."""
    return (schema.metadata or {}).get(b"depends", b"").decode()


class Shards:
    """The shards of a set.

    Args:
        evaluation_set: one with ranges, whose record is that of accuracies.
        folder: of its Parquet files.
        depends: digest of what the results depend on; files with another are replaced.
    """

    def __init__(self, evaluation_set: EvaluationSet, folder: str, depends: str):
        self._set, self._folder, self._depends, self._complete = evaluation_set, folder, depends, set[int]()
        assert evaluation_set.images is not None and evaluation_set.open_range
        self._images: Source = evaluation_set.images
        self._open_range = evaluation_set.open_range
        batch, size = batch_size_of(self._images.image_shape), len(self._images)
        step = -(-IMAGES // batch) * batch
        self._bounds = [(first, min(first + step, size)) for first in range(0, max(size, 1), step)]

    def __len__(self) -> int:
        return len(self._bounds)

    @property
    def is_complete(self) -> bool:
        """Whether the files of all shards are there."""
        return all(map(self._is_complete, range(len(self))))

    def compute(
        self,
        predict: Predict,
        try_lock: Callable[[str], contextlib.AbstractContextManager[bool]],
        log: Callable[[str], object],
    ) -> bool:
        """Computes the shards that no other process computes (see `recording.SetLocks`), and returns whether all are complete."""
        for number, (first, last) in enumerate(self._bounds):
            if self._is_complete(number):
                continue
            with try_lock(f"{self._set.name} {self._key(number)}") as locked:
                if locked and not self._is_complete(number):
                    part = dataclasses.replace(self._set, open=functools.partial(self._open_range, first, last))
                    results = results_of(masked(predict, self._set.class_mask), part if len(self) > 1 else self._set)
                    self._write(number, first, results)
                    accuracy = np.mean(results.prediction == results.label)
                    log(f"  {self._set.name:32s} {accuracy:.4f}  {last - first} images, shard {number + 1} of {len(self)}")
        return self.is_complete

    def record(self) -> dict | None:
        """Returns the record of the set, from all its shards, and removes other files. None: a damaged shard must be computed again."""
        tables = [self._read(number) for number in range(len(self))]
        if any(table is None for table in tables):
            return None
        columns = (pyarrow.concat_tables(tables)[name].to_numpy() for name in ImageResults._fields)
        kept = {self._path(number) for number in range(len(self))}
        for path in set(glob.glob(os.path.join(glob.escape(self._folder), "*"))) - kept:
            os.remove(path)
        return record_of(ImageResults(*columns), keep=parse_metric(self._set.name).is_clean)

    def _read(self, number):
        """The table of a shard; None if it is damaged, and then removed."""
        path = self._path(number)
        try:
            table = pyarrow.parquet.read_table(path, partitioning=None)
        except FileNotFoundError:
            table = None
        except (OSError, pyarrow.ArrowInvalid):
            self._complete.discard(number)
            os.remove(path)
            return None
        if table is None or not self._is_own(table.schema, number):
            raise self._replaced()
        return table

    def check(self) -> None:
        """Raises ValueError if another process has replaced shards of this evaluation, as `record` does."""
        self._complete.clear()
        if not self.is_complete:
            raise self._replaced()

    def _replaced(self):
        return ValueError(
            f"Expected one model and one data set at a time in {os.path.dirname(self._folder)}. Received: {self._folder} of another "
            "evaluation. Try: another --workdir for each"
        )

    def _path(self, number):
        return os.path.join(self._folder, f"{number:05d}-of-{len(self):05d}.parquet")

    def _key(self, number):
        return f"{self._depends} {self._bounds[number]}"

    def _is_complete(self, number):
        if number not in self._complete:
            with contextlib.suppress(OSError, pyarrow.ArrowInvalid):  # none, or damaged
                if self._is_own(pyarrow.parquet.read_schema(self._path(number)), number):
                    self._complete.add(number)
        return number in self._complete

    def _is_own(self, schema, number):
        return _key_of(schema) == self._key(number)

    def _write(self, number, first, results):
        images = self._set.origin() if self._set.origin else self._images
        count, paths = len(results.label), images.paths
        columns = {
            "set": pyarrow.array([self._set.name] * count).dictionary_encode(),
            "position": images.positions[first : first + count],
            **({"path": [*map(path_text, paths[first : first + count])]} if paths else {}),
            **results._asdict(),
            "correct": results.prediction == results.label,
        }
        table = pyarrow.table(columns).replace_schema_metadata({"depends": self._key(number)})
        with atomic_file(self._path(number), "wb") as file:
            pyarrow.parquet.write_table(table, file, compression="zstd")
        self._complete.add(number)
