"""Pictures a second of AugMix, ours against one picture at a time by Pillow and NumPy: on one core, interleaved.

    python benchmarks/augmix.py                           # 3 minutes; Pillow comes with the package

Ours mixes float32 batches in a tf.function whose arguments are pictures, seed and indices, as a map of an input
pipeline calls it, so nothing is folded away. The peer is the algorithm box of the AugMix paper: uint8 picture ->
float32 picture. Every call of either has new draws. Both go through the same pictures, windows of photographs.
Times are the process's CPU time, since other programs may run; wall time stands beside it. A ratio is the median over
pairs of repeats, and repeats take turns at going first. Linux only: the process is pinned to one core.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# both before anything is imported that starts threads
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
from benchmarks.timing import calls_needed, provenance, seconds
from tests.corruptions import oracles
from tf_robust.data.augmix import augmix
from tf_robust.utils.files import whole_file, write_json

PACKAGES = ("pillow", "scipy")
GOALS = {"32": 2.5}
flags.DEFINE_list("sizes", ["32", "224"], "sides of the pictures.")
flags.DEFINE_integer("batch_size", 128, "pictures that a call of ours takes.", lower_bound=1)
flags.DEFINE_integer("repeats", 11, "interleaved repeats; medians are reported.", lower_bound=1)
flags.DEFINE_float("seconds", 2.0, "CPU time that a repeat takes, at least.", lower_bound=0.001)
flags.DEFINE_float("severity", 3.0, "levels are drawn from 0.1 to this.", lower_bound=0.2, upper_bound=10.0)
flags.DEFINE_integer("width", 3, "chains a picture.", lower_bound=1)
flags.DEFINE_boolean("all_ops", False, "colour, contrast, brightness and sharpness too.")
flags.DEFINE_string("output", "", "folder for augmix.json and augmix.md; empty: print only.")
FLAGS = flags.FLAGS


# The peer: an operation is (picture, level, sign) -> picture, with level in 0.1..10 and sign -1 or 1

def affine(picture, *coefficients):
    return picture.transform(picture.size, PIL.Image.Transform.AFFINE, coefficients, PIL.Image.Resampling.BILINEAR)


def pixels(side, level, sign):
    return sign * int(level * side / 30)


def enhanced(enhancer):
    return lambda picture, level, sign: enhancer(picture).enhance(0.18 * level + 0.1)


OPERATIONS = (
    lambda picture, level, sign: ImageOps.autocontrast(picture),
    lambda picture, level, sign: ImageOps.equalize(picture),
    lambda picture, level, sign: ImageOps.posterize(picture, 4 - int(0.4 * level)),
    lambda picture, level, sign: picture.rotate(sign * int(3 * level), PIL.Image.Resampling.BILINEAR),
    lambda picture, level, sign: ImageOps.solarize(picture, 256 - int(25.6 * level)),
    lambda picture, level, sign: affine(picture, 1, 0.03 * level * sign, 0, 0, 1, 0),
    lambda picture, level, sign: affine(picture, 1, 0, 0, 0.03 * level * sign, 1, 0),
    lambda picture, level, sign: affine(picture, 1, 0, pixels(picture.width, level, sign), 0, 1, 0),
    lambda picture, level, sign: affine(picture, 1, 0, 0, 0, 1, pixels(picture.height, level, sign)),
    *map(enhanced, (ImageEnhance.Color, ImageEnhance.Contrast, ImageEnhance.Brightness, ImageEnhance.Sharpness)))


def pillow_augmix(levels, random, severity, width, number):
    """uint8 [H, W, 3] -> float32 in [0, 1]. All numbers of a picture are drawn at once: quicker than one by one."""
    weights, share = random.dirichlet(np.ones(width)).tolist(), random.beta(1.0, 1.0)
    depths = random.integers(1, 4, width).tolist()
    operations = random.integers(number, size=(width, 3)).tolist()
    draws = random.uniform(0.1, severity, (width, 3)).tolist()
    signs = (2 * random.integers(2, size=(width, 3)) - 1).tolist()
    picture, mix = PIL.Image.fromarray(levels), np.zeros(levels.shape, np.float32)
    for chain in range(width):
        changed = picture
        for step in range(depths[chain]):
            changed = OPERATIONS[operations[chain][step]](changed, draws[chain][step], signs[chain][step])
        mix += np.float32(weights[chain] * share / 255) * np.asarray(changed)
    mix += np.float32((1 - share) / 255) * levels
    return mix


# Timing

def our_call(images):
    """A function that mixes one batch, with new draws each time."""
    mix = functools.partial(augmix, severity=FLAGS.severity, width=FLAGS.width, all_ops=FLAGS.all_ops)

    @tf.function
    def mixed(images, seed, indices):
        return mix(images, seed=seed, indices=indices)
    images, firsts = tf.constant(images), itertools.count(0, len(images))
    indices, seed = tf.range(len(images), dtype=tf.int64), tf.constant(0, tf.int64)
    return lambda: mixed(images, seed, indices + next(firsts))


def peer_call(images):
    """A function that mixes one picture, the next one each time."""
    pictures = itertools.cycle(np.round(255 * images).astype(np.uint8))
    random, number = np.random.default_rng(0), 13 if FLAGS.all_ops else 9
    return lambda: pillow_augmix(next(pictures), random, FLAGS.severity, FLAGS.width, number)


def timed(size):
    """The row of one size."""
    images = oracles.pictures(size, size, 3, FLAGS.batch_size)
    calls = our_call(images), peer_call(images)
    counts = [calls_needed(call, FLAGS.seconds) for call in calls]
    pictures = FLAGS.batch_size * counts[0], counts[1]
    rates = np.empty([FLAGS.repeats, 2, 2])  # ours or peer, CPU or wall
    for repeat in range(FLAGS.repeats):
        for which in ((0, 1), (1, 0))[repeat % 2]:
            rates[repeat, which] = pictures[which] / seconds(calls[which], counts[which])
    low, ratio, high = np.percentile(rates[:, 0, 0] / rates[:, 1, 0], [25, 50, 75])
    (ours, ours_wall), (peer, peer_wall) = np.median(rates, axis=0).tolist()
    return {"size": size, "batch": FLAGS.batch_size, "ratio": ratio, "quartiles": [low, high],
            "wall_ratio": float(np.median(rates[:, 0, 1] / rates[:, 1, 1])), "ours": ours, "peer": peer,
            "ours_wall": ours_wall, "peer_wall": peer_wall, "goal": GOALS.get(str(size))}


def line(row):
    return (f"| {row['size']} | {row['ours']:,.0f} | {row['peer']:,.0f} | {row['ratio']:.2f} "
            f"[{row['quartiles'][0]:.2f}, {row['quartiles'][1]:.2f}] | {row['goal'] or '-'} | "
            f"{row['ours_wall']:,.0f} | {row['peer_wall']:,.0f} | {row['wall_ratio']:.2f} |")


def check_flags():
    if not FLAGS.sizes or not all(size.isdecimal() and int(size) >= 1 for size in FLAGS.sizes):
        raise app.UsageError(f"Expected sizes of at least 1, like 32,224. Received: {','.join(FLAGS.sizes)}")
    try:
        os.makedirs(FLAGS.output or ".", exist_ok=True)  # rather now than after the measurement
    except OSError as error:
        raise app.UsageError(f"Expected a folder to write to. Received: {FLAGS.output} ({error.strerror})") from error


def main(_):
    check_flags()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    lines, rows = ["| px | ours | Pillow | ours over Pillow: median [quartiles] | goal | ours, wall | Pillow, wall | "
                   "ours over Pillow, wall |", "|" + " --- |" * 8], []
    print("\n".join(lines))
    for size in map(int, FLAGS.sizes):
        rows.append(timed(size))
        lines.append(line(rows[-1]))
        print(lines[-1], flush=True)
    if FLAGS.output:
        write(lines, rows)


def write(lines, rows):
    head = {**provenance(*PACKAGES), "date": datetime.date.today().isoformat(), "goals": GOALS}
    write_json(os.path.join(FLAGS.output, "augmix.json"), {**head, "rows": rows})
    paragraphs = [
        f"# Pictures a second and core of AugMix, severity {FLAGS.severity:g}, {FLAGS.width} chains",
        f"`{head['command']}`, commit {head['commit']}, {head['date']}, {FLAGS.repeats} interleaved repeats of "
        f"{FLAGS.seconds:g} s. Ours in batches of {FLAGS.batch_size}, Pillow one at a time. By CPU time; wall time "
        "beside it.",
        "\n".join(lines), "Versions: " + ", ".join(f"{name} {version}" for name, version in head["versions"].items()) + "."]
    with whole_file(os.path.join(FLAGS.output, "augmix.md")) as file:
        file.write("\n\n".join(paragraphs) + "\n")


if __name__ == "__main__":
    app.run(main)
