"""Metrics and draws the decision boundaries of a suite's models.

    python -m research.noisymix_toy runs/toy

The folder has ROW/seed_N/saved_model, as `suite` writes them. Prints accuracy, length and gradient of every row, and writes them to
boundaries.json beside boundaries.png, the figure of the first seed.
"""

import glob
import json
import os
import sys

import numpy as np

from research.noisymix_toy import boundary, points
from tf_robust.saved_models.loading import load_classifier
from tf_robust.utils import environment
from tf_robust.utils.files import write_json

FLAGS = os.path.join(os.path.dirname(__file__), "flags")


def main(folder: str) -> None:
    """Metrics the models of a suite in a folder."""
    with open(os.path.join(FLAGS, "suite.json"), encoding="utf-8") as file:
        names = json.load(file)["rows"]
    images, labels = points.split("test", band=True)
    rows, drawn = [], {}
    for row in names:
        found = sorted(glob.glob(os.path.join(glob.escape(folder), row, "seed_*", "saved_model")), key=_seed)
        if not found:
            raise ValueError(f"Expected models {folder}/{row}/seed_*/saved_model. Received: none. Try: the suite first, with its --workdir")
        models = [load_classifier(path) for path in found]
        boundaries = [boundary.find_boundary(np.asarray(model(boundary.grid()))) for model in models]
        accuracies = [float(np.mean(np.argmax(model(images / np.float32(255)), axis=1) == labels)) for model in models]
        drawn[f"{row} ({accuracies[0]:.1%})"] = boundaries[0]
        values = {
            "clean": accuracies,
            "boundary/length": [one.length for one in boundaries],
            "boundary/gradient": [one.gradient for one in boundaries],
        }
        for metric, of_seeds in values.items():
            rows.append({"row": row, "metric": metric, "seeds": [*map(_seed, found)], "values": of_seeds})
            rows[-1] |= {"mean": float(np.mean(of_seeds)), "std": float(np.std(of_seeds, ddof=1)) if len(of_seeds) > 1 else None}
        print(row, *(f"{metric} {np.mean(of_seeds):.3f}" for metric, of_seeds in values.items()), sep="  ")
    write_json(
        os.path.join(folder, "boundaries.json"),
        {"command": f"python -m research.noisymix_toy {folder}", "commit": environment.commit(), "rows": rows},
    )
    parts = [
        (part, points.to_points(images / 255.0), labels) for part in ("train", "test") for images, labels in [points.split(part, True)]
    ]
    print(boundary.draw(os.path.join(folder, "boundaries.png"), drawn, parts))


def _seed(path):
    return int(os.path.basename(os.path.dirname(path)).removeprefix("seed_"))


if __name__ == "__main__":
    main(*sys.argv[1:])
