"""Runs all benchmarks and writes one table of their ratios.

    python -m benchmarks                                  # metrics everything on this CPU model, and writes results/benchmarks/all.md
    python -m benchmarks --table                          # prints and writes all.md from the recorded results of all CPU models
    python -m benchmarks --quick                          # a minute: fails if a ratio is 25 % worse than recorded on this CPU model
    python -m benchmarks --quick --record                 # records this CPU model's ratios, medians of three runs, in quick.json

Except for the start-up time, all results are medians of ratios of interleaved measurements, so that the speed of the machine and other
programs affect both sides alike. Ratios differ between CPU models. The quick ones are therefore compared with those recorded on the same
model, or only printed if there is no record. A quick ratio that is worse is measured again, at most twice, and the best counts. Benchmarks
whose peer is not installed are logged and skipped; their rows in the table are from their last run. Results stand in one folder for
each CPU model. Below the table are the commits, machines and versions of its rows.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

from absl import app, flags

from benchmarks import goals

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "benchmarks"
WORSE = 1.25
_NUMBERS = r" \(\d+ MiB\)|, [\d,]+ images, \d+ sets; quartiles of sets"  # of one measurement
COMMANDS = (
    ("train_step.py", "--repeats=5", "--steps=4"),
    ("augmix.py",),
    ("corruptions.py",),
    ("attacks.py", "--parts=speed"),
    ("end_to_end.py", "--images=10000"),
)
QUICK = (
    (
        "train_step.py",
        "--models=lenet",
        "--rows=cross_entropy,fcl,noisymix,cutmix,simclr,moco",
        "--repeats=9",
        "--steps=8",
        "--memory=false",
    ),
    ("augmix.py", "--sizes=32", "--repeats=7", "--seconds=0.5"),
)
# {file: function of a row and the file's contents -> (name, ratio, goal, "lower" or "higher" is better), or None}
READERS = {
    "train_step": lambda row, found: (
        f"step of {row['row']} over cross_entropy's, {row['model']}",
        row["ratio"],
        goals.TRAIN_STEP.get(row["model"], {}).get(row["row"]),
        "lower",
    ),
    "augmix": lambda row, found: (
        f"AugMix over Pillow's speed, {row['size']} px",
        row["ratio"],
        goals.AUGMIX.get(str(row["size"])),
        "higher",
    ),
    "corruptions": lambda row, found: (
        f"{row['corruption']} over imagecorruptions' speed, {row['size']} px",
        row["ratio"],
        goals.CORRUPTIONS["smallest"].get(str(row["size"])),
        "higher",
    ),
    "attack_speed": lambda row, found: (
        None
        if row["row"] == "foolbox"
        else (
            f"PGD ({row['row']}) over foolbox's speed, {row['norm']}",
            row["ratio"],
            goals.ATTACK_SPEED[row["norm"]] if row["row"] == "ours" else None,
            "higher",
        )
    ),
    "end_to_end": lambda row, found: (
        re.sub(_NUMBERS, "", row["what"]) + f", {row['row'].split('/')[-1].split(',')[0]}",
        row["value"],
        goals.END_TO_END.get(row["row"]),
        "higher" if row["row"].startswith("training/") else "lower",
    ),
}
flags.DEFINE_bool("quick", False, "metric a few ratios and compare them with the recorded ones.")
flags.DEFINE_bool("record", False, "with --quick: record the ratios.")
flags.DEFINE_bool("table", False, "only write the table of the recorded results.")
FLAGS = flags.FLAGS


def run(command, folder):
    """Runs a benchmark that writes into a folder. Returns an error message, empty on success."""
    script, *arguments = command
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / script), *arguments, f"--output={folder}"],
        cwd=ROOT,
        text=True,
        stdout=sys.stderr,
        stderr=subprocess.PIPE,
    )
    if not done.returncode:
        return ""
    lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
    return next((line for line in lines if line.startswith("Expected")), lines[-1])


def rows_in(folder):
    """Returns all rows of the benchmarks that wrote into a folder: {name: (ratio, quartiles, goal, better, provenance)}."""
    rows = {}
    for name, read in READERS.items():
        path = pathlib.Path(folder) / f"{name}.json"
        if path.exists():
            found = json.loads(path.read_text("utf-8"))
            for row in found["rows"]:
                name, ratio, goal, better = read(row, found) or [None] * 4
                rows.update({name: (ratio, row["quartiles"], goal, better, where({**found, **row}))} if name else {})
    return rows


def where(found):
    """Returns commit, machine and versions of a row as text."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return f"commit {found['commit']}; {found.get('machine', 'machine not recorded')}; {versions}"


def measured():
    """Returns {name: (ratio, better)} of the quick rows."""
    with tempfile.TemporaryDirectory() as folder:
        for command in QUICK:
            wrong = run(command, folder)
            if wrong:
                sys.exit(f"{' '.join(command)}: {wrong}")
        return {name: (row[0], row[3]) for name, row in rows_in(folder).items()}


def factor(ratio, recorded, better):
    """Returns the factor by which a ratio is worse than the recorded one."""
    return ratio / recorded if better == "lower" else recorded / ratio


def worse(found, recorded):
    """Returns the names of the ratios {name: (ratio, better)} that are worse than recorded, {name: ratio}, by more than WORSE."""
    return [name for name, (ratio, better) in found.items() if factor(ratio, recorded[name], better) > WORSE]


def better_of(found, again, recorded):
    """Returns {name: (ratio, better)}, the better of two measurements for each name."""
    return {name: min(found[name], again[name], key=lambda pair, name=name: factor(pair[0], recorded[name], pair[1])) for name in found}


def recorded_ratios(path, model):
    """Returns {name: ratio} recorded on a CPU model; None if there are none."""
    records = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return records[model]["ratios"] if model in records else None


def record(path, model, ratios):
    """Writes a CPU model's ratios with their provenance, and keeps those of other models."""
    from benchmarks.timing import provenance
    from tf_robust.utils.files import write_json

    records = json.loads(path.read_text("utf-8")) if path.exists() else {}
    records[model] = {**provenance(), "command": "python -m benchmarks --quick --record", "ratios": ratios}
    write_json(str(path), records)


def quick():
    """Prints every quick ratio. Exits with the names of those that are worse than recorded on this CPU model."""
    from benchmarks.timing import cpu_model

    path, model = RESULTS / "quick.json", cpu_model()
    best = measured()
    if FLAGS.record:
        several = [best, measured(), measured()]
        record(path, model, {name: statistics.median(one[name][0] for one in several) for name in best})
    known = recorded_ratios(path, model)
    if known is None:
        print(f"No ratios are recorded for the CPU model {model}, so none are compared. Try: --record")
        for name, (ratio, _) in best.items():
            print(f"{name}: {ratio:.2f}")
        return
    if missing := sorted(set(known) ^ set(best)):
        sys.exit(f"Expected the rows recorded in {path.name} for {model}. These differ: {', '.join(missing)}. Try: --record")
    for _ in range(2):
        if worse(best, known):
            best = better_of(best, measured(), known)
    for name, (ratio, _) in best.items():
        print(f"{name}: {ratio:.2f}, recorded {known[name]:.2f}")
    if worse(best, known):
        sys.exit(f"More than {WORSE - 1:.0%} worse than recorded: {', '.join(worse(best, known))}")


def table(by_cpu):
    """Returns the lines of a table with a column for each CPU model, {model: rows as `rows_in` returns them}, and its provenance."""
    lines = [
        "# All benchmarks",
        "",
        "`python -m benchmarks`, on each CPU model. Rows that could not be run again are from their last run. The number in parentheses "
        "refers to the provenance below the table. Brackets: quartiles over the repeats. **Bold**: the goal is not met.",
        "",
        f"| what | goal | {' | '.join(by_cpu)} |",
        f"| --- | --- |{' --- |' * len(by_cpu)}",
    ]
    every = {name: row for rows in by_cpu.values() for name, row in rows.items()}
    places = list(dict.fromkeys(row[-1] for rows in by_cpu.values() for row in rows.values()))
    for name, (_, _, goal, better, _) in every.items():
        cells = [_cell(rows[name], places) if name in rows else "" for rows in by_cpu.values()]
        goal = "" if goal is None else f"{'≤' if better == 'lower' else '≥'} {goal:g}"
        lines.append(f"| {name} | {goal} | {' | '.join(cells)} |")
    return [*lines, "", *(f"{number}. {place}" for number, place in enumerate(places, 1))]


def _cell(row, places):
    ratio, (low, high), goal, better, place = row
    missed = goal is not None and (ratio > goal if better == "lower" else ratio < goal)
    mark = "**" if missed else ""
    return f"{mark}{ratio:.2f}{mark} [{low:.2f}, {high:.2f}] ({places.index(place) + 1})"


def folder_of(model):
    """Returns the folder of a CPU model's results."""
    return RESULTS / re.sub("[^a-z0-9]+", "_", model.lower()).strip("_")


def recorded():
    """Returns {CPU model: rows} of all folders."""
    found = {}
    for folder in sorted(path for path in RESULTS.iterdir() if path.is_dir()):
        if not (rows := rows_in(folder)):
            continue
        machine = next(iter(rows.values()))[-1].split("; ")[1]
        found[re.sub(r", \d+ of \d+ cores.*", "", machine)] = rows
    return found


def everything():
    """Runs all benchmarks and writes the table."""
    from benchmarks.timing import cpu_model

    folder = folder_of(cpu_model())
    for command in COMMANDS:
        wrong = run(command, folder.relative_to(ROOT))
        if wrong:
            print(f"{command[0]} did not run: {wrong}")
    write_table()


def write_table():
    """Prints the table of all recorded results, and writes it."""
    from tf_robust.utils.files import atomic_file

    lines = table(recorded())
    with atomic_file(str(RESULTS / "all.md")) as file:
        file.write("\n".join(lines) + "\n")
    print("\n".join(lines))


def main(_):
    if FLAGS.record and not FLAGS.quick:
        raise app.UsageError("Expected --record only with --quick. Received: --record without --quick. Try: --quick --record")
    write_table() if FLAGS.table else quick() if FLAGS.quick else everything()


if __name__ == "__main__":
    app.run(main)
