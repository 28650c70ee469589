"""Tasks of launchers: calls of functions whose output goes to a file."""

import contextlib
import os
import sys
import traceback
import typing
from collections.abc import Callable, Iterator

from tf_robust.utils.errors import message_of
from tf_robust.utils.locks import WorkdirLocked

REPEATS = 5  # of a task whose process or machine died


class Outcome(typing.NamedTuple):
    """Outcome of a task.

    Attributes:
        evaluation: what the function of the task returned; None after a failure.
        failure: the message of an error; empty: none.
        locked: whether another process works on the run.
        threads: of the process in which the function was called; 0 after a failure.
    """

    evaluation: dict | None
    failure: str = ""
    locked: bool = False
    threads: int = 0


def call(function: Callable[[], dict | None], log: str, folder: str) -> Outcome:
    """Calls the function of a task, in the folder of the command; its output is appended to a file."""
    with _output_to(log):
        from tf_robust.utils import environment  # imports TensorFlow, which the command line does without

        try:
            os.chdir(folder)
            return Outcome(function(), threads=environment.thread_count())
        except WorkdirLocked as error:
            return Outcome(None, str(error), locked=True)
        except Exception as error:  # of any kind: the other tasks go on
            traceback.print_exc()
            return Outcome(None, message_of(error))


@contextlib.contextmanager
def _output_to(path: str) -> Iterator[None]:
    """Appends what this process and its libraries print to a file."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for target in (1, 2):
        os.dup2(descriptor, target)
    os.close(descriptor)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for target, old in zip((1, 2), kept):
            os.dup2(old, target)
            os.close(old)
