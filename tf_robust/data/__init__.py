"""Where examples come from, and what happens to them before a model sees them."""

from tf_robust.data.class_mask import declared, masked, read_label_map, relabelled
from tf_robust.data.folders import FileSource
from tf_robust.data.pipeline import Batch, evaluation_batches, steps_per_epoch, training_batches
from tf_robust.data.source import ArraySource, check_labels, labelled_share
from tf_robust.data.sources import has_validation, load, open_source
