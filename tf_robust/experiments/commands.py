"""The commands of the command line, `tf-robust COMMAND ...`, and their arguments. Importing this module does not import TensorFlow."""

import dataclasses
import logging
import os
import shlex
import sys
from collections.abc import Mapping, Sequence

from absl.flags import Error, FlagValues

from tf_robust.experiments import command_checks, launchers
from tf_robust.experiments.flags import SECTIONS, data_of, define_flags, given_values, read_arguments
from tf_robust.saved_models.card_files import training_data
from tf_robust.saved_models.formats import files
from tf_robust.utils.errors import unknown

_INTERFACE = ("input_range", "outputs", "signature", "input_size", "trust", "check_inputs")


@dataclasses.dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        name: as it is typed.
        purpose: one sentence.
        argument: positional arguments, as in the usage line; empty: none.
        sets: flag that the positional arguments set.
        several: whether there may be several of them.
        flags: the most used flags, for its help.
        further: flags that its help only names.
        examples: complete command lines, without the name of the program.
        defaults: {flag: text} where its defaults differ.
    """

    name: str
    purpose: str
    argument: str = ""
    sets: str = ""
    several: bool = False
    flags: tuple[str, ...] = ()
    further: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    defaults: Mapping[str, str] = dataclasses.field(default_factory=dict)


_TRAINING = (
    *("data", "data_dir", "image_size", "validation_fraction", "model", "init_from", "method", "augmentations", "views", "epochs"),
    *("batch_size", "optimizer", "learning_rate", "evaluations", "tracker", "workdir", "seeds", "dry_run"),
)
_DATA = ("data", "data_dir", "image_size", "image_fit", "data_range", "label_map", "classes", "evaluation_split", "subset")
HARDENING_EVALUATIONS = "clean,noise,corruptions,corruptions_bar,calibration"  # of the proof
_COMMANDS = (
    Command(
        "train",
        "Trains, exports and evaluates a model, and writes a report. Run again, it resumes.",
        flags=_TRAINING,
        examples=(
            "train --data=cifar10 --model=resnet20 --method=fcl --augmentations=crop_flip",
            "train --flagfile=flags/fcl/table1/fcl.flags --seeds=0,1,2",
            "train --data=folder:photos --evaluations=none    (trains and exports only)",
        ),
    ),
    Command(
        "evaluate",
        "Evaluates a model (Keras, SavedModel, TensorFlow Lite, ONNX, TorchScript, a name), or a run on its own data.",
        "MODEL",
        "saved_model",
        flags=(
            *_DATA,
            "evaluations",
            "shifts",
            "groups",
            *("calibrate", "abstain_accuracy", "conformal", "ood", "per_image"),
            "corrupted_dir",
            "attack_radii",
            *_INTERFACE,
            "require",
            "require_not_worse_than",
            "formats",
            "workdir",
        ),
        further=(
            *(
                "corruptions",
                "validation_fraction",
                "attack",
                "attack_subset",
                "attack_queries",
                "surrogate",
                "certified_radii",
                "smoothing_sigma",
            ),
            *(
                "corruptions",
                "severities",
                "smoothing_samples",
                "adaptation",
                "adaptation_batch_size",
                "launcher",
                "launcher_options",
                "junit",
            ),
        ),
        examples=(
            "evaluate model.keras --data=cifar10 --evaluations=clean,corruptions",
            "evaluate model.keras --data=folder:photos --input_range=0,255",
            "evaluate model.tflite --data=folder:photos --input_range=auto",
            "evaluate model.keras --data=csv:labels.csv --evaluations=clean,slices --groups=site",
            "evaluate model.keras --data=folder:photos --evaluations=clean --shifts=folder:night,folder:rain",
            "evaluate runs/cifar10-resnet20-fcl --calibrate=temperature --abstain_accuracy=0.95",
            "evaluate runs/cifar10-resnet20-fcl --evaluations=corruptions --require='corruptions/mean15>=0.7'",
            "evaluate runs/cifar10-resnet20-fcl --formats=savedmodel,tflite_int8 --evaluations=clean,corruptions",
            "evaluate model.keras --data=cifar10 --evaluations=adversarial --attack=autoattack --attack_subset=500",
            "evaluate model.keras --data=cifar10 --evaluations=certified --smoothing_sigma=0.25 --attack_subset=500",
            "evaluate model.keras --data=cifar10 --evaluations=clean,corruptions --adaptation=batch_norm",
        ),
    ),
    Command(
        "attack",
        "Evaluates the accuracy of a model under adversarial attacks.",
        "MODEL",
        "saved_model",
        flags=(*_DATA, "attack", "attack_radii", "attack_subset", "attack_queries", "surrogate", "evaluations", *_INTERFACE, "workdir"),
        examples=(
            "attack model.keras --data=cifar10 --attack=pgd --attack_radii=linf_8/255 --attack_subset=500",
            "attack model.tflite --data=folder:photos --surrogate=model.keras --attack_radii=linf_4/255",
        ),
        defaults={"evaluations": "clean,adversarial"},
    ),
    Command(
        "harden",
        "Makes a model more robust by a search among short fine-tunings, and proves it on test images.",
        "MODEL",
        "saved_model",
        flags=(
            *("data", "target", "budget", "max_clean_loss", "adapt", "attack_norm", "attack_radius", "workdir"),
            *("data_dir", "image_size", "image_fit", "data_range", "label_map", "classes", "validation_fraction"),
            *("evaluations", "subset", *_INTERFACE),
        ),
        examples=(
            "harden model.keras --data=folder:photos --budget=30m",
            "harden model.keras --data=folder:photos --input_range=auto --target=noise --max_clean_loss=0.02",
            "harden model.keras --data=folder:photos --target=shift=folder:night",
        ),
        defaults={"evaluations": HARDENING_EVALUATIONS},
    ),
    Command(
        "export",
        "Writes a model or the model of a run in other formats, each checked against the model on 100 images.",
        "MODEL",
        "saved_model",
        flags=("formats", "unit_range", "logits", *_DATA, *_INTERFACE, "workdir"),
        examples=(
            "export runs/cifar10-resnet20-fcl --formats=keras,tflite_int8,onnx",
            "export model.keras --data=folder:photos --input_range=0,255 --formats=tflite_int8",
        ),
        defaults={"formats": ",".join(files())},
    ),
    Command(
        "corrupt",
        "Writes a corrupted copy of a data set, or of a folder of images with one subfolder per class.",
        "[DATA]",
        "data",
        flags=(
            *("data_dir", "image_size", "image_fit", "evaluation_split", "subset", "corruptions", "corruption_constants"),
            *("corruption_protocol", "dataset_format", "shard", "engine", "seeds", "workdir"),
        ),
        examples=("corrupt photos/ --image_size=224 --workdir=photos-c", "corrupt cifar10 --corruptions=fog,jpeg_compression"),
    ),
    Command(
        "suite",
        "Trains and evaluates all rows of a table, a folder of flagfiles, and writes its report.",
        "FOLDER",
        "suite",
        flags=(
            "seeds",
            "data",
            "data_dir",
            "epochs",
            "train_examples",
            "evaluations",
            "subset",
            "launcher",
            "tracker",
            "workdir",
            "dry_run",
        ),
        examples=("suite flags/fcl/table1 --data_dir=DIR --seeds=0,1,2", "list suites"),
    ),
    Command(
        "sweep",
        "Trains points of hyperparameters; the best on validation images is evaluated on the test set.",
        "GRID",
        "sweep",
        flags=("sweep_metric", "sweep_engine", "trials", *_TRAINING),
        examples=(
            "sweep 'fcl_k=128,256;fcl_sigma=0.1,0.5' --method=fcl --sweep_metric=un",
            "sweep 'fcl_weight=log:1e-4..1' --method=fcl --sweep_engine=optuna --trials=30",
        ),
    ),
    Command(
        "report",
        "Compares runs and evaluated models in one report, or one for each data set.",
        "WORKDIR ...",
        "runs",
        several=True,
        flags=("baseline", "suite", "workdir"),
        examples=("report runs/a runs/b --baseline=a --workdir=runs/compared", "report 'runs/**/seed_*' --suite=flags/fcl/table1"),
    ),
    Command(
        "list",
        "Lists available names: data, models, methods, views, corruptions, attacks, measures, zoo, suites.",
        "[SECTION]",
        "section",
        examples=("list methods",),
    ),
    Command(
        "serve",
        "Prepares batches for runs on other machines until it is interrupted.",
        flags=("data_service",),
        examples=("serve --data_service=10.0.0.5:5050", "train --data=cifar10 --data_service=10.0.0.5:5050    (on another machine)"),
    ),
)
COMMANDS = {command.name: command for command in _COMMANDS}
QUICK_START = "flags/quickstart"
QUICK_START_FLAGS = {"workdir", "seeds"}  # with these alone it is still the quick start
_OF_MODELS = ("evaluate", "attack", "harden", "export")
_TRAIN_ONLY = ("none",)
_OWNERS = {
    **dict.fromkeys(("require", "require_not_worse_than", "junit"), ("evaluate", "attack")),
    **dict.fromkeys(("sweep_metric", "sweep_engine", "sweep_storage", "trials"), ("sweep",)),
    "baseline": ("report",),
    **dict.fromkeys(("unit_range", "logits"), ("export",)),
}  # flags of some commands alone
_MISPLACED = {"saved_model": "evaluate", "suite": "suite", "runs": "report"}  # flags that another command needs


def command(*arguments: str) -> str:
    """Returns the shell command that runs this program with arguments."""
    programs = {"tf-robust": ["tf-robust"], os.path.join("tf_robust", "__main__.py"): ["python", "-m", "tf_robust"]}
    program = next((words for path, words in programs.items() if sys.argv[0].endswith(path)), ["python", "run_experiment.py"])
    return shlex.join([*program, *arguments])


def read_command(values: FlagValues, argv: Sequence[str]) -> Command:
    """Reads a command line into a FlagValues, and returns its command. Without any it is the quick start, with flags alone `train`.

    Args:
        values: has all flags.
        argv: arguments of the command line. Flags stand before or after positional arguments.

    Raises:
        ValueError: an unknown command, flag or value, or arguments that the command does not take.
    """
    words = read_arguments(values, argv, positional=True)
    old = _of_mode(values, argv, words)
    if not words and not old and given_values(values).keys() <= QUICK_START_FLAGS:
        values["suite"].parse(QUICK_START)
        return COMMANDS["suite"]
    if words and words[0] not in COMMANDS:
        raise command_checks.unknown_command(words[0], COMMANDS)
    name = words[0] if words else old or ("list" if values.list else "train")
    if old not in ("", name):
        raise ValueError(f"Expected one command. Received: {name} and --mode={values.mode}. Try: leave out --mode")
    _set_arguments(values, COMMANDS[name], words[1:])
    for flag, text in COMMANDS[name].defaults.items():
        if not values[flag].present:
            values[flag].parse(text)
    if values.saved_model and not values["data"].present and (data := training_data(values.saved_model)):
        values["data"].parse(data)
    name = "sweep" if name == "train" and values.sweep else name
    _check(values, name)
    return COMMANDS[name]


def parse_command(argv: Sequence[str]) -> tuple[Command, FlagValues]:
    """Returns the command of a command line, and its flags. Arguments and errors as in `read_command`."""
    values = FlagValues()
    define_flags(values)
    return read_command(values, argv), values


def trains_only(values: FlagValues) -> bool:
    """Returns whether the flags say that a run is trained and exported, but not evaluated."""
    return tuple(values.evaluations) == _TRAIN_ONLY


def _set_arguments(values, chosen, words):
    """Gives the flag that positional arguments set their value."""
    for word in words:
        if not chosen.argument or (chosen.name != "sweep" and command_checks.is_flag_without_dashes(word)):
            raise command_checks.unexpected_argument(chosen.name, word)
    if not words:
        return
    if len(words) > 1 and not chosen.several:
        raise ValueError(f"Expected one {chosen.argument.strip('[]')}. Received: {' '.join(words)}. Try: tf-robust {chosen.name} --help")
    if values[chosen.sets].present and chosen.name != "report":
        raise ValueError(
            f"Expected {chosen.argument.strip('[]')} once. Received: {words[0]} and --{chosen.sets}={values[chosen.sets].value}. "
            f"Try: leave out --{chosen.sets}"
        )
    value = data_of(words[0]) if chosen.sets == "data" else words[0]
    try:
        values[chosen.sets].parse([*values.runs, *words] if chosen.several else value)
    except Error as error:
        raise unknown(chosen.sets, value, SECTIONS) from error


def _of_mode(values, argv, words):
    """Returns the command of a --mode of the previous version, with a warning that has the present command; empty without --mode."""
    if not values["mode"].present:
        return ""
    name = "train" if values.mode == "run" else values.mode
    if values.mode == "train" and not words:
        values["evaluations"].parse("none")
    if not words:
        logging.warning("--mode will be removed in the next release. Type: %s", _without_mode(name, values.mode, argv))
    return name


def _without_mode(name, mode, argv):
    """Returns the command that does what a command line with --mode does."""
    sets = "" if name == "train" else COMMANDS[name].sets
    kept, arguments = [], []
    dropped = "--evaluations=" if mode == "train" else "--mode="
    for word in argv:
        if sets and word.startswith(f"--{sets}="):
            arguments.append(word.partition("=")[2])
        elif not word.startswith(("--mode=", dropped)):
            kept.append(word)
    return command(name, *arguments, *(["--evaluations=none"] if mode == "train" else []), *kept)


def _check(values, name):
    """Raises ValueError for flags that the command does not take, and for unknown names."""
    for flag, owner in _MISPLACED.items():
        if name in ("train", "sweep") and values[flag].value:
            raise ValueError(f"--{flag} has no effect on training. Try: tf-robust {owner} {' '.join(_texts(values[flag].value))}")
    for flag, owners in _OWNERS.items():
        if values[flag].present and name not in owners:
            raise ValueError(f"--{flag} belongs to the command{'s' * (len(owners) > 1)} {' and '.join(owners)}. Received: {name}")
    if _TRAIN_ONLY[0] in values.evaluations and (name != "train" or not trains_only(values)):
        raise ValueError(
            f"Expected evaluations with {name}. Received: --evaluations={','.join(values.evaluations)}. "
            "Try: tf-robust train --evaluations=none, which trains and exports only"
        )
    if values.dry_run and name not in ("train", "suite", "sweep"):
        raise ValueError(f"--dry_run has no effect on {name}, which trains nothing. Try: --subset=100, and multiply its time")
    if values.tracker and name not in ("train", "suite", "sweep"):
        raise ValueError(f"--tracker belongs to the commands train, suite and sweep, which train. Received: {name}")
    if name != "list":
        command_checks.check_names(values)
        command_checks.check_installed(values)
        command_checks.check_formats(name, values)
        launchers.check_launcher(name, values)
    if name in _OF_MODELS and values.saved_model:
        command_checks.check_model(name, values)
    if name in _OF_MODELS and not values.saved_model and not values.workdir:
        raise ValueError(f"Expected a model. Received: none. Try: tf-robust {name} MODEL --data=NAME")
    command_checks.check_surrogate(values.surrogate)
    command_checks.check_suite(values.suite)
    command_checks.check_grid(values.sweep)
    command_checks.check_runs(values.runs)
    for flag, placeholder in (("suite", "flags/fcl/table1"), ("sweep", "'epochs=5,10'"), ("runs", "'runs/*'")):
        if COMMANDS[name].sets == flag and not values[flag].value:
            raise ValueError(f"Expected {COMMANDS[name].argument}. Received: none. Try: tf-robust {name} {placeholder}")


def _texts(value):
    return [value] if isinstance(value, str) else value
