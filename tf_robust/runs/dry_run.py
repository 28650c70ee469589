"""Estimates the cost of a run before it is started: its size, and the time of a few steps on this machine.

Large steps are measured on fewer images, and their times are scaled.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from tf_robust import data, evaluation
from tf_robust.methods.base import Method
from tf_robust.runs import graphs
from tf_robust.runs.run import Run
from tf_robust.training import distribution, loop
from tf_robust.utils.progress import duration

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

TIMES, STEPS = 3, 2  # the median of TIMES measurements of STEPS steps
SECONDS = 20.0  # limit of measured steps, without building the graph, before and after a late term starts
_LARGE = 5e10  # operations of a step above which it is first tried on fewer images,
_SMALL = 2e10  # with about this many operations
_FEW = 8  # minimum number of images of such a step
ALLOCATED = 1.5  # memory of a step divided by what its graph keeps (docs/scale.md)
_FRAMES = 31  # length of most perturbation sequences
_HEADINGS = ("row", "parameters", "GFLOP/step", "images/s", "memory", "training", "measuring", "disk")


def estimate(run: Run, report: Callable[[str], object] = lambda text: None) -> dict:
    """Trains a few steps of a run and returns its expected cost. Writes no files.

    Args:
        run: the run.
        report: called with a message before each part.

    Returns:
        {"row", "parameters": number of trained weights, "flops": of the convolutions and matrix products of a step, "images": trained
        per second, "memory": peak of this process in bytes or None if unknown, "training": seconds or None for methods without steps,
        "measuring": seconds of the forward passes, without corruptions and attacks, "disk": bytes}.
    """
    report("building the model")
    s, source = run.config.train, run.training_source()
    method, extra = run.method(source), 0
    measured = {"row": run.row, "parameters": count_values(method.trainable_variables), "flops": None, "images": None, "training": None}
    _reset_peak()
    if not method.closed_form:
        steps = data.steps_per_epoch(source, s.batch_size)
        method.schedule(steps, steps * s.epochs)
        with method.distribute_strategy.scope():
            method.optimizer.build(method.trainable_variables)
        total = steps * s.epochs

        def batches_from(step, size):
            return data.training_batches(source, size, seed=run.seed, step=step, **run.pipeline())

        report("building the graph of a step")
        graph = tf.function(method.train_step, autograph=False).get_concrete_function(batches_from(0, s.batch_size).element_spec).graph
        flops = flops_of(method, graph, total, s.batch_size)
        size = s.batch_size
        if flops > _LARGE:
            report("trying a step on fewer images")
            size = _measured_size(method, flops, s.batch_size, batches_from)
            extra = int(ALLOCATED * graphs.kept_bytes(graph) * (1 - size / s.batch_size))
        report(f"measuring steps of {size} images" + (f", a part of the batch of {s.batch_size}" if size < s.batch_size else ""))
        seconds = _training_seconds(method, total, size, lambda step: batches_from(step, size)) * s.batch_size / size
        measured.update(flops=flops, images=s.batch_size * total / seconds, training=seconds)
    report("measuring the forward pass")
    peak = _peak()
    return {
        **measured,
        "memory": peak and peak + extra,
        "measuring": _evaluation_seconds(run, method.classifier),
        "disk": disk_bytes(method),
    }


def _measured_size(method, flops, batch_size, batches_from):
    """Images of the measured steps: the batch size, or fewer if `TIMES * STEPS` full steps would take more than `SECONDS`."""
    replicas = method.distribute_strategy.num_replicas_in_sync
    sizes = [size for size in range(replicas, batch_size, replicas) if batch_size % size == 0 and size >= _FEW and _fits(method, size)]
    if not sizes:
        return batch_size
    size = max((size for size in sizes if flops * size / batch_size <= _SMALL), default=sizes[0])
    run_steps = loop.steps_function(method)
    iterator = iter(distribution.distribute(method.distribute_strategy, batches_from(0, size), size))
    loop.checked_run(run_steps, iterator, 1, method)  # builds the graph
    began = time.monotonic()
    loop.checked_run(run_steps, iterator, 1, method)
    return batch_size if (time.monotonic() - began) * batch_size / size * TIMES * STEPS <= SECONDS else size


def _fits(method, size):
    try:
        method.check_batch(size)
    except ValueError:
        return False
    return True


def flops_of(method: Method, graph: tf.Graph, steps: int, batch: int) -> float:
    """Returns the mean number of operations per step over a training run; a term that starts late is in the later steps only.

    Args:
        method: with its schedule set.
        graph: of a training step.
        steps: number of steps of the training run.
        batch: batch size.
    """
    late = min(1.0, getattr(method, "start", 0) / max(1, steps))
    with_all, without = (graphs.flops(graph, of_branches, method.loop_iterations, batch) for of_branches in (max, min))
    return (1.0 - late) * with_all + late * without


def disk_bytes(method: Method) -> int:
    """Returns the bytes that a run writes: two checkpoints, an export and its weights."""
    return 2 * 4 * count_values([*method.variables, *method.optimizer.variables]) + 2 * 4 * count_values(method.classifier.variables)


def count_values(variables: Iterable[keras.Variable]) -> int:
    """Returns the total number of values of variables."""
    return int(sum(np.prod(v.shape) for v in variables))


def _training_seconds(method, total, batch_size, batches_from):
    """Returns the seconds of `total` steps, from a few before and a few after a late term starts. batches_from: step -> batches."""
    run_steps, seconds, late = loop.steps_function(method), 0.0, min(total, getattr(method, "start", 0))
    for first, count in ((0, late), (late, total - late)):
        if count:
            times: list[float] = []
            iterator = iter(distribution.distribute(method.distribute_strategy, batches_from(first), batch_size))
            loop.checked_run(run_steps, iterator, 1, method)  # builds the graph
            start = time.monotonic()
            while len(times) < TIMES and (not times or time.monotonic() - start < SECONDS):
                began = time.monotonic()
                loop.checked_run(run_steps, iterator, STEPS, method)
                times.append((time.monotonic() - began) / STEPS)
            seconds += count * statistics.median(times)
    return seconds


def count_frames(run: Run) -> tuple[int, int]:
    """Returns the number of images that the evaluation of a run passes through the model, without attacks, and how many are corrupted."""
    evaluated = run.data()
    source = evaluated.evaluation_source()
    shifts = evaluated.shifts(source)
    sets = evaluation.evaluation_sets(source, evaluated.noise_source(), run.config.evaluation, run.config.data.data_dir or None)
    families = [evaluation.parse_measure(one.name).family for one in sets]
    counts = [
        (family, len(source) * (_FRAMES if family == "flips" else 1))
        for family in families
        if family not in ("robust", "fgsm", "checks", "distance")
    ]
    counts += [("shift", len(shift.source)) for shift in shifts]
    counts += [("confidence", len(one)) for one in _further_sources(evaluated, source)]
    corrupted = (*evaluation.CORRUPTION_FAMILIES, "flips")
    return sum(count for _, count in counts), sum(count for family, count in counts if family in corrupted)


def _further_sources(evaluated, source):
    """The images that confidences are fitted on, and those of an open set: known ones, of the own classes, and of other classes."""
    others = list(evaluated.other_sources(source).values())
    known = [evaluated.known_source(), source] if others else []
    return [one for one in (evaluated.validation_source(), *known, *others) if one is not None]


def _evaluation_seconds(run, classifier):
    source = run.data().evaluation_source()
    images = tf.constant(evaluation.first_images(source, min(100, evaluation.batch_size_of(source.image_shape)))[0])
    predict = tf.function(lambda x: classifier(x, training=False)["logits"]).get_concrete_function(images)
    predict(images)
    began = time.monotonic()
    predict(images)
    return (time.monotonic() - began) / len(images) * count_frames(run)[0]


def _reset_peak():
    try:
        with open("/proc/self/clear_refs", "w", encoding="utf-8") as file:
            file.write("5")
    except OSError:
        pass  # then the peak is that of the process so far


def _peak():
    """Returns the peak memory in bytes; None if the system does not report it."""
    return resource and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def to_text(estimates: Sequence[Mapping], seeds: int) -> str:
    """Returns a table of one line per row, and the total.

    Args:
        estimates: as `estimate` returns them.
        seeds: number of runs of each row.
    """

    def number(value, spec):
        return "–" if value is None else format(value, spec)

    lines = [_HEADINGS]
    for e in estimates:
        memory, disk = ("–" if e[name] is None else f"{e[name] / 2**20:.0f} MiB" for name in ("memory", "disk"))
        gigaflops = e["flops"] and e["flops"] / 1e9
        lines.append(
            (
                e["row"],
                f"{e['parameters']:,}",
                number(gigaflops, ".3g"),
                number(e["images"], ".0f"),
                memory,
                "–" if e["training"] is None else duration(e["training"]),
                duration(e["measuring"]),
                disk,
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines)]
    total = seeds * sum((e["training"] or 0) + e["measuring"] for e in estimates)
    disk, runs = seeds * sum(e["disk"] for e in estimates), len(estimates) * seeds
    text = "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)
    return (
        f"{text}\n\nTotal of {runs} run{'s' * (runs > 1)}: {duration(total)}, {disk / 2**30:.2f} GiB. Measured on this machine, "
        f"on at most {TIMES * STEPS} steps of each row; without validation, corruptions and attacks."
    )
