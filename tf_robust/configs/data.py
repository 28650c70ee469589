"""Configurations of the data, and of writing a corrupted set of them."""

import dataclasses
import re
import typing

from tf_robust.configs.evaluation import check_corruptions
from tf_robust.utils.errors import unknown


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Names a data set, and describes how its images and labels are read.

    Args:
        data: data set: digits, synthetic_digits, a TFDS name (mnist, cifar10, ...), folder:DIR, csv:FILE, npz:FILE, hf:NAME_OR_DIR; all:
            `tf-robust list data`.
        data_dir: folder of the TFDS data sets; empty: ~/tensorflow_datasets.
        download: download a missing TFDS data set.
        label_map: file with the model's output of each class folder: lines "NAME COLUMN", or JSON.
        label_set: class set of the labels, if the data set does not declare it: imagenet (ILSVRC-2012's 1,000 classes: mCE
            and flip rates are reported; classes named by WordNet ids are recognized), imagenet_a or imagenet_r (their 200 classes, one
            folder per WordNet id: the other logits are ignored, as in their papers).
        classes: outputs that compete: all, or those of classes present in the data.
        image_size: side in pixels to which images are resized; 0: image files and images of varying size get the input size of the
            evaluated model, else keep their own size if all have the same, else get 224; other data sets are unchanged.
        image_fit: how images of another size are resized: crop (cover image_size and crop the rest; images of varying size
            as in ImageNet's protocol, with random windows in training), stretch (ignore the aspect ratio), pad (with black).
        data_range: pixel scale of the images of npz:FILE and arrays: LOW,HIGH (0,1 or 0,255), or "mean=M,M,M std=S,S,S" for
            standardized ones; empty: 0..255 for integers, 0..1 for floats.
        validation_fraction: fraction of the training set held out if the data set has no validation split; of data without splits, the
            fraction for validation, and as much for test unless all images are evaluated.
        train_examples: number of training examples, stratified; 0: all.
        label_fraction: fraction of the training set to train on, stratified, different for each seed.
    """

    data: str = "synthetic_digits"
    data_dir: str = ""
    download: bool = False
    label_map: str = ""
    label_set: typing.Literal["", "imagenet", "imagenet_a", "imagenet_r"] = ""
    classes: typing.Literal["all", "present"] = "all"
    image_size: int = 0
    image_fit: typing.Literal["crop", "stretch", "pad"] = "crop"
    data_range: str = ""
    validation_fraction: float = 0.0
    train_examples: int = 0
    label_fraction: float = 1.0

    def __post_init__(self):
        if self.label_map and self.label_set == "imagenet_r":
            raise ValueError("Expected label_map or label_set=imagenet_r, which both map folders to columns. Received: both")
        if self.image_size < 0:
            raise ValueError(f"Expected image_size >= 0 (0: chosen by the data and the model). Received: {self.image_size}")


def part_of(shard: str) -> tuple[int, int]:
    """Parses `3/16` to (3, 16): the third of sixteen parts; the first is 1."""
    match = re.fullmatch(r"(\d+)/(\d+)", shard.strip())
    part, parts = map(int, match.groups()) if match else (0, 0)
    if not 1 <= part <= parts:
        raise ValueError(f"Expected shard as PART/PARTS with PART in 1..PARTS (the first is 1), such as 3/16. Received: {shard!r}")
    return part, parts


@dataclasses.dataclass(frozen=True)
class WriterConfig:
    """Format, corruptions and division of the work of writing a corrupted set.

    Args:
        dataset_format: `npy`: one file NAME.npy with all five severities for each corruption, as CIFAR-10-C; `tfds`: a set of
            TFRecord files for each corruption and severity, which TFDS reads.
        corruptions: names of the corruptions; empty: the 19 of the common-corruption benchmark, without those of C-bar.
        shard: part of the work for this process: 3/16 is the third of sixteen.
        chunk_size: images written at once; with the format tfds, images per file.
        engine: `local`: this process; `beam`: an Apache Beam pipeline (extra [beam]), which divides the work itself.
        beam_options: of the pipeline, as on Beam's command line: --runner=FlinkRunner,--parallelism=8; empty: this
            machine.

    Raises:
        ValueError: unknown names, an invalid shard, or chunk_size < 1.
    """

    dataset_format: typing.Literal["npy", "tfds"] = "npy"
    corruptions: tuple[str, ...] = ()
    shard: str = "1/1"
    chunk_size: int = 1000
    engine: typing.Literal["local", "beam"] = "local"
    beam_options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.engine == "beam" and part_of(self.shard) != (1, 1):
            raise ValueError(f"Expected shard=1/1 with Beam, which divides the work itself. Received: {self.shard!r}")
        if self.chunk_size < 1:
            raise ValueError(f"Expected chunk_size >= 1. Received: {self.chunk_size}")
        for name, known in (("dataset_format", ("npy", "tfds")), ("engine", ("local", "beam"))):
            if getattr(self, name) not in known:
                raise unknown(name, getattr(self, name), known)
        check_corruptions(self.corruptions)
        part_of(self.shard)
