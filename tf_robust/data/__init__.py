"""Data sources, augmentations, views and the training pipeline."""

from tf_robust.data.arrays import UNSPLIT, default_range, from_arrays, from_dataset, unit_images
from tf_robust.data.class_mask import declared, implied_label_set, masked, present_columns, read_label_map, relabelled
from tf_robust.data.dataset_views import views
from tf_robust.data.folders import FileSource
from tf_robust.data.pipeline import Batch, evaluation_batches, first_batch, steps_per_epoch, training_batches
from tf_robust.data.shifts import OF_FILES, Shift
from tf_robust.data.source import ArraySource, check_labels
from tf_robust.data.sources import (
    describe_undivided,
    has_fixed_splits,
    has_own_validation,
    has_training,
    has_validation,
    held_out_fraction,
    is_of_user,
    is_unsplit,
    load,
    open_source,
)
from tf_robust.data.subsets import balanced, class_weights, labelled_fraction, stratified_subset, three_ways
