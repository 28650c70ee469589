"""Runs a suite with --launcher=ray on a cluster of two nodes whose processes are killed repeatedly by SIGKILL.

    python tests/killed_launcher.py FOLDER KILLS SEED

runs a small suite in one process, and then repeatedly on the cluster until KILLS processes were killed: that of a task, the command itself
(which is then started again), or all of the second node (which is then started again), each after a random time. Prints as JSON what must
be equal, of all runs.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tests.killed_suite import COMMON, json_of
from tests.ray_cluster import Cluster, kill
from tf_robust.evaluation.recording import read_records

ROWS = {"low": ["--learning_rate=0.01", "--epochs=20"], "high": ["--learning_rate=0.05", "--epochs=20"]}
SECONDS = 4.0, 40.0  # between two kills


def suite(cluster, folder, workdir, *arguments):
    command = [sys.executable, "-m", "tf_robust", "suite", f"{folder}/table", "--seeds=0,1", f"--workdir={workdir}", *arguments]
    with open(f"{workdir}.log", "a") as log:
        return subprocess.Popen(command, env=cluster.environment, stdout=log, stderr=log)


def contents(workdir):
    """Returns {row/seed: what must be equal}."""
    found = {}
    for row in ROWS:
        for seed in (0, 1):
            folder = f"{workdir}/{row}/seed_{seed}"
            with open(f"{folder}/saved_model/weights.npz", "rb") as file:
                weights = hashlib.sha256(file.read()).hexdigest()
            history = [{name: one for name, one in entry.items() if "second" not in name} for entry in json_of(f"{folder}/history.json")]
            rows = [[row["metric"], row["value"]] for row in json_of(f"{folder}/evaluation.json")["rows"]]
            measured = sorted(record["set"] for record in read_records(f"{folder}/measured.jsonl"))  # once each
            found[f"{row}/{seed}"] = {"weights": weights, "history": history, "rows": rows, "measured": measured}
    return found


def main(folder, kills, seed):
    os.makedirs(f"{folder}/table")
    for row, flags in ROWS.items():
        with open(f"{folder}/table/{row}.flags", "w") as file:
            file.write("\n".join([*COMMON, *flags]))
    cluster = Cluster()
    if suite(cluster, folder, f"{folder}/uninterrupted").wait():
        sys.exit("the suite failed without a kill")
    draw, killed, resumed = random.Random(seed), dict.fromkeys(("task", "command", "node"), 0), []
    with cluster:
        while sum(killed.values()) < kills:
            workdir = f"{folder}/killed_{len(resumed)}"
            command = suite(cluster, folder, workdir, "--launcher=ray")
            due = time.monotonic() + draw.uniform(*SECONDS)
            while (status := command.poll()) != 0:
                if status is not None and status != -signal.SIGKILL:
                    sys.exit(f"the command failed after a kill: {workdir}.log")
                if status is not None:
                    command = suite(cluster, folder, workdir, "--launcher=ray")
                if time.monotonic() > due and sum(killed.values()) < kills:
                    what = draw.choice(list(killed))
                    tasks = cluster.tasks()
                    killed["task"] += what == "task" and bool(tasks) and kill(draw.choice(tasks))
                    killed["command"] += what == "command" and kill(command.pid)
                    killed["node"] += what == "node" and cluster.kill_second_node()
                    due = time.monotonic() + draw.uniform(*SECONDS)
                time.sleep(0.2)
            resumed.append(contents(workdir))
    print(json.dumps({"killed": killed, "uninterrupted": contents(f"{folder}/uninterrupted"), "resumed": resumed}))


if __name__ == "__main__":
    os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # the cluster is stopped
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
