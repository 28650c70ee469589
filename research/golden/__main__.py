"""Numbers that must not change when the code is rearranged: writes them at one commit, and compares those of two commits.

    python -m research.golden write BEFORE        (at the first commit; about ten minutes on two cores)
    python -m research.golden write AFTER --inputs=BEFORE
    python -m research.golden compare BEFORE AFTER [--renamed=names.json]

A folder has the inputs (a small Keras model and 8x8 digits), a workdir for each command, and `values.json` with every number of their JSON
files but times. They depend on the CPU and on the versions of the packages, so both are written on one machine. `--renamed` is a JSON
object {regular expression: replacement} for the names of the first folder.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys

TOLERANCE = 1e-6  # relative, and absolute for values below 1
TIMES = re.compile(r"seconds|latency|milliseconds|date|memory|throughput|per_second|commit|versions|cpu|bytes", re.IGNORECASE)
INPUTS = """
import keras, numpy as np
from sklearn.datasets import load_digits
digits = load_digits()
images, labels = np.round(digits.images[..., None] * 255 / 16).astype(np.uint8), digits.target
np.savez("digits.npz", images=images, labels=labels)
keras.utils.set_random_seed(0)
model = keras.Sequential([
    keras.Input([8, 8, 1]), keras.layers.Rescaling(1 / 255), keras.layers.Conv2D(16, 3, activation="relu"),
    keras.layers.BatchNormalization(), keras.layers.Flatten(), keras.layers.Dense(10, activation="softmax"),
])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(images[:1000].astype("float32"), labels[:1000], epochs=8, verbose=0)
model.save("model.keras")
"""
DATA = ["--data=npz:digits.npz", "--input_range=0,255"]
SMALL = ["--subset=300", *DATA]
COMMANDS = {
    "quickstart": [],
    "evaluate": ["evaluate", "model.keras", "--evaluations=clean,noise,corruptions,perturbations,slices,calibration", *SMALL],
    "confidence": ["evaluate", "model.keras", "--evaluations=clean,corruptions", "--calibrate=temperature", "--abstain_accuracy=0.99",
                   "--conformal=0.9", "--validation_fraction=0.2", *SMALL],
    "pgd": ["evaluate", "model.keras", "--evaluations=clean,adversarial,attack_curves", "--attack=pgd", "--attack_radii=linf_8/255,l2_0.5",
            "--attack_subset=100", *SMALL],
    "attack": ["attack", "model.keras", "--attack_radii=linf_4/255", "--attack_subset=50", *SMALL],
    "certified": ["evaluate", "model.keras", "--evaluations=certified", "--smoothing_samples=200", "--attack_subset=50", *SMALL],
    "harden": ["harden", "model.keras", "--target=noise", "--budget=240steps", "--max_clean_loss=0.05",
               "--evaluations=clean,noise,corruptions", *DATA],
    "export": ["export", "model.keras", "--formats=keras,savedmodel,tflite,tflite_int8", *SMALL],
    "evaluate_exported": ["evaluate", "export/model.tflite", "--evaluations=clean,noise", "--data=npz:digits.npz", "--subset=300"],
    "suite": ["suite", "suite_of_two", "--seeds=0,1"],
    "sweep": ["sweep", "learning_rate=0.01,0.003", "--data=digits", "--epochs=2", "--validation_fraction=0.2", "--evaluations=clean,noise"],
}  # fmt: skip
ROWS = {
    "plain": "--data=digits\n--epochs=2\n--evaluations=clean,noise,corruptions,adversarial\n--attack_subset=50\n--subset=200\n",
    "noisymix": "--data=digits\n--epochs=2\n--method=noisymix\n--views=clean,augmix,augmix\n--subset=200\n--attack_subset=50\n"
    "--evaluations=clean,noise,corruptions,adversarial\n",
}


def numbers(content: object, path: str = "") -> dict[str, float]:
    """Returns {path: number} of the numbers of JSON content, without times. Rows of tables are named, not counted."""
    if isinstance(content, bool) or content is None or isinstance(content, str) or TIMES.search(path):
        return {}
    if isinstance(content, (int, float)):
        return {path: float(content)}
    if isinstance(content, list):
        names = [_name(one, index) for index, one in enumerate(content)]
        content = dict(zip(names, content)) if len(set(names)) == len(names) else dict(enumerate(content))
    assert isinstance(content, dict)
    return {name: value for key, one in content.items() for name, value in numbers(one, f"{path}/{key}").items()}


def _name(entry, index):
    names = [str(entry[key]) for key in ("row", "metric", "seed", "name") if key in entry] if isinstance(entry, dict) else []
    return "|".join(names) or index


def write(folder: str, inputs: str) -> None:
    """Runs all commands in a folder, and writes its `values.json`."""
    os.makedirs(os.path.join(folder, "suite_of_two"), exist_ok=True)
    for row, text in ROWS.items():
        with open(os.path.join(folder, "suite_of_two", f"{row}.flags"), "w") as file:
            file.write(text)
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment = {**os.environ, "PYTHONPATH": root}
    if inputs:
        for file in ("digits.npz", "model.keras"):
            shutil.copy(os.path.join(inputs, file), folder)
    elif not os.path.exists(os.path.join(folder, "model.keras")):
        subprocess.run([sys.executable, "-c", INPUTS], cwd=folder, check=True, env=environment)
    values: dict[str, dict[str, float]] = {}
    for name, arguments in COMMANDS.items():
        with open(os.path.join(folder, f"{name}.log"), "w") as log:
            command = [sys.executable, os.path.join(root, "run_experiment.py"), *arguments, f"--workdir={name}"]
            code = subprocess.run(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT).returncode
        print(f"{name}: exit code {code}", flush=True)
        values[name] = {"exit code": code}
        for place, _, files in sorted(os.walk(os.path.join(folder, name))):
            for file in sorted(files):
                if file.endswith((".json", ".jsonl")):
                    path = os.path.join(place, file)
                    with open(path) as opened:
                        content = [json.loads(line) for line in opened if line.strip()] if file.endswith(".jsonl") else json.load(opened)
                    values[name] |= numbers(content, os.path.relpath(path, os.path.join(folder, name)))
    with open(os.path.join(folder, "values.json"), "w") as file:
        json.dump(values, file, indent=1)


def compare(before: str, after: str, renamed: dict[str, str]) -> list[str]:
    """Returns a line for each number that is in one folder only, or differs."""
    contents = []
    for folder in (before, after):
        with open(os.path.join(folder, "values.json")) as file:
            contents.append({f"{name}: {key}": value for name, values in json.load(file).items() for key, value in values.items()})
    old, new = contents
    for pattern, replacement in renamed.items():
        old = {re.sub(pattern, replacement, key): value for key, value in old.items()}
    lines = [f"only before: {key}" for key in sorted(old.keys() - new.keys())] + [
        f"only after: {key}" for key in sorted(new.keys() - old.keys())
    ]
    differing = [key for key in sorted(old.keys() & new.keys()) if abs(old[key] - new[key]) > TOLERANCE * max(1, abs(old[key]))]
    return (
        lines
        + [f"{key}: {old[key]} -> {new[key]}" for key in differing]
        + [f"{len(old.keys() & new.keys())} numbers in both, {len(differing)} differ"]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("write", "compare"))
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--inputs", default="", help="folder with the model and the images of another one")
    parser.add_argument("--renamed", default="", help="JSON file {regular expression: replacement}")
    arguments = parser.parse_args()
    if arguments.action == "write":
        write(arguments.folders[0], arguments.inputs)
        return
    renamed = {}
    if arguments.renamed:
        with open(arguments.renamed) as file:
            renamed = json.load(file)
    print("\n".join(compare(*arguments.folders, renamed)))


if __name__ == "__main__":
    main()
