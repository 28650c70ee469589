"""Whole works against a bound or a peer: training against PyTorch, an evaluation against its bare forward passes, the start.

    python benchmarks/end_to_end.py                       # ten minutes or more; training needs benchmarks/requirements_torch.txt

Training: images a second of what `run_experiment.py` does in a step, cross-entropy on images of 32 pixels that are
cropped and flipped, against the same network and batch in PyTorch, with its DataLoader. Each runs in a process of its own,
on the same cores, and they take turns; PyTorch with both layouts of its tensors, and the number of loading processes that is best
for it. Input: what a step's batch takes by itself; in training it is made beside the step before.

Evaluation: the 15 x 5 suite on ResNet-20, corrupted as it is measured, against the forward passes alone on as many images.
Set by set, taking turns, once. A ratio of training is the median over the repeats. A row that is not measured again stays in
the output's files as it is.

Start: seconds from the command to the first step of the quick start's first row, and what the memory of a training grows by
from its second epoch to its last.
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

GOALS = {"training/resnet20": 1.0, "training/preact_resnet18": 0.95, "evaluation/resnet20": 1.25}
LAYOUTS = {"first": "", "last": ", channels last"}  # of PyTorch's tensors: its default, and what is quicker on some machines
flags.DEFINE_list("parts", ["training", "evaluation", "start"], "what is measured.")
flags.DEFINE_list("models", ["resnet20", "preact_resnet18"], "networks that are trained.")
flags.DEFINE_integer("batch_size", 128, "images a step.")
flags.DEFINE_integer("repeats", 7, "interleaved repeats; medians are reported.")
flags.DEFINE_float("seconds", 10.0, "that a repeat of training takes, about.")
flags.DEFINE_integer("images", 2000, "of the evaluation.")
flags.DEFINE_list("severities", ["1", "2", "3", "4", "5"], "of the evaluation's corruptions.")
flags.DEFINE_integer("epochs", 20, "of the training whose memory is measured.")
flags.DEFINE_string("output", "", "folder for end_to_end.json and end_to_end.md; empty: print only.")
flags.DEFINE_string("part", "", "used by this script itself: what a process of its own does.")
FLAGS = flags.FLAGS


# Training: a process that is told how many steps to take, and answers how long they took


def our_steps(model, only_input=False):
    """A function that takes a number of training steps, or only makes their batches."""
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
    """The same by PyTorch."""
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
    """uint8 [N, 32, 32, 3] and int64 [N]."""
    random = np.random.RandomState(0)
    return random.randint(256, size=(10_000, 32, 32, 3)).astype(np.uint8), random.randint(10, size=10_000)


def serve_steps(take):
    """Takes as many steps as each line of the input says, and answers with the seconds."""
    for line in sys.stdin:
        began = time.perf_counter()
        take(int(line))
        print(time.perf_counter() - began, flush=True)


class Stepper:
    """A process that takes steps when it is told to."""

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
        said = self.process.stdout.readline()
        if not said:
            sys.exit("Expected a process that trains. It has ended; what it said stands above")
        return float(said)

    def pictures_a_second(self):
        return FLAGS.batch_size * self.count / self(self.count)


def trained(model):
    """Rows: images a second of ours over PyTorch's, for both of its layouts, with the better number of loading processes."""
    steppers = {
        "ours": Stepper(f"ours {model}"),
        "input": Stepper(f"input {model}"),
        **{(layout, workers): Stepper(f"torch {model} {layout} {workers}") for layout in LAYOUTS for workers in (0, 2)},
    }
    rates = {name: [] for name in steppers}
    for _ in range(FLAGS.repeats):
        for name, stepper in steppers.items():
            rates[name].append(stepper.pictures_a_second())
    for stepper in steppers.values():
        stepper.process.stdin.close()
    print(f"{model}: " + ", ".join(f"{name} {np.median(rate):.0f} images/s" for name, rate in rates.items()), flush=True)
    shares = np.array(rates["ours"]) / rates["input"]
    rows = [row(f"input/{model}", "time of making a batch, and nothing else, over that of a training step", shares)]
    for layout, words in LAYOUTS.items():
        best = max(((layout, workers) for workers in (0, 2)), key=lambda name: np.median(rates[name]))
        ratios = np.array(rates["ours"]) / rates[best]
        rows.append(row(f"training/{model}{words}", f"images a second over PyTorch's{words}", ratios))
    return rows


def evaluated():
    """The row of the suite's time over that of its forward passes."""
    import tensorflow as tf

    from tests.corruptions import oracles
    from tf_robust import data, evaluation, metrics, models
    from tf_robust.evaluation.sets import BATCH

    sample_images = np.round(255 * oracles.images(32, 32, 3, FLAGS.images)).astype(np.uint8)
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
    whole = times[:, 0].sum() / times[:, 1].sum()
    told = f"{FLAGS.images:,} images, {len(sets)} sets; quartiles of sets"
    return row("evaluation/resnet20", f"time of the suite over its forward passes, {told}", times[:, 0] / times[:, 1], whole)


def started():
    """Rows: seconds to the first step, and growth of the memory."""
    seconds = []
    for _ in range(FLAGS.repeats):
        began = time.time()
        said = subprocess.run([sys.executable, __file__, "--part=first_step"], capture_output=True, text=True, check=True).stdout
        seconds.append(float(said.split()[-1]) - began)
    grown = subprocess.run(
        [sys.executable, __file__, "--part=memory", f"--epochs={FLAGS.epochs}"], capture_output=True, text=True, check=True
    ).stdout.split()
    second, last = map(float, grown[-2:])
    return [
        row("start", "seconds from the command to the first step of the quick start", np.array(seconds)),
        row("memory", f"MiB resident after {FLAGS.epochs} epochs over those after 2 ({second:.0f})", np.array([last / second])),
    ]


def take_first_step():
    """Does what the quick start does until its first step is taken, and says when that was."""
    from tf_robust.experiments import modes
    from tf_robust.training import loop

    def stop(run_steps, iterator, count, method):
        run_steps(iterator, loop.tf.constant(1))
        print(time.time(), flush=True)
        os._exit(0)

    loop.checked_run = stop
    with tempfile.TemporaryDirectory() as folder:
        values = modes.parse_arguments(["--mode=suite", "--suite=flags/quickstart", f"--workdir={folder}"])
        modes.suite(values, [])


def first_run(*arguments):
    """The run that a command line describes."""
    from tf_robust.experiments.flags import parse_arguments
    from tf_robust.experiments.runs import runs_of

    return runs_of(parse_arguments(arguments), "row")[0]


def watch_memory():
    """Trains, and says how many MiB were resident after the second and the last epoch."""
    import keras

    from tf_robust.training import loop

    run = first_run("--data=digits", "--model=resnet8", "--method=noisymix", "--views=clean,augmix,augmix")
    source, found = run.source("train"), []

    class Watch(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            with open("/proc/self/status", encoding="utf-8") as file:
                found.append(int(next(line for line in file if line.startswith("VmRSS")).split()[1]) / 1024)

    loop.fit(run.method(source), source, epochs=FLAGS.epochs, batch_size=run.config.batch_size, callbacks=[Watch()], **run.pipeline())
    print(found[1], found[-1])


def row(name, what, values, value=None):
    low, median, high = np.percentile(values, [25, 50, 75]).tolist()
    value = median if value is None else float(value)
    found = {"row": name, "what": what, "value": value, "quartiles": [low, high], "goal": GOALS.get(name)}
    print(line(found), flush=True)
    return found


def line(found):
    low, high = found["quartiles"]
    return f"| {found['row']} | {found['what']} | {found['value']:.3g} [{low:.3g}, {high:.3g}] | {found['goal'] or '-'} |"


def write(rows):
    """Puts rows into end_to_end.json and end_to_end.md; what another command measured stays there, with its own commit."""
    from benchmarks.timing import provenance
    from tf_robust.utils.files import atomic_file, read_json, write_json

    path = os.path.join(FLAGS.output, "end_to_end.json")
    there = {found["row"]: found for found in read_json(path)["rows"]} if os.path.exists(path) else {}
    source = provenance("torch")
    there.update({found["row"]: {**found, **source} for found in rows})
    write_json(path, {"rows": list(there.values())})
    with atomic_file(os.path.join(FLAGS.output, "end_to_end.md")) as file:
        file.write(
            "# Whole works\n\n| row | what | median [quartiles] | goal |\n| --- | --- | --- | --- |\n"
            + "\n".join(map(line, there.values()))
            + "\n\n"
        )
        for command, commit in dict.fromkeys((found["command"], found["commit"]) for found in there.values()):
            of = ", ".join(name for name, found in there.items() if (found["command"], found["commit"]) == (command, commit))
            file.write(f"- {of}: `{command}`, commit {commit}\n")


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
        print("Training is left out: it needs benchmarks/requirements_torch.txt")
    elif "training" in FLAGS.parts:
        rows += [found for model in FLAGS.models for found in trained(model)]
    if "evaluation" in FLAGS.parts:
        rows.append(evaluated())
    if "start" in FLAGS.parts:
        rows += started()
    if FLAGS.output:
        write(rows)


if __name__ == "__main__":
    app.run(main)
