"""The command line: `tf-robust --flag=value ...`; without flags it runs the quick start.

TensorFlow is imported only to run a mode: `--help`, `--version`, `--list` and errors in flags do without.
"""

import logging as std_logging
import os
import sys
from collections.abc import Sequence

from absl import app, flags, logging

from tf_robust import __version__
from tf_robust.experiments.flags import define_flags, read_arguments
from tf_robust.experiments.help import help_text, listing
from tf_robust.utils import quiet

_WARNING = std_logging.Formatter("%(levelname)s: %(message)s")
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
    if {"--help", "-help", "-h"} & set(argv):
        print(help_text(flags.FLAGS))
        return
    app.run(lambda _: run(argv), flags_parser=read_flags)


def read_flags(argv: Sequence[str]) -> None:
    """Parses the command line into `flags.FLAGS`. argv: with the name of the program."""
    try:
        read_arguments(flags.FLAGS, argv[1:])
    except ValueError as error:
        sys.exit(f"Error: {error}\n(--verbosity=1 shows the traceback)")


def run(argv: Sequence[str]) -> None:
    """Runs what the parsed flags describe. argv: the arguments from which they were parsed."""
    if flags.FLAGS.list:
        print(listing())
        return
    with quiet.importing(argv):
        import tensorflow as tf

        from tf_robust.experiments import modes
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)
        tf.get_logger().setLevel("ERROR")  # hides warnings about retracing, which are normal for many runs in one process
    modes.run_mode(flags.FLAGS, argv)
