"""Evaluates the pretrained models in formats of deployment: what integers cost on corrupted and attacked images, sizes and latencies.

python benchmarks/deployed.py --data_dir=DIR            # writes results/deployed.{json,md}; run again, it resumes
python benchmarks/deployed.py --data_dir=DIR --latency  # on a quiet machine: one network of each kind, all formats
"""

import json
import os
import pathlib
import subprocess
import sys

from absl import app, flags

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.timing import provenance
from tf_robust.saved_models import zoo
from tf_robust.saved_models.formats import files
from tf_robust.utils.files import atomic_file, read_json, write_json

FLAGS = flags.FLAGS

IMAGES, ATTACKED, QUERIES = 1000, 200, 500
RADII = {"cifar10": "linf_2/255", "mnist": "linf_0.1", "digits": "linf_0.1"}
COMPARED = ("savedmodel", "tflite_int8")  # float16 loses nothing: the weights are stored in it
NETWORKS = ("cifar10/resnet20_cross_entropy", "cifar10/resnet8_cross_entropy", "digits/lenet_cross_entropy")  # for latencies
MEASURES = {"clean": "clean", "corruptions/mean15": "15 corruptions", "calibration/rms": "RMS calibration error"}
ATTACKS = {"robust/square": "Square", "robust/transfer": "transferred PGD"}


def run(*arguments: str) -> None:
    """Runs a command of the command line."""
    subprocess.run([sys.executable, "-m", "tf_robust", *arguments], check=True, cwd=ROOT)


def evaluate(name: str, workdir: str) -> None:
    """Evaluates a pretrained model in the formats `COMPARED`; complete parts are not computed again."""
    data = name.partition("/")[0]
    images = [f"--data={data}", f"--data_dir={FLAGS.data_dir}", f"--subset={IMAGES if data != 'digits' else 0}"]
    corrupted = os.path.join(workdir, "corrupted", data)
    if not os.path.exists(os.path.join(corrupted, "card.json")):
        run("corrupt", data, *images[1:], f"--workdir={corrupted}")
    evaluations = ["--evaluations=clean,corruptions,calibration,adversarial", f"--corrupted_dir={corrupted}"]
    attacks = [f"--attack_radii={RADII[data]}", f"--attack_subset={ATTACKED}", f"--attack_queries={QUERIES}"]
    formats = [f"--formats={','.join(COMPARED)}", f"--workdir={os.path.join(workdir, name)}"]
    run("evaluate", f"zoo:{name}", *images, *evaluations, *attacks, *formats)


def measure_latency(name: str, workdir: str) -> None:
    """Metrics the size and the latency of a pretrained model in all formats."""
    folder = f"--workdir={os.path.join(workdir, 'latency', name)}"
    images = [f"--data_dir={FLAGS.data_dir}", "--subset=100", "--evaluations=clean"]
    run("evaluate", f"zoo:{name}", *images, f"--formats={','.join(files())}", folder)


def rows_of(workdir: str) -> list[dict]:
    """Returns the rows of the reports in a folder, each with the name of its model as "model"."""
    found = []
    for name in zoo.names():
        path = os.path.join(workdir, name, "formats", "results.json")
        if os.path.exists(path):
            content = read_json(path)
            found += [{"model": name, "commit": content["commit"], **row} for row in content["rows"]]
    return found


def collect(workdir: str) -> dict:
    """Returns {"models": rows of the main metrics, "latency": rows of size and latency}."""
    kept = ("model", "row", "metric", "mean", "low", "high", "difference", "commit")
    main = [row for row in rows_of(workdir) if row["metric"] in MEASURES or row["metric"].startswith(tuple(ATTACKS))]
    deployed = [row for row in rows_of(os.path.join(workdir, "latency")) if row["metric"].startswith("deployed/")]
    return {key: [{field: row[field] for field in kept} for row in rows] for key, rows in (("models", main), ("latency", deployed))}


def to_markdown(results: dict) -> str:
    """Returns the page."""
    found = {(row["model"], row["row"], row["metric"].rpartition("/linf")[0] or row["metric"]): row for row in results["models"]}
    columns = {**MEASURES, **ATTACKS}
    lines = [["model", "format", *columns.values()]]
    for model in dict.fromkeys(model for model, _, _ in found):
        for name in COMPARED:
            lines.append([model, name, *(_cell(found.get((model, name, metric))) for metric in columns)])
    sizes = {(row["model"], row["row"], row["metric"]): row["mean"] for row in results["latency"]}
    deployed = [["model", "format", "bytes", "milliseconds"]]
    for model, name in dict.fromkeys(key[:2] for key in sizes):
        deployed.append([model, name, f"{sizes[model, name, 'deployed/bytes']:,.0f}", f"{sizes[model, name, 'deployed/milliseconds']:.3f}"])
    missing = [name for name in zoo.names() if name not in {model for model, _, _ in found}]
    return TEXT.format(
        images=IMAGES,
        attacked=ATTACKED,
        queries=QUERIES,
        table=_table(lines),
        deployed=_table(deployed),
        findings=findings(found),
        commits=", ".join(sorted({row["commit"] for row in (*results["models"], *results["latency"])})),
        missing=f"Not evaluated yet: {', '.join(missing)}." if missing else "",
        machine=results["machine"],
    )


def findings(found: dict) -> str:
    """Returns a sentence for each quantized format: the range of its differences, and how many are significant."""
    sentences = []
    for name in COMPARED[1:]:
        for metric in ("clean", "corruptions/mean15"):
            differences = [row["difference"] for (_, row_name, key), row in found.items() if (row_name, key) == (name, metric)]
            worse = sum(one["images"]["high"] < 0 for one in differences)
            means = [100 * one["mean"] for one in differences]
            sentences.append(
                f"- `{name}`, {MEASURES[metric]}: differences from {min(means):+.2f} to {max(means):+.2f} points; "
                f"significantly worse (95% interval, paired over the images) in {worse} of {len(means)} models."
            )
    return "\n".join(sentences)


def _cell(row):
    if row is None:
        return "–"
    difference = row["difference"]
    if not difference:
        return f"{row['mean']:.3f}"
    images = difference["images"]
    interval = f" [{images['low']:+.3f}, {images['high']:+.3f}]" if images else ""
    return f"{row['mean']:.3f} ({difference['mean']:+.3f}{interval})"


def _table(lines):
    return "\n".join("| " + " | ".join(line) + " |" for line in [lines[0], ["---"] * len(lines[0]), *lines[1:]])


TEXT = """# The pretrained models as they are deployed

Accuracy on clean images and over 15 corruptions at severities 1 to 5, RMS calibration error on clean images, and accuracy under
attacks, of each file run by its own runtime: up to {images} test images (all of digits), {attacked} of them attacked. In parentheses the
difference to the float SavedModel, with its paired 95 % interval over the images where there is one. Square queries the file itself
({queries} queries, linf, radius 2/255 on cifar10 and 0.1 on digits and mnist). Transferred PGD is computed with the gradients of the float
model: it is a white-box attack on the float SavedModel alone. The integers are calibrated on 300 training images.

{findings}

Where Square leaves a file of integers clearly more than the float model, but the transferred attack does not, Square alone overstates it.
A likely reason is that small changes do not move rounded logits. The lower of the two accuracies counts.

{table}

## Size and latency

One image, one thread, median over calls; {machine}.

{deployed}

The bytes of a SavedModel are those of its graph and variables. The Keras and SavedModel latencies contain the overhead of calling a
TensorFlow function from Python.

## Command

```sh
python benchmarks/deployed.py --data_dir=DIR
python benchmarks/deployed.py --data_dir=DIR --latency
```
Commits {commits}; {machine}; seed 0.
`cifar10` is the JPEG-compressed copy on which these models were trained (`docs/reference/zoo.md`). {missing}
"""


def main(_) -> None:
    names = [name for name in (NETWORKS if FLAGS.latency else zoo.names()) if name.startswith(tuple(FLAGS.models))]
    for name in names:
        (measure_latency if FLAGS.latency else evaluate)(name, FLAGS.workdir)
    origin = {
        **provenance("ai-edge-litert", "onnxruntime", "tf2onnx"),
        "command": "python benchmarks/deployed.py --data_dir=DIR [--latency]",
    }
    origin.pop("commit")  # rows have that of their evaluation
    results = {**origin, **collect(FLAGS.workdir)}
    write_json(f"{FLAGS.output}.json", results)
    with atomic_file(f"{FLAGS.output}.md") as file:
        file.write(to_markdown(results))
    print(json.dumps({"models": len(names), "written": f"{FLAGS.output}.md"}))


if __name__ == "__main__":
    flags.DEFINE_string("data_dir", "", "folder of the TFDS data sets.")
    flags.DEFINE_string("workdir", "runs/deployed", "folder of the evaluations.")
    flags.DEFINE_string("output", str(ROOT / "results" / "deployed"), "files to write, without their suffix.")
    flags.DEFINE_list("models", ["cifar10", "mnist", "digits"], "beginnings of the names of the models.")
    flags.DEFINE_bool("latency", False, "metric sizes and latencies instead.")
    app.run(main)
