"""Writing corrupted sets to disk, as CIFAR-10-C's arrays or as TFDS records: by one process, many, or Apache Beam."""

from tf_robust.configs.data import WriterConfig
from tf_robust.corrupted_datasets.job import CorruptionConfig, write
