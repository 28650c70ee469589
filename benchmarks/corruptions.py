"""Throughput of each corruption (images/s) compared with `imagecorruptions`: on one core, interleaved in one process.

    python benchmarks/corruptions.py                      # 10 minutes; needs benchmarks/requirements_corruptions.txt

Our side processes float32 batches in a tf.function, the peer single uint8 images, as in typical use of each.
Both use severity 3 and ImageNet-C's constants, the only ones of the peer, at every size. Times are the CPU time of the
process, since other programs may run; wall time is also reported. A ratio is the median over pairs of repeats.
Both keep the frost photographs in memory. Frost is excluded from the mean, because ours are scaled in advance, while the
peer enlarges a whole photograph for each image. Linux only: the process is pinned to one core.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# both before importing anything that starts threads
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
os.environ.update({f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")})

import datetime
import itertools
import math
import pathlib
import statistics
import sys

import numpy as np
import tensorflow as tf
from absl import app, flags

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
try:
    import cv2
    import imagecorruptions

    from benchmarks import original  # which needs numba
except ImportError as error:
    sys.exit(
        f"Expected imagecorruptions and its requirements to be installed. Received: {error}.\nInstall them into a virtual "
        f"environment of their own:\n    python3 -m venv VENV\n    VENV/bin/pip install -e {ROOT}\n"
        f"    VENV/bin/pip install --no-deps -r {ROOT}/benchmarks/requirements_corruptions.txt"
    )

from benchmarks.goals import CORRUPTIONS
from benchmarks.timing import calls_needed, provenance, seconds
from tests.corruptions import oracles
from tf_robust import metrics
from tf_robust.corruptions import suite
from tf_robust.utils.errors import unknown
from tf_robust.utils.files import atomic_file, write_json

SEVERITY = 3
RELEASED = "glass_blur_released"  # the peer's released loop in Python; an additional row, with a separate mean
PACKAGES = ("imagecorruptions", "opencv-python-headless", "scikit-image", "scipy", "pillow", "numba")
flags.DEFINE_list("sizes", ["32", "224"], "image sizes; the peer requires at least 32.")
flags.DEFINE_integer("repeats", 5, "interleaved repeats; medians are reported.", lower_bound=1)
flags.DEFINE_float("seconds", 0.3, "minimum CPU time of a repeat.", lower_bound=0.001)
TIMED = metrics.MEANS["mean19"]  # those of the peer
flags.DEFINE_list("corruptions", [*TIMED, RELEASED], "corruptions to time.")
flags.DEFINE_string("output", "", "folder for corruptions.json and corruptions.md; empty: print only.")
FLAGS = flags.FLAGS


def crashes(sample_images):
    """Returns {name: error message} of the corruptions in which the unpatched peer fails on one of these images."""
    found = {}
    for name in imagecorruptions.get_corruption_names("all"):
        for sample_image, severity in itertools.product(sample_images, range(1, 6)):
            try:
                imagecorruptions.corrupt(sample_image, corruption_name=name, severity=severity)
            except Exception as error:  # any failure that a user would see
                found[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                break
    return found


def our_call(name, images):
    """Returns a function that corrupts one batch, with new draws in each call."""
    corruption = suite.named(name.removesuffix("_released"), os.path.join(os.path.dirname(imagecorruptions.__file__), "frost"))
    count = len(images)

    @tf.function
    def corrupt(images, first):  # both are arguments, so that no constants are folded
        return corruption(images, SEVERITY, indices=first + tf.range(count, dtype=tf.int64), constants="imagenet")

    images, firsts = tf.constant(images), itertools.count(0, count)
    return lambda: corrupt(images, tf.constant(next(firsts), tf.int64))


def peer_call(name, sample_images):
    """Returns a function that corrupts one image, the next one in each call."""
    sample_images = itertools.cycle(sample_images)
    return lambda: imagecorruptions.corrupt(next(sample_images), corruption_name=name, severity=SEVERITY)


def timed(name, size):
    """Returns the row of one corruption at one size."""
    images = oracles.sample_images(size, size, 3, max(16, 500 * 32**2 // size**2))
    calls = our_call(name, images), peer_call(name, list(np.round(255 * images).astype(np.uint8)))
    counts = [calls_needed(call, FLAGS.seconds) for call in calls]
    image_counts = len(images) * counts[0], counts[1]
    rates = np.array(
        [[number / seconds(call, count) for call, count, number in zip(calls, counts, image_counts)] for _ in range(FLAGS.repeats)]
    )  # [repeats, ours or peer, CPU or wall]
    low, ratio, high = np.percentile(rates[:, 0, 0] / rates[:, 1, 0], [25, 50, 75])
    (ours, ours_wall), (peers, peers_wall) = np.median(rates, axis=0).tolist()
    return {
        "corruption": name,
        "size": size,
        "batch": len(images),
        "ratio": ratio,
        "quartiles": [low, high],
        "wall_ratio": float(np.median(rates[:, 0, 1] / rates[:, 1, 1])),
        "ours": ours,
        "peer": peers,
        "ours_wall": ours_wall,
        "peer_wall": peers_wall,
    }


def line(row):
    return (
        f"| {row['corruption']} | {row['size']} | {row['ours']:,.0f} | {row['peer']:,.0f} | {row['ratio']:.2f} "
        f"[{row['quartiles'][0]:.2f}, {row['quartiles'][1]:.2f}] | {row['ours_wall']:,.0f} | "
        f"{row['peer_wall']:,.0f} | {row['wall_ratio']:.2f} |"
    )


def summary(rows, size):
    """Returns the geometric means of the ratios at one size, without frost, and the smallest ratio; None without counted rows."""
    ratios = {row["corruption"]: row["ratio"] for row in rows if row["size"] == size}
    released = {**ratios, "glass_blur": ratios.pop(RELEASED, None) or ratios.get("glass_blur")}
    slowest = min(ratios, key=ratios.get, default=None)
    return {
        "size": size,
        "mean": mean(ratios),
        "slowest": slowest,
        "smallest": ratios.get(slowest),
        "mean_with_released_glass_blur": mean(released),
    }


def mean(ratios):
    counted = [ratio for name, ratio in ratios.items() if name not in ("frost", RELEASED) and ratio]
    return statistics.geometric_mean(counted) if counted else None


def sentence(found):
    size, ratio, slowest, smallest, released = (math.nan if value is None else value for value in found.values())
    return (
        f"{size} px: geometric mean without frost {ratio:.2f} (goal {_goal('mean', size)}); with the peer's "
        f"glass blur as released {released:.2f}. Smallest {smallest:.2f}, {slowest} (goal {_goal('smallest', size)})."
    )


def _goal(kind, size):
    goal = CORRUPTIONS[kind].get(str(size))
    return "none" if goal is None else f"{goal:g}"


def check_flags():
    names = [*TIMED, RELEASED]
    for name in FLAGS.corruptions:
        if name not in names:
            raise app.UsageError(str(unknown("corruption", name, names)))
    if not FLAGS.sizes or not all(size.isdecimal() and int(size) >= 32 for size in FLAGS.sizes):
        raise app.UsageError(f"Expected sizes of at least 32, like 32,224. Received: {','.join(FLAGS.sizes)}")
    try:
        os.makedirs(FLAGS.output or ".", exist_ok=True)  # fail before the measurement, not after it
    except OSError as error:
        raise app.UsageError(f"Expected --output to be a writable folder. Received: {FLAGS.output} ({error.strerror})") from error


def unpatched(size, failed):
    return (
        f"The unpatched peer fails at {size} px in {len(failed)} corruptions: "
        + ("; ".join(f"{name} ({message})" for name, message in failed.items()) or "none")
        + "."
    )


def main(_):
    check_flags()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.get_logger().setLevel("ERROR")  # every call creates a new tf.function, on purpose
    cv2.setNumThreads(1)
    np.random.seed(0)
    sizes = list(map(int, FLAGS.sizes))
    failed = {size: crashes(np.round(255 * oracles.sample_images(size, size, 3, 2)).astype(np.uint8)) for size in sizes}
    imagecorruptions.corruption_dict[RELEASED] = original.repair(imagecorruptions)
    lines, rows = (
        [
            "| corruption | px | ours | peer | ours over peer: median [quartiles] | ours, wall | peer, wall | ours over peer, wall |",
            "|" + " --- |" * 8,
        ],
        [],
    )
    print("\n".join(lines))
    for size, name in itertools.product(sizes, FLAGS.corruptions):
        rows.append(timed(name, size))
        lines.append(line(rows[-1]))
        print(lines[-1], flush=True)
    summaries = [summary(rows, size) for size in sizes]
    notes = [*map(sentence, summaries), *(unpatched(size, failed[size]) for size in sizes)]
    print("\n".join(["", *notes]))
    if FLAGS.output:
        write(lines, notes, {"summary": summaries, "peer_fails": failed, "rows": rows})


def write(lines, notes, results):
    head = {**provenance(*PACKAGES), "date": datetime.date.today().isoformat()}
    write_json(os.path.join(FLAGS.output, "corruptions.json"), {**head, **results})
    paragraphs = [
        f"# Throughput of each corruption on one core (images/s), severity {SEVERITY}",
        f"`{head['command']}`, commit {head['commit']}, {head['date']}, {FLAGS.repeats} interleaved repeats of "
        f"{FLAGS.seconds:g} s. Rates by CPU time, and by wall time where stated. {RELEASED}: the peer's released loop "
        f"in Python; for glass_blur it is compiled, as in its repository.",
        "\n".join(lines),
        "\n".join(f"* {note}" for note in notes),
        "Versions: " + ", ".join(f"{name} {version}" for name, version in head["versions"].items()) + ".",
    ]
    with atomic_file(os.path.join(FLAGS.output, "corruptions.md")) as file:
        file.write("\n\n".join(paragraphs) + "\n")


if __name__ == "__main__":
    app.run(main)
