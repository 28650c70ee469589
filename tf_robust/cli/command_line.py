"""The commands: their flags, and reading of a command line. Importing this module does not import TensorFlow."""

import dataclasses
import glob
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence

from tf_robust.cli import checks
from tf_robust.cli.flags import FLAGS_HOME, Options, expanded, flagfiles_of, last_value, parse
from tf_robust.configs import DataConfig, EvalConfig, TrainConfig, WriterConfig
from tf_robust.configs.evaluation import unused_options
from tf_robust.data.kinds import data_of
from tf_robust.hardening.config import HardenConfig, evaluations_of
from tf_robust.saved_models.formats import files
from tf_robust.saved_models.interface import ModelInterface, training_data
from tf_robust.utils import plugins, quiet
from tf_robust.utils.files import is_run
from tf_robust.utils.hyperparameters import Parameter, instances, parameters, text_of

SECTIONS = ("data", "models", "methods", "views", "corruptions", "attacks", "metrics", "zoo", "suites")
_OWN = (
    Parameter("workdir", str, "", "folder of the results, or s3://BUCKET/PATH and others; empty: a folder in runs/, named after the run."),
    Parameter("seeds", tuple[int, ...], (0,), "seeds, one run for each: 0,1,2."),
    Parameter("suite", str, "", "folder of flagfiles (suite); order of rows and numbers of the paper (report)."),
    Parameter("runs", tuple[str, ...], (), "workdirs or glob patterns to compare."),
    Parameter("baseline", str, "", "row that the others are compared with; empty: plain training, else the first."),
    Parameter(
        "sweep",
        str,
        "",
        "grid of flags, 'fcl_k=128,256;fcl_sigma=0.1,0.5': the best on validation images is evaluated on the test set; with "
        "sweep_engine optuna also ranges, 'fcl_k=64..512;learning_rate=log:0.01..0.3'.",
    ),
    Parameter("sweep_metric", str, "", "metric to choose the best by, or several: all that no other surpasses; empty: the first."),
    Parameter(
        "sweep_engine",
        str,
        "grid",
        "grid: all combinations; optuna: sampled by TPE, pruned by Hyperband on the validation accuracy.",
        ("grid", "optuna"),
    ),
    Parameter("trials", int, 20, "number of points that optuna samples."),
    Parameter("sweep_storage", str, "", "URL of optuna's database, shared by processes; empty: SQLite in the workdir."),
    Parameter(
        "launcher",
        str,
        "local",
        "where runs are trained and shards are evaluated: local (this process), or by tasks of ray or slurm.",
    ),
    Parameter(
        "launcher_options",
        tuple[str, ...],
        (),
        "resources of a task: num_cpus=2,num_gpus=1 (ray); cpus_per_task=4,timeout_min=600,slurm_partition=NAME (slurm).",
    ),
    Parameter("saved_model", str, "", "the model; empty: that of the workdir."),
    Parameter("dry_run", bool, False, "print what a run or suite will cost, from a few steps of each row, and exit."),
    Parameter("require", str, "", "required bounds of metrics, or the exit code is 1: 'corruptions/mean15>=0.7,flips/mean<=0.1'."),
    Parameter(
        "require_not_worse_than",
        str,
        "",
        "evaluation.json of another model on the same images: the exit code is 1 if a main metric is significantly worse (paired).",
    ),
    Parameter("junit", str, "", "file for the outcome of each required bound as JUnit XML, which CI systems show."),
    Parameter(
        "formats",
        tuple[str, ...],
        (),
        f"formats to write (export), or to write and evaluate side by side (evaluate), of {', '.join(files())}.",
    ),
    Parameter("to", str, "keras", "format of the converted model.", ("keras",)),
    Parameter("output", str, "", "file of the converted model; empty: the name of the model's file with .keras."),
    Parameter("unit_range", bool, False, "exported files take images in [0, 1], whatever the model takes."),
    Parameter("logits", bool, False, "exported files return logits, also of a model that returns probabilities."),
    Parameter("section", str, "", "names to list; empty: all.", ("", *SECTIONS)),
    Parameter(
        "plugin",
        tuple[str, ...],
        (),
        "modules of your own that add methods, corruptions, attacks, ...: see docs/reference/extend.md.",
    ),
)
OWN = {parameter.name: parameter for parameter in _OWN}
_INTERFACE = ("input_range", "outputs", "signature", "input_size", "check_inputs", "trust")
_RUN = (DataConfig, TrainConfig, EvalConfig)
_RUN_OWN = ("workdir", "seeds", "dry_run", "launcher", "launcher_options")
_MODEL_OWN = ("saved_model", "workdir", "seeds")
_EVALUATION_OWN = (*_MODEL_OWN, "require", "require_not_worse_than", "junit", "formats", "launcher", "launcher_options")


@dataclasses.dataclass(frozen=True)
class Command:
    """A command."""

    name: str  # as typed
    purpose: str  # one sentence
    argument: str = ""  # placeholder of its positional argument; empty: none
    sets: str = ""  # the flag that the positional argument sets
    configs: tuple[type, ...] = ()  # whose fields are its flags
    own: tuple[str, ...] = ()  # further flags
    without: tuple[str, ...] = ()  # fields that it does not take
    flags: tuple[str, ...] = ()  # the most used ones, which `--help` describes; it names the others
    examples: tuple[str, ...] = ()  # command lines without the program
    several: bool = False  # whether there may be several positional arguments
    defaults: Mapping[str, str] = dataclasses.field(default_factory=dict)  # {flag: text} that differ from the flags' own

    def parameters(self, arguments: Sequence[str] = (), overridden: Sequence[str] = ()) -> dict[str, Parameter]:
        """Returns the parameters that are its flags, for the evaluations, the method and the augmentations that expanded arguments name.

        `overridden`: lines of the flagfiles, whose options of evaluations may be left without an effect by other arguments.
        """
        if modules := last_value(arguments, "plugin", ""):
            with quiet.importing(arguments):
                plugins.load(modules.split(","))
        found = {name: one for config in self.configs for name, one in parameters(config).items()}
        further = {**parameters(EvalConfig), **parameters(TrainConfig), **OWN}
        found |= {name: further[name] for name in (*self.own, "plugin")}
        if TrainConfig in self.configs:  # the default method has none
            method = last_value(arguments, "method", TrainConfig.method)
            chosen = [last_value(arguments, flag, "").split(",") for flag in ("augmentations", "views")]
            if method != TrainConfig.method or chosen != [[""], [""]]:
                with quiet.importing(arguments):
                    from tf_robust.runs.config import own_parameters
                found |= own_parameters(method, *([name for name in names if name] for names in chosen))
        for name, text in self.defaults.items():
            found[name] = dataclasses.replace(found[name], default=found[name].parse(text))
        unused = self.unused(arguments).keys() & self.unused(overridden or arguments).keys()
        return {name: one for name, one in found.items() if name not in unused and name not in self.without}

    def unused(self, arguments: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
        """Returns the fields of `EvalConfig` without an effect, as `unused_options` does. Arguments as in `parameters`."""
        if EvalConfig not in self.configs:
            return {}

        def chosen(name):
            default = self.defaults.get(name, text_of(getattr(EvalConfig, name)))
            return [value for value in last_value(arguments, name, default).split(",") if value]

        evaluations = chosen("evaluations")
        if TRAIN_ONLY[0] in evaluations:
            evaluations = [*EvalConfig.evaluations]
        if HardenConfig in self.configs:
            evaluations += evaluations_of(last_value(arguments, "target", HardenConfig.target))
        unused = unused_options(evaluations, *map(chosen, ("attack", "adaptation", "corrupted_dir", "shifts")))
        if TrainConfig in self.configs and (select := last_value(arguments, "select", "")):
            with quiet.importing(arguments):
                from tf_robust.runs.config import selection_options
            unused = {name: owners for name, owners in unused.items() if name not in selection_options(TrainConfig(select=select))}
        return unused


_TRAINING = (
    *("data", "data_dir", "image_size", "validation_fraction", "model", "init_from", "method", "augmentations", "views", "epochs"),
    *("batch_size", "optimizer", "learning_rate", "evaluations", "tracker", "workdir", "seeds", "dry_run"),
)
_DATA = ("data", "data_dir", "image_size", "image_fit", "data_range", "label_map", "classes", "evaluation_split", "subset")
_COMMANDS = (
    Command(
        "train",
        "Trains, exports and evaluates a model, and writes a report. Run again, it resumes.",
        configs=_RUN,
        own=_RUN_OWN,
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
        configs=(DataConfig, EvalConfig, ModelInterface),
        own=_EVALUATION_OWN,
        flags=(
            *(*_DATA, "evaluations", "shifts", "groups", "calibrate", "abstain_accuracy", "conformal", "ood", "severities"),
            *("corrupted_dir", "attack_radii", *_INTERFACE, "require", "require_not_worse_than", "formats", "workdir"),
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
        configs=(DataConfig, EvalConfig, ModelInterface),
        own=_EVALUATION_OWN,
        flags=(
            *(*_DATA, "attack", "attack_radii", "attack_subset", "attack_queries", "attack_time", "surrogate", "evaluations"),
            *(*_INTERFACE, "workdir"),
        ),
        examples=(
            "attack model.keras --data=cifar10 --attack=pgd --attack_radii=linf_8/255 --attack_subset=500",
            "attack model.tflite --data=folder:photos --surrogate=model.keras --attack_radii=linf_4/255",
        ),
        defaults={"evaluations": "clean,adversarial"},
    ),
    Command(
        "harden",
        "Makes a model more robust by a search among short fine-tunings, and evaluates it on test images.",
        "MODEL",
        "saved_model",
        configs=(DataConfig, EvalConfig, HardenConfig, ModelInterface),
        own=_MODEL_OWN,
        without=("calibrate", "abstain_accuracy", "conformal"),  # validation images are used to choose the model
        flags=(
            *("data", "target", "budget", "max_clean_loss", "max_class_loss", "adapt", "attack_norm", "attack_radius", "workdir"),
            *("data_dir", "image_size", "image_fit", "data_range", "label_map", "classes", "validation_fraction"),
            *("evaluations", "subset", *_INTERFACE),
        ),
        examples=(
            "harden model.keras --data=folder:photos --budget=30m",
            "harden model.keras --data=folder:photos --input_range=auto --target=noise --max_clean_loss=0.02",
            "harden model.keras --data=folder:photos --target=shift=folder:night",
        ),
        defaults={"evaluations": "clean,noise,corruptions,corruptions_bar,calibration"},
    ),
    Command(
        "export",
        "Writes a model or the model of a run in other formats, each checked against the model on 100 images.",
        "MODEL",
        "saved_model",
        configs=(DataConfig, ModelInterface),
        own=("saved_model", "workdir", "formats", "unit_range", "logits", "evaluation_split", "subset"),
        flags=("formats", "unit_range", "logits", *_DATA, *_INTERFACE, "workdir"),
        examples=(
            "export runs/cifar10-resnet20-fcl --formats=keras,tflite_int8,onnx",
            "export model.keras --data=folder:photos --input_range=0,255 --formats=tflite_int8",
        ),
        defaults={"formats": ",".join(files())},
    ),
    Command(
        "convert",
        "Converts an ONNX or PyTorch model to a Keras model that can be trained, and compares their scores.",
        "MODEL",
        "saved_model",
        configs=(DataConfig, ModelInterface),
        own=("saved_model", "to", "output", "evaluation_split", "subset"),
        flags=("to", "output", *_DATA, *_INTERFACE),
        examples=(
            "convert model.onnx --to=keras --output=model.keras",
            "convert model.pt --to=keras --data=folder:photos --input_range=imagenet",
        ),
    ),
    Command(
        "corrupt",
        "Writes a corrupted copy of a data set, or of a folder of images with one subfolder per class.",
        "[DATA]",
        "data",
        configs=(DataConfig, WriterConfig),
        own=("workdir", "seeds", "evaluation_split", "subset", "corruption_constants", "corruption_protocol", "frost_dir"),
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
        configs=_RUN,
        own=("suite", *_RUN_OWN),
        flags=(
            *("seeds", "data", "data_dir", "epochs", "train_examples", "evaluations", "subset", "launcher", "tracker", "workdir"),
            "dry_run",
        ),
        examples=("suite flags/fcl/table1 --data_dir=DIR --seeds=0,1,2", "list suites"),
    ),
    Command(
        "sweep",
        "Trains points of hyperparameters; the best on validation images is evaluated on the test set.",
        "GRID",
        "sweep",
        configs=_RUN,
        own=("sweep", "sweep_metric", "sweep_engine", "sweep_storage", "trials", *_RUN_OWN),
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
        own=("runs", "baseline", "suite", "workdir"),
        flags=("baseline", "suite", "workdir"),
        examples=("report runs/a runs/b --baseline=a --workdir=runs/compared", "report 'runs/**/seed_*' --suite=flags/fcl/table1"),
    ),
    Command(
        "list",
        "Lists available names: data, models, methods, views, corruptions, attacks, metrics, zoo, suites.",
        "[SECTION]",
        "section",
        own=("section",),
        examples=("list methods",),
    ),
    Command(
        "serve",
        "Prepares batches for runs on other machines until it is interrupted.",
        own=("data_service",),
        flags=("data_service",),
        examples=("serve --data_service=10.0.0.5:5050", "train --data=cifar10 --data_service=10.0.0.5:5050    (on another machine)"),
    ),
)
COMMANDS = {command.name: command for command in _COMMANDS}
QUICK_START = "flags/quickstart"
_QUICK_START_FLAGS = {"workdir", "seeds", "plugin"}  # with these alone it is still the quick start
_OF_MODELS = ("evaluate", "attack", "harden", "export", "convert")
TRAIN_ONLY = ("none",)  # evaluations of a run that is trained and exported alone


def command(*arguments: str) -> str:
    """Returns the shell command that runs this program with arguments."""
    programs = {"tf-robust": ["tf-robust"], os.path.join("tf_robust", "__main__.py"): ["python", "-m", "tf_robust"]}
    program = next((words for path, words in programs.items() if sys.argv[0].endswith(path)), ["python", "run_experiment.py"])
    return shlex.join([*program, *arguments])


def read_command(argv: Sequence[str]) -> tuple[Command, Options]:
    """Reads a command line, and returns its command and flags; raises ValueError if it is wrong.

    Without arguments it is the quick start, with flags alone `train`. Flags stand before or after positional arguments.
    """
    words = positional_arguments(argv)
    if words and words[0] not in COMMANDS:
        raise checks.unknown_command(words[0], COMMANDS)
    chosen = COMMANDS[words[0] if words else "train"]
    folder, lines = "".join(words[1:2]) or last_value(argv, chosen.sets, ""), expanded(argv)
    if chosen.name in _OF_MODELS and is_run(run := folder or last_value(argv, "workdir", "")):
        replaced = "evaluations" in chosen.defaults or last_value(lines, "evaluations", "")
        recorded = _lines_of([os.path.join(run, "flags.txt")])
        lines = [*(line for line in recorded if not (replaced and line.startswith("--evaluations="))), *lines]
    found = _suite_parameters(folder, argv) if chosen.name == "suite" else chosen.parameters(lines, _lines_of(flagfiles_of(argv)))
    options, words = parse(found, argv, owner_of=lambda flag: _owner_of(flag, chosen, lines))
    if not words and options.given.keys() <= _QUICK_START_FLAGS:
        return COMMANDS["suite"], parse(COMMANDS["suite"].parameters(), [*argv, f"--suite={QUICK_START}"])[0]
    options = _with_arguments(options, chosen, words[1:])
    if "evaluations" in chosen.defaults:  # rather than those that a run recorded
        options = options.changed({"evaluations": options["evaluations"]})
    if "data" in options and "data" not in options.given and options.get("saved_model") and (data := training_data(options["saved_model"])):
        options = options.changed({"data": data})
    _check(options, chosen)
    return chosen, options


def positional_arguments(argv: Sequence[str]) -> list[str]:
    """Returns the arguments of a command line that are neither flags nor their values."""
    found: list[str] = []
    is_value = False
    for word in argv:
        name = word.lstrip("-")
        if is_value or word.startswith("-"):
            is_value = not is_value and "=" not in word and not {name, name.removeprefix("no")} & _BOOLEANS
        else:
            found.append(word)
    return found


def _suite_parameters(folder, argv):
    """The flags of all rows of a suite in a folder, which may be relative to `FLAGS_HOME`; arguments override those of rows."""
    paths = [os.path.join(glob.escape(os.path.join(home, folder)), "*.flags") for home in ("", FLAGS_HOME)]
    files, given = [file for path in paths for file in sorted(glob.glob(path))], expanded(argv)
    found = {name: one for name, one in COMMANDS["suite"].parameters(given).items() if not files or name not in parameters(EvalConfig)}
    for file in files:
        found = {**row_parameters(_lines_of([file]), given), **found}
    return found


def _lines_of(files):
    return expanded([f"--flagfile={file}" for file in files])


def row_parameters(lines: Sequence[str], overrides: Sequence[str]) -> dict[str, Parameter]:
    """Returns the flags of a row of a suite, which trains a model or evaluates one (--saved_model), from the lines of its flagfile.

    A row takes the `overrides` that it has.
    """
    evaluates = bool(last_value(lines, "saved_model", ""))
    return COMMANDS["evaluate" if evaluates else "train"].parameters([*lines, *overrides], lines)


_BOOLEANS = {
    name
    for known in (OWN, *map(parameters, (*_RUN, HardenConfig, ModelInterface, WriterConfig)))
    for name, one in known.items()
    if one.kind is bool
} | {"help", "helpfull", "version"}


def _owner_of(flag, chosen, arguments):
    """The evaluations, commands, methods or views that have a flag, for a message; empty if none has."""
    if EvalConfig in chosen.configs and (owners := chosen.unused(arguments).get(flag) or unused_options(()).get(flag)):
        return " or ".join(f"--{owner}" for owner in owners)
    commands = [f"tf-robust {name}" for name, one in COMMANDS.items() if flag in {**one.parameters(), **one.unused()}]
    if commands or "_" not in flag:
        return " or ".join(commands)
    with quiet.importing(arguments):
        from tf_robust.runs.config import owners_of
    return " or ".join(f"--{owner}" for owner in owners_of(flag))


def _with_arguments(options, chosen, words):
    """Options with the values of positional arguments."""
    for word in words:
        is_flag = re.match(r"\w+=", word) and not os.path.exists(word)  # without dashes
        if not chosen.argument or (chosen.name != "sweep" and is_flag):
            advice = checks.flag_for(word) or f"tf-robust {chosen.name} --help"
            raise ValueError(f"Unrecognized argument {word!r}. Expected --flag=value after {chosen.name}. Try: {advice}")
    if not words:
        return options
    if len(words) > 1 and not chosen.several:
        raise ValueError(f"Expected one {chosen.argument.strip('[]')}. Received: {' '.join(words)}. Try: tf-robust {chosen.name} --help")
    if chosen.sets in options.given and chosen.name != "report":
        raise ValueError(
            f"Expected {chosen.argument.strip('[]')} once. Received: {words[0]} and --{chosen.sets}={options[chosen.sets]}. "
            f"Try: leave out --{chosen.sets}"
        )
    if chosen.several:
        return options.changed({chosen.sets: (*options[chosen.sets], *words)})
    return options.changed({chosen.sets: data_of(words[0]) if chosen.sets == "data" else OWN[chosen.sets].parse(words[0])})


def _check(options, chosen):
    """Raises ValueError for values that the command does not take, and for unknown names."""
    name, evaluations = chosen.name, options.get("evaluations", ())
    if TRAIN_ONLY[0] in evaluations and (name != "train" or evaluations != TRAIN_ONLY):
        raise ValueError(
            f"Expected evaluations with {name}. Received: --evaluations={','.join(evaluations)}. "
            "Try: tf-robust train --evaluations=none, which trains and exports only"
        )
    if name != "list":
        values = {key: value for key, value in options.items() if key != "evaluations" or value != TRAIN_ONLY}
        instances(values, *chosen.configs)
        checks.check_data(options)
        checks.check_choices(name, options)
    if name in _OF_MODELS and options["saved_model"]:
        checks.check_model(name, options)
    elif name in _OF_MODELS and not options.get("workdir"):
        raise ValueError(f"Expected a model. Received: none. Try: tf-robust {name} MODEL --data=NAME")
    checks.check_paths(options)
    example = {"suite": "flags/fcl/table1", "sweep": "'epochs=5,10'", "runs": "'runs/*'"}.get(chosen.sets)
    if example and not options[chosen.sets]:
        raise ValueError(f"Expected {chosen.argument}. Received: none. Try: tf-robust {name} {example}")
