"""Runs a sweep, an evaluation and the writing of a corrupted set whose processes are killed, as in killed_suite.py.

    python tests/killed_work.py FOLDER KILLS SEED KIND,KIND,...

KIND: sweep, evaluate or corrupt. Prints as JSON {kind: the contents of its folders}: uninterrupted, and resumed after at least KILLS
kills, the first of each when the first set is measured, the others (and those of `corrupt`) at random events.
"""

import glob
import hashlib
import json
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tests.killed_suite import COMMON, Events, fork, json_of, quiet
from tf_robust.cli import command_line, commands
from tf_robust.evaluation import recording

COMMANDS = {
    "sweep": lambda folder: ["sweep", "learning_rate=0.05,0.2", *COMMON, "--model=mlp", "--epochs=2"],
    "evaluate": lambda folder: [
        "evaluate",
        f"--saved_model={folder}/model/saved_model",
        "--data=digits",
        "--subset=30",
        "--evaluations=clean,noise,noise_floor,calibration",
    ],
    "corrupt": lambda folder: ["corrupt", "--data=digits", "--subset=30", "--corruptions=contrast,gaussian_noise", "--chunk_size=10"],
}


class AnyEvent(Events):
    """Kills the process at its event of a number, of any row."""

    def __init__(self, number=None):
        super().__init__(None, number)
        self.measured, append = [], recording._append

        def record(*arguments):
            append(*arguments)
            self.measured.append(self.counts["all"])

        recording._append = record

    def count(self):
        self.counts["all"] += 1
        if self.counts["all"] == self.target[1]:
            self.kill()


def work(kind, folder, workdir, number=None):
    quiet()
    events = AnyEvent(number)
    run([*COMMANDS[kind](folder), f"--workdir={workdir}"])
    with open(f"{workdir}.events", "w") as file:
        json.dump([events.counts["all"], events.measured[:1]], file)


def train(folder):
    quiet()
    run(["train", *COMMON, "--model=mlp", "--epochs=1", "--evaluations=none", f"--workdir={folder}/model"])


def run(arguments):
    sys.argv = ["run_experiment.py", *arguments]
    command, options = command_line.read_command(arguments)
    commands.COMMANDS[command.name](options, arguments)


def contents(workdir):
    """Returns {file: its content, as far as it must be equal}."""
    files = {}
    for path in sorted(glob.glob(f"{workdir}/**", recursive=True)):
        name = os.path.relpath(path, workdir)
        if not os.path.isfile(path) or "tensorboard" in name.split("/"):
            continue
        if name.endswith(("evaluation.json", "results.json")):
            files[name] = [
                [row["row"] if "row" in row else "", row["metric"], row.get("value", row.get("values"))] for row in json_of(path)["rows"]
            ]
        elif name.endswith("measured.jsonl"):
            files[name] = sorted(record["set"] for record in recording.read_records(path))  # once each
        elif name.endswith(("weights.npz", ".npy")) or name in ("card.json", "sheet.png"):
            with open(path, "rb") as file:
                files[name] = hashlib.sha256(file.read()).hexdigest()
        else:
            files[name] = "exists"
    return files


def main(folder, kills, seed, kind):
    os.makedirs(folder)
    if kind == "evaluate" and fork(lambda: train(folder)):
        sys.exit("the training failed")
    if fork(lambda: work(kind, folder, f"{folder}/uninterrupted")):
        sys.exit("the work failed without a kill")
    draw, killed, resumed = random.Random(seed), 0, []
    events, measured = json_of(f"{folder}/uninterrupted.events")
    while killed < kills:
        workdir, status = f"{folder}/killed_{len(resumed)}", None
        while status != 0:
            number = measured[0] if measured and status is None else draw.randint(1, events)  # counted from the start of this process
            status = fork(lambda: work(kind, folder, workdir, number))
            if status and not os.WIFSIGNALED(status):
                sys.exit("the same command failed after a kill")
            killed += status != 0
        resumed.append(contents(workdir))
    return {"events": events, "killed": killed, "uninterrupted": contents(f"{folder}/uninterrupted"), "resumed": resumed}


if __name__ == "__main__":
    place, kills, seed, kinds = sys.argv[1:]
    print(json.dumps({kind: main(f"{place}/{kind}", int(kills), int(seed), kind) for kind in kinds.split(",")}))
