"""Runs a suite whose processes are killed repeatedly by SIGKILL, and resumes it by the same command.

    python tests/killed_suite.py FOLDER KILLS SEED ROW,ROW,...

runs a small suite once without a kill, and then repeatedly with kills until every row has been killed KILLS times, each at a
random event: after a training step, or before or after a file is flushed or renamed (checkpoints, exports,
records, evaluations). Prints the contents of all workdirs as JSON. TensorFlow is imported once, and the processes are forked
before any computation.
"""

import collections
import hashlib
import json
import os
import random
import signal
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import numpy as np

from tf_robust import report
from tf_robust.cli import command_line, commands
from tf_robust.evaluation import recording
from tf_robust.report import comparison, images
from tf_robust.runs.run import Run
from tf_robust.training import loop

COMMON = [
    "--data=digits",
    "--train_examples=40",
    "--validation_fraction=0.1",
    "--model=lenet",
    "--batch_size=12",
    "--epochs=3",
    "--steps_per_execution=1",
    "--optimizer=sgd",
    "--momentum=0.9",
    "--schedule=cosine",
    "--evaluations=clean,noise",
    "--subset=20",
]
ROWS = {
    "fcl": ["--method=fcl", "--fcl_k=20", "--fcl_start_epoch=1", "--fcl_warmup_epochs=1", "--optimizer=adam", "--momentum=0"],
    "noisymix": ["--method=noisymix", "--views=clean,augmix,augmix", "--augmentations=crop_flip"],
    "moco": ["--method=moco", "--views=clean,crop_flip", "--moco_queue=30"],
    "instdis": ["--method=instdis", "--views=crop_flip", "--optimizer=lars"],
    "pirl": ["--method=pirl", "--views=crop_flip,crop_flip"],
    "similarity": ["--method=similarity", "--init_from_row=moco", "--label_fraction=0.5", "--augmentations=patch_gaussian"],
}


class Events:
    """Counts events in this process for each row, and kills the process at one of them."""

    def __init__(self, row=None, number=None):
        self.target, self.counts, self.row = (row, number), collections.Counter(), None
        for name in ("fsync", "replace", "rename"):
            setattr(os, name, self.counted(getattr(os, name), False))
        steps_function, complete = loop.steps_function, Run.complete
        loop.steps_function = lambda *arguments: self.counted(steps_function(*arguments), True)

        def complete_and_exit(run, folder, **options):
            self.row = run.row
            result = complete(run, folder, **options)
            if run.row == row:
                os._exit(0)  # the other rows run in further processes
            return result

        Run.complete = complete_and_exit

    def counted(self, function, after_only):
        def call(*arguments):
            if not after_only:
                self.count()
            result = function(*arguments)
            self.count()
            return result

        return call

    def count(self):
        self.counts[self.row] += 1
        if (self.row, self.counts[self.row]) == self.target:
            self.kill()

    @staticmethod
    def kill():
        os.kill(os.getpid(), signal.SIGKILL)


def fork(work):
    """Runs work in a child process; returns its exit status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    status = 1
    try:
        work()
        status = 0
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def quiet():
    """Suppresses output and charts in this process, and saves a checkpoint after every step."""
    sys.stdout = open(os.devnull, "w")
    loop.CHECKPOINT_SECONDS = -1.0
    report.charts.of_table = comparison.training_charts = comparison.data_figures = comparison.record_charts = lambda *_: []
    images.draw_maps = lambda *_: None


def json_of(path):
    with open(path) as file:
        return json.load(file)


def suite(folder, workdir, row=None, number=None):
    quiet()
    events = Events(row, number)
    arguments = ["suite", f"{folder}/table", f"--workdir={workdir}"]
    command, options = command_line.read_command(arguments)
    commands.COMMANDS[command.name](options, arguments)
    with open(f"{workdir}/events.json", "w") as file:
        json.dump(events.counts, file)


def contents(workdir, rows):
    """Returns {row: everything that must be equal}."""
    contents_of_rows = {}
    for row in rows:
        folder = f"{workdir}/{row}/seed_0"
        arrays, kept = [], sorted(name for name in os.listdir(f"{folder}/checkpoints") if name.endswith(".npz"))
        for path in ("saved_model/weights.npz", *(f"checkpoints/{name}" for name in kept)):
            with np.load(f"{folder}/{path}") as file:
                arrays += [name.encode() + file[name].tobytes() for name in sorted(file.files) if name != "seconds"]
        rows = [[r["metric"], r["value"]] for r in json_of(f"{folder}/evaluation.json")["rows"]]
        history = [{name: value for name, value in entry.items() if "second" not in name} for entry in json_of(f"{folder}/history.json")]
        names = sorted(os.path.relpath(os.path.join(parent, name), folder) for parent, _, files in os.walk(folder) for name in files)
        measured = sorted(record["set"] for record in recording.read_records(f"{folder}/measured.jsonl"))  # once each
        contents_of_rows[row] = {
            "weights": hashlib.sha256(b"".join(arrays)).hexdigest(),
            "rows": rows,
            "history": history,
            "measured": measured,
            "files": [name for name in names if "tensorboard" not in name],
        }
    return contents_of_rows


def main(folder, kills, seed, rows):
    os.makedirs(f"{folder}/table")
    for row in rows:
        with open(f"{folder}/table/{row}.flags", "w") as file:
            file.write("\n".join([*COMMON, *ROWS[row]]))
    with open(f"{folder}/table/suite.json", "w") as file:
        json.dump({"baseline": rows[0], "rows": rows}, file)
    if fork(lambda: suite(folder, f"{folder}/uninterrupted")):
        sys.exit("the suite failed without a kill")
    counts = json_of(f"{folder}/uninterrupted/events.json")
    draw, killed, resumed = random.Random(seed), collections.Counter(), []
    while min(killed[row] for row in rows) < kills:
        workdir = f"{folder}/killed_{len(resumed)}"
        for row in rows:
            status = None
            while status != 0:
                number = draw.randint(1, counts[row])  # counted from the start of this process
                status = fork(lambda: suite(folder, workdir, row, number))
                if status and not os.WIFSIGNALED(status):
                    sys.exit(f"{row}: the same command failed after a kill")
                killed[row] += status != 0
        resumed.append(contents(workdir, rows))
    print(json.dumps({"events": counts, "killed": killed, "uninterrupted": contents(f"{folder}/uninterrupted", rows), "resumed": resumed}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(","))
