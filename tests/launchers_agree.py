"""Completes flags/fcl/small, shortened, by every launcher and compares the evaluations.

    python tests/launchers_agree.py FOLDER DIR

FOLDER: of the workdirs; DIR: of TFDS' CIFAR-10. local: one run after the other; ray: two nodes on this machine; slurm: submitit's local
executor. Prints a table in Markdown. Tasks use one thread each.
"""

import os
import pathlib
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import numpy as np

from tests.ray_cluster import HOME, Cluster
from tf_robust.utils import environment
from tf_robust.utils.files import read_json

DIFFERENT = ("training", "date", "saved_model", "model_digest")  # times, paths, and names in graphs, which count a process's functions
SHORT = ["--train_examples=512", "--epochs=7", "--subset=500", "--seeds=0,1"]  # FCL's term starts at epoch 6
LAUNCHERS = {"local": [], "ray": ["--launcher=ray"], "slurm": ["--launcher=slurm", "--launcher_options=cluster=local,cpus_per_task=1"]}


def evaluations(workdir):
    """Returns {workdir of a run: what must be equal in its evaluation}."""
    found = {}
    for path in sorted(pathlib.Path(workdir).glob("*/seed_*/evaluation.json")):
        name = str(path.parent.relative_to(workdir))
        found[name] = {field: value for field, value in read_json(str(path)).items() if field not in DIFFERENT}
    return found


def differences(workdir, other):
    """Returns the largest difference between the weights of each run in two workdirs."""
    largest = []
    for path in sorted(pathlib.Path(workdir).glob("*/seed_*/saved_model/weights.npz")):
        with np.load(path) as one, np.load(pathlib.Path(other) / path.relative_to(workdir)) as two:
            largest.append(max(float(np.abs(one[name] - two[name]).max()) for name in one.files))
    return largest


def main(folder, data_dir):
    rows, local = [], os.path.join(folder, "local")
    with Cluster() as cluster:
        for launcher, options in LAUNCHERS.items():
            workdir = os.path.join(folder, launcher)
            suite = ["suite", f"{HOME}/flags/fcl/small", f"--data_dir={data_dir}", *SHORT, *options, f"--workdir={workdir}"]
            command = [sys.executable, "-m", "tf_robust", *suite]
            with open(f"{workdir}.log", "w") as log:
                subprocess.run(command, env=cluster.environment, stdout=log, stderr=log, check=True)
            found, first = evaluations(workdir), evaluations(local)
            equal, largest = sum(found[name] == first[name] for name in first), differences(local, workdir)
            rows.append(f"| {launcher} | {len(found)} | {equal} | {largest.count(0)} | {max(largest):.1e} |")
    columns = ("launcher", "runs", "evaluations equal to local", "weights equal bit by bit", "largest difference of a weight")
    print(f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}", sep="\n")
    print(*rows, sep="\n")
    print(f"\n{environment.cpu_model()}, {os.cpu_count()} cores, commit {environment.commit()}, `{' '.join(SHORT)}`")


if __name__ == "__main__":
    os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
    os.makedirs(sys.argv[1], exist_ok=True)
    main(*sys.argv[1:])
