"""Speed of PGD (images/s) and perturbation sizes of PLB compared with foolbox, on the same Keras model, interleaved in one process.

    python benchmarks/attacks.py --parts=speed,distances  # needs benchmarks/requirements_attacks.txt

The model is trained on scikit-learn's digits, enlarged to 32 pixels and three channels (no download), and attacked on
test digits. PGD uses ten steps, a random start and a step size of a quarter of the radius on both sides. Our attack skips an
image once it is misclassified, which foolbox does not support; the rows "all steps" do not skip images. A ratio is the
median over repeats of foolbox's time divided by ours, each pair measured in succession.

Distances are medians over correctly classified images, with about 900 gradients per image on each side. Each seed has its own
model and images.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pathlib
import sys
import time

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
try:
    import foolbox
except ImportError as error:
    sys.exit(
        f"Expected foolbox and its requirements to be installed. Received: {error}.\nInstall it into a virtual environment of "
        f"its own:\n    python3 -m venv VENV\n    VENV/bin/pip install -e {ROOT}\n"
        f"    VENV/bin/pip install --no-deps -r {ROOT}/benchmarks/requirements_attacks.txt"
    )

from benchmarks.goals import ATTACK_SPEED, ATTACKS
from benchmarks.timing import provenance
from tf_robust import attacks, data, methods, models
from tf_robust.attacks.norms import NORMS
from tf_robust.ops import image_ops
from tf_robust.training import loop
from tf_robust.utils.files import atomic_file, write_json

RADII = {"l2": 0.5, "linf": 8 / 255}
STEPS = 10
flags.DEFINE_string("model", "resnet20", "network for the speed comparison; distances use resnet8.")
flags.DEFINE_integer("batch_size", 256, "images per batch.")
flags.DEFINE_integer("repeats", 7, "interleaved repeats; medians are reported.")
flags.DEFINE_integer("epochs", 12, "epochs of training the model.")
flags.DEFINE_list("parts", ["speed", "distances"], "parts to run: speed takes five minutes, distances an hour.")
flags.DEFINE_integer("images", 48, "images per seed for the distances.")
flags.DEFINE_list("seeds", ["1", "2"], "seeds of the models and images for the distances.")
flags.DEFINE_list("norms", ["l2", "linf", "l1", "l0"], "norms for the distances.")
flags.DEFINE_string("output", "", "folder for attack_speed.json, .md and attack_distances.json, .md; empty: print only.")
FLAGS = flags.FLAGS


def enlarged(split):
    """Returns the digits with 32 pixels and three channels as a source."""
    source = data.open_source("digits", split)
    large = image_ops.resize(tf.constant(source.images, tf.float32), 32, 32).numpy().round().clip(0, 255).astype(np.uint8)
    return data.ArraySource.of("digits", split, np.repeat(large, 3, axis=3), source.labels, source.class_names)


def trained(name, seed=0):
    """Returns (a Keras model images -> logits trained on digits, test images, test labels), shuffled by the seed."""
    source, test = enlarged("train"), enlarged("test")
    order = np.random.RandomState(seed).permutation(len(test))
    method = methods.METHODS["cross_entropy"](models.build(name, (32, 32, 3), 10, seed=seed), seed=seed)
    method.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9))
    loop.fit(method, source, epochs=FLAGS.epochs, batch_size=128)
    inputs = method.classifier.inputs
    trained_model = keras.Model(inputs, method.classifier(inputs, training=False)["logits"])
    model = keras.models.clone_model(trained_model)  # as loaded from a file: the layers of a trained one are slower in foolbox
    model.set_weights(trained_model.get_weights())
    return model, (test.images[order] / np.float32(255)).astype(np.float32), test.labels[order]


def correct(model, images, labels):
    return np.argmax(np.asarray(model(images)), axis=1) == labels


def speed(model, images, labels):
    """Returns rows of {"norm", "row", "ratio", "quartiles", "pictures_a_second", "accuracy"}."""
    images, labels, peer = images[: FLAGS.batch_size], labels[: FLAGS.batch_size], foolbox.TensorFlowModel(model, bounds=(0, 1))
    tensors, rows = (tf.constant(images), tf.constant(labels, tf.int64)), []
    for norm, radius in RADII.items():
        kind = {"l2": foolbox.attacks.L2PGD, "linf": foolbox.attacks.LinfPGD}[norm]
        theirs = kind(steps=STEPS, rel_stepsize=2.5 / STEPS, random_start=True)
        ours = {
            early: attacks.ProjectedGradientDescent(
                norm=norm, radius=radius, steps=STEPS, early_stop=early, skip_misclassified=early, batch_size=FLAGS.batch_size
            )
            for early in (True, False)
        }
        calls = {
            "foolbox": lambda theirs=theirs, radius=radius: theirs(peer, *tensors, epsilons=radius)[1].numpy(),
            "ours": lambda attack=ours[True]: attack(model, images, labels).numpy(),
            "ours, all steps": lambda attack=ours[False]: attack(model, images, labels).numpy(),
        }
        times, left = {name: [] for name in calls}, {}
        for repeat in range(-1, FLAGS.repeats):  # the first repeat is a warm-up with tracing
            for name, call in calls.items():
                start = time.perf_counter()
                found = call()
                if repeat >= 0:
                    times[name].append(time.perf_counter() - start)
                left[name] = float(correct(model, found, labels).mean())
        for name, taken in times.items():
            low, median, high = np.percentile(np.array(times["foolbox"]) / np.array(taken), [25, 50, 75])
            rows.append(
                {
                    "norm": norm,
                    "row": name,
                    "ratio": median,
                    "quartiles": [low, high],
                    "accuracy": left[name],
                    "pictures_a_second": len(images) / float(np.median(taken)),
                }
            )
    return rows


def peers(norm):
    """Returns {name: foolbox attack that minimizes the perturbation}, with about 900 gradients per image."""
    found = foolbox.attacks
    return {
        "l2": {
            "DDN": found.DDNAttack(steps=900),
            "FMN": found.L2FMNAttack(steps=900),
            "Carlini-Wagner": found.L2CarliniWagnerAttack(binary_search_steps=9, steps=100),
        },
        "linf": {"FMN": found.LInfFMNAttack(steps=900)},
        "l1": {"FMN": found.L1FMNAttack(steps=900), "EAD": found.EADAttack(binary_search_steps=9, steps=100, decision_rule="L1")},
        "l0": {"FMN": found.L0FMNAttack(steps=900)},
    }[norm]


def distances(seed, model, images, labels):
    """Returns rows of {"seed", "norm", "row", "median", "found"} on correctly classified images."""
    right = np.flatnonzero(correct(model, images, labels))[: FLAGS.images]
    images, labels, peer = images[right], labels[right], foolbox.TensorFlowModel(model, bounds=(0, 1))
    rows = []
    for norm in FLAGS.norms:
        calls = {"ours": lambda norm=norm: attacks.ProximalLogBarrier(norm=norm)(model, images, labels)}
        for name, attack in peers(norm).items():
            calls[f"foolbox {name}"] = lambda attack=attack: attack(
                peer, tf.constant(images), tf.constant(labels, tf.int64), epsilons=None
            )[1]
        for name, call in calls.items():
            start = time.perf_counter()
            found = np.asarray(call())
            sizes = NORMS[norm].size(tf.constant(found - images)).numpy()
            sizes[correct(model, found, labels)] = np.inf
            rows.append(
                {
                    "seed": seed,
                    "norm": norm,
                    "row": name,
                    "median": float(np.median(sizes)),
                    "found": float(np.isfinite(sizes).mean()),
                    "seconds": time.perf_counter() - start,
                }
            )
            print(
                f"seed {seed}, {norm} {name}: median {rows[-1]['median']:.5g}, {rows[-1]['found']:.0%} found, {rows[-1]['seconds']:.0f} s",
                flush=True,
            )
    return rows


def speed_table():
    """Returns (rows, lines of the table)."""
    found = speed(*trained(FLAGS.model))
    lines = [
        "| norm | attack | speed relative to foolbox: median [quartiles] | images/s | accuracy under attack |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in found:
        lines.append(
            f"| {row['norm']} | {row['row']} | {row['ratio']:.2f} [{row['quartiles'][0]:.2f}, {row['quartiles'][1]:.2f}] "
            f"| {row['pictures_a_second']:.1f} | {row['accuracy']:.3f} |"
        )
    for norm in RADII:
        peer, ours = (next(r for r in found if (r["norm"], r["row"]) == (norm, name)) for name in ("foolbox", "ours"))
        print(
            f"{norm}: {ours['ratio']:.2f} times foolbox's speed, goal {ATTACK_SPEED[norm]}; accuracy under attack "
            f"{ours['accuracy']:.3f}, foolbox {peer['accuracy']:.3f}, goal at most {ATTACKS['accuracy']} above"
        )
    return found, lines


def distance_table():
    """Returns (rows, lines of the table)."""
    found = [row for seed in FLAGS.seeds for row in distances(seed, *trained("resnet8", int(seed)))]
    lines = ["| seed | norm | attack | median distance | ratio to foolbox's best | found |", "| --- | --- | --- | --- | --- | --- |"]
    for row in found:
        best = min(r["median"] for r in found if (r["seed"], r["norm"]) == (row["seed"], row["norm"]) and r["row"] != "ours")
        row["of_best"] = row["median"] / best
        lines.append(f"| {row['seed']} | {row['norm']} | {row['row']} | {row['median']:.5g} | {row['of_best']:.3f} | {row['found']:.0%} |")
    for row in found:
        if np.isinf(row["median"]):  # no perturbation found for half or more of the images; JSON has no infinity
            row["median"] = row["of_best"] = None
    for norm in FLAGS.norms:
        ours = [row["of_best"] for row in found if (row["norm"], row["row"]) == (norm, "ours")]
        print(f"{norm}: {', '.join(f'{ratio:.3f}' for ratio in ours)} times foolbox's best median, goal at most {ATTACKS[norm]}")
    return found, lines


def main(_):
    how = {
        "speed": f"{FLAGS.model}, batch {FLAGS.batch_size}, {STEPS} steps, l2 {RADII['l2']}, linf 8/255, {FLAGS.repeats} "
        f"interleaved repeats",
        "distances": f"resnet8, {FLAGS.images} images per seed, about 900 gradients per image on each side",
    }
    for part in FLAGS.parts:
        rows, lines = {"speed": speed_table, "distances": distance_table}[part]()
        print("\n".join(lines), flush=True)
        if FLAGS.output:
            head = provenance("foolbox", "torch")
            path = os.path.join(FLAGS.output, f"attack_{part}")
            write_json(f"{path}.json", {**head, "rows": rows})
            with atomic_file(f"{path}.md") as file:
                file.write(
                    f"# Attacks compared with foolbox {foolbox.__version__}: {part}\n\n`{head['command']}`, commit {head['commit']}; "
                    f"{how[part]}\n\n" + "\n".join(lines) + "\n"
                )


if __name__ == "__main__":
    app.run(main)
