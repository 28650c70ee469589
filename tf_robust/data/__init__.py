"""Data sources, augmentations, views and the training pipeline.

The names are imported when they are first used: `data.kinds` alone does not import TensorFlow.
"""

import importlib
import importlib.util
import typing

if typing.TYPE_CHECKING:
    from tf_robust.data import arrays, kinds, pipeline, source, sources, subsets, tfds_sets
    from tf_robust.data.arrays import WHOLE, default_range, from_arrays, from_dataset, unit_images
    from tf_robust.data.class_mask import declared, masked, read_label_map, relabel
    from tf_robust.data.folders import FileSource
    from tf_robust.data.kinds import DATA_KINDS, DataKind, has_splits, has_training, has_validation, held_out_fraction, kind_of
    from tf_robust.data.pipeline import Batch, evaluation_batches, first_batch, steps_per_epoch, training_batches, views
    from tf_robust.data.source import ArraySource, check_labels
    from tf_robust.data.sources import describe_division, load, open_source
    from tf_robust.data.subsets import balanced, class_weights, labelled_fraction, split_train_val_test, stratified_subset

_NAMES = {
    "arrays": "WHOLE default_range from_arrays from_dataset unit_images",
    "class_mask": "declared masked read_label_map relabel",
    "folders": "FileSource",
    "kinds": "DATA_KINDS DataKind has_splits has_training has_validation held_out_fraction kind_of",
    "pipeline": "Batch evaluation_batches first_batch steps_per_epoch training_batches views",
    "source": "ArraySource check_labels",
    "sources": "describe_division load open_source",
    "subsets": "balanced class_weights labelled_fraction stratified_subset split_train_val_test",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = [
    "ArraySource",
    "Batch",
    "DATA_KINDS",
    "DataKind",
    "evaluation_batches",
    "from_arrays",
    "from_dataset",
    "load",
    "open_source",
    "training_batches",
    "views",
]


def __getattr__(name: str) -> typing.Any:
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    if importlib.util.find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
