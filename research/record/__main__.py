"""Records the evaluations of the runs of a table in one JSON file, which `tf-robust report` reads as it reads the runs.

    python -m research.record results/fcl/table1.json 'runs/fcl_table1/*/seed_*'

Each evaluation is that of `evaluation.json`, with the run's flags and learning curves (six digits). Its row is the one of the run; where
several runs have the same row, seed and metrics, as in a sweep, it is the path between the common folder and the folder of the seed.
"""

import argparse
import glob
import json
import os
from collections import Counter
from collections.abc import Sequence

from tf_robust.utils.files import read_json


def evaluations_of(folders: Sequence[str]) -> list[dict]:
    """Returns the evaluations of runs, with `flags` (a list of lines) and `history`, where a run has them."""
    common = os.path.commonpath([os.path.dirname(folder) for folder in folders]) if len(folders) > 1 else os.path.dirname(folders[0])
    evaluations = [read_json(os.path.join(folder, "evaluation.json")) for folder in folders]
    names = [os.path.relpath(folder, common).split("/seed_")[0] for folder in folders]
    cells = [{(one["row"], one["seed"], value["metric"]) for value in one["rows"]} for one in evaluations]
    counts = Counter(cell for own in cells for cell in own)
    for folder, name, own, one in zip(folders, names, cells, evaluations):
        if max(counts[cell] for cell in own) > 1:
            one["row"] = name
        if os.path.exists(os.path.join(folder, "history.json")):
            history = read_json(os.path.join(folder, "history.json"), True)
            one["history"] = [{name: float(f"{value:.6g}") for name, value in epoch.items()} for epoch in history]
        if os.path.exists(os.path.join(folder, "flags.txt")):
            with open(os.path.join(folder, "flags.txt"), encoding="utf-8") as file:
                one["flags"] = file.read().splitlines()
    return evaluations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", help="JSON file to write")
    parser.add_argument("runs", nargs="+", help="glob patterns of workdirs with an evaluation.json")
    arguments = parser.parse_args()
    folders = [folder for pattern in arguments.runs for folder in sorted(glob.glob(pattern, recursive=True))]
    lines = [json.dumps(one) for one in evaluations_of(folders)]
    with open(arguments.table, "w", encoding="utf-8") as file:
        file.write('{"evaluations": [\n' + ",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    main()
