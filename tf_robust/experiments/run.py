"""One run: training of one row with one seed, export and evaluation."""

import contextlib
import dataclasses
import datetime
import functools
import os
import typing
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import keras
import numpy as np

from tf_robust import data, evaluation
from tf_robust.data import stylized
from tf_robust.data.augment import VIEWS
from tf_robust.data.fitting import Fit
from tf_robust.data.source import Source
from tf_robust.experiments import construction, figures, workdir
from tf_robust.experiments.config import TrainConfig
from tf_robust.experiments.model_checks import (
    check_model_suits,
    evaluates_all_images,
    print_note,
    with_checked_inputs,
    with_label_set_of_card,
    with_output_check,
    with_possible_attacks,
)
from tf_robust.methods.base import Method
from tf_robust.methods.contrastive import ContrastiveMethod
from tf_robust.saved_models import export, loading
from tf_robust.training import callbacks, checkpoints, distribution, loop
from tf_robust.utils import environment, progress
from tf_robust.utils.files import read_json, write_json

# Flags that may differ when a run is resumed: no trained weight depends on them.
EVALUATION_FLAGS = (*(field.name for field in dataclasses.fields(evaluation.EvalConfig)), "steps_per_execution", "profile")
EMBEDDED_IMAGES = 1000  # in TensorBoard's projector, for contrastive methods
SECONDS_BETWEEN_LINES = 2.0  # of the sets of an evaluation
# Flags with locations, which are not recorded.
PATH_FLAGS = ("data_dir", "download", "corrupted_dir", "frost_dir", "data_service")


class Run:
    """One training run of one row with one seed.

    Args:
        config: configuration of the training.
        eval_config: configuration of the evaluation.
        hyperparameters: keyword arguments {"method": {...}, "augmentations": {name: {...}}}; the latter include those of views.
        flags: {name: text}, everything the run depends on except paths, as written to `flags.txt`.
        defaults: {name: text}, the defaults of these flags.
        row: name of its flagfile.
        seed: of initial weights and training.
        shown_as: its name in tables; empty: the row.

    Attributes:
        init_path: workdir or SavedModel with the initial encoder; empty: random weights. A suite sets it for `init_from_row`.
        ignored: {given flag without an effect: the reason}.
        model_size: (height, width) of the images that an evaluated model takes; empty: not known.
        model_classes: number of classes of an evaluated model; 0: not known.
        images: to evaluate on, in memory; None: those that `config.data` names.
        split_chosen: whether the user chose `evaluation_split`.
    """

    def __init__(
        self,
        config: TrainConfig,
        eval_config: evaluation.EvalConfig,
        hyperparameters: Mapping[str, dict],
        flags: Mapping[str, str],
        defaults: Mapping[str, str],
        row: str,
        seed: int,
        shown_as: str = "",
    ):
        self.config, self.eval_config, self.hyperparameters = config, eval_config, hyperparameters
        self.flags, self.defaults, self.row, self.seed = flags, defaults, row, seed
        self.shown_as = shown_as or row
        self.init_path = config.init_from.replace("{seed}", str(seed))
        self.ignored: dict[str, str] = {}
        self.model_size: tuple[int, int] | tuple[()] = ()
        self.model_classes = 0
        self.images: Source | None = None
        self.split_chosen = False

    @property
    def chief(self) -> bool:
        """Whether this process is the chief worker, which writes files."""
        return distribution.is_chief(distribution.strategy(self.config.strategy))

    def claim(self, folder: str) -> AbstractContextManager:
        """Returns a context in which the chief worker holds a workdir for this run. See `workdir.claim`."""
        return contextlib.nullcontext() if not self.chief else workdir.claim(folder, self.flags, self.defaults, free=EVALUATION_FLAGS)

    def source(self, split: str, examples: int = 0) -> Source:
        """Returns one split of the data.

        Args:
            split: train, validation or test.
            examples: number of examples of validation and test, stratified; 0: all.
        """
        return construction.open_split(
            self.config,
            split,
            examples,
            seed=self.seed,
            model_size=self.model_size,
            num_classes=self.model_classes,
            images=self.images,
        )

    def training_source(self) -> Source:
        """Returns the training split, with stylized images if there are any."""
        source = self.source("train")
        return stylized.with_stylized(source, self.config.stylized_dir) if self.config.stylized_dir else source

    def pipeline(self) -> dict[str, typing.Any]:
        """Returns augmentations and views, keyword arguments of `data.training_batches`."""

        def functions(names):
            return [functools.partial(VIEWS[name], **self.hyperparameters["augmentations"].get(name, {})) for name in names]

        return {"augmentations": functions(self.config.augmentations), "views": functions(self.config.views)}

    def method(self, source: Source) -> Method:
        """Returns the compiled method with a new classifier for the data."""
        return construction.build_method(self.config, self.hyperparameters["method"], source, seed=self.seed, init_path=self.init_path)

    def train(self, folder: str) -> loop.TrainingResult:
        """Trains or resumes training in a claimed folder; the chief worker exports the model. An exported model is not trained again."""
        card = os.path.join(folder, "saved_model", "card.json")
        if os.path.exists(card) and (result := read_json(card).get("training")):
            print("  already trained", flush=True)
            return loop.TrainingResult(**result)
        s = self.config
        source = self.training_source()
        method, pipeline = self.method(source), self.pipeline()
        has_validation = data.has_validation(s.data, s.data_dir or None, s.validation_fraction)
        validation = self.source("validation") if has_validation else None
        watching: list[keras.callbacks.Callback] = []
        checkpoint_folder, history = os.path.join(folder, "checkpoints"), os.path.join(folder, "history.json")
        with source.reading():
            if self.chief:
                if os.path.exists(history) and not checkpoints.existing(checkpoint_folder):
                    print(f"  No checkpoint in {checkpoint_folder}: training restarts.", flush=True)
                text = "\n".join(f"--{name}={value}" for name, value in sorted(self.flags.items()))
                board = callbacks.TensorBoard(os.path.join(folder, "tensorboard"), text, s.profile)
                watching = [callbacks.History(history), board]
            result = loop.fit(
                method,
                source,
                epochs=s.epochs,
                batch_size=s.batch_size,
                **pipeline,
                checkpoint_folder=checkpoint_folder,
                validation=validation,
                callbacks=watching,
                steps_per_execution=s.steps_per_execution,
                servers=s.data_service,
                on_first_batch=board.show_batch if self.chief else None,
            )
        if not self.chief:
            return result
        if isinstance(method, ContrastiveMethod):
            images, labels = evaluation.first_images(validation or source, EMBEDDED_IMAGES)
            embeddings = [method.classifier(part, training=False)["embedding"] for part in np.array_split(images, 10)]
            board.map_embeddings(np.concatenate(embeddings), labels, source.class_names, images)
        if source.num_classes == 15 and s.data.startswith("synthetic_"):
            path = figures.draw_utility(os.path.join(folder, "figures"), method.classifier, source)
            board.show("utility", path)
        export.export(
            method.classifier,
            os.path.join(folder, "saved_model"),
            {**self.card(source), "training": dataclasses.asdict(result)},
            fit=source.fit,
        )
        return result

    def card(self, source: Source) -> dict:
        """Returns the model card of the export, for JSON."""
        return {
            "method": self.config.method,
            "model": self.config.model,
            "data": self.config.data,
            "classes": list(source.class_names),
            "label_set": source.label_set,
            "seed": self.seed,
            "flags": self.flags,
            "input": {
                "shape": [None, *source.image_shape],
                "type": "float32",
                "range": [0.0, 1.0],
                "layout": "NHWC",
                "normalization": "inside the model",
                "encoded": str(source.fit or Fit(source.image_shape[0], source.image_shape[1], "stretch")),
            },
            "versions": environment.describe(),
            "commit": environment.commit(),
        }

    def complete(self, folder: str) -> dict | None:
        """Trains, exports and evaluates, unless this is already done.

        Returns:
            The content of `evaluation.json`; None in workers other than the chief.
        """
        path = os.path.join(folder, "evaluation.json")
        with self.claim(folder):
            before = evaluation.read_evaluation(path) if os.path.exists(path) else {}
            if "training" in before and before.get("measuring") == self._eval_settings():  # else written by `evaluate`
                print("  already done", flush=True)
                return before
            evaluation.check(self.evaluation_source(), self.eval_config)  # fails before training
            trained = before.get("training") or dataclasses.asdict(self.train(folder))
            if not self.chief:
                return None
            saved_model = os.path.join(folder, "saved_model")
            result = {**self.measure(saved_model, folder), "training": trained}
            export.update_card(saved_model, rows=result["rows"], evaluation_card=result["card"])
            flags = {name: text for name, text in self.flags.items() if name not in (*EVALUATION_FLAGS, *PATH_FLAGS)}
            callbacks.TensorBoard(os.path.join(folder, "tensorboard", "measured")).compare(flags, result["rows"])
            write_json(path, result)
        keras.backend.clear_session()
        return result

    def evaluation_source(self) -> Source:
        """Returns the images to evaluate on."""
        return self.source(self.eval_config.evaluation_split, self.eval_config.subset)

    def noise_source(self) -> Source | None:
        """Returns the images from which NUN computes its standard deviations: the evaluated ones if there are none to train on."""
        if not self.eval_config.needs_training_set:
            return None
        if self.eval_config.evaluation_split != "all" and data.has_training(self.config.data):
            return self.source("train")
        print_note(f"nun's noise depends on the standard deviations of the evaluated images of {self.config.data}: it has no others.")
        return self.evaluation_source()

    def measure(self, saved_model: str, folder: str, interface: loading.ModelInterface = loading.ModelInterface()) -> dict:
        """Evaluates a model on the data of this run, draws figures of it, and returns the content of `evaluation.json`.

        Args:
            saved_model: path of the model, exported by a run or from elsewhere.
            folder: of `measured.jsonl`, to which a record of each set is added; sets that have a record are not evaluated again.
            interface: of the model.

        Raises:
            ValueError: the model takes other images or has another number of classes.
        """
        predict = loading.load_classifier(saved_model, interface)
        content, predict, source, result = self.evaluate(
            predict,
            folder,
            saved_model=saved_model,
            log=progress.at_intervals(functools.partial(print, flush=True), SECONDS_BETWEEN_LINES),
        )
        masked = evaluation.masked(with_output_check(predict), source.class_mask)
        sheets = os.path.join(folder, "figures")
        if "clean" in self.eval_config.evaluations and "boundary" not in self.eval_config.evaluations:
            figures.draw_maps(sheets, masked, source)
        if {*evaluation.CORRUPTION_FAMILIES} & set(self.eval_config.evaluations):
            figures.draw_worst(sheets, masked, source, result.sets, result.records)
        if "adversarial" in self.eval_config.evaluations and self.eval_config.attacks_by_gradient:
            figures.draw_attacked(sheets, predict, source, self.eval_config.attack_radii)
        return content

    def evaluate(
        self, predict: loading.Classifier, folder: str, *, saved_model: str, log: Callable[[str], object]
    ) -> tuple[dict, loading.Classifier, Source, evaluation.Evaluation]:
        """Evaluates a loaded model on the data of this run.

        Args:
            predict: the model.
            folder: as in `measure`.
            saved_model: path of the model, or its name.
            log: called with lines of progress.

        Returns:
            The content of `evaluation.json`, the model with the input range that was found to fit, the evaluated images, and the records.

        Raises:
            ValueError: as in `measure`.
        """
        s = self.config
        self.model_size, self.model_classes = loading.image_size_of(predict), predict.num_classes or 0
        if not self.split_chosen and (self.images is not None or evaluates_all_images(predict, s.data, self.eval_config.evaluation_split)):
            self.eval_config = dataclasses.replace(self.eval_config, evaluation_split="all")
        source = with_label_set_of_card(predict, self.evaluation_source())
        check_model_suits(predict, source)
        predict = with_checked_inputs(predict, source)
        self.eval_config = with_possible_attacks(self.eval_config, predict, source)
        training_source = self.noise_source()
        imagenet = evaluation.is_imagenet(source, self.eval_config)
        card = {**evaluation.card_of(source, self.eval_config, training_source, imagenet), "sizes": evaluation.image_sizes(source, predict)}
        digest, interface_fields = predict.digest(), predict.interface.conventions()
        with source.reading():
            result = evaluation.evaluate_records(
                with_output_check(predict),
                source,
                training_source,
                self.eval_config,
                data_dir=s.data_dir or None,
                path=os.path.join(folder, "measured.jsonl"),
                depends=lambda name: evaluation.dependencies(digest, interface_fields, card, name),
                log=log,
            )
        measures = result.measures
        if s.label_fraction != 1:
            measures = [dataclasses.replace(measure, label_fraction=f"{s.label_fraction:g}") for measure in measures]
        content = {
            "row": self.shown_as,
            "seed": self.seed,
            "method": s.method,
            "data": s.data,
            "model": s.model,
            "split": self.eval_config.evaluation_split,
            "measuring": self._eval_settings(),
            "card": card,
            "rows": [measure.to_json() for measure in measures],
            "versions": environment.describe(),
            "commit": environment.commit(),
            "date": datetime.date.today().isoformat(),
            "saved_model": saved_model,
            "model_digest": digest,
            "interface": interface_fields,
        }
        return content, predict, source, result

    def _eval_settings(self):
        """The fields of the EvalConfig, for JSON; without paths, whose content the card describes."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self.eval_config).items()
            if name not in PATH_FLAGS
        }
