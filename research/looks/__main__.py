"""Paired differences over seeds, with intervals that allow for several looks at the seeds.

If seeds are added when the first ones do not show a significant difference, a 95 % interval excludes 0 by chance in more than 5 % of
cases: 8.6 % with looks at three and at five seeds. Pocock's bound (1977) uses a smaller level at every look, the same for all, so that all
looks together have 5 %.

    python -m research.looks results/noisymix/few_images.json noisymix augmix --metrics=clean,un --looks=2
"""

import numpy as np
import scipy.stats
from absl import app, flags

from tf_robust import evaluation

# level of each look for 5 % in all: of normal statistics 0.0294 and 0.0221 (Pocock, 1977, table 1), of t statistics of three and then five
# seeds 0.028 (by simulation, tests/research/test_looks.py)
NOMINAL = {1: 0.05, 2: 0.028, 3: 0.021}

_METRICS = flags.DEFINE_list("metrics", ["clean", "un", "nun"], "Names of the metrics.")
_LOOKS = flags.DEFINE_enum("looks", "1", list(map(str, NOMINAL)), "Number of looks at the seeds.")


def interval(differences: np.ndarray, looks: int = 1) -> tuple[float, float, float]:
    """Returns the mean of paired differences, float [seeds], and the ends of its interval, a t interval at the level of each look."""
    mean, error = differences.mean(), differences.std(ddof=1) / len(differences) ** 0.5
    half = scipy.stats.t.ppf(1 - NOMINAL[looks] / 2, len(differences) - 1) * error
    return float(mean), float(mean - half), float(mean + half)


def main(arguments: list[str]) -> None:
    if len(arguments) != 4:
        raise app.UsageError("Expected TABLE.json ROW BASELINE.")
    table = evaluation.read_table(arguments[1])
    row, baseline = (
        {one["seed"]: {value["metric"]: value["value"] for value in one["rows"]} for one in table if one["row"] == name}
        for name in arguments[2:]
    )
    seeds = sorted(row.keys() & baseline.keys())
    if len(seeds) < 2:
        raise app.UsageError(f"Expected at least two seeds that both rows have. Received: {', '.join(map(str, seeds)) or 'none'}")
    print(f"{arguments[2]} - {arguments[3]}, {len(seeds)} seeds, {_LOOKS.value} looks")
    for metric in _METRICS.value:
        differences = np.array([row[seed][metric] - baseline[seed][metric] for seed in seeds])
        mean, low, high = interval(differences, int(_LOOKS.value))
        print(f"{metric}: {mean:+.3f} [{low:+.3f}, {high:+.3f}]")


if __name__ == "__main__":
    app.run(main)
