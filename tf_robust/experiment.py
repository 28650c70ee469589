"""One run: data -> method -> training -> exported model -> evaluation -> rows -> report. And many of them: a suite."""

import dataclasses
import datetime
import functools
import glob
import os
import time
import typing

import keras
import tensorflow as tf

from tf_robust import (callbacks, data, evaluation, export, figures, methods, models, optimizers, report, training,
                       workdir)
from tf_robust.data.augment import AUGMENTATIONS
from tf_robust.errors import unknown
from tf_robust.files import read_json, write_json


MEASURING = ("evaluations", "evaluation_split", "steps_per_execution")  # flags that no trained weight depends on


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a run is told, beside the hyperparameters of its method and augmentations.

    Args:
        data: data set: digits, synthetic_digits, synthetic_mnist, a TFDS name (mnist, cifar10, ...), or folder:DIR.
        data_dir: where TFDS keeps its sets; empty: ~/tensorflow_datasets.
        download: fetch a TFDS set that is not there.
        image_size: side in pixels for pictures of varying size.
        validation_share: share of the training set held out when the data set has no validation split.
        train_examples: train on only this many examples, stratified; 0: all.
        model: classifier: lenet, resnet8, resnet20, resnet56, resnet50_v2.
        method: training method: cross_entropy, gaussian, contrastive_gaussian, fcl.
        augmentations: applied in this order: crop_flip, patch_gaussian.
        epochs: passes over the training set.
        batch_size: examples a step, over all replicas.
        optimizer: adam or sgd.
        momentum: of sgd.
        nesterov: Nesterov momentum in sgd.
        learning_rate: peak learning rate.
        schedule: of the learning rate.
        learning_rate_warmup_epochs: linear ramp of the learning rate at the beginning.
        decay_rate: factor after each epoch (schedule exponential).
        decay_epochs: epochs of the steps (schedule steps).
        decay_factor: factor at each step (schedule steps).
        steps_per_execution: training steps run without coming back to Python.
        mixed_precision: compute in bfloat16, keep weights in float32.
        evaluations: what to measure: clean, noise, noise_floor.
        evaluation_split: split to measure on; choose settings on validation, never on test.
    """
    data: str = "synthetic_digits"
    data_dir: str = ""
    download: bool = False
    image_size: int = 224
    validation_share: float = 0.0
    train_examples: int = 0
    model: str = "lenet"
    method: str = "cross_entropy"
    augmentations: tuple[str, ...] = ()
    epochs: int = 10
    batch_size: int = 128
    optimizer: str = "adam"
    momentum: float = 0.9
    nesterov: bool = False
    learning_rate: float = 0.01
    schedule: str = "exponential"
    learning_rate_warmup_epochs: float = 0.0
    decay_rate: float = 0.89
    decay_epochs: tuple[float, ...] = ()
    decay_factor: float = 0.1
    steps_per_execution: int = 20
    mixed_precision: bool = False
    evaluations: tuple[str, ...] = evaluation.USUAL
    evaluation_split: typing.Literal["validation", "test"] = "test"

    def __post_init__(self):
        choices = {"model": models.MODELS, "method": methods.METHODS, "augmentations": AUGMENTATIONS,
                   "optimizer": optimizers.OPTIMIZERS, "schedule": optimizers.SCHEDULES,
                   "evaluations": evaluation.EVALUATIONS}
        for name, known in choices.items():
            chosen = getattr(self, name)
            for word in (chosen,) if isinstance(chosen, str) else chosen:
                if word not in known:
                    raise unknown(name.rstrip("s"), word, known)
        if not self.evaluations:
            raise ValueError(f"Expected evaluations, of: {', '.join(evaluation.EVALUATIONS)}. Received none")
        for name in ("epochs", "batch_size", "steps_per_execution", "image_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"Expected {name} >= 1. Received: {getattr(self, name)}")


class Run:
    """One training of one row with one seed.

    Args:
        settings: `Settings`.
        hyperparameters: {"method": {...}, "augmentations": {name: {...}}}, keyword arguments.
        flags: {name: text}, everything the run depends on but where the data are, as written to `flags.txt`.
        defaults: {name: text}, the same flags' defaults. row: its name in tables. seed: int.
    """

    def __init__(self, settings, hyperparameters, flags, defaults, row, seed):
        self.settings, self.hyperparameters, self.flags, self.defaults = settings, hyperparameters, flags, defaults
        self.row, self.seed = row, seed

    def claimed(self, folder):
        """Holds a workdir for this run; see `workdir.claimed`."""
        return workdir.claimed(folder, self.flags, self.defaults, free=MEASURING)

    def source(self, split):
        s = self.settings
        examples = s.train_examples if split == "train" else 0
        return data.open_source(s.data, split, s.data_dir or None, image_size=s.image_size, examples=examples,
                                validation_share=s.validation_share, download=s.download)

    def augmentations(self):
        return [functools.partial(AUGMENTATIONS[name], **self.hyperparameters["augmentations"][name])
                for name in self.settings.augmentations]

    def method(self, source):
        """The compiled method on a fresh classifier."""
        s = self.settings
        steps = data.steps_per_epoch(source, s.batch_size)
        keras.mixed_precision.set_dtype_policy("mixed_bfloat16" if s.mixed_precision else "float32")
        with training.strategy().scope():
            classifier = models.build(s.model, source.image_shape, source.num_classes, seed=self.seed)
            method = methods.METHODS[s.method](classifier, seed=self.seed, **self.hyperparameters["method"])
            schedule = optimizers.learning_rate_schedule(
                s.schedule, s.learning_rate, steps_per_epoch=steps, epochs=s.epochs,
                warmup_epochs=s.learning_rate_warmup_epochs, decay_rate=s.decay_rate, decay_epochs=s.decay_epochs,
                decay_factor=s.decay_factor)
            method.compile(optimizer=optimizers.build(s.optimizer, schedule, momentum=s.momentum, nesterov=s.nesterov))
        keras.mixed_precision.set_dtype_policy("float32")
        return method

    def train(self, folder, source):
        """Trains, or goes on training, in a claimed folder, and exports. Returns a TrainingResult."""
        s = self.settings
        method, augmentations = self.method(source), self.augmentations()
        has_validation = data.has_validation(s.data, s.data_dir or None, s.validation_share)
        validation = self.source("validation") if has_validation else None
        epoch = data.training_epoch(source, s.batch_size, seed=self.seed, epoch=0, augmentations=augmentations)
        text = "\n".join(f"--{name}={value}" for name, value in sorted(self.flags.items()))
        board = callbacks.TensorBoard(os.path.join(folder, "tensorboard"), next(iter(epoch)), text)
        result = training.fit(
            method, source, epochs=s.epochs, batch_size=s.batch_size, augmentations=augmentations,
            checkpoint_folder=os.path.join(folder, "checkpoints"), validation=validation,
            callbacks=[callbacks.History(os.path.join(folder, "history.json")), board],
            steps_per_execution=s.steps_per_execution)
        export.export(method.classifier, os.path.join(folder, "saved_model"), self.card(source),
                      crop=source.varying_size)
        if source.num_classes == 15 and s.data.startswith("synthetic_"):
            path = figures.utility(os.path.join(folder, "figures"), method.classifier, source)
            board.show("utility", path)
        return result

    def card(self, source):
        return {"method": self.settings.method, "model": self.settings.model, "data": self.settings.data,
                "classes": list(source.class_names), "seed": self.seed, "flags": self.flags,
                "input": {"shape": [None, *source.image_shape], "type": "float32", "range": [0.0, 1.0],
                          "layout": "NHWC", "normalization": "inside the model",
                          "encoded": "resized by the shorter side, centre-cropped" if source.varying_size else "resized"},
                "versions": workdir.environment(), "commit": workdir.commit()}

    def complete(self, folder):
        """Trains, exports and evaluates, unless that is already done. Returns the content of `evaluation.json`."""
        done = os.path.join(folder, "evaluation.json")
        with self.claimed(folder):
            before = read_json(done) if os.path.exists(done) else {}
            if (before.get("split"), before.get("evaluations")) == (self.settings.evaluation_split,
                                                                    list(self.settings.evaluations)):
                print("  done before", flush=True)
                return before
            source = self.source("train")
            self.source(self.settings.evaluation_split)  # what is missing is said before training
            trained = before.get("training") or dataclasses.asdict(self.train(folder, source))
            saved_model = os.path.join(folder, "saved_model")
            found = {**self.measure(saved_model), "training": trained}
            export.update_card(saved_model, rows=found["rows"])
            write_json(done, found)
        keras.backend.clear_session()
        return found

    def measure(self, saved_model):
        """The content of `evaluation.json` for an exported model, ours or another's, on this run's data."""
        s = self.settings
        rows = evaluate_saved_model(saved_model, self.source(s.evaluation_split), self.source("train"), s.evaluations)
        return {"row": self.row, "seed": self.seed, "method": s.method, "data": s.data, "data_dir": s.data_dir,
                "model": s.model, "split": s.evaluation_split, "evaluations": list(s.evaluations), "rows": rows,
                "versions": workdir.environment(), "commit": workdir.commit(),
                "date": datetime.date.today().isoformat(), "saved_model": saved_model}


def evaluate_saved_model(path, source, training_source, evaluations):
    """Rows, as dictionaries, of an exported model on the sets that `evaluations` name.

    Raises:
        ValueError: the model takes pictures of another shape than the data's.
    """
    classify = export.load(path)
    expected = tf.TensorShape([None, *source.image_shape])
    if not expected.is_compatible_with(classify.input_shape):
        raise ValueError(f"Expected a model for pictures {source.image_shape} of {source.name}. "
                         f"{path} takes {classify.input_shape[1:]}")
    sets = evaluation.evaluation_sets(source, training_source, evaluations)
    rows = []
    for row in evaluation.evaluate(lambda images: classify(images)["logits"], sets):
        print(f"  {row.measure:12s} {row.value:.4f}  [{row.low:.4f}, {row.high:.4f}]  {row.count} pictures", flush=True)
        rows.append(dataclasses.asdict(row))
    return rows


def run_all(runs, folder_of):
    """Completes every run; one that fails does not stop the others.

    Two processes with the same command share the work: what one is at, the other leaves, and waits for at the end.

    Args:
        runs: list of `Run`. folder_of: run -> its workdir.

    Returns:
        (evaluations in the order of the runs, sentences about the runs that failed)
    """
    found, failures, left = {}, [], list(range(len(runs)))
    while left:
        busy = []
        for number in left:
            run = runs[number]
            print(f"[{number + 1}/{len(runs)}] {run.row}, seed {run.seed}: {folder_of(run)}", flush=True)
            try:
                found[number] = run.complete(folder_of(run))
            except workdir.Busy as error:
                print(f"  {error}; left to it.", flush=True)
                busy.append(number)
            except (ValueError, OSError, tf.errors.OpError, training.TrainingDiverged) as error:
                if len(runs) == 1:
                    raise
                failures.append(f"{run.row}, seed {run.seed}, failed: {error}")
                print(f"  FAILED: {error}", flush=True)
        left = busy
        if left:
            time.sleep(10)
    return [found[number] for number in sorted(found)], failures


def read_evaluations(pattern):
    """The evaluations of all workdirs that a glob pattern matches.

    Raises:
        FileNotFoundError: there is none.
    """
    paths = sorted(os.path.join(folder, "evaluation.json") for folder in glob.glob(pattern, recursive=True))
    found = [read_json(path) for path in paths if os.path.exists(path)]
    if not found:
        raise FileNotFoundError(f"Expected --runs to match workdirs with an evaluation.json. Found none for {pattern!r}")
    return found


def write_report(folder, evaluations, *, title, command, run=None, suite=None):
    """Writes the report over evaluations, with the pictures of the data of `run`, and prints the table.

    Args:
        suite: {"paper": {row: {measure: [mean, std]}}, "baseline": row, "notes": [...]}, all optional.
    """
    suite = suite or {}
    pictures = os.path.join(folder, "figures")
    drawn = figures.of_data(pictures, run.source("train"), run.source(run.settings.evaluation_split)) if run else []
    folders = {}
    for found in evaluations:  # the first seed of each row
        folders.setdefault(found["row"], os.path.dirname(found["saved_model"]))
    histories = {row: os.path.join(path, "history.json") for row, path in folders.items()}
    drawn += [*figures.of_training(pictures, histories), *figures.of_utility(folders)]
    commits = ", ".join(dict.fromkeys(found["commit"] for found in evaluations))
    table = report.write(folder, evaluations, title=title, command=command, commit=commits, paper=suite.get("paper"),
                         baseline=suite.get("baseline"), figures=drawn, notes=suite.get("notes", ()))
    print(f"\n{report.to_text(table)}\n\n{report.verdict(table)}\n")
    return table
