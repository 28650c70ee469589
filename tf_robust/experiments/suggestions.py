"""The commands that are printed at the end of a run: each can be copied, with every flag that it needs."""

import shlex

from tf_robust.experiments.flags import text_of
from tf_robust.experiments.run import PATH_FLAGS

# flags on which the images and labels that a model is measured on depend
MEASURED_ON = (
    "data",
    "data_dir",
    "download",
    "label_map",
    "label_set",
    "image_size",
    "image_fit",
    "validation_fraction",
    "evaluation_split",
    "subset",
    "corruption_constants",
    "corruption_protocol",
    "frost_dir",
)
WHERE = tuple(name for name in PATH_FLAGS if name != "data_service")  # flags that a workdir's flags.txt leaves out


def suggest(following):
    """Prints what to do next: {purpose: command}, each command on a line of its own, to be copied."""
    for number, (purpose, line) in enumerate(following.items()):
        print(f"{'' if number else 'Next:':<9}{purpose}:\n           {line}")


def command(*arguments):
    """A line for the shell that runs this program."""
    return shlex.join(["python", "run_experiment.py", *arguments])


def flags_of(run, names):
    """Those of a run's flags of these names that differ from their defaults, as arguments."""
    values = {**vars(run.eval_config), **vars(run.config)}
    return [f"--{name}={text_of(values[name])}" for name in names if name in values and text_of(values[name]) != run.defaults[name]]
