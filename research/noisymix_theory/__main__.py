"""Writes theory.json, theory.md and theory.png: the remainders of the expansions as epsilon goes to 0.

    python -m research.noisymix_theory --output=results/noisymix

Takes a second in float64. Nothing is trained; only the network and the points are random, drawn with --seed.
"""

import datetime
import os
import shlex
import sys

import numpy as np
from absl import app, flags
from matplotlib.figure import Figure

from research.noisymix_theory import demonstration
from research.noisymix_theory.demonstration import EPSILONS
from tf_robust.report.chart import COLORS
from tf_robust.utils import environment
from tf_robust.utils.files import atomic_file, save_figure, write_json

NAMES = {
    "theorem_1": "Theorem 1: NFM",
    "proposition_1": "Proposition 1: divergence",
    "theorem_2": "Theorem 2: stability",
    "theorem_1_as_printed": "Theorem 1, eq. 12 as printed",
    "theorem_3": "Theorem 3: points of many norms",
    "theorem_3_equal_norms": "Theorem 3: points of one norm",
}
MARKERS = "os^x"


def measured(seed):
    """Returns one row per statement: {"row", "metric", "epsilons", "values", "order" in epsilon between the last two}."""
    rows = [
        (name, "abs(loss - expansion) / epsilon^2", [case.remainder(e) for e in EPSILONS])
        for name, case in demonstration.cases(seed).items()
    ]
    rows += [
        ("theorem_3" + "_equal_norms" * equal, "(loss - bound) / epsilon^2", [demonstration.margin(seed, e, equal) for e in EPSILONS])
        for equal in (False, True)
    ]
    return [
        {
            "row": name,
            "metric": metric,
            "epsilons": EPSILONS.tolist(),
            "values": list(map(float, values)),
            "order": float(np.log2(values[-2] / values[-1])),
        }
        for name, metric, values in rows
    ]


def drawn(path, rows):
    """Plots the remainders over epsilon, and the difference between the loss and Theorem 3's bound."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, chosen in ((left, rows[:-2]), (right, rows[-2:])):
        for number, row in enumerate(chosen):
            printed = row["row"].endswith("as_printed")
            axes.plot(
                row["epsilons"],
                row["values"],
                "--" if printed else "-",
                label=NAMES[row["row"]],
                marker=MARKERS[number],
                markersize=4,
                color="#666666" if printed else COLORS[number],
            )
        top = 100 * max(value for row in chosen for value in row["values"])  # room for the legend
        axes.set_xscale("log", base=2)
        axes.set(xlabel="epsilon", yscale="log", ylim=(None, top))
        axes.legend(frameon=False, fontsize=9)
        axes.grid(axis="y", alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    left.set(title="Remainders of the expansions", ylabel="|loss - expansion| / epsilon²")
    right.set(title="NFM loss minus its bound", ylabel="(loss - bound) / epsilon²")
    return save_figure(figure, path)


def markdown(rows, command):
    """Returns Markdown with the values at four of the epsilons and the order in epsilon."""
    places = (0, 3, 6, 9)
    lines = [["", *(f"epsilon = 2^{int(np.log2(EPSILONS[p]))}" for p in places), "order"], ["---"] * 6]
    lines += [[NAMES[row["row"]], *(f"{row['values'][p]:.2e}" for p in places), f"{row['order']:.2f}"] for row in rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return (
        f"# NoisyMix: the expansions of its losses\n\n```\n{command}\n```\n\n{table}\n\n"
        "All rows but the last two: |loss - expansion| / epsilon^2, which must converge to 0. Last two rows: (loss - bound) / epsilon^2, "
        "which must not be negative.\nOrder: the order in epsilon at the smallest epsilons. Expectations are sums "
        "and Gauss quadratures in float64.\n\n"
        "- Theorem 1 holds with h'(p(x_i)) - y_i in R1; with h'(p(x_i) - y_i), as printed in eq. 12, it does not.\n"
        "- The remainder of Proposition 1 is of third order, not of higher order as stated by the o(epsilon^3) of eq. 26.\n"
        "- Theorem 3 is checked for the NFM loss of a linear model, gamma = 0: p(x) = gradient^T x cannot hold for "
        "all classes of a probability vector.\n  If all points have the same norm, both sides agree to first "
        "order, which is the sharpest case of the inequality.\n\n![Remainders](theory.png)\n"
    )


def main(_):
    rows = measured(flags.FLAGS.seed)
    command = " ".join(["python -m research.noisymix_theory", *map(shlex.quote, sys.argv[1:])])
    text = markdown(rows, command)
    print(text)
    if flags.FLAGS.output:
        folder = flags.FLAGS.output
        write_json(
            os.path.join(folder, "theory.json"),
            {
                "command": command,
                "commit": environment.commit(),
                "versions": environment.describe(),
                "date": datetime.date.today().isoformat(),
                "rows": rows,
            },
        )
        with atomic_file(os.path.join(folder, "theory.md"), "wb") as file:
            file.write(text.encode("utf-8"))
        drawn(os.path.join(folder, "theory.png"), rows)


if __name__ == "__main__":
    flags.DEFINE_string("output", "", "folder for theory.json, theory.md and theory.png; empty: print only.")
    flags.DEFINE_integer("seed", 0, "seed of the network and the points.")
    app.run(main)
