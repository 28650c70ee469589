"""Checks of a command line before TensorFlow is imported: unknown data, missing models, folders that cannot be written."""

import difflib
import glob
import importlib.util
import os
import re
import tempfile
from collections.abc import Iterable

from tf_robust.cli.flags import FLAGS_HOME, Options
from tf_robust.configs import DataConfig, EvalConfig, TrainConfig
from tf_robust.configs.evaluation import ATTACKS
from tf_robust.data.kinds import DATA_KINDS, data_names, kind_of, knows_all_data, path_of, shift_data
from tf_robust.hardening.config import SHIFT
from tf_robust.integrations.launchers import LAUNCHERS
from tf_robust.saved_models import formats
from tf_robust.utils import quiet
from tf_robust.utils.errors import unknown
from tf_robust.utils.files import is_run, is_url
from tf_robust.utils.hyperparameters import parameters

_PACKAGES = (
    ("engine", "beam", "apache_beam", "'tf_robust[beam]'"),
    ("sweep_engine", "optuna", "optuna", "'tf_robust[optuna]'"),
    ("launcher", "ray", "ray", "'tf_robust[ray]'"),
    ("launcher", "slurm", "submitit", "'tf_robust[slurm]'"),
    ("per_image", True, "pyarrow", "'tf_robust[parquet]'"),
    ("model", "resnet50_v2", "keras_cv", "keras-cv"),
    ("tracker", "wandb", "wandb", "'tf_robust[wandb]'"),
    ("tracker", "mlflow", "mlflow", "'tf_robust[mlflow]'"),
)


_STORES = ("train", "suite", "sweep", "evaluate", "attack", "report")  # commands whose results may go to an object store


def unknown_command(word: str, known: Iterable[str]) -> ValueError:
    """Returns an error for the first positional argument, which is no command."""
    names = list(known)
    if advice := _command_for(word):
        return ValueError(f"Expected a command before {word!r}. Received: none. Try: tf-robust {advice}")
    if nearest := _near(word, names):
        return ValueError(f"Unknown command {word!r}. Did you mean {' or '.join(map(repr, nearest))}? Try: tf-robust --help")
    if advice := flag_for(word):
        return ValueError(f"Unrecognized argument {word!r}. Expected --flag=value. Try: {advice}")
    return ValueError(f"Unknown command {word!r}. Expected one of: {', '.join(names)}. Try: tf-robust --help")


def check_data(options: Options) -> None:
    """Raises ValueError for misspelled names of data sets, and FileNotFoundError for missing files and folders."""
    found = [(flag, name) for flag in ("shifts", "ood") for name in options.get(flag, ())]
    if options.get("target", "").startswith(SHIFT):
        found.append((f"target={SHIFT[:-1]}", shift_data(options["target"].removeprefix(SHIFT))))
    if "data" in options:
        found.append(("data", options["data"]))
    for flag, name in found:
        kind = kind_of(name)
        if not kind.has_path or kind.class_folders:
            _check_data_name(flag, name, options["data_dir"])
            continue
        key, path = name.partition(":")[0], path_of(name)
        if package := DATA_KINDS[key].package:
            _check_package(package, f"--{flag}={name}", f"'tf_robust[{package}]'")
        if DATA_KINDS[key].suffix and not os.path.isfile(path):
            nearest = _nearest_path(path)
            hint = f" Did you mean --{flag}={key}:{nearest}?" if nearest else ""
            raise FileNotFoundError(f"Expected a file for --{flag}={key}:FILE. Not found: {path}.{hint}")


def _check_data_name(flag, name, data_dir):
    """Raises an error for a misspelled folder or data set. Others may exist: TFDS looks them up."""
    base, known = re.split(r"[:/]", name, maxsplit=1)[0], data_names()
    parent, folder = os.path.split(name.removeprefix("folder:"))
    nearest = _near(folder, [entry for entry in _entries(parent) if "." not in entry])
    exists = os.path.isdir(os.path.expanduser(os.path.join(parent, folder)))
    if nearest and not exists and (base == "folder" or base not in known):
        path = os.path.join(parent, nearest[0])
        raise FileNotFoundError(f"Expected a data set, or a folder of images. Not found: {name}. Did you mean --{flag}=folder:{path}?")
    if not name or base == "folder" or base in known or os.path.isdir(os.path.join(data_dir or "~/tensorflow_datasets", base)):
        return
    if knows_all_data() and (nearest := _near(base, known)):
        raise ValueError(
            f"Unknown data set: {name!r}. Did you mean {' or '.join(map(repr, nearest))}? Try: tf-robust list data, or --{flag}=folder:DIR"
        )


def _check_package(module, option, requirement):
    if importlib.util.find_spec(module) is None:
        raise ValueError(f"Expected the package {module} for {option}. Not installed. Try: pip install {requirement}")


def check_choices(name: str, options: Options) -> None:
    """Raises ValueError for missing packages, unknown attacks and formats, and launchers and stores that a command cannot use."""
    for flag, value, module, requirement in _PACKAGES:
        given = options.get(flag)
        if value in (given if isinstance(given, tuple) else [given]):
            _check_package(module, f"--{flag}" if value is True else f"--{flag}={value}", requirement)
    chosen, launcher, workdir = options.get("formats", ()), options.get("launcher", "local"), options.get("workdir", "")
    if name == "export" and not chosen:
        raise ValueError(f"Expected --formats, of: {', '.join(formats.files())}. Received: none")
    for one in chosen:
        if one not in formats.files():
            raise unknown("value of --formats", one, formats.files())
        for module in formats.FORMATS[one].packages:
            _check_package(module, f"--formats={one}", f"'tf_robust[{formats.FORMATS[one].extra}]', or --formats without {one}")
    if chosen:
        formats.check_convertible(options["saved_model"])
    for attack in {*options.get("attack", ())} - {*ATTACKS}:
        with quiet.importing(()):
            from tf_robust.evaluation.adversarial import check_attack
        check_attack(attack)
    if launcher == "local" and options.get("launcher_options"):
        raise ValueError("Expected --launcher=ray or slurm with --launcher_options. Received: --launcher=local")
    if launcher != "local":
        if launcher not in LAUNCHERS:
            raise unknown("value of --launcher", launcher, ("local", *LAUNCHERS))
        if chosen:
            raise ValueError(f"Expected --launcher=local with --formats, whose latencies are of this machine. Received: {launcher}")
        if "none" in options["evaluations"]:
            raise ValueError(f"Expected evaluations with --launcher={launcher}, whose tasks end with one. Received: --evaluations=none")
        if options.get("sweep_engine") == "optuna":
            raise ValueError(
                f"Expected --launcher=local with --sweep_engine=optuna. Received: --launcher={launcher}. Try: the same command on each "
                "machine, which share the trials (--sweep_storage)"
            )
    if re.match(r"\w{2,}:/(?!/)", workdir):
        raise ValueError(f"Expected a folder or the URL of a store. Received: {workdir}. Did you mean {workdir.replace(':/', '://', 1)}?")
    if is_url(workdir):  # it is not copied to a store
        if len(workdir.strip("/").partition("://")[2].split("/")) < 2:
            raise ValueError(f"Expected --workdir=s3://BUCKET/PATH or another store with a path. Received: {workdir}")
        if name not in _STORES:
            raise ValueError(f"Expected a local --workdir with {name}. Received: {workdir}. Stores take: {', '.join(_STORES)}")
        if "none" in options.get("evaluations", ()):
            raise ValueError(f"Expected evaluations with --workdir={workdir}: a run with one is complete. Received: --evaluations=none")
        if options.get("strategy") == "multi_worker":
            raise ValueError(f"Expected a local --workdir with --strategy=multi_worker. Received: {workdir}")


def check_model(name: str, options: Options) -> None:
    """Raises FileNotFoundError if there is no model of a command, and ValueError for several runs, or without data to evaluate it on."""
    path = options["saved_model"]
    if is_url(path):
        return  # checked when it is fetched
    if not os.path.exists(path) and ":" not in path:  # else zoo:NAME, applications:NAME, keras_hub:PRESET or module:function
        raise FileNotFoundError(
            f"Expected a model: a file *{', *'.join(formats.suffixes())}, a SavedModel folder (with saved_model.pb), zoo:NAME, "
            f"applications:NAME, keras_hub:PRESET, module:function, or the workdir of a run. Not found: {path}.{_hint(path)}"
        )
    if is_run(path):
        return
    runs = [folder for folder in sorted(glob.glob(os.path.join(glob.escape(path), "*"))) if is_run(folder)]
    if runs and not os.path.exists(os.path.join(path, "saved_model.pb")):
        raise ValueError(f"Expected the workdir of one run. Received: {path}, which holds {len(runs)}. Try: tf-robust {name} {runs[0]}")
    if "data" not in options.given and name != "convert":  # which needs none
        raise ValueError(
            f"Expected --data, the images to evaluate {path} on. Received: none. "
            f"Try: tf-robust {name} {path} --data=cifar10, or --data=folder:DIR with one subfolder per class"
        )


def check_paths(options: Options) -> None:
    """Raises FileNotFoundError for a missing surrogate, suite (a path may be relative to `FLAGS_HOME`) or workdir of --runs."""
    surrogate, folder = options.get("surrogate", ""), options.get("suite", "")
    if surrogate and not os.path.exists(surrogate) and ":" not in surrogate:
        raise FileNotFoundError(f"Expected a model with gradients for --surrogate. Not found: {surrogate}.{_hint(surrogate)}")
    if folder and not any(_is_suite(os.path.join(home, folder)) for home in ("", FLAGS_HOME)):
        known = [os.path.relpath(path, FLAGS_HOME) for path, *_ in os.walk(os.path.join(FLAGS_HOME, "flags")) if _is_suite(path)]
        nearest = _near(folder.rstrip("/"), known)
        advice = f"Did you mean {nearest[0]}?" if nearest else "Try: tf-robust list suites"
        raise FileNotFoundError(f"Expected a folder of .flags files. Not found: {folder}. {advice}")
    for pattern in options.get("runs", ()):
        if not is_url(pattern) and not os.path.exists(pattern) and not glob.glob(pattern, recursive=True):
            raise FileNotFoundError(
                f"Expected workdirs with an evaluation.json. Received: {pattern!r}, which matches none.{_hint(pattern)}"
            )


def check_writable(options: Options) -> None:
    """Raises ValueError if the folder of the results cannot be written; leaves nothing in it. `storage.copied` checks stores."""
    output, model = options.get("output", ""), options.get("saved_model", "")
    workdir = options.get("workdir", os.path.dirname(output or model) or ".")
    if is_url(workdir):
        return
    folder = existing = workdir or (model if is_run(model) else "runs")
    while not os.path.lexists(existing):
        existing = os.path.dirname(os.path.abspath(existing))
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        flag = "--output=FILE" if "output" in options else "--workdir=DIR"
        raise ValueError(
            f"Expected a folder for the results that can be written. Received: {os.path.abspath(folder)} "
            f"(no file can be created in {existing}: {error.strerror}). Try: {flag} in another place"
        ) from error


def _command_for(word):
    """The command that takes an existing file or folder; empty if none does."""
    of_model = f"evaluate {word} --data=NAME"
    if not os.path.exists(word):
        return of_model if word.endswith(formats.suffixes()) else ""
    if word.endswith(".flags"):
        return f"train --flagfile={word}"
    if is_run(word):
        return f"evaluate {word}"
    if word.endswith(formats.suffixes()) or {"saved_model.pb", "saved_model"} & set(_entries(word)):
        return of_model
    if _is_suite(word):
        return f"suite {word}"
    return f"train --data=folder:{word}" if os.path.isdir(word) else ""


def flag_for(word: str) -> str:
    """Returns the flag that a positional argument was probably meant for; empty if it is none."""
    name, separator, value = word.partition("=")
    if separator:
        nearest = _near(name, [*parameters(TrainConfig), *parameters(DataConfig), *parameters(EvalConfig)])
        return f"--{nearest[0]}={value}" if nearest else ""
    if word.endswith(".flags"):
        return f"--flagfile={word}"
    if word in data_names():
        return f"--data={word}"
    if os.path.isdir(word):
        return f"--data=folder:{word}"
    with quiet.importing(()):
        from tf_robust import methods, models
    return f"--method={word}" if word in methods.METHODS else f"--model={word}" if word in models.MODELS else ""


def _near(word, known):
    return difflib.get_close_matches(word, list(known), n=3, cutoff=0.6)


def _nearest_path(path):
    """The path in the same folder with the nearest name; empty if none is near."""
    folder, name = os.path.split(path)
    return next((os.path.join(folder, nearest) for nearest in _near(name, _entries(folder))), "")


def _hint(path):
    return f" Did you mean {nearest!r}?" if (nearest := _nearest_path(path)) else ""


def _is_suite(folder):
    return any(name.endswith(".flags") or name == "suite.json" for name in _entries(folder))


def _entries(folder):
    return os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
