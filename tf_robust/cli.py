"""The command line: `tf-robust COMMAND --flag=value ...`; without arguments it runs the quick start.

TensorFlow is imported only to run a command: `--help`, `--version`, `list` and errors in arguments do without.
"""

import gc
import logging as std_logging
import os
import sys
from collections.abc import Sequence

from absl import app, flags, logging

from tf_robust import __version__
from tf_robust.experiments.command_checks import check_writable
from tf_robust.experiments.commands import COMMANDS, read_command
from tf_robust.experiments.flags import define_flags
from tf_robust.experiments.help import command_help, help_text, listing
from tf_robust.utils import quiet
from tf_robust.utils.errors import WRONG_INPUT, exit_with

_WARNING = std_logging.Formatter("%(levelname)s: %(message)s")
_HELP = {"--help", "-help", "-h"}
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def main() -> None:
    """Parses the command line and runs it."""
    argv = sys.argv[1:]
    if "--version" in argv:
        print(f"tf_robust {__version__}")
        return
    if not any(argument.startswith("--verbosity") for argument in argv):
        logging.get_absl_handler().setFormatter(_WARNING)
    define_flags(flags.FLAGS)
    if _HELP & set(argv) or argv == ["help"]:
        named = [COMMANDS[word] for word in argv if word in COMMANDS]
        _print(command_help(named[0], flags.FLAGS) if named else help_text(flags.FLAGS))
        return
    app.run(lambda command: run(command[0], argv), flags_parser=lambda _: [read_arguments(argv)])


def read_arguments(argv: Sequence[str]) -> str:
    """Parses the arguments of the command line into `flags.FLAGS`, and returns the name of its command."""
    try:
        command = read_command(flags.FLAGS, argv)
        if command.name not in ("list", "serve") and not flags.FLAGS.dry_run and flags.FLAGS.strategy != "multi_worker":
            check_writable(flags.FLAGS)
    except (ValueError, OSError) as error:
        exit_with(WRONG_INPUT, f"Error: {error}")
    return command.name


def _print(text):
    """Prints a long text; `tf-robust list | head` may close the pipe before its end."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit


def run(command: str, argv: Sequence[str]) -> None:
    """Runs a command with the parsed flags. argv: the arguments from which they were parsed."""
    if command == "list":
        _print(listing(flags.FLAGS.section))
        return
    gc.disable()  # imports leave little garbage
    with quiet.importing(argv):
        import keras
        import tensorflow as tf

        keras.config.set_image_data_format("channels_last")  # whatever keras.json has: images are [N, H, W, C]
        from tf_robust.experiments import modes
    gc.freeze()  # later collections skip the half a million objects of the imports
    gc.enable()
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)
        tf.get_logger().setLevel("ERROR")  # hides warnings about retracing, which are normal for many runs in one process
    modes.run_command(command, flags.FLAGS, argv)
