"""One run: training of one row with one seed, export and evaluation."""

import contextlib
import dataclasses
import functools
import os
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import keras
import numpy as np
import tensorflow as tf

from tf_robust import data, evaluation, methods, models
from tf_robust.configs import UNRECORDED_FLAGS
from tf_robust.data import folders
from tf_robust.data.augment import VIEWS
from tf_robust.data.source import Source
from tf_robust.evaluation import model_evaluation
from tf_robust.evaluation.evaluation_data import EvaluationData
from tf_robust.integrations import storage, tracking
from tf_robust.methods.base import Method
from tf_robust.methods.contrastive import ContrastiveMethod
from tf_robust.models import weights
from tf_robust.report.evaluated_model import EvaluatedModel
from tf_robust.report.images import draw_utility
from tf_robust.runs import workdir
from tf_robust.runs.config import RunConfig, selection_of, selection_options
from tf_robust.saved_models import export, loading, zoo
from tf_robust.training import callbacks, checkpoints, distribution, loop, optimizers
from tf_robust.utils import environment, user_code
from tf_robust.utils.files import digest_of_folder, read_json, write_json
from tf_robust.utils.hyperparameters import text_of
from tf_robust.utils.progress import print_line, print_note

# Flags that may differ when a run is resumed: no trained weight depends on them.
EVALUATION_FLAGS = (*(field.name for field in dataclasses.fields(evaluation.EvalConfig)), "steps_per_execution", "profile")
TRACKED = ("flags.txt", "history.json", "evaluation.json", "figures", "saved_model")
EMBEDDED_IMAGES = 1000  # in TensorBoard's projector, for contrastive methods


class Run:
    """One training run of one row (the name of its flagfile, in tables `shown_as`) with one seed, of initial weights and training."""

    def __init__(self, config: RunConfig, row: str, seed: int, shown_as: str = ""):
        self.config, self.row, self.seed, self.shown_as = config, row, seed, shown_as or row
        self.flags = {**config.flags, "seeds": str(seed)}  # everything that it depends on except paths, as written to `flags.txt`
        self.init_path = config.train.init_from.replace("{seed}", str(seed))  # workdir or SavedModel; a suite sets it for `init_from_row`
        self.callbacks: tuple[keras.callbacks.Callback, ...] = ()  # further ones of the training
        self.evaluates = True  # False: the trained model is only exported

    @property
    def chief(self) -> bool:
        """Whether this process is the chief worker, which writes files."""
        return distribution.is_chief(distribution.strategy(self.config.train.strategy))

    def claim(self, folder: str) -> AbstractContextManager:
        """Returns a context in which the chief worker holds a workdir for this run."""
        if not self.chief:
            return contextlib.nullcontext()
        free = {*EVALUATION_FLAGS} - {*selection_options(self.config.train)}
        return workdir.claim(folder, self.flags, {name: text_of(one.default) for name, one in self.config.parameters.items()}, free=free)

    def data(self) -> EvaluationData:
        """Returns the data of this run."""
        return EvaluationData(self.config.data, self.config.evaluation, self.seed)

    def training_source(self) -> Source:
        """Returns the training split, with stylized images if there are any."""
        source, s = self.data().source("train"), self.config.train
        source = folders.with_stylized(source, s.stylized_dir) if s.stylized_dir else source
        return data.balanced(source) if s.sampling == "balanced" else source

    def pipeline(self) -> dict[str, typing.Any]:
        """Returns augmentations and views, keyword arguments of `data.training_batches`."""

        def functions(names):
            return [functools.partial(VIEWS[name], **self.config.augmentations.get(name, {})) for name in names]

        return {"augmentations": functions(self.config.train.augmentations), "views": functions(self.config.views)}

    def method(self, source: Source) -> Method:
        """Returns the compiled method with a new classifier for the data; raises ValueError for settings that do not fit together."""
        s, own, init_path = self.config.train, self.config.method, self.init_path
        if s.init_from_row and not init_path:
            raise ValueError(
                f"Expected tf-robust suite or --init_from=DIR for a run that starts from the row {s.init_from_row!r}. Received: neither"
            )
        if s.init_head and own.get("head_width"):
            raise ValueError(f"Expected init_head or {s.method}_head_width, whose logits start at random. Received: both")
        if s.synchronize_batch_norm and s.jit_compile:
            raise ValueError("Expected jit_compile=false with synchronize_batch_norm, which gathers across devices. Received: true")
        if s.mixed_precision and not tf.config.list_physical_devices("GPU") and environment.has_bfloat16() is False:
            print_note("this CPU has no instructions for bfloat16: with mixed_precision a step may take twice as long as without.")
        pretrained = models.PRETRAINED if init_path == models.PRETRAINED else None
        with _precision(s.mixed_precision), distribution.strategy(s.strategy).scope():
            shape, classes = source.image_shape, source.num_classes
            classifier = models.build(s.model, shape, classes, seed=self.seed, resize=s.resize, weights=pretrained)
            if init_path and not pretrained:
                path = zoo.folder_of(init_path.removeprefix("zoo:")) if init_path.startswith("zoo:") else init_path
                models.load_encoder(classifier, path, head=s.init_head)
            method = methods.METHODS[s.method](
                classifier,
                seed=self.seed,
                examples=len(source),
                weight_decay=s.weight_decay,
                label_smoothing=s.label_smoothing,
                class_weights=data.class_weights(s.class_weights, source),
                **own,
            )
            given = [name for name in ("ema", "global_clipnorm", "select", "early_stopping") if getattr(s, name)]
            if method.closed_form and given:
                raise ValueError(f"Expected a method trained in epochs with {', '.join(given)}. Received: {s.method} with solver=lbfgs")
            if method.needs_positions and s.sampling == "balanced":
                raise ValueError(f"Expected sampling=shuffled with {s.method}, which remembers each image. Received: balanced")
            if s.synchronize_batch_norm:
                distribution.synchronize_batch_norm(method)
            method.check_views(self.config.views)
            method.check_batch(s.batch_size)
            steps = 1 if method.closed_form else data.steps_per_epoch(source, s.batch_size)
            method.compile(_optimizer(s, steps), jit_compile=s.jit_compile)
        return method

    def tracked(self, folder: str) -> AbstractContextManager[tracking.Tracked]:
        """Returns a context in which the chief worker's trackers record this run. See `tracking.tracked`."""
        names = self.config.train.tracker if self.chief else ()
        return tracking.tracked(names, folder, f"{self.row}, seed {self.seed}", self.row, {**self.flags, "workdir": folder})

    def train(self, folder: str, further: Sequence[keras.callbacks.Callback] = ()) -> loop.TrainingResult:
        """Trains or resumes training in a claimed workdir; the chief worker exports the model. An exported model is not trained again."""
        if result := self._exported(folder).get("training"):
            print_line("  already trained")
            return loop.TrainingResult(**result)
        s = self.config.train
        source = self.training_source()
        start = self._start()
        method, pipeline = self.method(source), self.pipeline()
        named = self.config.data
        has_validation = data.has_validation(named.data, named.data_dir or None, named.validation_fraction)
        validation = self.data().source("validation") if has_validation else None
        checkpoint_folder, history = os.path.join(folder, "checkpoints"), os.path.join(folder, "history.json")
        with source.reading():
            if self.chief:
                if os.path.exists(history) and not checkpoints.existing(checkpoint_folder):
                    print_line(f"  No checkpoint in {checkpoint_folder}: training restarts.")
                text = "\n".join(f"--{name}={value}" for name, value in sorted(self.flags.items()))
                board = callbacks.TensorBoard(os.path.join(folder, "tensorboard"), text, s.profile)
                workdir.bind_inputs(checkpoint_folder, self._inputs(source, start))
                watching = [callbacks.History(history), board, *self.callbacks, *further]
            result = loop.fit(
                method,
                source,
                epochs=s.epochs,
                batch_size=s.batch_size,
                **pipeline,
                checkpoint_folder=checkpoint_folder,
                validation=validation,
                callbacks=watching if self.chief else (),
                steps_per_execution=s.steps_per_execution,
                servers=s.data_service,
                on_first_batch=board.show_batch if self.chief else None,
                selection=selection_of(s, self.config.evaluation, validation, source, self.config.data.data_dir or None),
            )
        if not self.chief:
            return result
        if isinstance(method, ContrastiveMethod):
            images, labels = evaluation.first_images(validation or source, EMBEDDED_IMAGES)
            embeddings = [method.classifier(part, training=False)["embedding"] for part in np.array_split(images, 10)]
            board.map_embeddings(np.concatenate(embeddings), labels, source.class_names, images)
        if source.num_classes == 15 and self.config.data.data.startswith("synthetic_"):
            path = draw_utility(os.path.join(folder, "figures"), method.classifier, source)
            board.show("utility", path)
        export.export(
            method.classifier,
            os.path.join(folder, "saved_model"),
            {**self.card(source), "training": result.record(), "init_weights": start},
            fit=source.fit,
        )
        return result

    def card(self, source: Source) -> dict:
        """Returns the model card of the export, for JSON."""
        named = self.config.data
        return {
            "method": self.config.train.method,
            "model": self.config.train.model,
            "data": named.data,
            "classes": list(source.class_names),
            "label_set": source.label_set,
            **({} if data.has_splits(named.data) else {"division": data.describe_division(named.data, data_range=named.data_range)}),
            "seed": self.seed,
            "flags": self.flags,
            **({"user_code": code} if (code := self._user_code()) else {}),
            "input": export.input_card(source),
            "versions": environment.describe(),
            "commit": environment.commit(),
        }

    def _exported(self, folder):
        """The card of the exported model of a workdir; empty if there is none."""
        card = os.path.join(folder, "saved_model", "card.json")
        return read_json(card) if os.path.exists(card) else {}

    def _start(self):
        """A digest of the weights from which training starts, if they are those of a trained model; else empty."""
        files = (os.path.join(self.init_path, *parts) for parts in ((), (weights.FILE,), ("saved_model", weights.FILE)))
        path = next(filter(os.path.isfile, files), "")
        return digest_of_folder(path) if path else ""

    def _inputs(self, source, start):
        """What must not change while training is interrupted, for JSON: {name: text}. Data sets with a version do not change."""
        of_user = data.kind_of(self.config.data.data).user_files
        images = {"training images": f"{len(source):,}, fingerprint {source.fingerprint()}"} if of_user else {}
        return {**images, "initial weights": start, **({"code of the method and views": code} if (code := self._user_code()) else {})}

    def _user_code(self):
        """A digest of the code of the method, the augmentations and the views, if users wrote some of it; else None."""
        s = self.config.train
        return user_code.digest(methods.METHODS[s.method], *(VIEWS[name] for name in (*s.augmentations, *self.config.views)))

    def _check_inputs(self, folder, before):
        """Raises ValueError if the evaluated images or the initial weights of a complete run are not those of the flags any more."""
        changed, advice = "", f"Try: delete {folder} to train again from the present state, or another --workdir"
        if data.kind_of(self.config.data.data).user_files:
            now, source = before["card"]["data"], self.data().evaluation_source()
            if list(source.image_shape) == now["image_shape"] and source.fingerprint() != now["fingerprint"]:
                raise ValueError(
                    f"Expected the images on which {folder} was evaluated ({now['num_images']:,}). Received: others in "
                    f"{self.config.data.data} ({len(source):,}). Try: another --workdir to train on them, or restore the earlier images"
                )
        card = self._exported(folder)
        if card and card.get("user_code") != self._user_code():
            changed = "changed code of the method and views"
        elif (then := card.get("init_weights", "")) and self.init_path and then != self._start():
            changed = f"{self.init_path}, which was trained again or is missing"
        if changed:
            raise ValueError(f"Expected the code and the weights with which {folder} was trained. Received: {changed}. {advice}")

    def _has_further_data_of(self, card):
        """Whether shifted data, data of other classes and the surrogate of attacks are those of an evaluation's card."""
        config, given, source = self.config.evaluation, self.data(), None
        if config.shifts or config.ood:
            source = given.evaluation_source()
            shifts = {shift.name: shift.card() for shift in given.shifts(source)}
            others = evaluation.OpenSets(given.other_sources(source)).card()["sets"]
            if card.get("shift", {}) != shifts or card.get("ood", {"sets": {}})["sets"] != others:
                return False
        digest = card.get("robust_transfer", {}).get("surrogate")
        return digest is None or loading.load_classifier(config.surrogate).digest() == digest

    def complete(self, folder: str, begin: Callable[[], object] = lambda: None) -> dict | None:
        """Trains, exports and evaluates, unless this is already done; `begin` is called when the run holds its workdir.

        Returns the content of `evaluation.json`; "measured_in": the folder, if it was complete. None in workers other than the chief, and
        for runs that are not evaluated. Raises ValueError if the run was started with other flags, data or initial weights.
        """
        path = os.path.join(folder, "evaluation.json")
        with self.claim(folder):
            begin()
            if not self.evaluates:
                with self.tracked(folder) as tracked:
                    self.train(folder, [tracked])
                    tracked.files("run", folder, TRACKED)
                storage.copy_finished(folder)
                return None
            before = evaluation.read_evaluation(path) if os.path.exists(path) else {}
            measuring = model_evaluation.recorded(self.config.evaluation)
            same = before.get("options") == measuring and evaluation.has_corruptions_of(before["card"], self.config.evaluation)
            same = same and self._has_further_data_of(before["card"])
            if "training" in before:  # else written by `evaluate`
                self._check_inputs(folder, before)
            if "training" in before and same:
                print_line("  already done")
                if self.config.train.tracker and not os.path.exists(os.path.join(folder, tracking.RUN_IDS)):
                    print_note("trained without tracker, so that its epochs are not recorded there")
                if self.config.evaluation.per_image and not os.path.isdir(os.path.join(folder, evaluation.PER_IMAGE)):
                    print_note(f"without results of each image. Try: tf-robust evaluate {folder} --per_image")
                model = os.path.join(folder, "saved_model")  # the folder may have been moved
                return {**before, "saved_model": model if os.path.isdir(model) else before["saved_model"], "measured_in": folder}
            source = self.data().evaluation_source()
            evaluation.check(source, self.config.evaluation)  # fails before training
            self.data().shifts(source)
            self.data().validation_source()
            self.data().other_sources(source)
            with self.tracked(folder) as tracked:
                trained = (self._exported(folder) and before.get("training")) or self.train(folder, [tracked]).record()
                if not self.chief:
                    return None
                saved_model = os.path.join(folder, "saved_model")
                measured = EvaluatedModel(saved_model, self.data(), self.shown_as).evaluate(folder)
                result = {**measured.content, "training": trained}
                export.update_card(saved_model, rows=result["rows"], evaluation_card=result["card"])
                flags = {name: text for name, text in self.flags.items() if name not in (*EVALUATION_FLAGS, *UNRECORDED_FLAGS)}
                callbacks.TensorBoard(os.path.join(folder, "tensorboard", "measured")).compare(flags, result["rows"])
                write_json(path, result)
                workdir.write_flags(folder, self.flags)  # those of the evaluation may differ from those of the first start
                tracked.results(result["rows"])
                tracked.files("run", folder, TRACKED)
            storage.copy_finished(folder)
        keras.backend.clear_session()
        return result


def _optimizer(config, steps_per_epoch):
    decay = {name: getattr(config, name) for name in ("epochs", "decay_rate", "decay_epochs", "decay_factor")}
    schedule = optimizers.learning_rate_schedule(
        config.schedule,
        config.learning_rate,
        steps_per_epoch=steps_per_epoch,
        warmup_epochs=config.learning_rate_warmup_epochs,
        **decay,
    )
    options = {name: getattr(config, name) for name in ("momentum", "nesterov", "ema", "global_clipnorm")}
    return optimizers.build(config.optimizer, schedule, **options)


@contextlib.contextmanager
def _precision(mixed: bool) -> Iterator[None]:
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16" if mixed else "float32")
    try:
        yield
    finally:
        keras.mixed_precision.set_dtype_policy(before)
