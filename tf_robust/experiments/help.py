"""Texts of `--list` and `--help`: available names, and the most used flags in groups."""

import dataclasses
import inspect
import os
import textwrap
from collections.abc import Mapping

from absl.flags import FlagValues

from tf_robust import attacks, corruptions, evaluation, methods, metrics, models
from tf_robust.data.augment import AUGMENTATIONS, VIEWS
from tf_robust.experiments import suites
from tf_robust.experiments.config import TrainConfig
from tf_robust.methods.base import Method
from tf_robust.utils import hyperparameters

DATA = {
    "synthetic_digits": "corner digits from scikit-learn's digits, 15 classes; needs no download",
    "digits": "scikit-learn's digits, enlarged, 10 classes; needs no download",
    "toy": "points in the plane, 2 classes; needs no download",
    "toy_band": "the same points with random labels on a band between the classes, as in the NoisyMix paper",
    "synthetic_mnist": "FCL's corner digits from MNIST, 15 classes",
    "folder:DIR": "images, one subfolder per class, or DIR/train and DIR/test with such subfolders",
    "mnist, cifar10, cifar100, imagenet2012, ...": "any image-classification set of TFDS by its name, in --data_dir",
}
_WIDTH, _NAME = 118, 44  # characters
_GROUPS = {
    "Mode": ("mode", "suite", "runs", "seeds", "workdir", "saved_model", "require", "sweep", "dry_run", "list"),
    "Data": ("data", "data_dir", "download", "image_size", "image_fit", "train_examples", "label_fraction", "validation_fraction"),
    "Model and training": (
        "model",
        "resize",
        "init_from",
        "method",
        "augmentations",
        "views",
        "epochs",
        "batch_size",
        "optimizer",
        "learning_rate",
        "schedule",
        "weight_decay",
        "mixed_precision",
        "strategy",
        "data_service",
    ),
    "Evaluation": ("evaluations", "evaluation_split", "subset", "corrupted_dir", "attack", "attack_radii"),
}


def listing(home: str) -> str:
    """Returns data sets, models, methods, views, corruptions, attacks and tables, one line each.

    Args:
        home: folder with `flags/`.
    """
    group_of = {name: group for group, names in metrics.GROUPS.items() for name in names}
    parts: dict[str, Mapping[str, str]] = {
        "Data sets (--data)": DATA,
        "Models (--model)": _summaries(models.MODELS),
        "Methods (--method)": _summaries(methods.METHODS),
        "Views (--views; * also --augmentations)": {name + "*" * (name in AUGMENTATIONS): text for name, text in _summaries(VIEWS).items()},
        "Corruptions, at severities 1 to 5": {name: group_of.get(name, "extra") for name in corruptions.CORRUPTIONS},
        "Attacks": _summaries(attacks.ATTACKS),
        "Tables (--mode=suite --suite=; one row: --flagfile=FOLDER/ROW.flags)": _tables(home),
    }
    return "\n\n".join(_block(heading, part) for heading, part in parts.items())


def help_text(values: FlagValues) -> str:
    """Returns the most used flags in groups, one line each, with their defaults.

    Args:
        values: has the flags.
    """
    shared = hyperparameters.parameters(Method)
    methods_own = sorted(
        f"{name} ({len(own)})"
        for name, target in methods.METHODS.items()
        if (own := hyperparameters.parameters(target).keys() - shared.keys())  # type: ignore[arg-type]
    )
    known = {field.name for field in (*dataclasses.fields(TrainConfig), *dataclasses.fields(evaluation.EvalConfig))}
    shown = [name for names in _GROUPS.values() for name in names]
    parts = ["python run_experiment.py [--FLAG=VALUE ...]    without flags: a comparison on synthetic digits, about a minute"]
    for heading, names in _GROUPS.items():
        parts.append(_block(heading, {f"--{name}{_default(values[name])}": values[name].help for name in names}))
    parts.append(textwrap.fill("Other flags: " + ", ".join(f"--{name}" for name in sorted(known - set(shown))), _WIDTH))
    parts.append(
        textwrap.fill(
            "Flags of a method, augmentation or view have its name as a prefix (--fcl_weight, "
            "--augmix_severity); number of flags per method: " + ", ".join(methods_own),
            _WIDTH,
        )
    )
    parts.append("--flagfile=FILE: flags from a file, one per line. --list: available names. --helpfull: all flags.")
    return "\n\n".join(parts)


def _default(flag):
    if isinstance(flag.default, bool):
        return ""
    values = flag.default if isinstance(flag.default, (tuple, list)) else [flag.default]
    return "=" + ",".join("" if value is None else str(value) for value in values)


def _summaries(registry):
    return {name: (inspect.getdoc(getattr(target, "func", target)) or "").split("\n")[0] for name, target in registry.items()}


def _tables(home):
    """{folder of a table: title and number of rows}"""
    folders = (
        folder
        for folder, _, files in sorted(os.walk(os.path.join(home, "flags")))
        if any(f.endswith(".flags") or f == "suite.json" for f in files)
    )
    tables = (suites.table_of(folder, home) for folder in folders)
    return {os.path.relpath(folder, home): f"{table['title']} ({len(rows)} rows)" for folder, rows, table in tables}


def _block(heading, part):
    """A heading, and names and texts in two columns. part: {name: text}."""
    width = max(min(len(name), _NAME) for name in part)
    lines = [f"  {name:<{width}}  {text}".rstrip() for name, text in part.items()]
    return "\n".join([heading, *(line if len(line) <= _WIDTH else line[: _WIDTH - 3].rsplit(" ", 1)[0] + " ..." for line in lines)])
