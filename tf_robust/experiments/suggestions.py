"""Suggested next commands, complete with all flags that they need."""

from collections.abc import Iterable, Mapping

from tf_robust.experiments.config import PATH_FLAGS
from tf_robust.experiments.flags import text_of
from tf_robust.experiments.run import Run

# flags on which the evaluated images and labels depend
DATA_FLAGS = (
    "data",
    "data_range",
    "data_dir",
    "download",
    "label_map",
    "label_set",
    "classes",
    "image_size",
    "image_fit",
    "validation_fraction",
    "evaluation_split",
    "subset",
    "corruption_constants",
    "corruption_protocol",
    "frost_dir",
)
LOCATION_FLAGS = tuple(name for name in PATH_FLAGS if name != "data_service")  # not in the flags.txt of a workdir


def print_commands(commands: Mapping[str, str]) -> None:
    """Prints the next commands, {purpose: command}, each command on a line of its own."""
    for number, (purpose, line) in enumerate(commands.items()):
        print(f"{'' if number else 'Next:':<9}{purpose}:\n           {line}")


def flags_of(run: Run, names: Iterable[str]) -> list[str]:
    """Returns arguments for those flags of a run, among `names`, that differ from their defaults."""
    values = {**vars(run.eval_config), **vars(run.data_config), **vars(run.config)}
    return [f"--{name}={text_of(values[name])}" for name in names if name in values and text_of(values[name]) != run.defaults[name]]
