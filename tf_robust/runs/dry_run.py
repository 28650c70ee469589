"""Estimates the cost of runs before they are started (`--dry_run`), from the time of a few steps on this machine.

Steps that take long are timed on fewer images, and their times are scaled.
"""

import contextlib
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from tf_robust import data, evaluation
from tf_robust.methods.base import Method
from tf_robust.runs.run import Run
from tf_robust.training import distribution, divergence, loop
from tf_robust.utils.errors import message_of
from tf_robust.utils.progress import duration, print_line

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

TIMES = 5  # timed steps, whose median counts
SECONDS = 20.0  # limit of the timed steps, without building the graph, before and after a late term starts
_PASSES = 3  # forward passes that take as long as a step at least, of one view: the backward pass takes twice as long
_FEW = 8  # minimum number of images of a step
_FRAMES = 31  # length of most perturbation sequences


def cost_table(runs: Sequence[Run]) -> str:
    """Returns a table with the cost of runs, all rows with all seeds, on this machine; prints lines of progress.

    Writes no files. Raises ValueError if all rows diverge.
    """
    rows = {run.row: run for run in reversed(runs)}
    estimates = []
    for run in reversed(rows.values()):
        run.init_path = ""  # does not change the cost
        run.config = dataclasses.replace(run.config, train=dataclasses.replace(run.config.train, init_from_row=""))
        try:
            estimates.append(estimate(run, print_line))
        except loop.TrainingDiverged as error:
            print_line(f"  FAILED: {message_of(error)}")
        keras.backend.clear_session()
    if not estimates:
        raise ValueError("Expected a row whose first steps are finite. All rows failed")
    return to_text(estimates, len(runs) // len(rows))


def estimate(run: Run, log: Callable[[str], object] = lambda text: None) -> dict:
    """Trains a few steps of a run and returns its expected cost; writes no files.

    Returns:
        {"row", "parameters": number of trained weights, "images": trained per second, "timed": images of a timed step, "batch_size",
        "memory": peak of this process in bytes or None if unknown, "training": seconds, "evaluation": seconds of the forward passes,
        without corruptions and attacks, "disk": bytes}. images, timed and training are None for methods without steps.
    """
    log(f"  {run.row}: building the model ...")
    s, source = run.config.train, run.training_source()
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="utf-8") as file:
        file.write("5")  # resets the peak of memory; otherwise it is that of the process so far
    method = run.method(source)
    log(f"  {run.row}: timing the forward pass ...")
    forward = _forward_seconds(run, method.classifier)
    images = size = training = None
    if not method.closed_form:
        total = s.epochs * (steps := data.steps_per_epoch(source, s.batch_size))
        method.schedule(steps, total)
        with method.distribute_strategy.scope():
            method.optimizer.build(method.trainable_variables)
        size = _timed_size(method, s.batch_size, forward)
        part = f", a part of the batch of {s.batch_size}" if size < s.batch_size else ""
        log(f"  {run.row}: timing steps of {size} images{part} ...")

        def batches_from(step):
            return data.training_batches(source, size, seed=run.seed, step=step, **run.pipeline())

        training = _training_seconds(method, total, size, batches_from) * s.batch_size / size
        images = s.batch_size * total / training
    return {
        **{"row": run.row, "parameters": count_values(method.trainable_variables), "images": images, "timed": size},
        **{"batch_size": s.batch_size, "memory": _peak(), "training": training, "disk": disk_bytes(method)},
        "evaluation": forward * sum(count for _, count in image_counts(run)),
    }


def _forward_seconds(run, classifier):
    source = run.data().evaluation_source()
    images = tf.constant(evaluation.first_images(source, min(100, evaluation.batch_size_of(source.image_shape)))[0])
    predict = tf.function(lambda x: classifier(x, training=False)["logits"])
    return _median_seconds(lambda: predict(images)) / len(images)


def _timed_size(method, batch_size, forward):
    """Returns the number of images of a timed step: the largest part of the batch of which `TIMES` steps may fit in `SECONDS`."""
    replicas = method.distribute_strategy.num_replicas_in_sync
    sizes, seconds = [], TIMES * _PASSES * method.loop_iterations * forward  # of an image
    for size in (size for size in range(replicas, batch_size, replicas) if batch_size % size == 0 and size >= _FEW):
        with contextlib.suppress(ValueError):
            method.check_batch(size)
            sizes.append(size)
    sizes.append(batch_size)
    return max((size for size in sizes if seconds * size <= SECONDS), default=sizes[0])


def _training_seconds(method, total, batch_size, batches_from):
    """Returns the seconds of `total` steps, from a few before and a few after a late term starts. batches_from: step -> batches."""
    run_steps, late = loop.steps_function(method), min(total, getattr(method, "start", 0))
    seconds = 0.0
    for first, count in ((0, late), (late, total - late)):
        if count:
            iterator = iter(distribution.distribute(method.distribute_strategy, batches_from(first), batch_size))
            with divergence.named(method):
                seconds += count * _median_seconds(lambda iterator=iterator: run_steps(iterator, tf.constant(1)))
    return seconds


def _median_seconds(call):
    """Returns the median time of `TIMES` calls, or of those that begin within `SECONDS`, after one that builds the graph."""
    call()
    times, start = list[float](), time.monotonic()
    while len(times) < TIMES and (not times or time.monotonic() - start < SECONDS):
        began = time.monotonic()
        call()
        times.append(time.monotonic() - began)
    return statistics.median(times)


def disk_bytes(method: Method) -> int:
    """Returns the bytes that a run writes: two checkpoints, an export and its weights."""
    return 2 * 4 * count_values([*method.variables, *method.optimizer.variables]) + 2 * 4 * count_values(method.classifier.variables)


def count_values(variables: Iterable[keras.Variable]) -> int:
    """Returns the total number of values of variables."""
    return int(sum(np.prod(v.shape) for v in variables))


def image_counts(run: Run) -> list[tuple[str, int]]:
    """Returns (family, number of images) of everything that the evaluation of a run passes through the model, without attacks."""
    evaluated = run.data()
    source = evaluated.evaluation_source()
    sets = evaluation.evaluation_sets(source, evaluated.noise_source(), run.config.evaluation, run.config.data.data_dir or None)
    families = [evaluation.parse_metric(one.name).family for one in sets]
    skipped = ("robust", "fgsm", "checks", "distance")
    counts = [(family, len(source) * (_FRAMES if family == "flips" else 1)) for family in families if family not in skipped]
    counts += [("shift", len(shift.source)) for shift in evaluated.shifts(source)]
    others = list(evaluated.other_sources(source).values())  # of an open set; its known images are of the own classes
    further = [evaluated.validation_source(), *([evaluated.known_source(), source] if others else []), *others]
    return counts + [("confidence", len(one)) for one in further if one is not None]


def _peak():
    return resource and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _mebibytes(value):
    return f"{value / 2**20:.0f} MiB"


_COLUMNS: dict[str, tuple[str, Callable]] = {  # heading: field of an estimate, its text
    "row": ("row", str),
    "parameters": ("parameters", "{:,}".format),
    "images/s": ("images", "{:.0f}".format),
    "memory": ("memory", _mebibytes),
    "training": ("training", duration),
    "evaluation": ("evaluation", duration),
    "disk": ("disk", _mebibytes),
}


def to_text(estimates: Sequence[Mapping], seeds: int) -> str:
    """Returns a table of one line per row, as `estimate` returns them, and the total of that many seeds."""
    lines, parts = [[*_COLUMNS]], [e for e in estimates if e["timed"] and e["timed"] < e["batch_size"]]
    for e in estimates:
        lines.append(["–" if e[name] is None else text(e[name]) for name, text in _COLUMNS.values()])
        if e in parts and e["memory"]:
            lines[-1][3] = f"over {lines[-1][3]}"
    widths = [max(map(len, column)) for column in zip(*lines)]
    table = "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)
    total = seeds * sum((e["training"] or 0) + e["evaluation"] for e in estimates)
    disk, runs = seeds * sum(e["disk"] for e in estimates), len(estimates) * seeds
    named = ", ".join(f"{e['row']} {e['timed']} of {e['batch_size']}" for e in parts)
    return (
        f"{table}\n\nTotal of {runs} run{'s' * (runs > 1)}: {duration(total)}, {disk / 2**30:.2f} GiB. Measured on this machine, "
        f"on at most {TIMES} steps of each row; without validation, corruptions and attacks."
        + (f" On a part of the batch, which needs less memory, and scaled: {named}." if parts else "")
    )
