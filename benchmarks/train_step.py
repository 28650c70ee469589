"""Time of each method's training step relative to a cross-entropy step: same model, same batch, interleaved in one run.

    python benchmarks/train_step.py                       # LeNet on 28x28x1, ResNet-20 on 32x32x3, batch 128
    python benchmarks/train_step.py --models=resnet8 --size=224 --batch_size=64 --rows=cross_entropy,puzzlemix

The expected ratios by the number of operations are as follows. FCL: 10/3 (three forward passes, one backward pass to the pixels,
three to the weights). AugMix with its stability loss and NoisyMix: 3, since they train on three views. Input-gradient penalty as a finite
difference: 7/3. Adversarial training with seven steps to the pixels: 17/3. SimCLR: 2, since it trains on two views. MoCo: 4/3, with
one view and one additional forward pass. Before the start of its term, a method's step is a cross-entropy step (rows "before start").

NoisyMix draws another stage at each step, so its step times vary. The views are precomputed; the row "views of
noisymix" is the time of making them: crop, flip and two AugMix views of each image. Seeds come from a changing step counter, so that
no constants are folded. Peak memory is the growth of the resident set in a separate process.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import itertools
import subprocess
import sys
import time

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from goals import TRAIN_STEP
from timing import provenance, sources, with_earlier_rows

from tf_robust import data, methods, models
from tf_robust.data import augment
from tf_robust.utils.files import atomic_file, write_json

CASES = {"lenet": (28, 28, 1), "resnet20": (32, 32, 3)}
HEAD = (
    "| model | step | time relative to cross-entropy: median [quartiles] | ms | peak memory, MiB |",
    "| --- | --- | --- | --- | --- |",
)
ALONE = {"noise": "none", "jsd_weight": 0.0}  # NoisyMix without noise and without views
PIPELINE = "views of noisymix"
ROWS = {
    "cross_entropy": ("cross_entropy", {}),
    "gaussian": ("gaussian", {}),
    "contrastive_gaussian": ("contrastive_gaussian", {}),
    "fcl": ("fcl", {}),
    "fcl, margin": ("fcl", {"form": "margin"}),
    "fcl, before start": ("fcl", {"start_step": 10**9}),
    "mixup": ("noisymix", {**ALONE, "stages": (0,)}),
    "manifold_mixup": ("noisymix", ALONE),
    "cutmix": ("cutmix", {}),
    "puzzlemix": ("puzzlemix", {}),
    "nfm": ("noisymix", {**ALONE, "noise": "official", "sparsity": 0.0}),
    "augmix": ("noisymix", {"mixing": False, "noise": "none"}),
    "noisymix": ("noisymix", {}),
    "noisymix, paper's noise": ("noisymix", {"noise": "paper"}),
    PIPELINE: (None, {}),
    "input_gradient": ("input_gradient", {}),
    "input_gradient, finite difference": ("input_gradient", {"form": "finite_difference"}),
    "cross_entropy, by XLA": ("cross_entropy", {"jit_compile": True}),
    "fcl, by XLA": ("fcl", {"jit_compile": True}),
    "cross_entropy, mixed precision": ("cross_entropy", {"mixed_precision": True}),
    "adversarial": ("adversarial", {}),
    "simclr": ("simclr", {}),
    "moco": ("moco", {"queue": 4096}),
}
VIEWS = {"simclr": 2, "moco": 2, "augmix": 3, "noisymix": 3, "noisymix, paper's noise": 3}
flags.DEFINE_list("models", list(CASES), "models to time.")
flags.DEFINE_list("rows", [], "rows to time, including cross_entropy; empty: all.")
flags.DEFINE_bool("memory", True, "also metric peak memory.")
flags.DEFINE_integer("size", 0, "side of the images in pixels; 0: 28 for LeNet, else 32.")
flags.DEFINE_integer("batch_size", 128, "images per step.")
flags.DEFINE_integer("repeats", 15, "interleaved repeats; medians are reported.")
flags.DEFINE_integer("steps", 8, "steps per repeat.")
flags.DEFINE_string("output", "", "folder for train_step.json and train_step.md; empty: print only.")
flags.DEFINE_string("memory_of", "", "internal: MODEL:ROW whose peak memory to print.")
FLAGS = flags.FLAGS


def stepper(model, row):
    """Returns a function that runs some training steps of a method on one fixed batch."""
    name, options = ROWS[row]
    shape = CASES.get(model, CASES["resnet20"])
    shape = (FLAGS.size or shape[0], FLAGS.size or shape[1], shape[2])
    if row == PIPELINE:
        return view_maker(shape)
    jit_compile, mixed = (options.get(name, False) for name in ("jit_compile", "mixed_precision"))
    options = {name: value for name, value in options.items() if name not in ("jit_compile", "mixed_precision")}
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16" if mixed else "float32")
    method = methods.METHODS[name](models.build(model, shape, 10), **options)
    keras.mixed_precision.set_dtype_policy("float32")
    method.compile(keras.optimizers.SGD(0.01, momentum=0.9), jit_compile=jit_compile)
    method.optimizer.build(method.trainable_variables)
    random = np.random.RandomState(0)
    views = tuple(tf.constant(random.rand(FLAGS.batch_size, *shape), tf.float32) for _ in range(VIEWS.get(row, 1)))
    labels = tf.constant(random.randint(10, size=FLAGS.batch_size), tf.int64)
    counter = tf.Variable(0, dtype=tf.int64)

    @tf.function(reduce_retracing=True)
    def steps(count):
        for _ in tf.range(count):
            counter.assign_add(1)
            batch = data.Batch(views, labels, tf.fill([FLAGS.batch_size], counter.read_value()))
            tf.autograph.experimental.do_not_convert(method.train_step)(batch)
        return counter.read_value()

    return lambda: steps(tf.constant(FLAGS.steps)).numpy()


def view_maker(shape):
    """Returns a function that makes the views of some batches."""
    images = tf.constant(np.random.RandomState(0).randint(256, size=(FLAGS.batch_size, *shape)) / 255.0, tf.float32)
    counter = tf.Variable(0, dtype=tf.int64)

    @tf.function(reduce_retracing=True)
    def make(count):
        for _ in tf.range(count):
            counter.assign_add(4)
            sample_image = augment.crop_flip(images, tf.stack([tf.constant(0, tf.int64), counter]))
            for view in (1, 2):
                made = augment.augmix(sample_image, tf.stack([tf.constant(0, tf.int64), counter + view]))
                tf.debugging.assert_all_finite(made, "a view")  # keeps the result from being pruned
        return counter.read_value()

    return lambda: make(tf.constant(FLAGS.steps)).numpy()


def ratios(model):
    """Returns {row: quartiles of its time relative to cross-entropy in the same repeat}, and the median of cross-entropy in ms."""
    steppers = {row: stepper(model, row) for row in FLAGS.rows or ROWS}
    times = {row: [] for row in steppers}
    for repeat, (row, steps) in itertools.product(range(-2, FLAGS.repeats), steppers.items()):
        start = time.perf_counter()
        steps()
        if repeat >= 0:  # the first two are warm-ups with tracing
            times[row].append((time.perf_counter() - start) / FLAGS.steps)
    base = np.array(times["cross_entropy"])
    return ({row: np.percentile(np.array(t) / base, [25, 50, 75]).tolist() for row, t in times.items()}, 1000 * float(np.median(base)))


def peak_memory(model, row):
    """Returns the growth of the resident set in MiB, from before the model is built to its peak, in a separate process."""
    command = [sys.executable, __file__, f"--memory_of={model}:{row}", f"--batch_size={FLAGS.batch_size}", f"--size={FLAGS.size}"]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def print_own_memory():
    model, row = FLAGS.memory_of.split(":")
    before = own_memory("VmRSS")
    steps = stepper(model, row)
    for _ in range(2):
        steps()
    print(own_memory("VmHWM") - before)


def own_memory(field):
    """Returns the memory of this process in MiB, now (VmRSS) or at its peak (VmHWM); getrusage's peak would include the parent's."""
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith(field)).split()[1]) / 1024


def line(found):
    low, high = found["quartiles"]
    ms, memory = ("-" if found.get(name) is None else f"{found[name]:.{digits}f}" for name, digits in (("ms", 1), ("mebibytes", 0)))
    return f"| {found['model']} | {found['row']} | {found['ratio']:.2f} [{low:.2f}, {high:.2f}] | {ms} | {memory} |"


def main(_):
    tf.get_logger().setLevel("ERROR")  # every stepper creates a new tf.function, on purpose
    if FLAGS.memory_of:
        return print_own_memory()
    if FLAGS.rows and ("cross_entropy" not in FLAGS.rows or not set(FLAGS.rows) <= set(ROWS)):
        raise app.UsageError(f"Expected rows among {', '.join(ROWS)}, including cross_entropy. Received: {', '.join(FLAGS.rows)}")
    rows = []
    for model in FLAGS.models:
        found, base = ratios(model)
        for row, (low, median, high) in found.items():
            memory = peak_memory(model, row) if FLAGS.memory else None
            rows.append({"model": model, "row": row, "ratio": median, "quartiles": [low, high], "ms": base * median, "mebibytes": memory})
            print(line(rows[-1]), flush=True)
        for row, limit in ((row, limit) for row, limit in TRAIN_STEP.get(model, {}).items() if row in found):
            verdict = "within" if found[row][1] <= limit else "ABOVE"
            print(f"{row} on {model}: {found[row][1]:.2f}, {verdict} the limit of {limit}")
        if {PIPELINE, "noisymix"} <= found.keys():
            print(f"Making the views takes {found[PIPELINE][1] / found['noisymix'][1]:.1%} of NoisyMix's step on {model}")
    if FLAGS.output:
        path = os.path.join(FLAGS.output, "train_step.json")
        rows = with_earlier_rows(path, rows, provenance(), ("model", "row"))
        write_json(path, {"rows": rows})
        with atomic_file(os.path.join(FLAGS.output, "train_step.md")) as file:
            file.write("# Time of a training step\n\n" + "\n".join([*HEAD, *map(line, rows)]) + "\n\n" + sources(rows, ("model", "row")))


if __name__ == "__main__":
    app.run(main)
