"""Estimated training times of the papers' tables on 1, 8 and 64 accelerators, and a check of the cost model on this machine.

    python benchmarks/scale.py                            # half an hour or more; updates the tables of docs/reference/scale.md

Check: each row trains a few steps in a separate process, as --dry_run does. The utilization, the fraction of the machine's peak
(of a large matrix product) that training reaches, is fitted to the first row and used to predict the times of the others. The growth
of memory is compared with the prediction.

Tables: the unchanged flagfiles, on random images of the number and size of CIFAR-10 and ImageNet.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import dataclasses
import json
import pathlib
import subprocess
import sys
import time

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import hardware
from tf_robust.cli.build import build_runs
from tf_robust.cli.command_line import read_command
from tf_robust.data.source import Source
from tf_robust.evaluation.evaluation_data import EvaluationData
from tf_robust.runs import dry_run, suite
from tf_robust.utils import environment
from tf_robust.utils.files import atomic_file
from tf_robust.utils.progress import duration

FITTED = "resnet20 cross_entropy"
ROWS = (
    FITTED,
    "resnet8 cross_entropy",
    "preact_resnet18 cross_entropy",
    "wide_resnet28_2 cross_entropy",
    "resnet20 fcl",
    "resnet20 noisymix",
    "resnet20 simclr",
    "resnet20 moco",
    "resnet20 input_gradient",
)
VIEWS = {"noisymix": "clean,augmix,augmix", "simclr": "simclr,simclr", "moco": "moco_v2,moco_v2"}
TABLES = ("fcl/table2_cifar10", "fcl/table3_imagenetc", "noisymix/table2_cifar10", "noisymix/table1_imagenet", "urrl/table1")
SEEDS = {"fcl/table2_cifar10": 5}
DEVICES = (1, 8, 64)
BETWEEN = 2.5e10  # bytes/s per device between machines: eight links of 200 Gbit/s for eight devices
SIZES = {"cifar10": ((50_000, 10_000), (32, 32, 3), 10), "imagenet2012": ((1_281_167, 50_000), (224, 224, 3), 1000)}
SIZES["folder:IMAGENET"] = SIZES["imagenet2012"]
flags.DEFINE_list("parts", ["check", "tables"], "parts to run.")
flags.DEFINE_string(
    "hardware", str(ROOT / "docs" / "hardware.json"), "file that describes the accelerators, of which 1, 8 and 64 are assumed."
)
flags.DEFINE_string("output", str(ROOT / "docs" / "reference" / "scale.md"), "page whose tables are updated; empty: print only.")
flags.DEFINE_string("row", "", "internal: the row of the check that a subprocess trains.")
FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True)
class StandIn(Source):
    """Random images, repeating one batch up to the number of images of a data set."""

    def ordered(self, batch_size):
        random = np.random.RandomState(0)
        images = random.randint(256, size=(batch_size, *self.image_shape)).astype(np.uint8)
        return tf.data.Dataset.from_tensors((images, np.arange(batch_size) % self.num_classes)).repeat()

    def epoch(self, seed, epoch, batch_size, skip_batches=0, windows=()):
        places = tf.range(batch_size, dtype=tf.int64)
        return self.ordered(batch_size).map(lambda images, labels: (images, labels, places)).take(len(self) // batch_size)


class StandInData(EvaluationData):
    """Stand-ins for the data of a run."""

    def source(self, split, examples=0):
        """Returns a stand-in for a split."""
        return stand_in(self.config.data, split)


def stand_in(name, split, times=1):
    """Returns a stand-in for a data set. times: factor of the number of training images, 2 with stylized images."""
    (training, test), shape, classes = SIZES[name]
    return StandIn(name, split, tuple(map(str, range(classes))), shape, times * (training if split == "train" else test))


def runs_of(*arguments, row="row"):
    """Returns the runs that a command line describes, on a stand-in for their data."""
    found = build_runs(read_command(["train", *arguments])[1], row)
    for run in found:
        run.data = lambda run=run: StandInData(run.config.data, run.config.evaluation, run.seed)
        run.training_source = lambda run=run: stand_in(run.config.data.data, "train", 2 if run.config.train.stylized_dir else 1)
        run.init_path = ""
        run.config = dataclasses.replace(run.config, train=dataclasses.replace(run.config.train, init_from_row=""))
    return found


# The check


def check():
    """Returns the lines of a table of measured and predicted times and memory on this machine."""
    peak = largest_product()
    found = {
        row: json.loads(
            subprocess.run([sys.executable, __file__, f"--row={row}"], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[
                -1
            ]
        )
        for row in ROWS
    }
    first = found[FITTED]
    reached = first["flops"] / first["step"] / peak
    here = hardware.Hardware(devices=1, flops=peak, utilization=reached, memory=2**34, network=1e9, cores=os.cpu_count())
    lines = [
        f"A large matrix product runs at {peak / 1e9:.0f} GFLOP/s; {FITTED} reaches {reached:.0%} of it. The other rows are predicted "
        "with this utilization.",
        "",
        "| row | step time | predicted | ratio | memory growth | predicted | ratio |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row, one in found.items():
        cost = hardware.predict_cost(one, here)
        lines.append(
            f"| {row} | {one['step']:.3f} s | {cost['step']:.3f} s | {cost['step'] / one['step']:.2f} | "
            f"{one['grown'] / 2**20:.0f} MiB | {cost['memory'] / 2**20:.0f} MiB | {cost['memory'] / one['grown']:.2f} |"
        )
    return lines


def largest_product(size=4096, repeats=5):
    """Returns the floating-point operations per second of a large matrix product."""
    matrix = tf.random.normal([size, size])
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        tf.matmul(matrix, matrix).numpy()
        times.append(time.perf_counter() - began)
    return 2 * size**3 / float(np.median(times[1:]))


def measured(row):
    """Metrics a row and prints the result as JSON; runs in a subprocess."""
    model, method = row.split()
    (run,) = runs_of(
        "--data=cifar10",
        f"--model={model}",
        f"--method={method}",
        f"--views={VIEWS.get(method, 'clean')}",
        "--augmentations=crop_flip",
        "--optimizer=sgd",
        "--batch_size=128",
        "--evaluations=clean",
    )
    need = hardware.resource_needs(run)
    keras.backend.clear_session()
    with open("/proc/self/status", encoding="utf-8") as file:
        before = 1024 * int(next(line for line in file if line.startswith("VmRSS")).split()[1])
    estimate = dry_run.estimate(run)
    print(json.dumps({**need, "step": run.config.train.batch_size / estimate["images"], "grown": estimate["memory"] - before}))


# The tables


def tables():
    """Returns the lines of a table of the costs of the papers' tables on accelerators."""
    one = hardware.Hardware.read(FLAGS.hardware)
    counts = " / ".join(map(str, DEVICES))
    lines = [
        "| table | runs | "
        + " | ".join(f"{count} device{'s' * (count > 1)}" for count in DEVICES)
        + f" | limited by (8 devices) | memory per device ({counts}) | "
        f"sent per step ({counts}) | evaluation (8 devices) | disk |",
        "|" + " --- |" * (len(DEVICES) + 7),
    ]
    for table in TABLES:
        here, rows, _ = suite.table_of(f"flags/{table}", str(ROOT))
        found = []
        for row in rows:
            found += [hardware.resource_needs(run) for run in runs_of(f"--flagfile={os.path.join(here, row)}.flags", row=row)]
            keras.backend.clear_session()
            print(f"  {table}: {row}", flush=True)
        lines.append(line(table, found, one, SEEDS.get(table, 1)))
    return lines


def line(table, found, one, seeds):
    """Returns the line of a table. found: the needs of each row. one: the hardware. seeds: number of runs of each row."""
    costs = {count: [hardware.predict_cost(need, several(one, count)) for need in found] for count in DEVICES}
    eight = costs[8]
    bounds = [cost["bound"] for cost in eight]

    def largest(name, unit, digits):
        return " / ".join(f"{max(cost[name] for cost in costs[count]) / unit:.{digits}f}" for count in DEVICES)

    times = [
        duration(seeds * sum(cost["training"] + cost["evaluation"] for cost in found))
        + ("" if all(cost["fits"] for cost in found) else ", not all fit")
        for found in costs.values()
    ]
    return (
        f"| `flags/{table}` | {seeds * len(found)} | {' | '.join(times)} | "
        f"{', '.join(f'{bound} {bounds.count(bound)}' for bound in sorted(set(bounds)))} | {largest('memory', 2**30, 1)} GiB | "
        f"{largest('sent', 2**20, 0)} MiB | {duration(seeds * sum(cost['evaluation'] for cost in eight))} | "
        f"{seeds * sum(cost['disk'] for cost in eight) / 2**30:.1f} GiB |"
    )


def several(machine, count):
    """Returns the hardware with `count` devices: part of one machine, or several machines that each make all images."""
    joined = min(machine.network, BETWEEN) if count > machine.devices else machine.network
    return dataclasses.replace(machine, devices=count, network=joined)


def main(_):
    tf.get_logger().setLevel("ERROR")
    if FLAGS.row:
        return measured(FLAGS.row)
    found = {part: {"check": check, "tables": tables}[part]() for part in FLAGS.parts}
    for lines in found.values():
        print("\n".join(lines))
    if FLAGS.output:
        text = pathlib.Path(FLAGS.output).read_text("utf-8")
        for part, lines in found.items():
            start, end = f"<!-- {part} -->\n", f"<!-- end of {part} -->"
            head = f"`python benchmarks/scale.py --parts={part}`, commit {environment.commit()}:\n\n"
            text = text[: text.index(start) + len(start)] + head + "\n".join(lines) + "\n" + text[text.index(end) :]
        with atomic_file(FLAGS.output) as file:
            file.write(text)


if __name__ == "__main__":
    app.run(main)
