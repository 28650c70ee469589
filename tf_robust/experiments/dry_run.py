"""What a run will cost, before hours are spent: its size, and a few of its steps measured on this machine.

Where a step is so large that a few of them would take long, steps on fewer images are measured, and their times scaled.
"""

import statistics
import sys
import time

import numpy as np
import tensorflow as tf

from tf_robust import data, evaluation
from tf_robust.experiments import graphs
from tf_robust.training import distribution, loop
from tf_robust.utils.progress import duration

try:
    import resource
except ImportError:  # Windows
    resource = None

TIMES, STEPS = 3, 2  # measured steps: the median of so many times so many
SECONDS = 20.0  # that measuring steps may take, without building their graph, before and after a late term begins
_LARGE = 5e10  # multiplications and additions of a step from which on it is first tried on fewer images,
_SMALL = 2e10  # as many as take this
_FEW = 8  # images in such a step at least
ALLOCATED = 1.5  # bytes that a step takes, over what its graph keeps (docs/scale.md)
_FRAMES = 31  # of most perturbation sequences
_HEADINGS = ("row", "parameters", "GFLOP/step", "images/s", "memory", "training", "measuring", "disk")


def estimate(run, report=lambda text: None):
    """Trains a few steps of a run, and leaves nothing behind.

    Args:
        report: a function that is called with a few words on what is done, before it is done.

    Returns:
        {"row", "parameters": weights that are trained, "flops": of a step's convolutions and matrix products, "images": trained on
        a second, "memory": bytes of this process at most (None: the system does not say), "training", "measuring": seconds, "disk":
        bytes}. "training" is None for methods that take no steps. "measuring" is what the forward passes take: without making
        corrupted images, without attacks.
    """
    report("building the model")
    s, source = run.config, run.training_source()
    method, extra = run.method(source), 0
    measured = {"row": run.row, "parameters": values(method.trainable_variables), "flops": None, "images": None, "training": None}
    _forget_peak()
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
    return {**measured, "memory": peak and peak + extra, "measuring": _seconds_of_measuring(run, method.classifier), "disk": disk(method)}


def _measured_size(method, flops, batch_size, batches_from):
    """How many images the measured steps have: the batch, or fewer where `TIMES * STEPS` steps of it would take more than `SECONDS`."""
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


def flops_of(method, graph, steps, batch):
    """Of a step's graph, on average over a training: a term that begins late is in the later steps alone."""
    late = min(1.0, getattr(method, "start", 0) / max(1, steps))
    with_all, without = (graphs.flops(graph, of_branches, method.loop_iterations, batch) for of_branches in (max, min))
    return (1.0 - late) * with_all + late * without


def disk(method):
    """Bytes that a run leaves: two checkpoints, an export and its weights."""
    return 2 * 4 * values([*method.variables, *method.optimizer.variables]) + 2 * 4 * values(method.classifier.variables)


def values(variables):
    """How many numbers they hold."""
    return int(sum(np.prod(v.shape) for v in variables))


def _training_seconds(method, total, batch_size, batches_from):
    """What `total` steps take, by a few of those before a late term begins and a few of those after. batches_from: step -> batches."""
    run_steps, seconds, late = loop.steps_function(method), 0.0, min(total, getattr(method, "start", 0))
    for first, count in ((0, late), (late, total - late)):
        if count:
            iterator, times = iter(distribution.distribute(method.distribute_strategy, batches_from(first), batch_size)), []
            loop.checked_run(run_steps, iterator, 1, method)  # builds the graph
            start = time.monotonic()
            while len(times) < TIMES and (not times or time.monotonic() - start < SECONDS):
                began = time.monotonic()
                loop.checked_run(run_steps, iterator, STEPS, method)
                times.append((time.monotonic() - began) / STEPS)
            seconds += count * statistics.median(times)
    return seconds


def frames(run):
    """How many images a run's measurement passes through the model, without attacks, and how many of them are corrupted for it."""
    source = run.measured_source()
    training_source = run.source("train") if run.eval_config.needs_training_set else None
    sets = evaluation.evaluation_sets(source, training_source, run.eval_config, run.config.data_dir or None)
    families = [evaluation.parse_measure(one.name).family for one in sets]
    counts = [
        (family, len(source) * (_FRAMES if family == "flips" else 1))
        for family in families
        if family not in ("robust", "fgsm", "checks", "distance")
    ]
    return sum(count for _, count in counts), sum(count for family, count in counts if family in ("corruptions", "flips"))


def _seconds_of_measuring(run, classifier):
    source = run.measured_source()
    images = tf.constant(evaluation.first_images(source, min(100, evaluation.sets.batch_of(source.image_shape)))[0])
    predict = tf.function(lambda x: classifier(x, training=False)["logits"]).get_concrete_function(images)
    predict(images)
    began = time.monotonic()
    predict(images)
    return (time.monotonic() - began) / len(images) * frames(run)[0]


def _forget_peak():
    try:
        with open("/proc/self/clear_refs", "w", encoding="utf-8") as file:
            file.write("5")
    except OSError:
        pass  # then the peak is of all that this process did


def _peak():
    """Bytes; None where the system does not say."""
    return resource and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def to_text(estimates, seeds):
    """A line a row, and what all of it takes. seeds: runs of each row."""

    def number(value, form):
        return "–" if value is None else format(value, form)

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
    disk = seeds * sum(e["disk"] for e in estimates)
    text = "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)
    return (
        f"{text}\n\nIn all {len(estimates) * seeds} runs: {duration(total)}, {disk / 2**30:.2f} GiB. Measured here, on at most "
        f"{TIMES * STEPS} steps of each row; without validation, making corrupted images and attacks."
    )
