"""Runs a suite with --launcher=ray on a cluster of two nodes whose processes are killed repeatedly by SIGKILL.

    python tests/killed_launcher.py FOLDER KILLS SEED

runs a small suite in one process, and then repeatedly on the cluster until KILLS processes were killed: that of a task, the command itself
(which is then started again), or all of the second node (which is then started again), each after a random time. Prints as JSON what must
be equal, of all runs.
"""

import glob
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
from tf_robust.evaluation.recording import read_records
from tf_robust.experiments.launchers import call

HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PORT = 6398
RAY = os.path.join(os.path.dirname(sys.executable), "ray")
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([HOME, *filter(None, sys.path)]),
    "RAY_ADDRESS": f"127.0.0.1:{PORT}",
    "RAY_AUTH_MODE": "disabled",
    "TF_NUM_INTRAOP_THREADS": "1",
}
ROWS = {"low": ["--learning_rate=0.01", "--epochs=20"], "high": ["--learning_rate=0.05", "--epochs=20"]}
SECONDS = 4.0, 25.0  # between two kills


def processes(condition):
    """The numbers of the processes whose command fulfills a condition."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                words = file.read().decode(errors="replace").split("\0")
        except OSError:
            continue
        if condition(" ".join(words)):
            found.append(int(path.split("/")[2]))
    return found


def ray(*arguments):
    subprocess.run([RAY, *arguments], env=ENVIRONMENT, check=True, capture_output=True, timeout=120)


def start_node():
    ray("start", f"--address=127.0.0.1:{PORT}", "--num-cpus=1", "--disable-usage-stats")


class Cluster:
    """Two nodes with one task each; the second can be killed."""

    def __enter__(self):
        ray("start", "--head", f"--port={PORT}", "--num-cpus=1", "--include-dashboard=false", "--disable-usage-stats")
        self.first = set(self._raylets())
        start_node()
        return self

    def __exit__(self, *_):
        subprocess.run([RAY, "stop", "--force"], env=ENVIRONMENT, capture_output=True)

    @staticmethod
    def _raylets():
        return processes(lambda text: "/raylet/raylet " in text or text.split(" ")[0].endswith("/raylet"))

    def kill_second_node(self):
        """Kills the raylet of the second node with all processes below it, and starts it again. Returns whether there was one."""
        second = set(self._raylets()) - self.first
        for process in second:
            for child in [*_children(process), process]:
                _kill(child)
        if second:
            start_node()
        return bool(second)


def _children(process):
    listed = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True).stdout.split()
    return [child for number in map(int, listed) for child in (*_children(number), number)]


def _kill(process):
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def suite(folder, workdir, *arguments):
    command = [sys.executable, "-m", "tf_robust", "suite", f"{folder}/table", "--seeds=0,1", f"--workdir={workdir}", *arguments]
    with open(f"{workdir}.log", "a") as log:
        return subprocess.Popen(command, env=ENVIRONMENT, stdout=log, stderr=log)


def contents(workdir):
    """Returns {row/seed: what must be equal}."""
    found = {}
    for row in ROWS:
        for seed in (0, 1):
            folder = f"{workdir}/{row}/seed_{seed}"
            with open(f"{folder}/saved_model/weights.npz", "rb") as file:
                weights = hashlib.sha256(file.read()).hexdigest()
            history = [{name: one for name, one in entry.items() if "second" not in name} for entry in json_of(f"{folder}/history.json")]
            rows = [[row["measure"], row["value"]] for row in json_of(f"{folder}/evaluation.json")["rows"]]
            measured = sorted(record["set"] for record in read_records(f"{folder}/measured.jsonl"))  # once each
            found[f"{row}/{seed}"] = {"weights": weights, "history": history, "rows": rows, "measured": measured}
    return found


def main(folder, kills, seed):
    os.makedirs(f"{folder}/table")
    for row, flags in ROWS.items():
        with open(f"{folder}/table/{row}.flags", "w") as file:
            file.write("\n".join([*COMMON, *flags]))
    if suite(folder, f"{folder}/uninterrupted").wait():
        sys.exit("the suite failed without a kill")
    draw, killed, resumed = random.Random(seed), dict.fromkeys(("task", "command", "node"), 0), []
    with Cluster() as cluster:
        while sum(killed.values()) < kills:
            workdir = f"{folder}/killed_{len(resumed)}"
            command = suite(folder, workdir, "--launcher=ray")
            due = time.monotonic() + draw.uniform(*SECONDS)
            while (status := command.poll()) != 0:
                if status is not None and status != -signal.SIGKILL:
                    sys.exit(f"the command failed after a kill: {workdir}.log")
                if status is not None:
                    command = suite(folder, workdir, "--launcher=ray")
                if time.monotonic() > due:
                    what = draw.choice(list(killed))
                    tasks = processes(lambda text: text.startswith(f"ray::{call.__name__}"))
                    killed["task"] += what == "task" and bool(tasks) and _kill(draw.choice(tasks))
                    killed["command"] += what == "command" and _kill(command.pid)
                    killed["node"] += what == "node" and cluster.kill_second_node()
                    due = time.monotonic() + draw.uniform(*SECONDS)
                time.sleep(0.2)
            resumed.append(contents(workdir))
    print(json.dumps({"killed": killed, "uninterrupted": contents(f"{folder}/uninterrupted"), "resumed": resumed}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
