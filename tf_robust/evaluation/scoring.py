"""What a model says about a set, as a record: one dictionary for JSON, from which all measures of the set are made.

Records are written as they come, so that a measurement that was interrupted goes on where it stopped.
"""

import contextlib
import json
import os
import time
import zlib

import numpy as np
import tensorflow as tf

from tf_robust import metrics
from tf_robust.data.source import digest
from tf_robust.evaluation import boundary, set_locks, utility
from tf_robust.evaluation.measure import parse_measure
from tf_robust.models.outputs import checked_logits
from tf_robust.ops import image_ops
from tf_robust.utils import progress
from tf_robust.utils.arrays import decoded, encoded

_PATIENCE = 1.0  # seconds between two looks at what other processes have measured


def records(predict, sets, path=None, depends=None, log=print):
    """The record of every set, in order; what an earlier, equal measurement left in `path` is not done again.

    Several processes that are given the same path share the work: each takes a set that nobody has taken, until all are there.

    Args:
        predict: float32 [N, H, W, C] in [0, 1] -> logits [N, C].
        sets: list of `EvaluationSet`.
        path: file to append records to, a line each; None: none.
        depends: set's name -> what its record depends on, for JSON; records with other dependencies are not used.
        log: called with a line of progress after each set.

    Raises:
        ValueError: images that are not finite or not in [0, 1], logits of the wrong shape or not finite, labels that
            the logits have no column for, an empty set.
    """
    keys = {one.name: record_key(depends(one.name) if depends else None) for one in sets}
    locks = set_locks.SetLocks(f"{path}.locks") if path else None
    found, waited, began, done = {}, False, time.monotonic(), 0

    def read_again():
        found.update({record["set"]: record for record in read_records(path) if record["depends"] == keys.get(record["set"])})

    read_again()
    while len(found) < len(sets):
        for one in (one for one in sets if one.name not in found):
            with locks.try_lock(f"{one.name} {keys[one.name]}") if locks else contextlib.nullcontext(True) as ours:
                read_again()
                if not ours or one.name in found:  # another process is at it, or was quicker
                    continue
                found[one.name] = {"set": one.name, "depends": keys[one.name], **one.measure(predict, one)}
                _append(path, locks, found[one.name])
            done += 1
            remaining = (time.monotonic() - began) / done * (len(sets) - len(found)) / 60
            log(f"  {_summary(found[one.name])}  {len(found)}/{len(sets)}" + (f", {remaining:.0f} min left" if remaining > 0.5 else ""))
        if len(found) < len(sets):
            if not waited:
                log(f"  Waiting for another process, which measures {len(sets) - len(found)} of {len(sets)}.")
            waited = True
            time.sleep(_PATIENCE)
            read_again()
    if locks:
        locks.clear()
    return [found[one.name] for one in sets]


def record_key(dependencies):
    """The digest, in a record's field `depends`, of what the record depends on: anything JSON takes."""
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
    elif kind == "boundary":
        text = f"length {record['length']:.3f}"
    elif kind == "utility":
        text = (", ".join(f"{name} {value:.3f}" for name, value in utility.ratios(record).items()) or "none") + count
    else:
        text = f"{record['correct'] / record['count']:.4f}{count}"
    return f"{record['set']:32s} {text}"


def scores(predict, one):
    """The record of a labelled set."""
    logits, labels = [], []
    for images, truth in progress.batches(one.open(), one.name):
        logits.append(checked_logits(predict(image_ops.check_images(images)), truth, repr(one.name)))
        labels.append(truth.numpy())
    if not labels:
        raise ValueError(f"Expected images to evaluate {one.name!r} on. Received none")
    return score(np.concatenate(logits), np.concatenate(labels), keep=parse_measure(one.name).is_clean)


def score(logits, labels, keep=False):
    """Measures of logits [N, C] against labels [N], as a dictionary for JSON; `keep`: with every confidence and, where
    classes are not equally many, the mean of the classes' accuracies."""
    correct = logits.argmax(axis=1) == labels
    probabilities = tf.nn.softmax(logits.astype(np.float64)).numpy()
    confidences = probabilities.max(axis=1)
    return {
        "kind": "accuracy",
        "count": len(labels),
        "correct": int(correct.sum()),
        "rms_calibration_error": metrics.rms_calibration_error(confidences, correct),
        "expected_calibration_error": metrics.expected_calibration_error(confidences, correct),
        "brier_score": metrics.brier_score(probabilities, labels),
        "negative_log_likelihood": metrics.negative_log_likelihood(np.maximum(logits, -1e30), labels),
        "aurra": metrics.aurra(confidences, correct),
        **({**_per_class(correct, labels), "confidences": encoded(confidences.astype(np.float32))} if keep else {}),
        "which": encoded(np.packbits(correct)),
    }


def _per_class(correct, labels):
    """The mean of the classes' accuracies; nothing where all classes are equally many."""
    counts, hits = (np.bincount(labels, weights=weights) for weights in (None, correct))
    there = counts > 0
    return {"per_class": float(np.mean(hits[there] / counts[there]))} if np.ptp(counts[there]) else {}


def correctness(record):
    """bool [N]: which images of the set were classified correctly."""
    return np.unpackbits(decoded(record["which"], np.uint8), count=record["count"]).astype(bool)


def confidences(record):
    """float32 [N]: the largest softmax probability of each image of the clean set."""
    return decoded(record["confidences"], np.float32)


def read_records(path):
    """The records in a file; a line that was cut short or changed, by whatever, does not count."""
    if not path or not os.path.exists(path):
        return []
    found = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            with contextlib.suppress(ValueError, RecursionError):
                record = json.loads(line) if line.endswith("}\n") else None
                if isinstance(record, dict) and record.pop("crc32", None) == _crc32(record):
                    found.append({"kind": _kind_of(record), **record})
    return found


def _kind_of(record):
    """The kind of a record of an earlier version, which had no field `kind`."""
    fields = {"flip_probability": "flips", "failed": "checks", "distances": "distances", "length": "boundary", "corner": "utility"}
    return next((kind for field, kind in fields.items() if field in record), "accuracy")


def _crc32(record):
    return zlib.crc32(json.dumps(record).encode())


def flips(predict, one):
    """The record of a set of sequences [B, frames, H, W, C]."""
    predictions = []
    for frames, truth in progress.batches(one.open(), one.name):
        frames = frames.numpy()
        count, length = frames.shape[:2]
        flat = image_ops.check_images(frames.reshape(-1, *frames.shape[2:]))
        logits = checked_logits(predict(flat), np.repeat(truth, length), repr(one.name))
        predictions.append(logits.argmax(axis=1).reshape(count, length))
    if not predictions:
        raise ValueError(f"Expected images to evaluate {one.name!r} on. Received none")
    predictions = np.concatenate(predictions)
    noise = "noise" in one.name
    each = [metrics.flip_probability(sequence[None], noise) * (len(sequence) - 1) for sequence in predictions]
    return {
        "kind": "flips",
        "count": len(predictions),
        "frames": predictions.shape[1],
        "flip_probability": metrics.flip_probability(predictions, noise),
        "flips": encoded(np.round(each).astype(np.uint16)),
    }


def drawn_boundary(predict, one):
    """The record of a decision boundary, from the logits on a grid of points."""
    return boundary.measure(np.concatenate([checked_logits(predict(points), zeros, repr(one.name)) for points, zeros in one.open()]))


def masked(predict, columns):
    """The same model, told that only some of its classes occur: the other logits become -infinity."""

    def among(images):
        logits = tf.convert_to_tensor(predict(images))
        counts = tf.reduce_any(tf.range(logits.shape[1])[:, None] == tf.constant(columns)[None], axis=1)
        return tf.where(counts[None], logits, -np.inf)

    return among if columns else predict


def _append(path, locks, record):
    if not path:
        return
    with locks.writing(), open(path, "a", encoding="utf-8") as file:
        file.write("\n" * (file.tell() > 0) + json.dumps({**record, "crc32": _crc32(record)}) + "\n")  # anew after a line cut short
        file.flush()
        os.fsync(file.fileno())
