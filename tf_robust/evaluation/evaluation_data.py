"""The images that models are evaluated on, which a model was not trained on, by its card."""

import dataclasses
import filecmp
import os
import typing
from collections.abc import Callable, Mapping, Sequence

import keras

from tf_robust import data, evaluation
from tf_robust.configs import DataConfig
from tf_robust.data import sources
from tf_robust.data.source import Source
from tf_robust.data.sources import Shift
from tf_robust.saved_models import loading
from tf_robust.saved_models.interface import trainings
from tf_robust.saved_models.loading import Classifier
from tf_robust.utils.progress import print_note


@dataclasses.dataclass(frozen=True)
class EvaluationData:
    """The data of an evaluation: those that the configurations name, or images in memory, and a surrogate model in memory."""

    config: DataConfig
    eval_config: evaluation.EvalConfig
    seed: int = 0  # selects the labeled fraction of the training images
    model_size: tuple[int, int] | tuple[()] = ()  # (height, width) of the images that the evaluated model takes; empty: not known
    channels: int = 3  # of image files, as the evaluated model takes them
    num_classes: int = 0  # of the evaluated model; 0: not known
    images: Source | None = None  # to evaluate on
    surrogate: Classifier | keras.Model | Callable | None = None  # model from which attacks are transferred
    training_images: Source | None = None  # from which NUN computes its standard deviations
    validation_images: Source | None = None  # that confidences are fitted on
    ood_images: Mapping[str, Source] = dataclasses.field(default_factory=dict)  # {one of `eval_config.ood`: its images}
    shift_images: Mapping[str, Source] = dataclasses.field(default_factory=dict)  # {one of `eval_config.shifts`: its images}

    def __post_init__(self):
        for flag in ("shifts", "ood"):
            if names := getattr(self.eval_config, flag):
                data.kinds.check_shifts(names, flag)

    def for_model(self, classifier: Classifier) -> typing.Self:
        """Returns the data with the image size, the channels and the number of classes of an evaluated model."""
        channels = 1 if classifier.input_shape[3] == 1 else 3
        size = loading.image_size_of(classifier)
        return dataclasses.replace(self, model_size=size, channels=channels, num_classes=classifier.num_classes or 0)

    def source(self, split: str, examples: int = 0, mapped: bool = True) -> Source:
        """Returns one split of the data, of validation and test so many examples, stratified; 0: all.

        Parts of data without splits are drawn before labels are mapped (`map_labels`).
        """
        options = {"seed": self.seed, "model_size": self.model_size, "num_classes": self.num_classes, "channels": self.channels}
        return sources.open_split(self.config, split, examples, mapped=mapped, images=self.images, **options)  # type: ignore[arg-type]

    def map_labels(self, source: Source) -> Source:
        """Returns a part of the data whose labels are columns of the model's output."""
        return sources.map_labels(self.config, source, self.num_classes)

    def like_images(self, source: Source) -> Source:
        """Returns further images in memory with labels mapped like the labels of `images`, if they have the same classes."""
        return self.map_labels(source) if self.images is not None and source.class_names == self.images.class_names else source

    @property
    def held_out(self) -> float:
        """The fraction of data without splits that confidences are fitted on, while all other images are evaluated; 0: not so."""
        fits = self.eval_config.needs_validation_set and self.validation_images is None
        return self.config.validation_fraction if fits and self.eval_config.evaluation_split == data.WHOLE else 0.0

    def evaluation_source(self) -> Source:
        """Returns the images to evaluate on."""
        if self.held_out:
            return self._divided(data.WHOLE, self.eval_config.subset)
        return self.source(self.eval_config.evaluation_split, self.eval_config.subset)

    def _divided(self, split, subset=0):
        """A part of data without splits, with a fraction held out."""
        source = data.split_train_val_test(self.source(data.WHOLE, mapped=False), split, self.held_out)
        return self.map_labels(data.stratified_subset(source, subset) if 0 < subset < len(source) else source)

    def shifts(self, original: Source) -> list[Shift]:
        """Returns the shifted data sets, with the classes and the image size of the images to evaluate on."""
        return [
            sources.open_shift(self.config, name, original, subset=self.eval_config.subset, images=self.shift_images.get(name))
            for name in self.eval_config.shifts
        ]

    def validation_source(self) -> Source | None:
        """Returns the images that confidences are fitted on, which must not be evaluated; None if none are fitted."""
        if not self.eval_config.needs_validation_set:
            return None
        if self.validation_images is not None:
            return self.like_images(self.validation_images)
        if self.held_out:
            return self._divided("validation")
        c, split = self.config, self.eval_config.evaluation_split
        if split == data.WHOLE or not data.has_validation(c.data, c.data_dir or None, c.validation_fraction):
            advice = "" if self.images is None else "validation_data=(images, labels), or "
            advice += "validation_fraction=0.1"
            advice += ", which evaluates on all others" if self.images is not None or not data.has_splits(c.data) else ""
            raise ValueError(
                "Expected a validation part, which calibrate, abstain_accuracy and conformal are fitted on. "
                f"Received: {c.data} without one, evaluation_split={split}. Try: {advice}"
            )
        return self.source("validation")

    def open_sets(self, original: Source, model: Classifier | None) -> evaluation.OpenSets:
        """Returns the data sets of other classes, and what nearest neighbors need: a model with an output `embedding`, or None."""
        if model is None:
            print_note("ood without nearest neighbors: the model has no output 'embedding', and is no Keras model with a dense last layer.")
        return evaluation.OpenSets(self.other_sources(original), model, self.known_source() if model else None)

    def other_sources(self, original: Source) -> dict[str, Source]:
        """Returns {name in metrics: images of other classes}, with the image size of the images to evaluate on."""
        subset = self.eval_config.subset
        return {
            data.kinds.shift_name(name): sources.open_other(self.config, name, original, subset=subset, images=self.ood_images.get(name))
            for name in self.eval_config.ood
        }

    def known_source(self) -> Source | None:
        """Returns the training images among which nearest neighbors are found, or None."""
        training = self.training_images
        if training is None and self.images is None:
            training = self._training_source()
        if training is None:
            print_note(f"ood without nearest neighbors: {self.config.data} has no training images besides the evaluated ones.")
        return training if training is None else evaluation.known_images(training)

    def _training_source(self):
        has_training = self.eval_config.evaluation_split != data.WHOLE and data.has_training(self.config.data)
        return self.source("train") if has_training else None

    def noise_source(self) -> Source | None:
        """Returns the images from which NUN computes its standard deviations: the evaluated ones if there are none to train on."""
        if not self.eval_config.needs_training_set:
            return None
        training = self._training_source() if self.training_images is None else self.training_images
        if training is not None:
            return training
        print_note(
            "the standard deviations on which non-uniform noise (nun) depends are computed from the evaluated images: "
            f"{self.config.data} has no others."
        )
        return self.evaluation_source()


def with_default_split(given: EvaluationData, card: Mapping[str, typing.Any], calibrated: Sequence[str] = ()) -> EvaluationData:
    """Returns data with the split to evaluate a model on unless the user chooses one: of data without splits, all unseen images.

    The card of the model names the data that it was trained on; the integers of the formats `calibrated` are calibrated on training images.
    """
    name = given.config.data
    if given.images is None:
        trained = trainings_on(card, name)
        if data.has_splits(name):
            return given
        if any(one.get("validation_fraction", 0.0) is None for one in trained):
            print_note(
                f"the model was trained on images of {name} that are not a split's: its accuracies on them may be too high. "
                "Try: other images, such as the test images of that training"
            )
            trained = []
        if trained or calibrated:
            return given
    return dataclasses.replace(given, eval_config=dataclasses.replace(given.eval_config, evaluation_split="all"))


def print_default_split(given: EvaluationData, calibrated: Sequence[str] = ()) -> None:
    """Prints which images of data without splits, as `with_default_split` returned them, are evaluated."""
    name, split = given.config.data, given.eval_config.evaluation_split
    if split == data.WHOLE and given.held_out:
        print_note(f"{name} has no splits: confidences are fitted on {given.held_out:g} of its images, all others are evaluated.")
    elif split == data.WHOLE and given.images is None:
        print_note(f"{name} has no splits: evaluated on all of its images.")
    elif given.images is None and not data.has_splits(name):
        reason = f"as {', '.join(calibrated)} is calibrated on the training part" if calibrated else "which the model was not trained on"
        print_note(
            f"{name} has no splits: evaluated on the {split} part, {reason}. To compare another model with it: evaluation_split={split}."
        )


def with_validation_of_card(card: Mapping[str, typing.Any], path: str, config: DataConfig) -> DataConfig:
    """Returns a configuration whose validation (and, of data without splits, test) images a model was not trained on, by its card.

    A `validation_fraction` of 0 becomes the training's, which is printed. Models of other data, without such a card, or of data with
    a validation split of their own are not concerned. ValueError: the model at `path` was trained on some of these images.
    """
    held_out = fraction_not_trained_on(card, config.data)
    if held_out is None or data.has_splits(config.data) and data.has_validation(config.data, config.data_dir or None):
        return config
    if not held_out:
        raise ValueError(
            f"Expected validation images of {config.data} that {path} was not trained on. Received: a model that was trained on "
            "all training images (validation_fraction=0 in its card). Try: other data, or train it with validation_fraction=0.1"
        )
    check_unchanged(card, path, config)
    if config.validation_fraction > held_out:
        raise ValueError(
            f"Expected validation_fraction <= {held_out:g}, as in the training of {path}, which was trained on the other "
            f"images. Received: {config.validation_fraction:g}. Try: leave out validation_fraction"
        )
    if config.validation_fraction:
        return config
    print_note(f"validation_fraction={held_out:g}, from the card of {path}: images that it was not trained on.")
    return dataclasses.replace(config, validation_fraction=held_out)


def check_unchanged(card: Mapping[str, typing.Any], path: str, config: DataConfig) -> None:
    """Raises ValueError if data without splits have changed since a model's training, by its card: their splits are then others."""
    described = [one["division"] for one in trainings_on(card, config.data) if isinstance(one.get("division"), dict)]
    if not described or data.has_splits(config.data):
        return
    now = data.describe_division(config.data, data_range=config.data_range)
    if changed := [one for one in described if one != now]:
        before = changed[0].get("images")
        count = f"{now['images']} instead of {before}" if now["images"] != before else "with other labels"
        raise ValueError(
            f"Expected the images of {config.data} with which {path} was trained: of changed images, it is not known which ones it was "
            f"trained on. Received: images that have changed since ({count}). Try: keep new images in a folder or file of their own"
        )


def fraction_not_trained_on(card: Mapping[str, typing.Any], name: str) -> float | None:
    """Returns the fraction of a data set that was held out in the training of a model, by its card; None: other data, or not known."""
    fractions = [one.get("validation_fraction") for one in trainings_on(card, name)]
    return min((data.held_out_fraction(name, fraction) for fraction in fractions if fraction is not None), default=None)


def trainings_on(card: Mapping[str, typing.Any], name: str) -> list[dict[str, typing.Any]]:
    """Returns the trainings of a model on a data set, as `saved_models.interface.trainings`."""
    return [one for one in trainings(card) if is_same_data(one["data"], name)]


def is_same_data(name: str, other: str) -> bool:
    """Returns whether two names mean one data set: paths of files end alike and, if both exist, have the same content."""
    paths = [one.partition(":")[2] if data.kind_of(one).has_path else "" for one in (name, other)]
    if not all(paths):
        return not any(paths) and name.partition(":")[0] == other.partition(":")[0]
    first, second = (os.path.normpath(os.path.expanduser(path)) for path in paths)
    if os.path.basename(first) != os.path.basename(second):
        return False
    if not (os.path.exists(first) and os.path.exists(second)) or os.path.samefile(first, second):
        return True
    if os.path.isfile(first) and os.path.isfile(second):
        return filecmp.cmp(first, second, shallow=False)
    return os.path.isdir(first) and os.path.isdir(second) and _sizes(first) == _sizes(second)


def _sizes(folder):
    """{path within a folder: size in bytes} of its files."""
    paths = (os.path.join(place, file) for place, _, files in os.walk(folder) for file in files)
    return {os.path.relpath(path, folder): os.path.getsize(path) for path in paths}
