"""Predicts the cost of a run on other machines from its graph and the time of its input pipeline. Nothing is trained.

    python benchmarks/hardware.py docs/hardware.json --flagfile=flags/fcl/small/fcl.flags --data_dir=DIR

The time of a step is the larger of the computation on the devices and the input pipeline on the CPU cores, plus the summation of
the gradients over the devices. docs/reference/scale.md has the limits and the accuracy of this model.
"""

import dataclasses
import pathlib
import sys
import time
import typing
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks import graphs
from tf_robust import corruptions, data, evaluation, metrics
from tf_robust.cli.build import build_runs
from tf_robust.cli.command_line import read_command
from tf_robust.methods.base import Method
from tf_robust.runs import dry_run
from tf_robust.runs.run import Run
from tf_robust.utils.files import read_json
from tf_robust.utils.progress import duration

ALLOCATED = 1.5  # memory of a step divided by what its graph keeps (docs/reference/scale.md)
_SMALL = 32  # images per batch for timing the input pipeline
_BATCHES = 24  # timed batches
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
_HEADINGS = ("row", "GFLOP/step", "step", "limited by", "memory/device", "sent/step", "training", "evaluation", "disk")


@dataclasses.dataclass(frozen=True)
class Hardware:
    """Devices that train together.

    Attributes:
        devices: number of devices.
        flops: peak operations per second of a device.
        utilization: fraction of the peak that training reaches, at most 1.
        memory: bytes of a device.
        network: bytes per second that a device sends while gradients are summed, on the slowest link.
        cores: CPU cores that make the images of all devices.
        core_speed: of a core, relative to this machine.
    """

    devices: int
    flops: float
    utilization: float
    memory: float
    network: float
    cores: int
    core_speed: float = 1.0

    @classmethod
    def read(cls, path: str) -> typing.Self:
        """Returns the hardware that a JSON file describes.

        Raises:
            ValueError: an unknown or missing field, or an invalid value.
        """
        return cls(**read_json(path, _SCHEMA, "docs/reference/scale.md describes the fields"))

    def compute_seconds(self, flops: float, devices: int) -> float:
        """Returns the time of `flops` operations on several devices."""
        return flops / (devices * self.flops * self.utilization)

    def input_seconds(self, core_seconds: float) -> float:
        """Returns the time on all cores for work of `core_seconds` on one core of this machine."""
        return core_seconds / (self.cores * self.core_speed)


def resource_needs(run: Run) -> dict:
    """Returns the resources that a run needs on any hardware.

    Args:
        run: the run.

    Returns:
        {"row", "steps": number of training steps, "parameters": number of trained weights, "state": number of values in memory,
        "flops": operations of a step, "kept": bytes of features of a step, "making": core seconds of the images of a step, "measured":
        number of evaluated images, "forward": operations for one of them, "corrupting": core seconds for one of them, "disk": bytes}.
        steps, flops, kept and making are 0 for methods without steps.
    """
    s, source = run.config.train, run.training_source()
    method = run.method(source)
    steps = 0 if method.closed_form else data.steps_per_epoch(source, s.batch_size) * s.epochs
    method.schedule(max(1, steps // s.epochs), steps)
    with method.distribute_strategy.scope():
        method.optimizer.build(method.trainable_variables)
    variables = [*method.variables, *method.optimizer.variables]
    needs = {
        "row": run.row,
        "steps": steps,
        "flops": 0.0,
        "kept": 0.0,
        "making": 0.0,
        "state": dry_run.count_values(variables),
        "parameters": dry_run.count_values(method.trainable_variables),
        "disk": dry_run.disk_bytes(method),
    }
    if steps:
        spec = data.training_batches(source, s.batch_size, seed=run.seed, **run.pipeline()).element_spec
        graph = tf.function(method.train_step, autograph=False).get_concrete_function(spec).graph
        needs.update(
            flops=flops_of(method, graph, steps, s.batch_size),
            kept=graphs.kept_bytes(graph),
            making=s.batch_size * _input_core_seconds(run, source, min(_SMALL, s.batch_size)),
        )
    shape = source.image_shape
    forward = tf.function(lambda x: method.classifier(x, training=False)["logits"]).get_concrete_function(tf.TensorSpec([1, *shape]))
    counts, of_corruptions = dry_run.image_counts(run), (*evaluation.CORRUPTION_FAMILIES, "flips")
    frames, corrupted = sum(count for _, count in counts), sum(count for family, count in counts if family in of_corruptions)
    return {
        **needs,
        "measured": frames,
        "forward": graphs.flops(forward.graph),
        "corrupting": _corruption_core_seconds(run, source) * corrupted / frames if corrupted else 0.0,
    }


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


def _input_core_seconds(run, source, size):
    """Returns the core seconds for one image with all of its views; with many batches, prefetching does not matter."""
    batches = iter(data.training_batches(source, size, seed=run.seed, **run.pipeline()))
    for _ in range(_BATCHES // 2):
        next(batches)
    return _processor_seconds(lambda: next(batches), _BATCHES) / size


def _corruption_core_seconds(run, source):
    """Returns the core seconds for one image: the mean over all corruptions at severity 3."""
    images = tf.constant(evaluation.first_images(source, 4)[0])
    options = {
        "constants": run.config.evaluation.constants(source.image_shape),
        "protocol": run.config.evaluation.protocol(source.image_shape),
    }
    times = []
    for name in metrics.MEANS["mean19"]:
        corrupt = tf.function(lambda x, name=name: corruptions.corrupt(x, name, 3, 0, np.arange(len(images)), **options), autograph=False)
        corrupt(images)
        times.append(_processor_seconds(lambda corrupt=corrupt: corrupt(images), 3) / len(images))
    return float(np.mean(times))


def _processor_seconds(call, count):
    """Returns the CPU seconds of one call, the mean over `count` calls."""
    began = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - began) / count


def predict_cost(needs: Mapping, hardware: Hardware) -> dict:
    """Returns the cost of a run on given hardware. The evaluation uses one device of one machine.

    Args:
        needs: as `resource_needs` returns it.
        hardware: the machine.

    Returns:
        {"step", "training", "evaluation": seconds, "bound": the slowest part of a step, "memory": bytes of a device, "fits": whether a
        device has them, "sent": bytes per step and device, "disk": bytes}.
    """
    computing, making = hardware.compute_seconds(needs["flops"], hardware.devices), hardware.input_seconds(needs["making"])
    sent = 2 * (hardware.devices - 1) / hardware.devices * 4 * needs["parameters"]
    summing = sent / hardware.network
    step = max(computing, making) + summing
    memory = 4 * (needs["state"] + needs["parameters"]) + ALLOCATED * needs["kept"] / hardware.devices
    parts: dict[str, float] = {"products": computing, "images": making, "network": summing}
    return {
        "step": step,
        "training": step * needs["steps"],
        "bound": max(parts, key=lambda part: parts[part]),
        "sent": sent,
        "memory": memory,
        "fits": memory <= hardware.memory,
        "disk": needs["disk"],
        "evaluation": needs["measured"] * max(hardware.compute_seconds(needs["forward"], 1), hardware.input_seconds(needs["corrupting"])),
    }


def to_text(predictions: Sequence[tuple[Mapping, Mapping]], hardware: Hardware, seeds: int) -> str:
    """Returns a table of one line per row, and the total.

    Args:
        predictions: (needs, cost) of each row, as `resource_needs` and `predict_cost` return them.
        hardware: the machine.
        seeds: number of runs of each row.
    """
    lines = [_HEADINGS]
    for needs, cost in predictions:
        memory = f"{cost['memory'] / 2**30:.2f} GiB" + ("" if cost["fits"] else ", TOO MUCH")
        of_a_step = (
            f"{needs['flops'] / 1e9:.3g}",
            f"{1000 * cost['step']:.3g} ms",
            cost["bound"],
            memory,
            f"{cost['sent'] / 2**20:.3g} MiB",
            duration(cost["training"]),
        )
        lines.append(
            (
                needs["row"],
                *(of_a_step if needs["steps"] else "–" * len(of_a_step)),
                duration(cost["evaluation"]),
                f"{cost['disk'] / 2**20:.0f} MiB",
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines)]
    text = "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)
    total = seeds * sum(cost["training"] * (needs["steps"] > 0) + cost["evaluation"] for needs, cost in predictions)
    disk = seeds * sum(cost["disk"] for _, cost in predictions)
    return (
        f"{text}\n\nTotal of {len(predictions) * seeds} runs on {hardware.devices} devices, one after the other: {duration(total)}, "
        f"{disk / 2**30:.2f} GiB. Predicted, not measured (docs/reference/scale.md): without validation, attacks, reading from disk, and "
        "training without steps (–)."
    )


def main(path: str, *arguments: str) -> None:
    """Prints the predicted cost of the runs that flags describe. path: JSON file of the hardware."""
    machine = Hardware.read(path)
    runs = build_runs(read_command(["train", *arguments])[1], "row")
    needs = resource_needs(runs[0])
    print(to_text([(needs, predict_cost(needs, machine))], machine, len(runs)))


if __name__ == "__main__":
    main(*sys.argv[1:])
