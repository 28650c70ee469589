"""The command line: `tf-robust COMMAND --flag=value ...`; without arguments it runs the quick start.

TensorFlow is imported only to run a command, and where the names of methods, views or corruptions are needed.
"""

import functools
import gc
import logging as std_logging
import os
import sys
from collections.abc import Sequence

from absl import app, logging

from tf_robust import __version__
from tf_robust.cli.checks import check_writable
from tf_robust.cli.command_line import COMMANDS, Command, positional_arguments, read_command
from tf_robust.cli.flags import Options, expanded
from tf_robust.cli.show import command_help, full_help, help_text, listing
from tf_robust.utils import plugins, quiet
from tf_robust.utils.errors import WRONG_INPUT, exit_with

_WARNING = std_logging.Formatter("%(levelname)s: %(message)s")
_HELP = {"--help", "-help", "-h", "--helpfull"}
_VERBOSITY = {"--verbosity", "-verbosity", "-v", "--v"}


def main() -> None:
    """Parses the command line and runs it."""
    argv = sys.argv[1:]
    if "--version" in argv:
        print(f"tf_robust {__version__}")
        return
    if not any(argument.startswith("--verbosity") for argument in argv):
        logging.get_absl_handler().setFormatter(_WARNING)
    try:
        with quiet.importing(argv):
            plugins.load_installed()
        if _HELP & set(argv) or argv == ["help"]:
            given = expanded([word for word in argv if word not in _HELP])
            command = next((COMMANDS[word] for word in positional_arguments(argv) if word in COMMANDS), None)
            if "--helpfull" in argv:
                return _print(full_help(command or COMMANDS["train"], given))
            return _print(command_help(command, given) if command else help_text())
    except ValueError as error:
        exit_with(WRONG_INPUT, f"Error: {error}")
    verbosity, argv = _verbosity(argv)
    command, options = read_arguments(argv)
    app.run(functools.partial(run, command.name, options, argv, verbosity), argv=sys.argv[:1])


def _verbosity(argv):
    """The verbosity of the log, None by default; and the other arguments."""
    found, others = None, []
    for before, word in zip(["", *argv], argv):
        name, _, value = word.partition("=")
        text = value if name in _VERBOSITY else word if before in _VERBOSITY else ""
        if text.lstrip("-").isdecimal():
            found = int(text)
        elif word not in _VERBOSITY:
            others.append(word)
    return found, others


def read_arguments(argv: Sequence[str]) -> tuple[Command, Options]:
    """Returns the command and the flags of a command line; ends the process with a message if it is wrong."""
    try:
        command, options = read_command(argv)
        if command.name not in ("list", "serve") and not options.get("dry_run") and options.get("strategy") != "multi_worker":
            check_writable(options)
    except (ValueError, OSError) as error:
        exit_with(WRONG_INPUT, f"Error: {error}")
    return command, options


def _print(text):
    """Prints a long text; `tf-robust list | head` may close the pipe before its end."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit


def run(name: str, options: Options, argv: Sequence[str], verbosity: int | None = None, _: Sequence[str] = ()) -> None:
    """Runs a command with its flags, which were parsed from `argv`. `verbosity` of the log; None: warnings."""
    if name == "list":
        with quiet.importing(argv):
            text = listing(options["section"])
        return _print(text)
    gc.disable()  # imports leave little garbage
    with quiet.importing(argv):
        import keras
        import tensorflow as tf

        keras.config.set_image_data_format("channels_last")  # whatever keras.json has: images are [N, H, W, C]
        from tf_robust.cli import commands
    gc.freeze()  # later collections skip the half a million objects of the imports
    gc.enable()
    logging.set_verbosity(logging.WARNING if verbosity is None else verbosity)
    if verbosity is None:
        tf.get_logger().setLevel("ERROR")  # hides warnings about retracing, which are normal for many runs in one process
    with commands.local_options(name, options) as options:
        commands.COMMANDS[name](options, argv)
