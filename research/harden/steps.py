"""The rows of the table, and the steps that make one row of one seed; finished steps are not run again."""

import dataclasses
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence

from research.harden.images import VALIDATION_FRACTION
from tf_robust.hardening.config import parse_budget
from tf_robust.hardening.result import HARDENED, START
from tf_robust.utils.files import read_json, write_json

PLAIN = "plain fine-tuning"  # by Keras, for as long
EVALUATIONS = "clean,noise,corruptions,corruptions_bar"
BUDGET = "10m"
NOT_HARDENED = 1  # exit code if nothing helps


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        title: of the row.
        network: of `plain_keras.TRAININGS`.
        data: name of the data set; `folder`: the one that `research.harden.folder` writes.
        flags: further ones of `tf-robust harden`.
        robust: whether the initial model is fine-tuned with AugMix + JSD first.
        interface: flags of the model's input and output.
        metrics: the target and the clean accuracy in the evaluation.
    """

    title: str
    network: str
    data: str
    flags: tuple[str, ...] = ()
    robust: bool = False
    interface: tuple[str, ...] = ("--input_range=0,255", "--outputs=probabilities")
    metrics: tuple[str, str] = ("corruptions/mean15", "clean")


_LOGITS = ("--input_range=0,255", "--outputs=logits")
ROWS = {
    "cifar10": Row("ResNet-8 of plain Keras, CIFAR-10", "resnet8", "cifar10", interface=_LOGITS),
    "mnist": Row(
        "LeNet of plain Keras, synthetic MNIST, target noise",
        "lenet",
        "synthetic_mnist",
        ("--target=noise",),
        interface=("--input_range=0,1", "--outputs=probabilities"),
        metrics=("un", "bal"),
    ),
    "folder": Row("MobileNetV2 of keras.applications, a folder of images of 64 pixels", "mobilenet", "folder"),
    "robust": Row("ResNet-8 trained with AugMix + JSD, CIFAR-10", "resnet8", "cifar10", robust=True, interface=_LOGITS),
    "vit": Row("vision transformer of plain Keras, CIFAR-10", "vit", "cifar10", interface=_LOGITS),
}


class Steps:
    """Runs the steps of one row and seed as processes, whose output is kept in files.

    Args:
        workdir: of all rows and seeds.
        row: of `ROWS`.
        seed: of training and of the search.
        data_dir: folder of the TFDS data sets.
        budget: of hardening and of plain fine-tuning.
        subset: number of test images.
        examples: number of training images; 0: all.
        epochs: of the initial model; 0: those of its network.
    """

    def __init__(
        self, workdir: str, row: str, seed: int, data_dir: str, *, budget: str = BUDGET, subset: int = 0, examples: int = 0, epochs: int = 0
    ):
        self.workdir, self.name, self.row, self.seed, self.data_dir = workdir, row, ROWS[row], seed, data_dir
        self.budget, self.subset, self.examples, self.epochs = budget, subset, examples, epochs
        self.folder = os.path.join(workdir, f"{row}-{seed}")

    @property
    def data(self) -> str:
        """The data set, as `--data` names it."""
        return f"folder:{os.path.join(self.workdir, 'photos')}" if self.row.data == "folder" else self.row.data

    def run_all(self) -> None:
        """Runs the steps that are not finished."""
        start, hardened = self._train_start(), os.path.join(self.folder, "harden", "hardened.keras")
        self.run("harden", self._harden_command(start))
        for name, model in {START: start, HARDENED: hardened, PLAIN: self._fine_tuned_plainly(start)}.items():
            if os.path.exists(model):  # hardened only if something helps
                arguments = [f"--evaluations={EVALUATIONS}", *self._data_flags(), f"--subset={self.subset}"]
                folder = f"--workdir={self.evaluation_folder(name)}"
                self.run(f"evaluate {name}", ["tf_robust", "evaluate", model, *arguments, folder])

    def evaluation_folder(self, model: str) -> str:
        """Returns the folder of a model's evaluation.json, which takes none of the time of the budget."""
        return os.path.join(self.folder, "evaluations", model.replace(" ", "_"))

    def output(self, step: str) -> str:
        """Returns the text that a step printed."""
        with open(self._path(step, "txt"), encoding="utf-8") as file:
            return file.read()

    def run(self, step: str, arguments: Sequence[str], *, folder: str = "") -> None:
        """Runs `python -m ARGUMENTS` unless the step is finished.

        Args:
            step: its name.
            arguments: module and arguments.
            folder: of the record of the step; empty: that of the row and seed.

        Raises:
            RuntimeError: it ends with an error.
        """
        record = self._path(step, "json", folder)
        if os.path.exists(record):
            return
        os.makedirs(os.path.dirname(record), exist_ok=True)
        print(f"{self.name}, seed {self.seed}: {step}", flush=True)
        output, begin = self._path(step, "txt", folder), time.monotonic()
        with open(output, "w", encoding="utf-8") as out, open(self._path(step, "err", folder), "w", encoding="utf-8") as errors:
            done = subprocess.run([sys.executable, "-m", *arguments], stdout=out, stderr=errors, check=False)
        if done.returncode and not (step == "harden" and done.returncode == NOT_HARDENED):
            raise RuntimeError(f"{step} ended with {done.returncode}. See {output} and {errors.name}: {shlex.join(arguments)}")
        write_json(record, {"command": shlex.join(["python", "-m", *arguments]), "seconds": time.monotonic() - begin})

    def seconds(self) -> dict[str, float]:
        """Returns the time of each step of this row and seed."""
        folder = os.path.join(self.folder, "steps")
        files = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
        return {name.removesuffix(".json").replace("_", " "): read_json(os.path.join(folder, name))["seconds"] for name in files}

    def _path(self, step, suffix, folder=""):
        return os.path.join(folder or self.folder, "steps", f"{step.replace(' ', '_')}.{suffix}")

    def _data_flags(self):
        flags = [f"--data={self.data}", f"--data_dir={self.data_dir}", f"--validation_fraction={VALIDATION_FRACTION}"]
        return [*flags, *self.row.interface]

    def _harden_command(self, start):
        arguments = [*self._data_flags(), *self.row.flags, f"--train_examples={self.examples}", f"--seeds={self.seed}"]
        return ["tf_robust", "harden", start, *arguments, f"--budget={self.budget}", f"--workdir={os.path.join(self.folder, 'harden')}"]

    def _images(self):
        """Writes the images of the row; returns the flags with which plain scripts read them."""
        folder = os.path.join(self.workdir, "images", self.row.data)
        if self.row.data == "folder":
            photos = self.data.removeprefix("folder:")
            self.run("folder", ["research.harden.folder", f"--data_dir={self.data_dir}", f"--output={photos}"], folder=photos + "-written")
        arguments = [f"--data={self.data}", f"--data_dir={self.data_dir}", f"--output={folder}", f"--examples={self.examples}"]
        self.run("images", ["research.harden.images", *arguments], folder=folder + "-written")
        return {split: os.path.join(folder, f"{split}.npz") for split in ("train", "validation", "test")}

    def _train_start(self):
        """Trains the initial model by plain Keras, which rows with the same network and data share; returns its path."""
        images, starts = self._images(), os.path.join(self.workdir, "starts", f"{self.row.data}-{self.row.network}-{self.seed}")
        common = [f"--network={self.row.network}", f"--train={images['train']}", f"--test={images['test']}", f"--seed={self.seed}"]
        epochs = [f"--epochs={self.epochs}"] if self.epochs else []
        start = os.path.join(starts, "start.keras")
        self.run("start", ["research.harden.plain_keras", *common, *epochs, f"--output={start}"], folder=starts)
        if not self.row.robust:
            return start
        robust = os.path.join(self.folder, "robust.keras")
        self.run("robust", ["research.harden.robust", *common, *epochs, f"--start={start}", f"--output={robust}"])
        return robust

    def _fine_tuned_plainly(self, start):
        """Fine-tunes the initial model by plain Keras for the time of the budget; returns the path of the model."""
        images, output = self._images(), os.path.join(self.folder, "plain.keras")
        arguments = [f"--network={self.row.network}", f"--train={images['train']}", f"--validation={images['validation']}"]
        time_given = [f"--seconds={parse_budget(self.budget).amount:g}", f"--seed={self.seed}"]
        self.run(PLAIN, ["research.harden.plain_fine_tuning", *arguments, *time_given, f"--start={start}", f"--output={output}"])
        return output
