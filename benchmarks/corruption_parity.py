"""Compares each corruption with an independent oracle that receives the same random draws.

    python benchmarks/corruption_parity.py                # a few minutes; updates the table of docs/corruption_parity.md

The oracles, one image at a time in NumPy, SciPy and Pillow, are those of tests/corruptions.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import importlib.metadata
import pathlib
import sys

import numpy as np
from absl import app, flags

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.corruptions import oracles
from tf_robust import corruptions
from tf_robust.corruptions import severities
from tf_robust.utils import environment
from tf_robust.utils.files import atomic_file

PACKAGES = ("tensorflow", "numpy", "scipy", "pillow")
EQUAL = "100.00 %, 0.000, 0.00"  # of corruptions that agree at every severity; they share a line
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"  # the text between them is replaced
flags.DEFINE_list("names", list(oracles.ORACLES), "corruptions to compare.")
flags.DEFINE_list("images", ["24", "12", "4"], "numbers of images for cifar, tiny_imagenet, imagenet.")
flags.DEFINE_string("output", str(ROOT / "docs" / "corruption_parity.md"), "Markdown file whose table is updated; empty: print only.")
FLAGS = flags.FLAGS


def worst(name, which, count):
    """Returns (lowest fraction within 1, highest mean, largest difference) over the five severities, at the image size of the constants."""
    side = severities.SETS[which]
    images = oracles.sample_images(side, side, 3, count)
    rows = [oracles.summary(oracles.differences(corruptions.CORRUPTIONS[name], images, severity, which)) for severity in range(1, 6)]
    fractions, means, largest = zip(*rows)
    return min(fractions), max(means), max(largest)


def cell(fraction, mean, largest):
    return f"{np.floor(1e4 * fraction) / 1e2:.2f} %, {mean:.3f}, {largest:.2f}"


def renew(path, lines):
    """Writes the table and its provenance between the two marks of a Markdown file."""
    with open(path) as file:
        before, rest = file.read().split(BEGIN)
    after = rest.split(END)[1]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    provenance = f"Images: {', '.join(FLAGS.images)}. Commit {environment.commit()}, with {versions}."
    with atomic_file(path) as file:
        file.write(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n\n{provenance}\n\n{END}{after}")


def main(_):
    counts = dict(zip(severities.SETS, map(int, FLAGS.images)))
    lines = [
        "| corruption | " + " | ".join(f"{which}, {side} px" for which, side in severities.SETS.items()) + " |",
        "|" + " --- |" * (1 + len(counts)),
    ]
    others = 0  # that are equal
    for name in FLAGS.names:
        cells = [cell(*worst(name, which, count)) for which, count in counts.items()]
        line = f"| {name} | {' | '.join(cells)} |"
        print(line, flush=True)
        if {*cells} == {EQUAL}:
            others += 1
        else:
            lines.append(line)
    lines += [f"| {others} others |" + f" {EQUAL} |" * len(counts)] if others else []
    if FLAGS.output:
        renew(FLAGS.output, lines)


if __name__ == "__main__":
    app.run(main)
