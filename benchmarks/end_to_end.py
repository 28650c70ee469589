"""End-to-end benchmarks: training compared with PyTorch, evaluation with its forward passes, start-up time and memory, the quick start.

    python benchmarks/end_to_end.py                       # ten minutes or more; training needs benchmarks/requirements_torch.txt

Training: throughput (images/s) of the training steps of `run_experiment.py`, cross-entropy on cropped and flipped images of 32 pixels,
compared with the same network and batch size in PyTorch with its DataLoader. Each runs in a separate process on the same
cores, and they alternate. PyTorch is measured with both memory formats and with the number of DataLoader workers that is fastest.
A ratio is the median over the repeats. Input: the time of making the batch of a step; in training it overlaps with the previous step.

Evaluation: the 15 x 5 corruptions on ResNet-20, corrupted on the fly, compared with the forward passes alone on the same number of images.
The two alternate for each set, once. Rows that are not measured again are kept in the output files.

Start: seconds from the command to the first step of the first row of the quick start, and the growth of memory in training
from the second epoch to the last.

Quick start: seconds and peak resident memory of the command `tf-robust` without arguments, in a process of its own.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
from absl import app, flags

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.goals import END_TO_END

LAYOUTS = {"first": "", "last": ", channels last"}  # memory formats of PyTorch: the default, and one that is faster on some machines
flags.DEFINE_list("parts", ["training", "evaluation", "start", "quick_start"], "parts to run.")
flags.DEFINE_list("models", ["resnet20", "preact_resnet18"], "networks for training.")
flags.DEFINE_integer("batch_size", 128, "images per step.")
flags.DEFINE_integer("repeats", 7, "interleaved repeats; medians are reported.")
flags.DEFINE_float("seconds", 10.0, "approximate duration of a repeat of training.")
flags.DEFINE_integer("images", 2000, "images for the evaluation.")
flags.DEFINE_list("severities", ["1", "2", "3", "4", "5"], "severities for the evaluation.")
flags.DEFINE_integer("epochs", 20, "epochs of the training whose memory is measured.")
flags.DEFINE_string("output", "", "folder for end_to_end.json and end_to_end.md; empty: print only.")
flags.DEFINE_string("part", "", "internal: task of a subprocess.")
FLAGS = flags.FLAGS


# Training: a subprocess that reads numbers of steps and answers with their duration


def our_steps(model, only_input=False):
    """Returns a function that runs a number of training steps, or only makes their batches."""
    import tensorflow as tf

    from tf_robust import data
    from tf_robust.training import distribution, loop

    run = first_run(
        f"--model={model}", "--augmentations=crop_flip", "--optimizer=sgd", "--learning_rate=0.1", f"--batch_size={FLAGS.batch_size}"
    )
    source = data.ArraySource.of("random", "train", *random_images(), map(str, range(10)))
    method = run.method(source)
    method.optimizer.build(method.trainable_variables)
    batches = data.training_batches(source, FLAGS.batch_size, seed=0, **run.pipeline())
    iterator, run_steps = iter(distribution.distribute(method.distribute_strategy, batches, FLAGS.batch_size)), loop.steps_function(method)
    return (lambda count: [next(iterator) for _ in range(count)]) if only_input else lambda count: run_steps(iterator, tf.constant(count))


def torch_steps(model, layout, workers):
    """Returns the same function for PyTorch."""
    import torch
    import torch_networks

    class Images(torch.utils.data.Dataset):
        def __init__(self, images, labels):
            self.images, self.labels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels)

        def __len__(self):
            return len(self.labels)

        def __getitem__(self, index):
            padded = torch.nn.functional.pad(self.images[index], (4, 4, 4, 4))
            row, column, mirrored = torch.randint(9, (3,)).tolist()
            sample_image = padded[:, row : row + 32, column : column + 32]
            return (sample_image.flip(2) if mirrored < 4 else sample_image) / 255.0, self.labels[index]

    layout = {"first": torch.contiguous_format, "last": torch.channels_last}[layout]
    network = torch_networks.NETWORKS[model](10).to(memory_format=layout)
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
    loader = torch.utils.data.DataLoader(
        Images(*random_images()),
        FLAGS.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=int(workers),
        persistent_workers=int(workers) > 0,
    )

    def endless():
        while True:
            yield from loader

    batches = endless()

    def take(count):
        for _ in range(count):
            images, labels = next(batches)
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(network(((images - 0.5) / 0.5).contiguous(memory_format=layout)), labels).backward()
            optimizer.step()

    return take


def random_images():
    """Returns images, uint8 [N, 32, 32, 3], and labels, int64 [N]."""
    random = np.random.RandomState(0)
    return random.randint(256, size=(10_000, 32, 32, 3)).astype(np.uint8), random.randint(10, size=10_000)


def serve_steps(take):
    """Runs the number of steps given by each line of the input, and prints the seconds."""
    for line in sys.stdin:
        began = time.perf_counter()
        take(int(line))
        print(time.perf_counter() - began, flush=True)


class Stepper:
    """A subprocess that runs training steps on request."""

    def __init__(self, part):
        self.process = subprocess.Popen(
            [sys.executable, __file__, f"--part={part}", f"--batch_size={FLAGS.batch_size}"],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self(2)
        self.count = max(1, round(FLAGS.seconds / (self(2) / 2)))

    def __call__(self, count):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit("The training subprocess ended unexpectedly. See its messages above.")
        return float(answer)

    def images_per_second(self):
        return FLAGS.batch_size * self.count / self(self.count)


def trained(model):
    """Returns rows of our throughput relative to PyTorch, for both memory formats, with the faster number of DataLoader workers."""
    steppers = {
        "ours": Stepper(f"ours {model}"),
        "input": Stepper(f"input {model}"),
        **{(layout, workers): Stepper(f"torch {model} {layout} {workers}") for layout in LAYOUTS for workers in (0, 2)},
    }
    rates = {name: [] for name in steppers}
    for _ in range(FLAGS.repeats):
        for name, stepper in steppers.items():
            rates[name].append(stepper.images_per_second())
    for stepper in steppers.values():
        stepper.process.stdin.close()
    print(f"{model}: " + ", ".join(f"{name} {np.median(rate):.0f} images/s" for name, rate in rates.items()), flush=True)
    fractions = np.array(rates["ours"]) / rates["input"]
    rows = [row(f"input/{model}", "time of making a batch relative to a training step", fractions)]
    for layout, suffix in LAYOUTS.items():
        best = max(((layout, workers) for workers in (0, 2)), key=lambda name: np.median(rates[name]))
        ratios = np.array(rates["ours"]) / rates[best]
        rows.append(row(f"training/{model}{suffix}", f"training throughput (images/s) relative to PyTorch{suffix}", ratios))
    return rows


def evaluated():
    """Returns the row with the time of the corruption evaluation relative to its forward passes."""
    import tensorflow as tf

    from tests.corruptions import oracles
    from tf_robust import data, evaluation, metrics, models
    from tf_robust.evaluation.scoring import BATCH

    sample_images = np.round(255 * oracles.sample_images(32, 32, 3, FLAGS.images)).astype(np.uint8)
    source = data.ArraySource.of("windows", "test", sample_images, np.arange(FLAGS.images) % 10, map(str, range(10)))
    classifier = models.build("resnet20", source.image_shape, 10)
    predict = tf.function(lambda images: classifier(images, training=False)["logits"], input_signature=[tf.TensorSpec([None, 32, 32, 3])])
    batches = [images for images, _ in data.evaluation_batches(source, BATCH)]

    def forward():
        for images in batches:
            predict(images).numpy()

    forward()
    eval_config = evaluation.EvalConfig(evaluations=("corruptions",))
    sets = [
        one
        for one in evaluation.evaluation_sets(source, None, eval_config)
        if one.name.split("/")[1] in metrics.BENCHMARK and one.name.split("/")[2] in FLAGS.severities
    ]
    times = np.zeros([len(sets), 2])
    for number, one in enumerate(sets):
        calls = (lambda one=one: evaluation.records(predict, [one], log=str)), forward
        for which in ((0, 1), (1, 0))[number % 2]:
            began = time.perf_counter()
            calls[which]()
            times[number, which] = time.perf_counter() - began
    total = times[:, 0].sum() / times[:, 1].sum()
    details = f"{FLAGS.images:,} images, {len(sets)} sets; quartiles of sets"
    return row(
        "evaluation/resnet20",
        f"time of the corruption evaluation relative to its forward passes, {details}",
        times[:, 0] / times[:, 1],
        total,
    )


def started():
    """Returns rows with the seconds to the first step and the growth of memory."""
    seconds = []
    for _ in range(FLAGS.repeats):
        began = time.time()
        output = subprocess.run([sys.executable, __file__, "--part=first_step"], capture_output=True, text=True, check=True).stdout
        seconds.append(float(output.split()[-1]) - began)
    grown = subprocess.run(
        [sys.executable, __file__, "--part=memory", f"--epochs={FLAGS.epochs}"], capture_output=True, text=True, check=True
    ).stdout.split()
    second, last = map(float, grown[-2:])
    return [
        row("start", "seconds from the command to the first step of the quick start", np.array(seconds)),
        row(
            "memory", f"resident memory after {FLAGS.epochs} epochs relative to that after 2 ({second:.0f} MiB)", np.array([last / second])
        ),
    ]


def quick_started():
    """Returns rows with the seconds and the peak memory of the whole quick start, the median of up to three runs."""
    seconds, memory = [], []
    for _ in range(min(3, FLAGS.repeats)):
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            command = [sys.executable, str(ROOT / "run_experiment.py"), f"--workdir={folder}"]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            if status:
                sys.exit("The quick start failed. See its messages above.")
            seconds.append(time.perf_counter() - began)
            memory.append(usage.ru_maxrss / 1e6)  # of KiB, the unit of /usr/bin/time
    return [
        row("quick_start", "seconds of the whole quick start", np.array(seconds)),
        row("quick_start_memory", "peak resident memory of the quick start in million KiB", np.array(memory)),
    ]


def take_first_step():
    """Runs the quick start until its first step and prints the time at which it was completed."""
    from tf_robust.cli import commands
    from tf_robust.cli.command_line import read_command
    from tf_robust.training import loop

    steps_function = loop.steps_function

    def one_step(*arguments):
        def run(iterator, count):
            steps_function(*arguments)(iterator, loop.tf.constant(1))
            print(time.time(), flush=True)
            os._exit(0)

        return run

    loop.steps_function = one_step
    with tempfile.TemporaryDirectory() as folder:
        _, options = read_command(["suite", "flags/quickstart", f"--workdir={folder}"])
        commands.suite(options, [])


def first_run(*arguments):
    """Returns the run that a command line describes."""
    from tf_robust.cli.build import build_runs
    from tf_robust.cli.command_line import read_command

    return build_runs(read_command(["train", *arguments])[1], "row")[0]


def watch_memory():
    """Trains, and prints the resident memory in MiB after the second and the last epoch."""
    import keras

    from tf_robust.training import loop

    run = first_run("--data=digits", "--model=resnet8", "--method=noisymix", "--views=clean,augmix,augmix")
    source, found = run.data().source("train"), []

    class Watch(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            with open("/proc/self/status", encoding="utf-8") as file:
                found.append(int(next(line for line in file if line.startswith("VmRSS")).split()[1]) / 1024)

    loop.fit(run.method(source), source, epochs=FLAGS.epochs, batch_size=run.config.train.batch_size, callbacks=[Watch()], **run.pipeline())
    print(found[1], found[-1])


def row(name, what, values, value=None):
    low, median, high = np.percentile(values, [25, 50, 75]).tolist()
    value = median if value is None else float(value)
    found = {"row": name, "what": what, "value": value, "quartiles": [low, high], "goal": END_TO_END.get(name)}
    print(line(found), flush=True)
    return found


def line(found):
    low, high = found["quartiles"]
    return f"| {found['row']} | {found['what']} | {found['value']:.3g} [{low:.3g}, {high:.3g}] | {found['goal'] or '-'} |"


def write(rows):
    """Writes rows to end_to_end.json and end_to_end.md; keeps rows of other commands with their own commits."""
    from benchmarks.timing import provenance, sources, with_earlier_rows
    from tf_robust.utils.files import atomic_file, write_json

    path = os.path.join(FLAGS.output, "end_to_end.json")
    rows = with_earlier_rows(path, rows, provenance("torch"), ("row",))
    write_json(path, {"rows": rows})
    with atomic_file(os.path.join(FLAGS.output, "end_to_end.md")) as file:
        head = "# End-to-end benchmarks\n\n| row | quantity | median [quartiles] | goal |\n| --- | --- | --- | --- |\n"
        file.write(head + "\n".join(map(line, rows)) + "\n\n" + sources(rows, ("row",)))


def main(_):
    if FLAGS.part:
        kind, *rest = FLAGS.part.split()
        return {
            "ours": lambda: serve_steps(our_steps(*rest)),
            "input": lambda: serve_steps(our_steps(*rest, only_input=True)),
            "torch": lambda: serve_steps(torch_steps(*rest)),
            "first_step": take_first_step,
            "memory": watch_memory,
        }[kind]()
    rows = []
    if "training" in FLAGS.parts and importlib.util.find_spec("torch") is None:
        print("Training is skipped: it needs benchmarks/requirements_torch.txt")
    elif "training" in FLAGS.parts:
        rows += [found for model in FLAGS.models for found in trained(model)]
    if "evaluation" in FLAGS.parts:
        rows.append(evaluated())
    if "start" in FLAGS.parts:
        rows += started()
    if "quick_start" in FLAGS.parts:
        rows += quick_started()
    if FLAGS.output:
        write(rows)


if __name__ == "__main__":
    app.run(main)
