"""What a run will cost on other machines, from its graph and from images that are made here: nothing is trained.

A step takes as long as the slower of two: the products on the devices, and making the next batch's images on the CPU's
cores; then the gradients are summed over the devices. What this leaves out, and how well it tells this machine's times:
docs/scale.md.
"""

import dataclasses
import time

import numpy as np
import tensorflow as tf

from tf_robust import corruptions, data, evaluation
from tf_robust.experiments import dry_run, graphs
from tf_robust.utils.files import read_json
from tf_robust.utils.progress import duration

_SMALL = 32  # images a batch, of which so many are made that the time of one is sure
_BATCHES = 24
_NUMBER = {"type": "number", "exclusiveMinimum": 0}
_COUNT = {"type": "integer", "minimum": 1}
_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["devices", "flops", "utilization", "memory", "network", "cores"],
    "properties": {
        "devices": _COUNT,
        "cores": _COUNT,
        "flops": _NUMBER,
        "utilization": {**_NUMBER, "maximum": 1},
        "memory": _NUMBER,
        "network": _NUMBER,
        "core_speed": _NUMBER,
    },
}
_HEADINGS = ("row", "GFLOP/step", "a step", "waits for", "memory a device", "sent a step", "training", "measuring", "disk")


@dataclasses.dataclass(frozen=True)
class Hardware:
    """Devices that train together.

    Attributes:
        devices: how many. flops: of one, a second, at its peak. utilization: the share of the peak that training reaches, at most 1.
        memory: bytes of one device. network: bytes a second that one sends while gradients are summed, by the slowest link.
        cores: CPU cores of one machine, each of which makes all of a batch's images. core_speed: of one, where this machine's
            have 1.
    """

    devices: int
    flops: float
    utilization: float
    memory: float
    network: float
    cores: int
    core_speed: float = 1.0

    @classmethod
    def read(cls, path):
        """From a JSON file; ValueError, naming the field, if it holds anything else."""
        return cls(**read_json(path, _SCHEMA, "docs/scale.md says what it holds"))

    def seconds(self, flops, devices):
        """For products on so many devices."""
        return flops / (devices * self.flops * self.utilization)

    def making(self, core_seconds):
        """For what takes so many seconds of one of this machine's cores, on all cores."""
        return core_seconds / (self.cores * self.core_speed)


def needs(run):
    """What a run takes wherever it runs.

    Returns:
        {"row", "steps", "parameters": weights that are trained, "state": numbers that stay in memory, "flops", "kept": bytes, of a
        step, "making": seconds of one core for a step's images, "measured": images, "forward": flops for one of them,
        "corrupting": seconds of one core for one of them, "disk": bytes}; steps, flops, kept and making are 0 for what takes no steps
    """
    s, source = run.config, run.training_source()
    method = run.method(source)
    steps = 0 if method.closed_form else data.steps_per_epoch(source, s.batch_size) * s.epochs
    method.schedule(max(1, steps // s.epochs), steps)
    with method.distribute_strategy.scope():
        method.optimizer.build(method.trainable_variables)
    variables = [*method.variables, *method.optimizer.variables]
    found = {
        "row": run.row,
        "steps": steps,
        "flops": 0.0,
        "kept": 0.0,
        "making": 0.0,
        "state": dry_run.values(variables),
        "parameters": dry_run.values(method.trainable_variables),
        "disk": dry_run.disk(method),
    }
    if steps:
        spec = data.training_batches(source, s.batch_size, seed=run.seed, **run.pipeline()).element_spec
        graph = tf.function(method.train_step, autograph=False).get_concrete_function(spec).graph
        found.update(
            flops=dry_run.flops_of(method, graph, steps, s.batch_size),
            kept=graphs.kept_bytes(graph),
            making=s.batch_size * _seconds_of_making(run, source, min(_SMALL, s.batch_size)),
        )
    shape = source.image_shape
    forward = tf.function(lambda x: method.classifier(x, training=False)["logits"]).get_concrete_function(tf.TensorSpec([1, *shape]))
    frames, corrupted = dry_run.frames(run)
    return {
        **found,
        "measured": frames,
        "forward": graphs.flops(forward.graph),
        "corrupting": _seconds_of_corrupting(run, source) * corrupted / frames if corrupted else 0.0,
    }


def _seconds_of_making(run, source, size):
    """Of one core, for one image with all of its views; what is in flight at the ends is little among so many batches."""
    batches = iter(data.training_batches(source, size, seed=run.seed, **run.pipeline()))
    for _ in range(_BATCHES // 2):
        next(batches)
    return _processor_seconds(lambda: next(batches), _BATCHES) / size


def _seconds_of_corrupting(run, source):
    """Of one core, for one image: the mean over all corruptions at severity 3."""
    images = tf.constant(evaluation.first_images(source, 4)[0])
    options = {"constants": run.eval_config.constants(source.image_shape), "protocol": run.eval_config.protocol(source.image_shape)}
    times = []
    for name in corruptions.CORRUPTIONS:
        corrupt = tf.function(lambda x, name=name: corruptions.corrupt(x, name, 3, 0, np.arange(len(images)), **options), autograph=False)
        corrupt(images)
        times.append(_processor_seconds(lambda corrupt=corrupt: corrupt(images), 3) / len(images))
    return float(np.mean(times))


def _processor_seconds(call, count):
    """Of one call, the mean over so many."""
    began = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - began) / count


def predicted(need, hardware):
    """{"step", "training", "measuring": seconds, "bound": what a step waits for, "memory": bytes of a device, "fits": whether it has
    them, "sent": bytes a step and device, "disk": bytes}; need: as `needs` gives. EvalConfig takes one device of one machine."""
    computing, making = hardware.seconds(need["flops"], hardware.devices), hardware.making(need["making"])
    sent = 2 * (hardware.devices - 1) / hardware.devices * 4 * need["parameters"]
    summing = sent / hardware.network
    step = max(computing, making) + summing
    memory = 4 * (need["state"] + need["parameters"]) + dry_run.ALLOCATED * need["kept"] / hardware.devices
    parts = {"products": computing, "images": making, "network": summing}
    return {
        "step": step,
        "training": step * need["steps"],
        "bound": max(parts, key=parts.get),
        "sent": sent,
        "memory": memory,
        "fits": memory <= hardware.memory,
        "disk": need["disk"],
        "measuring": need["measured"] * max(hardware.seconds(need["forward"], 1), hardware.making(need["corrupting"])),
    }


def to_text(found, hardware, seeds):
    """A line a row, and what all of it takes. found: a (need, prediction) a row. seeds: runs of each row."""
    lines = [_HEADINGS]
    for need, cost in found:
        memory = f"{cost['memory'] / 2**30:.2f} GiB" + ("" if cost["fits"] else ", TOO MUCH")
        of_a_step = (
            f"{need['flops'] / 1e9:.3g}",
            f"{1000 * cost['step']:.3g} ms",
            cost["bound"],
            memory,
            f"{cost['sent'] / 2**20:.3g} MiB",
            duration(cost["training"]),
        )
        lines.append(
            (
                need["row"],
                *(of_a_step if need["steps"] else "–" * len(of_a_step)),
                duration(cost["measuring"]),
                f"{cost['disk'] / 2**20:.0f} MiB",
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines)]
    text = "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)
    total = seeds * sum(cost["training"] * (need["steps"] > 0) + cost["measuring"] for need, cost in found)
    disk = seeds * sum(cost["disk"] for _, cost in found)
    return (
        f"{text}\n\nIn all {len(found) * seeds} runs on {hardware.devices} devices, one after the other: {duration(total)}, "
        f"{disk / 2**30:.2f} GiB. A model, not a measurement (docs/scale.md): without validation, attacks, reading from disk, and what "
        "is trained in one go (–)."
    )
