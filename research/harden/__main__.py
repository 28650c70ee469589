"""Makes one row and seed of the results of `tf-robust harden`, or collects them.

    python -m research.harden --row=cifar10 --seed=0 --data_dir=DIR --workdir=runs/harden
    python -m research.harden --collect --workdir=runs/harden

Rows: cifar10, mnist, folder, robust, vit. Run again, a row resumes: finished steps are skipped. The second command copies the results,
ROW-SEED.json, to results/harden, and writes results/harden/harden.json and results/harden.md from all that are there.
"""

import os
import shutil

from absl import app, flags

from research.harden import collect
from research.harden.steps import BUDGET, ROWS, Steps
from tf_robust.utils.files import atomic_file, write_json

FLAGS = flags.FLAGS


def main(_) -> None:
    if FLAGS.collect == bool(FLAGS.row):
        raise app.UsageError("Expected either --row or --collect. Received: " + ("both" if FLAGS.row else "neither"))
    if FLAGS.collect:
        folder = os.path.join(FLAGS.output, "harden")
        os.makedirs(folder, exist_ok=True)
        for path in collect.result_files(FLAGS.workdir):
            shutil.copy(path, folder)
        content = collect.collected(collect.read_results(folder), f"python -m research.harden --collect --workdir={collect.WORKDIR}")
        write_json(os.path.join(folder, "harden.json"), content)
        with atomic_file(os.path.join(FLAGS.output, "harden.md")) as file:
            file.write(collect.to_markdown(content))
        return
    options = {name: FLAGS[name].value for name in ("budget", "subset", "examples", "epochs")}
    steps = Steps(FLAGS.workdir, FLAGS.row, FLAGS.seed, FLAGS.data_dir, **options)
    steps.run_all()
    write_json(f"{steps.folder}.json", collect.result_of(steps))


if __name__ == "__main__":
    flags.DEFINE_enum("row", None, ROWS, "row to make.")
    flags.DEFINE_bool("collect", False, "write the table of all finished rows and seeds.")
    flags.DEFINE_integer("seed", 0, "seed of training and search.")
    flags.DEFINE_string("data_dir", "", "folder of the TFDS data sets.")
    flags.DEFINE_string("workdir", collect.WORKDIR, "folder of models and evaluations.")
    flags.DEFINE_string("output", "results", "folder of the collected results.")
    flags.DEFINE_string("budget", BUDGET, "budget of hardening and of plain fine-tuning.")
    flags.DEFINE_integer("subset", 2000, "number of test images; 0: all.")
    flags.DEFINE_integer("examples", 0, "number of training images; 0: all.")
    flags.DEFINE_integer("epochs", 0, "epochs of the initial model; 0: those of its network.")
    app.run(main)
