"""Records of evaluation sets: dictionaries for JSON from which all metrics are computed, one line each in a file.

Every record is written as soon as it is computed, so an interrupted evaluation resumes where it stopped. Parts of long records, such
as those of attacks, are written in the same way to another file, which is removed at the end. `PerImage` reads from the records the values
of each image, for paired tests.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pandas

from tf_robust import metrics
from tf_robust.attacks.attack import Predict
from tf_robust.configs.evaluation import ALL_SEVERITIES, parse_curve, parse_threat
from tf_robust.data.source import digest
from tf_robust.evaluation import adversarial, card, smoothing
from tf_robust.evaluation.evaluation_set import EvaluationSet
from tf_robust.evaluation.metric_value import CORRUPTION_FAMILIES, parse_metric
from tf_robust.evaluation.scoring import confidences, correctness, masked, score_set, utility_ratios
from tf_robust.utils.files import decoded
from tf_robust.utils.locks import WorkdirLocked, file_lock

PER_IMAGE = "per_image"  # folder of the results of each image, next to the records
WARNING, WAITING = "  Warning:", "  Waiting"  # beginnings of lines of the log
IMPORTANT = (WARNING, WAITING)
OTHER_ORDER = " in another order"  # end of a digest of images
MIN_FOR_RMS = 500  # images, five bins of the RMS calibration error: with fewer it has no interval
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
        names = os.listdir(self._folder) if os.path.isdir(self._folder) else []
        for name in names:
            with contextlib.suppress(WorkdirLocked, OSError), file_lock(os.path.join(self._folder, name), wait=False, remove=True):
                pass
        with contextlib.suppress(OSError):
            os.rmdir(self._folder)


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
    locks = SetLocks(f"{path}.locks") if path else None
    try_lock = locks.try_lock if locks else lambda name: contextlib.nullcontext(True)
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
            if shards and not shards.compute(predict, try_lock, log):
                continue  # other processes compute the rest
            with try_lock(f"{one.name} {keys[one.name]}") as locked:
                read_again()
                if not locked or one.name in complete:  # another process computes it, or has done so
                    continue
                parts = _Parts(f"{path}.parts", locks, one.name, keys[one.name]) if path else {}
                one = dataclasses.replace(one, parts=parts)
                record = shards.record() if shards else (one.score or score_set)(masked(predict, one.class_mask), one)
                if record is None:
                    continue
                order = {"order": "other"} if one.origin and one.origin() is not one.images else {}  # than the clean set
                complete[one.name] = {"set": one.name, "depends": keys[one.name], **record, **order}
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
    if path and divided:  # remove the results of images of sets that are not of this evaluation
        own = {per_image_folder(os.path.dirname(path), name) for name in divided}
        found = glob.glob(os.path.join(glob.escape(os.path.dirname(path)), PER_IMAGE, "*"))
        for other in filter(os.path.isdir, {*found} - own):
            shutil.rmtree(other)
    return [complete[one.name] for one in sets]


def per_image_folder(folder: str, name: str) -> str:
    """Returns the folder of the Parquet files of a set, in that of the records."""
    return os.path.join(folder, PER_IMAGE, name.replace("/", "-"))


def shards_module() -> types.ModuleType:
    """Returns the module `shards`, which needs an extra."""
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
    elif kind == "certified":
        abstained = record["abstained"]
        text = f"{record['correct'] / record['count']:.4f}{count}, "
        text += f"abstained on {abstained}" if abstained < record["count"] else smoothing.ABSTAINS
    elif kind == "confidence":
        fields = {"threshold": record["threshold"], "quantile": record["quantile"]}
        scaling = f"temperature {1 / record['scale']:.3f}" if isinstance(record["scale"], float) else "vector scaling"
        scaling = "no scaling" if record["scale"] == 1.0 else scaling
        text = ", ".join([scaling, *(f"{name} {value:.4f}" for name, value in fields.items() if value is not None)]) + count
    elif kind == "ood":
        text = f"{', '.join(record['scores'])}{count}"
    elif kind == "utility":
        text = (", ".join(f"{name} {value:.3f}" for name, value in utility_ratios(record).items()) or "none") + count
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
    with locks.writing(), open(path, "ab+") as file:
        file.seek(max(0, file.tell() - 1))
        incomplete = file.read() not in (b"", b"\n")  # the last line, of a process that was killed
        file.write(b"\n" * incomplete + json.dumps({**record, "crc32": _crc32(record)}).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


class PerImage:
    """Reads the per-image results of evaluations.

    A record is used only if it has the model, interface, data and settings of the evaluation. Evaluations by older versions, which do
    not name these, and folders without `measured.jsonl` have no per-image results.

    Args:
        folder_of: evaluation -> the folder of its `measured.jsonl`.
    """

    def __init__(self, folder_of: Callable[[Mapping], str]):
        self._folder_of = folder_of
        self._own: dict[tuple[str, str], dict[str, dict]] = {}  # by path and evaluation

    def __call__(self, evaluation: Mapping, metric: str) -> tuple[str, np.ndarray] | None:
        """Returns the values whose mean is a metric.

        Args:
            evaluation: content of an `evaluation.json`.
            metric: the name of one of its metrics.

        Returns:
            (digest of the images and their processing, array [N]: bool for an accuracy on one set, else float64), or None if the metric
            is not a mean over images or its records are missing. The digest ends in `OTHER_ORDER` where the images are those of the
            clean set in another order.
        """
        settings = evaluation.get("card")
        if not settings or "model_digest" not in evaluation:
            return None
        name, order = parse_metric(metric).plain, ""
        own = self._records(evaluation)
        if name.entry.metric.per_image:
            values = _clean_values(own, name)
        elif name.family == "certified":
            values = _certified_values(own, name)
        elif name.family == "attack_curves":
            values = _minimum_norm_values(settings, own, name)
        else:
            weights = _weights(name, settings)
            values = _weighted_values(own, weights)
            order = OTHER_ORDER if values is not None and any(own[one].get("order") for one in weights) else ""
        if values is None:
            return None
        return record_key(card.dependencies(None, None, settings, str(name))) + order, values

    def _records(self, evaluation):
        """Returns {set: record} for the records of this evaluation."""
        path = os.path.join(self._folder_of(evaluation), "measured.jsonl")
        key = path, record_key([evaluation[part] for part in ("model_digest", "interface", "card")])
        if key not in self._own:
            self._own[key] = own_records(evaluation, read_records(path))
        return self._own[key]


def _clean_values(own, name):
    """The values of a metric of the clean images; None for records of older versions, which have no scores of each image."""
    record = next((record for one, record in own.items() if parse_metric(one).is_clean), None)
    if record is None or "brier_scores" not in record:
        return None
    if str(name) == "calibration/rms" and record["count"] < MIN_FOR_RMS:
        return None
    values = name.entry.metric.per_image
    if isinstance(values, str):
        return decoded(record[values], np.float32).astype(np.float64)
    return values(confidences(record), correctness(record))


def _certified_values(own, name):
    """The values of a metric of the certified radii."""
    if "certified" not in own:
        return None
    if name.name == "mean_radius":
        return smoothing.radii_of(own["certified"])
    norm, _, radius = name.name.partition("_")
    return smoothing.certified_correct(own["certified"], float(radius)) if norm == "l2" else None


def _minimum_norm_values(settings, own, name):
    """The values of an accuracy under the attacks that search for the smallest perturbation."""
    norm, radius = parse_threat(name.name)
    attacks = [attack for attack in settings["attack_curves"]["attacks"] if parse_curve(attack)[1] == norm]
    if any(f"distance/{attack}" not in own for attack in attacks):
        return None
    return adversarial.correct_at([own[f"distance/{attack}"] for attack in attacks], radius)


def _weighted_values(own, weights):
    """The weighted sum of the values of sets, {set: weight}; of one set of accuracies bool."""
    per_set = []
    for name in weights:
        record = own.get(name, {"kind": "missing"})
        if record["kind"] == "accuracy":
            per_set.append(correctness(record))
        elif record["kind"] == "flips":
            per_set.append(decoded(record["flips"], np.uint16) / (record["frames"] - 1))
        else:
            return None
    if len(per_set) == 1 and per_set[0].dtype == bool:
        return per_set[0]
    return sum(weight * values for weight, values in zip(weights.values(), per_set))


def own_records(evaluation: Mapping, records: Iterable[dict]) -> dict[str, dict]:
    """Returns {set: record} of the records that have the model, interface, data and settings of an evaluation, an `evaluation.json`."""
    return {record["set"]: record for record in records if record["depends"] == _key_in(evaluation, record["set"])}


def _key_in(evaluation, name):
    """The key of the record of a set."""
    return record_key(card.dependencies(evaluation["model_digest"], evaluation["interface"], evaluation["card"], name))


def images_of(evaluation: Mapping, folder: str, name: str) -> pandas.DataFrame | None:
    """Returns the results of each image of a set that was evaluated with `per_image`, or None if there are none of this evaluation.

    `folder` is that of its records.
    """
    return shards_module().read(per_image_folder(folder, name), _key_in(evaluation, name))


def _weights(name, settings):
    """Returns {set: weight} where the metric is the weighted sum of the sets' means; settings: the card of the evaluation."""
    if name.family in CORRUPTION_FAMILIES:
        means_over = settings.get("corruption_means", {}).get("means_over_severities", ALL_SEVERITIES)
        severities = means_over if name.severity is None else (name.severity,)
        means = metrics.MEANS
        if name.family == "corruptions_bar":
            means = {"mean": metrics.BAR.get(settings.get("corruptions_bar", {}).get("set"), ())}
        sets = [f"{name.family}/{member}/{severity}" for member in means.get(name.name, (name.name,)) for severity in severities]
        return dict.fromkeys(sets, 1 / len(sets))
    if name.family == "flips":
        sequences = settings.get("flips", {}).get("sequences")
        ten = metrics.CIFAR_PERTURBATIONS if sequences == "cifar_p" else metrics.PERTURBATIONS
        without_noise = [member for member in ten if "noise" not in member]
        means = {"mean": ten, "mfr": ten, "mean_without_noise": without_noise, "mfr_without_noise": without_noise}
        members = means.get(name.name, (name.name.removeprefix("rate/"),))
        return {
            f"flips/{member}": (metrics.flip_rate(1.0, member) / 100 if name.is_flip_rate else 1.0) / len(members) for member in members
        }
    return {str(name): 1.0}
