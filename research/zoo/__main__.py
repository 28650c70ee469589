"""Writes the pretrained models of the package: weights in float16, and cards with an evaluation of these weights.

    tf-robust suite flags/zoo/cifar10 --data_dir=DIR --workdir=runs/zoo/cifar10    (also flags/zoo/mnist, flags/zoo/digits)
    python -m research.zoo --runs=runs/zoo --data_dir=DIR

A model that has the weights of its run already is not written again; an interrupted evaluation resumes.
"""

import os
import subprocess
import sys

import numpy as np
from absl import app, flags

from tf_robust.cli.command_line import read_command
from tf_robust.evaluation import EvalConfig
from tf_robust.saved_models import zoo
from tf_robust.utils.files import atomic_folder, read_json, write_json
from tf_robust.utils.hyperparameters import parameters

NOTES = {
    "cifar10": "Trained and evaluated on CIFAR-10 images that had been JPEG-compressed (quality about 75): its accuracies are not "
    "comparable with published ones."
}
CARD_FIELDS = ("method", "model", "data", "classes", "label_set", "seed", "flags", "input", "versions", "commit", "training")
EVALUATION_FIELDS = ("split", "options", "card", "versions", "commit", "date")
ROW_FIELDS = ("metric", "value", "count", "low", "high")
DIGITS = 5  # of recorded values


def pack(run: str, name: str, title: str) -> None:
    """Writes weights and card of a run as the pretrained model `name`, without an evaluation.

    Args:
        run: workdir of the run.
        name: DATA/ROW.
        title: network and method, for tables.
    """
    saved_model = os.path.join(run, "saved_model")
    with np.load(os.path.join(saved_model, "weights.npz")) as file:
        weights = {key: file[key].astype(np.float16) for key in file.files}
    if not all(np.isfinite(values).all() for values in weights.values()):
        raise ValueError(f"Expected weights of {name} within the range of float16. Received: larger ones in {saved_model}")
    described = read_json(os.path.join(saved_model, "card.json"))
    with atomic_folder(os.path.join(zoo.FOLDER, name)) as temporary:
        os.makedirs(temporary)
        np.savez_compressed(os.path.join(temporary, "weights.npz"), **weights)
        card = {
            "title": title,
            **{key: described[key] for key in CARD_FIELDS},
            "note": NOTES.get(described["data"], ""),
            "weights": {"dtype": "float16", "parameters": sum(x.size for x in weights.values()), "sha256": zoo.digest(temporary)},
        }
        write_json(os.path.join(temporary, "card.json"), card)


def evaluate(name: str, workdir: str, data_dir: str) -> None:
    """Evaluates a pretrained model by the flags of its row, and adds the result to its card."""
    row = read_command(["train", f"--flagfile=flags/zoo/{name}.flags"])[1]
    chosen = [f"--{flag}={_text(row[flag])}" for flag in parameters(EvalConfig) if flag in row.given]
    arguments = ["evaluate", f"zoo:{name}", f"--data={row['data']}", f"--data_dir={data_dir}", f"--workdir={workdir}", *chosen]
    subprocess.run([sys.executable, "-m", "tf_robust", *arguments], check=True)
    content = read_json(os.path.join(workdir, "evaluation.json"))
    file = os.path.join(zoo.FOLDER, name, "card.json")
    entries = {key: content[key] for key in EVALUATION_FIELDS}
    rows = [{key: _rounded(row[key]) for key in ROW_FIELDS if key in row} for row in content["rows"]]
    write_json(file, {**zoo.card(name), "evaluation": {**entries, "rows": rows}})


def _text(value):
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _rounded(value):
    return round(value, DIGITS) if isinstance(value, float) else value


def _is_packed(run, name):
    """Whether the pretrained model is of this run."""
    return name in zoo.names() and zoo.card(name)["training"] == read_json(os.path.join(run, "saved_model", "card.json"))["training"]


def main(_) -> None:
    for data in sorted(os.listdir("flags/zoo")):
        suite = read_json(f"flags/zoo/{data}/suite.json")
        for row in suite["rows"]:
            name, run = f"{data}/{row}", os.path.join(flags.FLAGS.runs, data, row, "seed_0")
            if not os.path.exists(os.path.join(run, "saved_model", "card.json")):
                print(f"{name}: no run in {run}")
                continue
            if not _is_packed(run, name):
                pack(run, name, suite["shown_as"][row])
            if "evaluation" not in zoo.card(name):
                evaluate(name, os.path.join(flags.FLAGS.runs, "evaluations", name), flags.FLAGS.data_dir)
            print(f"{name}: written")


if __name__ == "__main__":
    flags.DEFINE_string("runs", "runs/zoo", "folder of the trained suites.")
    flags.DEFINE_string("data_dir", "", "folder of the TFDS data sets.")
    app.run(main)
