"""One run: data -> method -> training -> exported model -> evaluation -> rows."""

import contextlib
import dataclasses
import datetime
import functools
import itertools
import os

import keras
import numpy as np
import tensorflow as tf

from tf_robust import data, evaluation, methods, models
from tf_robust.data import stylized
from tf_robust.data.augment import VIEWS
from tf_robust.data.class_mask import IMAGENET_CLASSES
from tf_robust.data.fitting import Fit
from tf_robust.experiments import figures, workdir
from tf_robust.methods.contrastive import ContrastiveMethod
from tf_robust.saved_models import export, loading
from tf_robust.training import callbacks, checkpoints, distribution, loop, optimizers
from tf_robust.utils import environment
from tf_robust.utils.files import digest_of_folder, read_json, write_json

# Flags that no trained weight depends on, and where things are: free to differ when a run is resumed.
EVALUATION_FLAGS = (*(field.name for field in dataclasses.fields(evaluation.EvalConfig)), "steps_per_execution", "profile")
MAPPED = 1000  # images in the map of a contrastive method's embeddings
PATH_FLAGS = ("data_dir", "download", "corrupted_dir", "frost_dir", "data_service")


class Run:
    """One training of one row with one seed.

    Args:
        config: `TrainConfig`. eval_config: `evaluation.EvalConfig`.
        hyperparameters: {"method": {...}, "augmentations": {name: {...}}}, keyword arguments; views' are among the latter.
        flags: {name: text}, everything the run depends on but where the data are, as written to `flags.txt`.
        defaults: {name: text}, the same flags' defaults. row: name of its flagfile. seed: int.
        shown_as: its name in tables; empty: the row's.
    """

    def __init__(self, config, eval_config, hyperparameters, flags, defaults, row, seed, shown_as=""):
        self.config, self.eval_config, self.hyperparameters = config, eval_config, hyperparameters
        self.flags, self.defaults, self.row, self.seed = flags, defaults, row, seed
        self.shown_as = shown_as or row
        # a suite sets it for a run that begins with another row's
        self.start = config.init_from.replace("{seed}", str(seed))
        self.ignored = {}  # {flag that was given but belongs to another method or view: the flag that makes it count}
        self.model_size = ()  # (height, width) of the images that a model to be measured takes

    @property
    def chief(self):
        """Whether this process writes: of several machines' workers the first."""
        return distribution.is_chief(distribution.strategy(self.config.strategy))

    def claimed(self, folder):
        """Holds a workdir for this run, in the one process that writes there; see `workdir.claimed`."""
        return contextlib.nullcontext() if not self.chief else workdir.claimed(folder, self.flags, self.defaults, free=EVALUATION_FLAGS)

    def source(self, split, examples=0):
        """One split of the run's data; `examples`: only so many, stratified."""
        s = self.config
        examples = s.train_examples if split == "train" else examples
        source = data.open_source(
            s.data,
            split,
            s.data_dir or None,
            image_size=s.image_size,
            image_fit=s.image_fit,
            default_size=self.model_size,
            examples=examples,
            validation_fraction=s.validation_fraction,
            download=s.download,
        )
        if source.fit:
            _note(
                f"images of {s.data} ({split}) are {source.fit}"
                + (
                    "; in training, random windows of them are resized."
                    if source.varying_size and split == "train"
                    else ". --image_size and --image_fit change that."
                )
            )
        if split == "train":
            source = data.labelled_fraction(source, s.label_fraction, self.seed)
        source = data.relabelled(source, data.read_label_map(s.label_map)) if s.label_map else source
        return data.masked(data.declared(source, s.label_set))

    def training_source(self):
        """What the run trains on: its training split, with the stylized images where it has some."""
        source = self.source("train")
        return stylized.with_stylized(source, self.config.stylized_dir) if self.config.stylized_dir else source

    def pipeline(self):
        """What happens to an image before the method sees it, as `data.training_batches` takes it."""

        def told(names):
            return [functools.partial(VIEWS[name], **self.hyperparameters["augmentations"].get(name, {})) for name in names]

        return {"augmentations": told(self.config.augmentations), "views": told(self.config.views)}

    def method(self, source):
        """The compiled method on a fresh classifier."""
        s = self.config
        with _precision(s.mixed_precision), distribution.strategy(s.strategy).scope():
            classifier = models.build(s.model, source.image_shape, source.num_classes, seed=self.seed, resize=s.resize)
            if s.init_from_row and not self.start:
                raise ValueError(
                    f"Expected --mode=suite, or --init_from=DIR, for a run that begins with the row {s.init_from_row!r}. Received neither"
                )
            if s.init_head and self.hyperparameters["method"].get("head_width"):
                raise ValueError(f"Expected init_head or {s.method}_head_width, whose logits begin at random. Received both")
            if self.start:
                models.load_encoder(classifier, self.start, head=s.init_head)
            method = methods.METHODS[s.method](classifier, seed=self.seed, examples=len(source), **self.hyperparameters["method"])
            if s.synchronize_batch_norm:
                if s.jit_compile:
                    raise ValueError("Expected jit_compile=false with synchronize_batch_norm, which gathers. Received: true")
                distribution.synchronize_batch_norm(method)
            method.check_views(s.views)
            method.check_batch(s.batch_size)
            steps = 1 if method.closed_form else data.steps_per_epoch(source, s.batch_size)
            schedule = optimizers.learning_rate_schedule(
                s.schedule,
                s.learning_rate,
                steps_per_epoch=steps,
                epochs=s.epochs,
                warmup_epochs=s.learning_rate_warmup_epochs,
                decay_rate=s.decay_rate,
                decay_epochs=s.decay_epochs,
                decay_factor=s.decay_factor,
            )
            optimizer = optimizers.build(s.optimizer, schedule, momentum=s.momentum, nesterov=s.nesterov)
            method.compile(optimizer, jit_compile=s.jit_compile)
        return method

    def train(self, folder):
        """Trains, or goes on training, in a claimed folder; the process that writes exports at last, and what is exported stays.

        Returns:
            a TrainingResult
        """
        card = os.path.join(folder, "saved_model", "card.json")
        if os.path.exists(card) and (before := read_json(card).get("training")):
            print("  trained before", flush=True)
            return loop.TrainingResult(**before)
        s = self.config
        source = self.training_source()
        method, pipeline = self.method(source), self.pipeline()
        has_validation = data.has_validation(s.data, s.data_dir or None, s.validation_fraction)
        validation = self.source("validation") if has_validation else None
        watching, kept, history = [], os.path.join(folder, "checkpoints"), os.path.join(folder, "history.json")
        with source.reading():
            if self.chief:
                if os.path.exists(history) and not checkpoints.existing(kept):
                    print(f"  No checkpoint in {kept}: training begins anew.", flush=True)
                shown = None if method.closed_form else next(iter(data.training_batches(source, s.batch_size, seed=self.seed, **pipeline)))
                text = "\n".join(f"--{name}={value}" for name, value in sorted(self.flags.items()))
                board = callbacks.TensorBoard(os.path.join(folder, "tensorboard"), shown, text, s.profile)
                watching = [callbacks.History(history), board]
            result = loop.fit(
                method,
                source,
                epochs=s.epochs,
                batch_size=s.batch_size,
                **pipeline,
                checkpoint_folder=kept,
                validation=validation,
                callbacks=watching,
                steps_per_execution=s.steps_per_execution,
                servers=s.data_service,
            )
        if not self.chief:
            return result
        if isinstance(method, ContrastiveMethod):
            images, labels = evaluation.first_images(validation or source, MAPPED)
            embeddings = [method.classifier(part, training=False)["embedding"] for part in np.array_split(images, 10)]
            board.map_embeddings(np.concatenate(embeddings), labels, source.class_names, images)
        if source.num_classes == 15 and s.data.startswith("synthetic_"):
            path = figures.utility(os.path.join(folder, "figures"), method.classifier, source)
            board.show("utility", path)
        export.export(
            method.classifier,
            os.path.join(folder, "saved_model"),
            {**self.card(source), "training": dataclasses.asdict(result)},
            fit=source.fit,
        )
        return result

    def card(self, source):
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
                "encoded": str(source.fit or Fit(*source.image_shape[:2], "stretch")),
            },
            "versions": environment.describe(),
            "commit": environment.commit(),
        }

    def complete(self, folder):
        """Trains, exports and evaluates, unless that is already done.

        Returns:
            the content of `evaluation.json`; None in a worker that only trained along
        """
        done = os.path.join(folder, "evaluation.json")
        with self.claimed(folder):
            before = evaluation.read_evaluation(done) if os.path.exists(done) else {}
            if "training" in before and before.get("measuring") == self._measured():  # else: --mode=evaluate left it
                print("  done before", flush=True)
                return before
            evaluation.check(self.measured_source(), self.eval_config)  # what is missing is said before training
            trained = before.get("training") or dataclasses.asdict(self.train(folder))
            if not self.chief:
                return None
            saved_model = os.path.join(folder, "saved_model")
            found = {**self.measure(saved_model, folder), "training": trained}
            export.update_card(saved_model, rows=found["rows"], evaluation_card=found["card"])
            told = {name: text for name, text in self.flags.items() if name not in (*EVALUATION_FLAGS, *PATH_FLAGS)}
            callbacks.TensorBoard(os.path.join(folder, "tensorboard", "measured")).compare(told, found["rows"])
            write_json(done, found)
        keras.backend.clear_session()
        return found

    def measured_source(self):
        """What the run is measured on."""
        return self.source(self.eval_config.evaluation_split, self.eval_config.subset)

    def measure(self, saved_model, folder, interface=loading.ModelInterface()):
        """The content of `evaluation.json` for an exported model, ours or another's, on this run's data.

        Args:
            folder: gets `measured.jsonl`, the record of each set as it comes; what is there is not measured again.

        Raises:
            ValueError: the model does not take the data's images, or tells other classes apart.
        """
        predict = loading.load_classifier(saved_model, interface)
        self.model_size = loading.image_size_of(predict)
        s, source = self.config, declared_by(predict, self.measured_source())
        training_source = self.source("train") if self.eval_config.needs_training_set else None
        check_fit(predict, source)
        imagenet = evaluation.is_imagenet(source, self.eval_config)
        card = {**evaluation.card_of(source, self.eval_config, training_source, imagenet), "sizes": evaluation.image_sizes(source, predict)}
        model, told = digest_of_folder(predict.path, exclude=("card.json",)), dataclasses.asdict(interface)
        with source.reading():
            result = evaluation.evaluate_records(
                checked_once(predict),
                source,
                training_source,
                self.eval_config,
                data_dir=s.data_dir or None,
                path=os.path.join(folder, "measured.jsonl"),
                depends=lambda name: evaluation.dependencies(model, told, card, name),
                log=lambda line: print(line, flush=True),
            )
        masked = evaluation.masked(checked_once(predict), source.class_mask)
        sheets = os.path.join(folder, "figures")
        if "clean" in self.eval_config.evaluations and "boundary" not in self.eval_config.evaluations:
            figures.maps(sheets, masked, source)
        if "corruptions" in self.eval_config.evaluations:
            figures.worst(sheets, masked, source, result.sets, result.records)
        if "adversarial" in self.eval_config.evaluations:
            figures.attacked(sheets, predict, source)
        measures = result.measures
        if s.label_fraction != 1:
            measures = [dataclasses.replace(measure, label_fraction=f"{s.label_fraction:g}") for measure in measures]
        return {
            "row": self.shown_as,
            "seed": self.seed,
            "method": s.method,
            "data": s.data,
            "model": s.model,
            "split": self.eval_config.evaluation_split,
            "measuring": self._measured(),
            "card": card,
            "rows": [measure.to_json() for measure in measures],
            "versions": environment.describe(),
            "commit": environment.commit(),
            "date": datetime.date.today().isoformat(),
            "saved_model": saved_model,
            "model_digest": model,
            "interface": told,
        }

    def _measured(self):
        """What was measured, as it is in a JSON file: without where things are, which the card tells by content."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self.eval_config).items()
            if name not in PATH_FLAGS
        }


@functools.cache
def _note(text):
    """Prints a remark, once."""
    print(f"  Note: {text}", flush=True)


@contextlib.contextmanager
def _precision(mixed):
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16" if mixed else "float32")
    try:
        yield
    finally:
        keras.mixed_precision.set_dtype_policy("float32")


def checked_once(predict):
    """The classifier, which says once if its outputs do not look like what they are taken for."""
    said = set()

    def call(images):
        logits = predict(images)
        doubt = "" if said or not tf.executing_eagerly() else predict.check(logits)
        if doubt:
            said.add(doubt)
            print(f"  Note: {doubt}", flush=True)
        return logits

    return call


def declared_by(predict, source):
    """A source with the label set that the model's card declares, where the source declares none and has as many classes."""
    label_set = predict.card.get("label_set")
    if label_set != "imagenet" or source.label_set or source.class_mask or source.num_classes != IMAGENET_CLASSES:
        return source
    print(f"  Note: label_set=imagenet, as the card of {predict.path} says.", flush=True)
    return data.declared(source, label_set)


def check_fit(predict, source):
    """Raises ValueError unless a loaded classifier takes a source's images and tells its classes apart."""
    predict.check_images_match(source.image_shape)
    if predict.num_classes and not source.class_mask and predict.num_classes != source.num_classes:
        raise ValueError(
            f"Expected a model for the {source.num_classes} classes of {source.name}. {predict.path} has "
            f"{predict.num_classes}. --label_map=FILE maps class folders to a model's columns, "
            f"--label_set=imagenet_r those of ImageNet-R"
        )
    names = predict.card.get("classes")  # another's card may have anything there
    if names and isinstance(names, list) and not source.class_mask and names != list(source.class_names):
        differing = [pair for pair in itertools.zip_longest(names, source.class_names) if pair[0] != pair[1]]
        print(
            f"  Note: the model names its classes otherwise than {source.name}: {len(differing)} differ, the first "
            f"{differing[0][0]!r} and {differing[0][1]!r}.",
            flush=True,
        )
