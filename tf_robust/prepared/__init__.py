"""Corrupted sets written to disk: as CIFAR-10-C's arrays or as TFDS records, by one process, many, or Apache Beam."""

from tf_robust.prepared.maker import Recipe
from tf_robust.prepared.writing import Writing, write
