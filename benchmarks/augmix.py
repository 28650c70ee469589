"""Throughput of AugMix (images/s) compared with Pillow and NumPy on single images: on one core, interleaved.

    python benchmarks/augmix.py                           # 3 minutes; Pillow is a requirement of the package

Our side mixes float32 batches in a tf.function with images, seed and indices as arguments, as in `Dataset.map`, so that
no constants are folded. The peer is the algorithm of the AugMix paper: uint8 image ->
float32 image. Every call uses new draws. Both process the same images, windows of photographs.
Times are the CPU time of the process, since other programs may run; wall time is also reported. A ratio is the median over
pairs of repeats, with alternating order. Linux only: the process is pinned to one core.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# both before importing anything that starts threads
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
os.environ.update({f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")})

import datetime
import functools
import itertools
import pathlib
import sys

import numpy as np
import PIL.Image
import tensorflow as tf
from absl import app, flags
from PIL import ImageEnhance, ImageOps

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.goals import AUGMIX
from benchmarks.timing import calls_needed, provenance, seconds
from tests.corruptions import oracles
from tf_robust.data.augmix import augmix
from tf_robust.utils.files import atomic_file, write_json

PACKAGES = ("pillow", "scipy")
flags.DEFINE_list("sizes", ["32", "224"], "sides of the images.")
flags.DEFINE_integer("batch_size", 128, "images per call on our side.", lower_bound=1)
flags.DEFINE_integer("repeats", 11, "interleaved repeats; medians are reported.", lower_bound=1)
flags.DEFINE_float("seconds", 2.0, "minimum CPU time of a repeat.", lower_bound=0.001)
flags.DEFINE_float("severity", 3.0, "upper limit of the levels, which are drawn from 0.1.", lower_bound=0.2, upper_bound=10.0)
flags.DEFINE_integer("width", 3, "chains per image.", lower_bound=1)
flags.DEFINE_boolean("all_ops", False, "also use color, contrast, brightness and sharpness.")
flags.DEFINE_string("output", "", "folder for augmix.json and augmix.md; empty: print only.")
FLAGS = flags.FLAGS


# The peer: an operation is (image, level, sign) -> image, with level in 0.1..10 and sign -1 or 1


def affine(sample_image, *coefficients):
    return sample_image.transform(sample_image.size, PIL.Image.Transform.AFFINE, coefficients, PIL.Image.Resampling.BILINEAR)


def pixels(side, level, sign):
    return sign * int(level * side / 30)


def enhanced(enhancer):
    return lambda sample_image, level, sign: enhancer(sample_image).enhance(0.18 * level + 0.1)


OPERATIONS = (
    lambda sample_image, level, sign: ImageOps.autocontrast(sample_image),
    lambda sample_image, level, sign: ImageOps.equalize(sample_image),
    lambda sample_image, level, sign: ImageOps.posterize(sample_image, 4 - int(0.4 * level)),
    lambda sample_image, level, sign: sample_image.rotate(sign * int(3 * level), PIL.Image.Resampling.BILINEAR),
    lambda sample_image, level, sign: ImageOps.solarize(sample_image, 256 - int(25.6 * level)),
    lambda sample_image, level, sign: affine(sample_image, 1, 0.03 * level * sign, 0, 0, 1, 0),
    lambda sample_image, level, sign: affine(sample_image, 1, 0, 0, 0.03 * level * sign, 1, 0),
    lambda sample_image, level, sign: affine(sample_image, 1, 0, pixels(sample_image.width, level, sign), 0, 1, 0),
    lambda sample_image, level, sign: affine(sample_image, 1, 0, 0, 0, 1, pixels(sample_image.height, level, sign)),
    *map(enhanced, (ImageEnhance.Color, ImageEnhance.Contrast, ImageEnhance.Brightness, ImageEnhance.Sharpness)),
)


def pillow_augmix(levels, random, severity, width, number):
    """uint8 [H, W, 3] -> float32 in [0, 1]. All random numbers of an image are drawn at once, which is faster than one by one."""
    weights, lam = random.dirichlet(np.ones(width)).tolist(), random.beta(1.0, 1.0)
    depths = random.integers(1, 4, width).tolist()
    operations = random.integers(number, size=(width, 3)).tolist()
    draws = random.uniform(0.1, severity, (width, 3)).tolist()
    signs = (2 * random.integers(2, size=(width, 3)) - 1).tolist()
    sample_image, mix = PIL.Image.fromarray(levels), np.zeros(levels.shape, np.float32)
    for chain in range(width):
        changed = sample_image
        for step in range(depths[chain]):
            changed = OPERATIONS[operations[chain][step]](changed, draws[chain][step], signs[chain][step])
        mix += np.float32(weights[chain] * lam / 255) * np.asarray(changed)
    mix += np.float32((1 - lam) / 255) * levels
    return mix


# Timing


def our_call(images):
    """Returns a function that mixes one batch, with new draws in each call."""
    mix = functools.partial(augmix, severity=FLAGS.severity, width=FLAGS.width, all_ops=FLAGS.all_ops)

    @tf.function
    def mixed(images, seed, indices):
        return mix(images, seed=seed, indices=indices)

    images, firsts = tf.constant(images), itertools.count(0, len(images))
    indices, seed = tf.range(len(images), dtype=tf.int64), tf.constant(0, tf.int64)
    return lambda: mixed(images, seed, indices + next(firsts))


def peer_call(images):
    """Returns a function that mixes one image, the next one in each call."""
    sample_images = itertools.cycle(np.round(255 * images).astype(np.uint8))
    random, number = np.random.default_rng(0), 13 if FLAGS.all_ops else 9
    return lambda: pillow_augmix(next(sample_images), random, FLAGS.severity, FLAGS.width, number)


def timed(size):
    """Returns the row of one size."""
    images = oracles.sample_images(size, size, 3, FLAGS.batch_size)
    calls = our_call(images), peer_call(images)
    counts = [calls_needed(call, FLAGS.seconds) for call in calls]
    image_counts = FLAGS.batch_size * counts[0], counts[1]
    rates = np.empty([FLAGS.repeats, 2, 2])  # ours or peer, CPU or wall
    for repeat in range(FLAGS.repeats):
        for which in ((0, 1), (1, 0))[repeat % 2]:
            rates[repeat, which] = image_counts[which] / seconds(calls[which], counts[which])
    low, ratio, high = np.percentile(rates[:, 0, 0] / rates[:, 1, 0], [25, 50, 75])
    (ours, ours_wall), (peer, peer_wall) = np.median(rates, axis=0).tolist()
    return {
        "size": size,
        "batch": FLAGS.batch_size,
        "ratio": ratio,
        "quartiles": [low, high],
        "wall_ratio": float(np.median(rates[:, 0, 1] / rates[:, 1, 1])),
        "ours": ours,
        "peer": peer,
        "ours_wall": ours_wall,
        "peer_wall": peer_wall,
        "goal": AUGMIX.get(str(size)),
    }


def line(row):
    return (
        f"| {row['size']} | {row['ours']:,.0f} | {row['peer']:,.0f} | {row['ratio']:.2f} "
        f"[{row['quartiles'][0]:.2f}, {row['quartiles'][1]:.2f}] | {row['goal'] or '-'} | "
        f"{row['ours_wall']:,.0f} | {row['peer_wall']:,.0f} | {row['wall_ratio']:.2f} |"
    )


def check_flags():
    if not FLAGS.sizes or not all(size.isdecimal() and int(size) >= 1 for size in FLAGS.sizes):
        raise app.UsageError(f"Expected sizes of at least 1, like 32,224. Received: {','.join(FLAGS.sizes)}")
    try:
        os.makedirs(FLAGS.output or ".", exist_ok=True)  # fail before the measurement, not after it
    except OSError as error:
        raise app.UsageError(f"Expected --output to be a writable folder. Received: {FLAGS.output} ({error.strerror})") from error


def main(_):
    check_flags()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    lines, rows = (
        [
            "| px | ours | Pillow | ours over Pillow: median [quartiles] | goal | ours, wall | Pillow, wall | ours over Pillow, wall |",
            "|" + " --- |" * 8,
        ],
        [],
    )
    print("\n".join(lines))
    for size in map(int, FLAGS.sizes):
        rows.append(timed(size))
        lines.append(line(rows[-1]))
        print(lines[-1], flush=True)
    if FLAGS.output:
        write(lines, rows)


def write(lines, rows):
    head = {**provenance(*PACKAGES), "date": datetime.date.today().isoformat()}
    write_json(os.path.join(FLAGS.output, "augmix.json"), {**head, "rows": rows})
    paragraphs = [
        f"# Throughput of AugMix on one core (images/s), severity {FLAGS.severity:g}, {FLAGS.width} chains",
        f"`{head['command']}`, commit {head['commit']}, {head['date']}, {FLAGS.repeats} interleaved repeats of "
        f"{FLAGS.seconds:g} s. Ours in batches of {FLAGS.batch_size}, Pillow one image at a time. Rates by CPU time, "
        "and by wall time where stated.",
        "\n".join(lines),
        "Versions: " + ", ".join(f"{name} {version}" for name, version in head["versions"].items()) + ".",
    ]
    with atomic_file(os.path.join(FLAGS.output, "augmix.md")) as file:
        file.write("\n\n".join(paragraphs) + "\n")


if __name__ == "__main__":
    app.run(main)
