"""Records of evaluation sets: dictionaries for JSON from which all metrics are computed, one line each in a file.

Every record is written as soon as it is computed, so an interrupted evaluation resumes where it stopped. Parts of long records, such
as of attacks, are written in the same way to another file, which is removed at the end.

With `per_image` a set is evaluated in shards, with the results of each image as Parquet (extra `[parquet]`), for sets of any size. A shard
has whole batches of the set, so that every image gets the result that it gets without shards, bit for bit. Each shard is one file,
written atomically. Processes that have the same folder share the shards of a set; the record is computed when all are there.
"""

import contextlib
import dataclasses
import functools
import glob
import json
import os
import shutil
import time
import typing
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pandas

from tf_robust.attacks.attack import Predict
from tf_robust.data.source import digest
from tf_robust.evaluation import adversarial, card, scoring, smoothing
from tf_robust.evaluation.metric_value import parse_metric
from tf_robust.evaluation.scoring import EvaluationSet, ImageResults
from tf_robust.utils.files import atomic_file, decoded, path_text
from tf_robust.utils.locks import WorkdirLocked, file_lock
from tf_robust.utils.progress import LONG, Estimate, print_line

PER_IMAGE = "per_image"  # folder of the results of each image, next to the records
WARNING, WAITING, TOOK = "  Warning:", "  Waiting", "  The evaluation took"  # beginnings of lines of the log
IMPORTANT = (WARNING, WAITING, TOOK, adversarial.ATTACKING)
SHARD_IMAGES = 10_000  # of a shard, at least
_POLL_SECONDS = 1.0  # between two reads of a file that other processes write


class SetLocks:
    """One lock file in a folder for each evaluation set; the operating system frees a lock when its holder ends, even if it is killed."""

    def __init__(self, folder: str):
        self._folder = folder

    @contextlib.contextmanager
    def try_lock(self, name: str) -> Iterator[bool]:
        """Holds the lock of a set if it is free, and yields whether it was."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(file_lock(os.path.join(self._folder, f"{digest(name)}.lock"), wait=False, remove=True))
            except WorkdirLocked:
                yield False
                return
            yield True

    def writing(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which no other process writes to the records file."""
        return file_lock(os.path.join(self._folder, "writing.lock"), remove=True)

    def clear(self) -> None:
        """Removes the lock files that no process holds (one that was killed leaves its own), and the folder if none is left."""
        for path in glob.glob(os.path.join(glob.escape(self._folder), "*")):
            with contextlib.suppress(WorkdirLocked, OSError), file_lock(path, wait=False, remove=True):
                pass
        with contextlib.suppress(OSError):
            os.rmdir(self._folder)


def records(
    predict: Predict,
    sets: Sequence[EvaluationSet],
    path: str | None = None,
    depends: Callable[[str], object] | None = None,
    log: Callable[[str], object] = print_line,
    per_image: bool = False,
) -> list[dict]:
    """Returns the record of every set, in order. Records that an earlier, equal evaluation left in `path` are not computed again.

    Processes that are given the same path share the work: each computes sets that no other process has locked, until all are complete.
    Arguments as in `evaluate`; `per_image`: evaluate in shards those sets that can be divided, and write the results of each image next to
    `path`. ValueError: images that are not finite or not in [0, 1], logits of the wrong shape or not finite, labels without a column in the
    logits, an empty set.
    """
    if per_image and not path:
        raise ValueError("Expected a path of the records with per_image=True. Received: None. Try: evaluate(..., path=PATH)")
    keys = {one.name: record_key(depends(one.name) if depends else None) for one in sets}
    locks = SetLocks(f"{path}.locks") if path else None
    try_lock = locks.try_lock if locks else lambda name: contextlib.nullcontext(True)
    folder = os.path.dirname(path or "")
    divisible = [one for one in sets if per_image and one.part_batches and not one.score]
    divided = {one.name: Shards(one, per_image_folder(folder, one.name), keys[one.name]) for one in divisible}
    complete: dict[str, dict] = {}
    restricted = functools.cache(functools.partial(scoring.masked, predict))  # attacks keep the graphs of the same function
    waited, computed = False, 0
    estimate: Estimate | None = None

    def read_again():
        current = (record for record in read_records(path) if record["depends"] == keys.get(record["set"]))
        complete.update({one["set"]: one for one in current if one["set"] not in divided or divided[one["set"]].is_complete})

    read_again()
    while len(complete) < len(sets):
        estimate = estimate or Estimate(len(sets) - len(complete))
        for one in sorted((one for one in sets if one.name not in complete), key=lambda one: one.rank):
            shards = divided.get(one.name)
            if shards and not shards.compute(predict, try_lock, log):
                continue  # other processes compute the rest
            with try_lock(f"{one.name} {keys[one.name]}") as locked:
                read_again()
                if not locked or one.name in complete:  # another process computes it, or has done so
                    continue
                parts = _Parts(f"{path}.parts", locks, one.name, keys[one.name]) if path and one.score else {}
                one = dataclasses.replace(one, parts=parts, log=log)
                record = shards.record() if shards else (one.score or scoring.score_set)(restricted(one.class_mask), one)
                if record is None:
                    continue
                order = {"order": "other"} if one.origin and one.origin() is not one.source else {}  # than the clean set
                record = complete[one.name] = {"set": one.name, "depends": keys[one.name], **record, **order}
                if path and locks:
                    _append(path, locks, record)
            computed += 1
            pending = [other for other in sets if other.name not in complete]
            known = not any(other.rank for other in sets)  # attacks announce their own time
            is_estimated = known and computed > 1 and pending  # the first traces the model
            done = estimate.total - len(pending)
            left = f", {estimate.left_text(done)}" if is_estimated and estimate.left(done) > LONG else ""
            among = f", among {len(one.class_mask):,} classes" if one.class_mask else ""
            log(f"  {_summary(record)}{among}  {len(complete)}/{len(sets)}{left}")
            for message in record.get("warnings", ()):
                log(f"{WARNING} {one.name}: {message}")
        if len(complete) < len(sets):
            if not waited:
                log(f"{WAITING} for another process, which measures {len(sets) - len(complete)} of {len(sets)} sets.")
            waited = True
            time.sleep(_POLL_SECONDS)
            read_again()
    if estimate and (compared := estimate.comparison()):
        log(f"{TOOK} {compared}.")
    if path and locks:
        locks.clear()
        with contextlib.suppress(OSError):
            os.remove(f"{path}.parts")
    for shards in divided.values():
        shards.check()
    if divided:  # remove the results of images of sets that are not of this evaluation
        own = {per_image_folder(folder, name) for name in divided}
        for other in {*glob.glob(os.path.join(glob.escape(folder), PER_IMAGE, "*"))} - own:
            if os.path.isdir(other):
                shutil.rmtree(other)
    return [complete[one.name] for one in sets]


class _Parts(dict):
    """The parts of a record, {name: text}, appended to a file as soon as they are set."""

    def __init__(self, path, locks, name, depends):
        self._path, self._locks, self._record = path, locks, {"set": name, "depends": depends, "kind": "part"}
        stored = (record for record in read_records(path) if {**record, **self._record} == record)
        super().__init__({record["part"]: record["value"] for record in stored})

    def __setitem__(self, part, value):
        _append(self._path, self._locks, {**self._record, "part": part, "value": value})
        super().__setitem__(part, value)


def record_key(dependencies: object) -> str:
    """Returns the digest of what a record depends on (anything that JSON takes), for its field `depends`."""
    return digest(json.dumps(dependencies, sort_keys=True))


def _summary(record):
    """One line of progress: the set, its main result and its size."""
    kind, count = record["kind"], f"  {record['count']} images"
    if kind == "flips":
        text = f"flips {record['flip_probability']:.4f}  {record['count']} sequences"
    elif kind == "checks":
        text = "; ".join(record["failed"]) or "no sign of masked gradients"
    elif kind == "distances":
        text = f"median {np.median(adversarial.read_distances(record)):.4f}{count}"
    elif kind == "confidence":
        scaling = f"temperature {1 / record['scale']:.3f}" if isinstance(record["scale"], float) else "vector scaling"
        scaling = "no scaling" if record["scale"] == 1.0 else scaling
        fields = (f"{name} {record[name]:.4f}" for name in ("threshold", "quantile") if record[name] is not None)
        text = ", ".join([scaling, *fields]) + count
    elif kind == "ood":
        text = f"{', '.join(record['scores'])}{count}"
    elif kind == "utility":
        text = (", ".join(f"{name} {value:.3f}" for name, value in scoring.utility_ratios(record).items()) or "none") + count
    elif kind == "sensitivity":
        text = f"correlation {decoded(record['correlations'], np.float32).mean():.3f}{count}"
    else:
        text = f"{record['correct'] / record['count']:.4f}{count}"
    if kind == "certified":
        abstained = record["abstained"]
        text += f", abstained on {abstained}" if abstained < record["count"] else f", {smoothing.ABSTAINS}"
    return f"{record['set']:32s} {text}"


def read_records(path: str | None) -> list[dict]:
    """Returns the records of a file, none if it does not exist. Incomplete and damaged lines are skipped."""
    if not path or not os.path.exists(path):
        return []
    complete = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            with contextlib.suppress(ValueError, RecursionError):
                record = json.loads(line) if line.endswith("}\n") else None
                if isinstance(record, dict) and record.pop("crc32", None) == _crc32(record):
                    complete.append(record)
    return complete


def _crc32(record):
    return zlib.crc32(json.dumps(record).encode())


def _append(path, locks, record):
    with locks.writing(), open(path, "ab+") as file:
        file.seek(max(0, file.tell() - 1))
        incomplete = file.read() not in (b"", b"\n")  # the last line, of a process that was killed
        file.write(b"\n" * incomplete + json.dumps({**record, "crc32": _crc32(record)}).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def own_records(evaluation: Mapping, records: Iterable[dict]) -> dict[str, dict]:
    """Returns {set: record} of the records that have the model, interface, data and settings of an evaluation, an `evaluation.json`."""
    return {record["set"]: record for record in records if record["depends"] == _key_in(evaluation, record["set"])}


def _key_in(evaluation, name):
    return record_key(card.dependencies(evaluation["model_digest"], evaluation["interface"], evaluation["card"], name))


def per_image_folder(folder: str, name: str) -> str:
    """Returns the folder of the Parquet files of a set, in the folder of the records."""
    return os.path.join(folder, PER_IMAGE, name.replace("/", "-"))


def images_of(evaluation: Mapping, folder: str, name: str) -> pandas.DataFrame | None:
    """Returns the results of each image of a set that was evaluated with `per_image`, or None if there are none of this evaluation.

    `folder` is the one of its records.
    """
    arrow = _pyarrow()
    paths = sorted(glob.glob(os.path.join(glob.escape(per_image_folder(folder, name)), "*.parquet")))
    tables = [arrow.parquet.read_table(path, partitioning=None) for path in paths]
    own = [table for table in tables if _shard_key(table.schema).startswith(f"{_key_in(evaluation, name)} ")]
    return arrow.concat_tables(own).to_pandas() if own else None


def _pyarrow() -> typing.Any:
    try:
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ImportError("Expected the package pyarrow for per_image. Not installed. Try: pip install 'tf_robust[parquet]'") from error
    return pyarrow


def _shard_key(schema):
    """The dependencies and the range of the images of a file; empty if it is not one of ours."""
    return (schema.metadata or {}).get(b"depends", b"").decode()


class Shards:
    """The shards of a set with `part_batches`, as Parquet files in a folder; files with other dependencies, a digest, are replaced."""

    def __init__(self, evaluation_set: EvaluationSet, folder: str, depends: str):
        self._arrow, self._set, self._folder, self._complete = _pyarrow(), evaluation_set, folder, set[int]()
        assert evaluation_set.source is not None
        batch, size = scoring.batch_size_of(evaluation_set.source.image_shape), len(evaluation_set.source)
        step = -(-SHARD_IMAGES // batch) * batch
        self._bounds = [(first, min(first + step, size)) for first in range(0, max(size, 1), step)]
        self._keys = [f"{depends} {bounds}" for bounds in self._bounds]
        self._paths = [os.path.join(folder, f"{number:05d}-of-{len(self._keys):05d}.parquet") for number in range(len(self._keys))]

    @property
    def is_complete(self) -> bool:
        """Whether the files of all shards are there."""
        return all(map(self._is_complete, range(len(self._keys))))

    def _is_complete(self, number):
        if number not in self._complete:
            with contextlib.suppress(OSError, self._arrow.ArrowInvalid):  # none, or damaged
                if _shard_key(self._arrow.parquet.read_schema(self._paths[number])) == self._keys[number]:
                    self._complete.add(number)
        return number in self._complete

    def compute(
        self,
        predict: Predict,
        try_lock: Callable[[str], contextlib.AbstractContextManager[bool]],
        log: Callable[[str], object],
    ) -> bool:
        """Computes the shards that no other process computes (see `SetLocks`), and returns whether all are complete."""
        count, part_batches = len(self._keys), self._set.part_batches
        assert part_batches is not None
        for number, (first, last) in enumerate(self._bounds):
            if self._is_complete(number):
                continue
            with try_lock(f"{self._set.name} {self._keys[number]}") as locked:
                if locked and not self._is_complete(number):
                    part = dataclasses.replace(self._set, batches=functools.partial(part_batches, first, last)) if count > 1 else self._set
                    results = scoring.results_of(scoring.masked(predict, self._set.class_mask), part)
                    self._write(number, first, results)
                    accuracy = np.mean(results.prediction == results.label)
                    log(f"  {self._set.name:32s} {accuracy:.4f}  {last - first} images, shard {number + 1} of {count}")
        return self.is_complete

    def record(self) -> dict | None:
        """Returns the record of the set, from all its shards, and removes other files. None: a damaged shard must be computed again."""
        tables = []
        for number, path in enumerate(self._paths):
            try:
                table = self._arrow.parquet.read_table(path, partitioning=None)
            except FileNotFoundError as error:
                raise self._replaced() from error
            except (OSError, self._arrow.ArrowInvalid):
                self._complete.discard(number)
                os.remove(path)
                return None
            if _shard_key(table.schema) != self._keys[number]:
                raise self._replaced()
            tables.append(table)
        columns = (self._arrow.concat_tables(tables)[name].to_numpy() for name in ImageResults._fields)
        for path in {*glob.glob(os.path.join(glob.escape(self._folder), "*"))} - {*self._paths}:
            os.remove(path)
        return scoring.record_of(ImageResults(*columns), keep=parse_metric(self._set.name).is_clean)

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

    def _write(self, number, first, results):
        images = self._set.origin() if self._set.origin else self._set.source
        count, paths = len(results.label), images.paths
        columns = {
            "set": self._arrow.array([self._set.name] * count).dictionary_encode(),
            "position": images.positions[first : first + count],
            **({"path": [*map(path_text, paths[first : first + count])]} if paths else {}),
            **results._asdict(),
            "correct": results.prediction == results.label,
        }
        table = self._arrow.table(columns).replace_schema_metadata({"depends": self._keys[number]})
        with atomic_file(self._paths[number], "wb") as file:
            self._arrow.parquet.write_table(table, file, compression="zstd")
        self._complete.add(number)
