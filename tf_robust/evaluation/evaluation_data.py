"""The images that models are evaluated on."""

import dataclasses
from collections.abc import Callable, Mapping

import keras

from tf_robust import data, evaluation
from tf_robust.configs import DataConfig
from tf_robust.data import sources
from tf_robust.data.source import Source
from tf_robust.data.sources import Shift
from tf_robust.saved_models.loading import Classifier
from tf_robust.utils.progress import print_note


@dataclasses.dataclass(frozen=True)
class EvaluationData:
    """The data of an evaluation.

    Args:
        config: names the data.
        eval_config: names the evaluations, the split and the number of images.
        seed: selects the labeled fraction of the training images.
        model_size: (height, width) of the images that the evaluated model takes; empty: not known.
        num_classes: of the evaluated model; 0: not known.
        images: to evaluate on, in memory; None: those that `config.data` names.
        surrogate: model in memory from which attacks are transferred; None: the one that `eval_config` names, if any.
        training_images: from which NUN computes its standard deviations, in memory; None: the training split, if there is one.
        validation_images: that confidences are fitted on, in memory; None: the validation split.
        ood_images: {one of `eval_config.ood`: its images}, of data sets of other classes in memory.
        shift_images: {one of `eval_config.shifts`: its images}, of shifted data sets in memory.
    """

    config: DataConfig
    eval_config: evaluation.EvalConfig
    seed: int = 0
    model_size: tuple[int, int] | tuple[()] = ()
    num_classes: int = 0
    images: Source | None = None
    surrogate: Classifier | keras.Model | Callable | None = None
    training_images: Source | None = None
    validation_images: Source | None = None
    ood_images: Mapping[str, Source] = dataclasses.field(default_factory=dict)
    shift_images: Mapping[str, Source] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        data.kinds.check_shifts(self.eval_config.shifts)
        data.kinds.check_shifts(self.eval_config.ood, "ood")

    def source(self, split: str, examples: int = 0, mapped: bool = True) -> Source:
        """Returns one split of the data. Parts of data without splits are drawn before labels are mapped (`map_labels`).

        Args:
            split: train, validation or test.
            examples: number of examples of validation and test, stratified; 0: all.
            mapped: as in `sources.open_split`.
        """
        return sources.open_split(
            self.config,
            split,
            examples,
            seed=self.seed,
            model_size=self.model_size,
            num_classes=self.num_classes,
            images=self.images,
            mapped=mapped,
        )

    def map_labels(self, source: Source) -> Source:
        """Returns a part of the data whose labels are columns of the model's output."""
        return sources.map_labels(self.config, source, self.num_classes)

    def like_images(self, source: Source) -> Source:
        """Returns further images in memory with labels that are mapped as those of `images`, if they have the same classes."""
        return self.map_labels(source) if self.images is not None and source.class_names == self.images.class_names else source

    @property
    def held_out(self) -> float:
        """The fraction of data without splits that confidences are fitted on, while all other images are evaluated; 0: not so."""
        fits = self.eval_config.needs_validation_set and self.validation_images is None
        return self.config.validation_fraction if fits and self.eval_config.evaluation_split == data.WHOLE else 0.0

    def evaluation_source(self) -> Source:
        """Returns the images to evaluate on."""
        subset = self.eval_config.subset
        if not self.held_out:
            return self.source(self.eval_config.evaluation_split, subset)
        return self._divided(data.WHOLE, subset)

    def _divided(self, split, subset=0):
        """A part of data without splits, of which a fraction is held out."""
        source = data.split_train_val_test(self.source(data.WHOLE, mapped=False), split, self.held_out)
        source = data.stratified_subset(source, subset) if 0 < subset < len(source) else source
        return self.map_labels(source)

    def shifts(self, original: Source) -> list[Shift]:
        """Returns the shifted data sets, with the classes and the image size of the images to evaluate on."""
        return [
            sources.open_shift(self.config, name, original, subset=self.eval_config.subset, images=self.shift_images.get(name))
            for name in self.eval_config.shifts
        ]

    def validation_source(self) -> Source | None:
        """Returns the images that confidences are fitted on; None if none are.

        Raises:
            ValueError: the data have no validation part besides the evaluated images.
        """
        if not self.eval_config.needs_validation_set:
            return None
        if self.validation_images is not None:
            return self.like_images(self.validation_images)
        if self.held_out:
            return self._divided("validation")
        c = self.config
        if self.eval_config.evaluation_split == "all" or not data.has_validation(c.data, c.data_dir or None, c.validation_fraction):
            advice = "" if self.images is None else "validation_data=(images, labels), or "
            advice += "validation_fraction=0.1"
            advice += ", which evaluates on all others" if self.images is not None or not data.has_splits(c.data) else ""
            raise ValueError(
                "Expected a validation part, which calibrate, abstain_accuracy and conformal are fitted on. "
                f"Received: {c.data} without one, evaluation_split={self.eval_config.evaluation_split}. Try: {advice}"
            )
        return self.source("validation")

    def open_sets(self, original: Source, model: Classifier | None) -> evaluation.OpenSets:
        """Returns the data sets of other classes, and what nearest neighbors need.

        Args:
            original: images to evaluate on.
            model: has an output `embedding`; None: there is none.
        """
        sources = self.other_sources(original)
        if not sources:
            return evaluation.OpenSets()
        if model is None:
            print_note("ood without nearest neighbors: the model has no output 'embedding', and is no Keras model with a dense last layer.")
        return evaluation.OpenSets(sources, model, self.known_source() if model else None)

    def other_sources(self, original: Source) -> dict[str, Source]:
        """Returns {name in metrics: images of other classes}, with the image size of the images to evaluate on.

        Raises:
            ValueError: another number of channels.
        """
        subset = self.eval_config.subset
        return {
            data.kinds.shift_name(name): sources.open_other(self.config, name, original, subset=subset, images=self.ood_images.get(name))
            for name in self.eval_config.ood
        }

    def known_source(self) -> Source | None:
        """Returns the training images among which nearest neighbors are found, or None."""
        if self.training_images is not None:
            return evaluation.known_images(self.training_images)
        if self.images is None and self.eval_config.evaluation_split != "all" and data.has_training(self.config.data):
            return evaluation.known_images(self.source("train"))
        print_note(f"ood without nearest neighbors: {self.config.data} has no training images besides the evaluated ones.")
        return None

    def noise_source(self) -> Source | None:
        """Returns the images from which NUN computes its standard deviations: the evaluated ones if there are none to train on."""
        if not self.eval_config.needs_training_set:
            return None
        if self.training_images is not None:
            return self.training_images
        if self.eval_config.evaluation_split != "all" and data.has_training(self.config.data):
            return self.source("train")
        print_note(f"nun's noise depends on the standard deviations of the evaluated images of {self.config.data}: it has no others.")
        return self.evaluation_source()
