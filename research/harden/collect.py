"""Values and paired differences of the models of one row and seed, and the table over rows and seeds."""

import datetime
import glob
import os
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.stats

from benchmarks.timing import machine
from research.harden.steps import PLAIN, ROWS, Steps
from tf_robust import evaluation
from tf_robust.hardening.result import HARDENED, START
from tf_robust.metrics.paired import paired_difference
from tf_robust.report.comparison import read_evaluations
from tf_robust.utils import environment
from tf_robust.utils.files import read_json

MEASURES = {
    "clean": "clean",
    "bal": "clean (balanced classes)",
    "corruptions/mean15": "15 corruptions",
    "corruptions/noise": "noise corruptions",
    "corruptions/blur": "blur",
    "corruptions/weather": "weather",
    "corruptions/digital": "digital",
    "corruptions_bar/mean": "C-bar",
    "un": "uniform noise",
    "nun": "non-uniform noise",
}
WORKDIR = "runs/harden"
SHOWN = ("clean", "bal", "corruptions/mean15", "corruptions_bar/mean", "un", "nun")


def result_of(steps: Steps) -> dict:
    """Returns the result of one row and seed, all of whose steps are finished.

    Returns:
        {"row", "seed", "budget", "changed", "values": {model: {metric: value}}, "differences": [...], "output": lines of `harden`,
        "seconds": {step: time}, "commit", "versions", "machine", "date"}. If nothing helped, the hardened model is the initial model.
    """
    names = [name for name in (START, HARDENED, PLAIN) if os.path.exists(steps.evaluation_folder(name))]
    evaluations = dict(zip(names, (read_evaluations([steps.evaluation_folder(name)])[0] for name in names)))
    changed = HARDENED in evaluations
    if START in evaluations and not changed:
        evaluations[HARDENED] = evaluations[START]
    lines = [line.replace(steps.workdir, WORKDIR) for line in steps.output("harden").splitlines() if line[:1].strip()]
    return {
        "row": steps.name,
        "seed": steps.seed,
        "budget": steps.budget,
        "changed": changed,
        "values": {name: values_of(one) for name, one in evaluations.items()},
        "differences": differences(evaluations, evaluation.PerImage()),
        "output": lines,
        "seconds": steps.seconds(),
        **_provenance(),
    }


def values_of(one: Mapping) -> dict[str, float]:
    """Returns {metric: value} of the `MEASURES` of an `evaluation.json`."""
    return {row["metric"]: row["value"] for row in one["rows"] if row["metric"] in MEASURES}


def differences(evaluations: Mapping[str, Mapping], per_image: evaluation.PerImage) -> list[dict]:
    """Returns the paired differences of each model to the initial model, and of the hardened model to plain fine-tuning.

    Args:
        evaluations: {model: content of its `evaluation.json`}, of the same images.
        per_image: reads their per-image results.

    Raises:
        ValueError: evaluations of other images.
    """
    pairs = [(name, START) for name in evaluations if name != START] + [(HARDENED, PLAIN)] * (PLAIN in evaluations)
    found = []
    for model, baseline in pairs:
        for metric in values_of(evaluations[model]):
            first, second = (per_image(evaluations[name], metric) for name in (model, baseline))
            if first is None or second is None or first[0] != second[0]:
                raise ValueError(f"Expected {metric} of {model} and {baseline} on the same images. Received: evaluations of other images")
            found.append({"model": model, "baseline": baseline, "metric": metric, **paired_difference(first[1], second[1])})
    return found


def result_files(folder: str) -> list[str]:
    """Returns the paths of the results of all rows and seeds in a folder, in the order of `ROWS`."""
    return [path for row in ROWS for path in sorted(glob.glob(os.path.join(folder, f"{row}-*.json")))]


def read_results(folder: str) -> list[dict]:
    """Returns the results of all rows and seeds in a folder, in the order of `ROWS`.

    Raises:
        FileNotFoundError: there are none.
        ValueError: they have several budgets, which would be averaged.
    """
    if not (files := result_files(folder)):
        raise FileNotFoundError(f"Expected ROW-SEED.json files in {folder}. Received: none. Try: --row=cifar10 --seed=0, first")
    results = [read_json(path) for path in files]
    if len(budgets := {one["budget"] for one in results}) > 1:
        raise ValueError(f"Expected results with one budget in {folder}. Received: {', '.join(sorted(budgets))}. Try: delete the others")
    return results


def collected(results: Sequence[Mapping], command: str) -> dict:
    """Returns the recorded results over the seeds: values and differences with mean, standard deviation and 95 % t interval.

    Args:
        results: of `result_of`.
        command: by which they were collected.
    """
    values: dict[tuple, dict[int, float]] = {}
    paired: dict[tuple, dict[int, Mapping]] = {}
    for result in results:
        for model, metrics in result["values"].items():
            for metric, value in metrics.items():
                values.setdefault((result["row"], model, metric), {})[result["seed"]] = value
        for one in result["differences"]:
            key = (result["row"], one["model"], one["baseline"], one["metric"])
            paired.setdefault(key, {})[result["seed"]] = one
    rows = [{"row": f"{row}/{model}", "metric": metric, **_summary(seeds)} for (row, model, metric), seeds in values.items()]
    compared = [
        {
            "row": f"{row}/{model}",
            "baseline": f"{row}/{baseline}",
            "metric": metric,
            **_summary({seed: one["mean"] for seed, one in seeds.items()}),
            "intervals": [[one["low"], one["high"]] for one in seeds.values()],
            "p": [one["p"] for one in seeds.values()],
            "count": [one["count"] for one in seeds.values()],
        }
        for (row, model, baseline, metric), seeds in paired.items()
    ]
    runs = [
        {key: result[key] for key in ("row", "seed", "budget", "changed", "output", "seconds", "commit", "machine")} for result in results
    ]
    return {"command": command, **_provenance(), "rows": rows, "differences": compared, "runs": runs}


def to_markdown(content: Mapping) -> str:
    """Returns the page of the recorded results: for each row a table of the values and one of the differences."""
    machines = "; ".join(dict.fromkeys(run["machine"] for run in content["runs"]))
    commits = ", ".join(dict.fromkeys(run["commit"] for run in content["runs"]))
    lines = [
        *("# Hardening: initial model and result", ""),
        "Initial models are trained by plain Keras without code of this package, then hardened by `tf-robust harden`. Then all models are "
        "evaluated on the same test images, which neither training nor search used. Plain fine-tuning trains the same model by plain "
        "Keras on the same images for the time of the budget, half of it with each of two learning rates; the better one on validation "
        "images is kept. Rows and seeds that are missing here have not been run yet.",
        "The images of CIFAR-10 went through JPEG (quality about 75) once.",
        *("", f"Commit {commits}; {machines}.", "", "```sh"),
        f"python -m research.harden --row=ROW --seed=SEED --data_dir=DIR --workdir={WORKDIR}",
        *(content["command"], "```", ""),
    ]
    names = list(dict.fromkeys(run["row"] for run in content["runs"]))
    lines += [_line("model", "budget", "seeds", "target: initial to final", "difference", "clean: difference"), _rule(6)]
    lines += [line for name in names for line in _summary_lines(name, content)]
    lines += ["", "Differences: mean over the seeds, paired, with 95 % t intervals over the seeds, or with one seed over the images.", ""]
    for name in names:
        lines += _section(name, content)
    return "\n".join(lines)


def _summary_lines(name, content):
    """The lines of a row in the first table: target and clean accuracy of both models, and the difference of the two."""
    runs, lines = [run for run in content["runs"] if run["row"] == name], []
    values = {(row["row"], row["metric"]): row for row in content["rows"]}
    found = {(one["row"], one["baseline"], one["metric"]): one for one in content["differences"]}
    titles = {
        (HARDENED, START): ROWS[name].title,
        (PLAIN, START): f"the same by {PLAIN}",
        (HARDENED, PLAIN): f"the same, {HARDENED} minus {PLAIN}",
    }
    for (model, baseline), title in titles.items():
        ends = [found.get((f"{name}/{model}", f"{name}/{baseline}", metric)) for metric in ROWS[name].metrics]
        if not all(ends):
            continue
        start, after = (values[f"{name}/{one}", ROWS[name].metrics[0]] for one in (baseline, model))
        before = np.mean([value for seed, value in zip(start["seeds"], start["values"]) if seed in after["seeds"]])
        target = f"{MEASURES[ROWS[name].metrics[0]]} {before:.3f} to {after['mean']:.3f}"
        lines.append(_line(title, runs[0]["budget"], str(len(ends[0]["seeds"])), target, *map(_over_seeds, ends)))
    return lines


def _over_seeds(one):
    """A mean over the seeds with its interval: of the mean over seeds, or of a single seed over the images."""
    return _interval(one["mean"], one["intervals"][0] if one["low"] is None else [one["low"], one["high"]])


def _section(name, content):
    runs = [run for run in content["runs"] if run["row"] == name]
    lines = [
        f"## {ROWS[name].title}",
        "",
        f"`--row={name}`, budget {runs[0]['budget']}, seeds {', '.join(str(run['seed']) for run in runs)}.",
    ]
    rows = {(row["row"], row["metric"]): row for row in content["rows"] if row["row"].startswith(f"{name}/")}
    kept = [str(run["seed"]) for run in runs if not run["changed"]]
    if kept:
        lines[-1] += f" Nothing helped with seed {', '.join(kept)}: the hardened model is the initial model."
    models, metrics = (list(dict.fromkeys(names)) for names in zip(*rows))
    shown = [metric for metric in SHOWN if metric in metrics]
    lines += ["", "Accuracy: mean over the seeds (each seed).", "", _line("model", *(MEASURES[m] for m in shown)), _rule(len(shown) + 1)]
    lines += [_line(model.partition("/")[2], *(_values(rows[model, metric]) for metric in shown)) for model in models]
    differences_of = {(d["row"], d["baseline"], d["metric"]): d for d in content["differences"] if d["row"].startswith(f"{name}/")}
    pairs = list(dict.fromkeys((model, baseline) for model, baseline, _ in differences_of))
    for model, baseline in pairs:
        title = f"{model.partition('/')[2]} minus {baseline.partition('/')[2]}"
        lines += ["", f"Paired difference, {title}, with 95 % intervals over the test images:", ""]
        lines += [_line("metric", *(f"seed {run['seed']}" for run in runs), "mean over seeds"), _rule(len(runs) + 2)]
        for metric in (name for name in MEASURES if name in metrics):
            one = differences_of[model, baseline, metric]
            of_seed = {seed: _interval(*ends) for seed, *ends in zip(one["seeds"], one["values"], one["intervals"])}
            mean = _interval(one["mean"], [one["low"], one["high"]])
            lines.append(_line(MEASURES[metric], *(of_seed.get(run["seed"], "-") for run in runs), mean))
    return [*lines, ""]


def _summary(seeds):
    """Values per seed with mean, standard deviation and t interval over the seeds; no interval with one seed."""
    values = list(seeds.values())
    mean, std = float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None
    half = scipy.stats.t.ppf(0.975, len(values) - 1) * std / np.sqrt(len(values)) if len(values) > 1 else None
    low, high = (None, None) if half is None else (float(mean - half), float(mean + half))
    return {"values": values, "seeds": list(seeds), "mean": mean, "std": std, "low": low, "high": high, "paper": None}


def _provenance():
    about = {"commit": environment.commit(), "versions": environment.describe(), "machine": machine()}
    return {**about, "date": datetime.date.today().isoformat()}


def _values(row):
    return f"{row['mean']:.3f} ({', '.join(f'{value:.3f}'.removeprefix('0') for value in row['values'])})"


def _interval(mean, ends):
    return f"{mean:+.3f}" if ends[0] is None else f"{mean:+.3f} [{ends[0]:+.3f}, {ends[1]:+.3f}]"


def _line(*cells):
    return f"| {' | '.join(cells)} |"


def _rule(columns):
    return "|" + " --- |" * columns
