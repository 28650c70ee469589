"""Records of evaluation sets: dictionaries for JSON from which all metrics are computed, one line each in a file.

Every record is written as soon as it is computed, so an interrupted evaluation resumes where it stopped. Parts of long records, such
as those of attacks, are written in the same way to another file, which is removed at the end.
"""

import contextlib
import dataclasses
import glob
import json
import os
import shutil
import time
import types
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from tf_robust.attacks.attack import Predict
from tf_robust.data.source import digest
from tf_robust.evaluation import set_locks, smoothing, utility
from tf_robust.evaluation.evaluation_set import EvaluationSet
from tf_robust.evaluation.scoring import masked, score_set
from tf_robust.utils.files import decoded

PER_IMAGE = "per_image"  # folder of the results of each image, next to the records
WARNING, WAITING = "  Warning:", "  Waiting"  # beginnings of lines of the log
IMPORTANT = (WARNING, WAITING)
_POLL_SECONDS = 1.0  # between two reads of a file that other processes write


def records(
    predict: Predict,
    sets: Sequence[EvaluationSet],
    path: str | None = None,
    depends: Callable[[str], object] | None = None,
    log: Callable[[str], object] = print,
    per_image: bool = False,
) -> list[dict]:
    """Returns the record of every set, in order. Records that an earlier, equal evaluation left in `path` are not computed again.

    Processes that are given the same path share the work: each computes sets that no other process has locked, until all are complete.

    Args:
        predict: float32 [N, H, W, C] in [0, 1] -> logits [N, C].
        sets: the evaluation sets.
        path: file to which records are appended, one per line; None: they are not written.
        depends: name of a set -> what its record depends on, for JSON; records with other dependencies are ignored.
        log: called with a line of progress after each set.
        per_image: evaluate in shards those sets that can be divided, and write the results of each image next to `path`.

    Raises:
        ValueError: images that are not finite or not in [0, 1], logits of the wrong shape or not finite, labels without a column in
            the logits, an empty set.
    """
    keys = {one.name: record_key(depends(one.name) if depends else None) for one in sets}
    locks = set_locks.SetLocks(f"{path}.locks") if path else None
    if per_image and not path:
        raise ValueError("Expected a path of the records with per_image=True. Received: None. Try: evaluate_records(..., path=PATH)")
    divided = _shards(sets, path, keys) if per_image else {}
    complete: dict[str, dict] = {}
    waited, began, computed = False, time.monotonic(), 0

    def read_again():
        current = (record for record in read_records(path) if record["depends"] == keys.get(record["set"]))
        complete.update({one["set"]: one for one in current if one["set"] not in divided or divided[one["set"]].is_complete})

    read_again()
    while len(complete) < len(sets):
        for one in (one for one in sets if one.name not in complete):
            shards = divided.get(one.name)
            if shards and not shards.compute(predict, locks, log):
                continue  # other processes compute the rest
            with locks.try_lock(f"{one.name} {keys[one.name]}") if locks else contextlib.nullcontext(True) as locked:
                read_again()
                if not locked or one.name in complete:  # another process computes it, or has done so
                    continue
                parts = _Parts(f"{path}.parts", locks, one.name, keys[one.name]) if path else {}
                one = dataclasses.replace(one, parts=parts)
                record = shards.record() if shards else (one.score or score_set)(masked(predict, one.class_mask), one)
                if record is None:
                    continue
                complete[one.name] = {"set": one.name, "depends": keys[one.name], **record, **_order(one)}
                if path and locks:
                    _append(path, locks, complete[one.name])
            computed += 1
            remaining = (time.monotonic() - began) / computed * (len(sets) - len(complete)) / 60
            left = f", {remaining:.0f} min left" if remaining > 0.5 else ""
            among = f", among {len(one.class_mask):,} classes" if one.class_mask else ""
            log(f"  {_summary(complete[one.name])}{among}  {len(complete)}/{len(sets)}{left}")
            for message in complete[one.name].get("warnings", ()):
                log(f"{WARNING} {one.name}: {message}")
        if len(complete) < len(sets):
            if not waited:
                log(f"{WAITING} for another process, which measures {len(sets) - len(complete)} of {len(sets)} sets.")
            waited = True
            time.sleep(_POLL_SECONDS)
            read_again()
    if path and locks:
        locks.clear()
        with contextlib.suppress(OSError):
            os.remove(f"{path}.parts")
    for shards in divided.values():
        shards.check()
    if path and divided:
        _remove_others(os.path.join(os.path.dirname(path), PER_IMAGE), {per_image_folder(os.path.dirname(path), name) for name in divided})
    return [complete[one.name] for one in sets]


def _order(one):
    """The field of a record that says that a set has the images in another order than the clean set."""
    return {"order": "other"} if one.origin and one.origin() is not one.images else {}


def per_image_folder(folder: str, name: str) -> str:
    """Returns the folder of the Parquet files of a set, in that of the records."""
    return os.path.join(folder, PER_IMAGE, name.replace("/", "-"))


def shards_module() -> types.ModuleType:
    """Returns the module `shards`, which needs an extra.

    Raises:
        ImportError: it is not installed.
    """
    try:
        from tf_robust.evaluation import shards
    except ModuleNotFoundError as error:
        raise ImportError("Expected the package pyarrow for per_image. Not installed. Try: pip install 'tf_robust[parquet]'") from error
    return shards


def _shards(sets, path, keys):
    """The shards of those sets that can be divided: {name: Shards}."""
    shards = shards_module()
    return {
        one.name: shards.Shards(one, per_image_folder(os.path.dirname(path), one.name), keys[one.name])
        for one in sets
        if one.open_range and not one.score
    }


def _remove_others(folder, kept):
    """Removes the results of images of sets that are not of this evaluation."""
    for path in filter(os.path.isdir, set(glob.glob(os.path.join(glob.escape(folder), "*"))) - kept):
        shutil.rmtree(path)


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
        text = f"median {np.median(decoded(record['distances'], np.float32)):.4f}{count}"
    elif kind == "certified":
        text = f"{record['correct'] / record['count']:.4f}{count}, {smoothing.abstention(record)}"
    elif kind == "confidence":
        fields = {"threshold": record["threshold"], "quantile": record["quantile"]}
        scaling = f"temperature {1 / record['scale']:.3f}" if isinstance(record["scale"], float) else "vector scaling"
        scaling = "no scaling" if record["scale"] == 1.0 else scaling
        text = ", ".join([scaling, *(f"{name} {value:.4f}" for name, value in fields.items() if value is not None)]) + count
    elif kind == "ood":
        text = f"{', '.join(record['scores'])}{count}"
    elif kind == "utility":
        text = (", ".join(f"{name} {value:.3f}" for name, value in utility.ratios(record).items()) or "none") + count
    else:
        text = f"{record['correct'] / record['count']:.4f}{count}"
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
    with locks.writing(), open(path, "a", encoding="utf-8") as file:
        file.write("\n" * (file.tell() > 0) + json.dumps({**record, "crc32": _crc32(record)}) + "\n")  # after an incomplete line too
        file.flush()
        os.fsync(file.fileno())
