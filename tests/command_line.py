"""The command line in this process, for tests."""

from tf_robust.cli import commands
from tf_robust.cli.build import build_runs
from tf_robust.cli.command_line import read_command


def main(*arguments):
    """Runs a command as typed, and raises its errors."""
    command, options = read_command(arguments)
    commands.COMMANDS[command.name](options, list(arguments))


def options_of(*arguments):
    """The flags of a command line."""
    return read_command(arguments)[1]


def runs_of(*arguments, row="row"):
    """The runs of a training."""
    return build_runs(options_of("train", *arguments), row)
