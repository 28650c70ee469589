"""How the time and the memory of a training step grow with the side of the images and with the batch: ResNet-20, cross-entropy.

    python benchmarks/growth.py                           # 10 minutes

Each case is a run of `benchmarks/train_step.py` in processes of its own. A slope is that of a straight line through the logarithms: time
and memory in proportion to the number of pixels have a slope of 2 over the side.
"""

import pathlib
import re
import subprocess
import sys

import numpy as np
from absl import app, flags

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.timing import provenance, total_memory
from tf_robust.utils.files import atomic_file, write_json

LINE = re.compile(r"^\| resnet20 \| cross_entropy \|.*\| ([\d.]+) \| (\d+) \|$", re.MULTILINE)
HEAD = ("| side | batch | ms per image | MiB per image | batch that fills the memory |", "| --- | --- | --- | --- | --- |")
flags.DEFINE_multi_integer("side", [16, 32, 64, 128, 256, 512], "sides of the images, at the batch size of --fixed_batch.")
flags.DEFINE_multi_integer("batch", [8, 32, 128, 512], "batch sizes, of images of 32 pixels.")
flags.DEFINE_integer("fixed_batch", 8, "images per step where the side varies.")
flags.DEFINE_integer("repeats", 3, "of a case; medians are reported.", lower_bound=1)
flags.DEFINE_string("output", "", "folder for growth.json and growth.md; empty: print only.")
FLAGS = flags.FLAGS


def measured(side, batch):
    """Returns {"side", "batch", "ms", "mebibytes"} of a step."""
    steps = max(1, min(8, 2**22 // (side**2 * batch)))
    arguments = (f"--size={side}", f"--batch_size={batch}", f"--repeats={FLAGS.repeats}", f"--steps={steps}")
    command = [sys.executable, str(ROOT / "benchmarks" / "train_step.py"), "--models=resnet20", "--rows=cross_entropy", *arguments]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    ms, mebibytes = LINE.search(printed).groups()
    return {"side": side, "batch": batch, "ms": float(ms), "mebibytes": float(mebibytes)}


def slope(rows, over, of):
    """Returns the slope of a straight line through the logarithms of two columns."""
    return float(np.polyfit(np.log([row[over] for row in rows]), np.log([row[of] for row in rows]), 1)[0])


def line(row):
    per_image = row["mebibytes"] / row["batch"]
    return f"| {row['side']} | {row['batch']} | {row['ms'] / row['batch']:.2f} | {per_image:.1f} | {total_memory() / per_image:,.0f} |"


def main(_):
    tables, sentences = {"side": [], "batch": []}, []
    for side in FLAGS.side:
        tables["side"].append(measured(side, FLAGS.fixed_batch))
        print(line(tables["side"][-1]), flush=True)
    for batch in FLAGS.batch:
        tables["batch"].append(measured(32, batch))
        print(line(tables["batch"][-1]), flush=True)
    for over, rows in tables.items():
        if len(rows) > 1:
            slopes = {of: slope(rows, over, of) for of in ("ms", "mebibytes")}
            sentences.append(f"Slope over the {over}: {slopes['ms']:.2f} of the time, {slopes['mebibytes']:.2f} of the memory of a step.")
    print("\n".join(sentences))
    if FLAGS.output:
        source = provenance()
        write_json(f"{FLAGS.output}/growth.json", {**source, **tables})
        text = [
            "# Growth of a training step of ResNet-20 with the images and the batch",
            f"`{source['command']}`, commit {source['commit']}, {source['machine']}. "
            "The last column is extrapolated from the row's memory per image.",
            "\n".join([*HEAD, *map(line, [*tables["side"], *tables["batch"]])]),
            *sentences,
        ]
        with atomic_file(f"{FLAGS.output}/growth.md") as file:
            file.write("\n\n".join(text) + "\n")


if __name__ == "__main__":
    app.run(main)
