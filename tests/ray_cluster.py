"""A Ray cluster of two nodes on this machine, one task each."""

import glob
import os
import re
import signal
import socket
import subprocess
import sys

from tf_robust.integrations.launchers import call

HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_STARTS = 3
_NODE = ("--num-cpus=1", "--disable-usage-stats")


class Cluster:
    """Context in which the cluster exists; the second node can be killed.

    Attributes:
        environment: of commands that use the cluster.
    """

    def __init__(self):
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([HOME, *filter(None, sys.path)]),
            "RAY_ADDRESS": self.address,
            "RAY_AUTH_MODE": "disabled",
        }

    def __enter__(self):
        try:
            self._ray("start", "--head", f"--port={self.port}", "--include-dashboard=false", *_NODE)
            self.first = set(self._nodes())
            self._start_second_node()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        """Kills the processes of this cluster alone; `ray stop` stops all clusters of a machine."""
        for process in processes(lambda text: "/ray/" in text and re.search(rf"(:|port=){self.port}\b", text)):
            kill(process)

    def tasks(self):
        """Returns the numbers of the processes in which tasks run."""
        below = {child for node in self._nodes() for child in _children(node)}
        return sorted(below & set(processes(lambda text: text.startswith(f"ray::{call.__name__}"))))

    def kill_second_node(self):
        """Kills the second node with all processes below it, and starts it again. Returns whether there was one."""
        second = set(self._nodes()) - self.first
        for process in second:
            for child in [*_children(process), process]:
                kill(child)
        if second:
            self._start_second_node()
        return bool(second)

    def _start_second_node(self):
        for remaining in reversed(range(_STARTS)):
            try:
                return self._ray("start", f"--address={self.address}", *_NODE)
            except subprocess.SubprocessError:  # on a busy machine it gives up
                if not remaining:
                    raise

    def _nodes(self):
        return processes(lambda text: text.split(" ")[0].endswith("/raylet") and re.search(rf":{self.port}\b", text))

    def _ray(self, *arguments):
        ray = os.path.join(os.path.dirname(sys.executable), "ray")
        command = [ray if os.path.exists(ray) else "ray", *arguments]
        subprocess.run(command, env=self.environment, check=True, capture_output=True, timeout=120)


def free_port():
    """Returns the number of a port that no process listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def processes(condition):
    """Returns the numbers of the processes whose command fulfills a condition."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                words = file.read().decode(errors="replace").split("\0")
        except OSError:
            continue
        if condition(" ".join(words)):
            found.append(int(path.split("/")[2]))
    return found


def kill(process):
    """Kills a process by SIGKILL; returns whether it existed."""
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _children(process):
    listed = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True).stdout.split()
    return [child for number in map(int, listed) for child in (*_children(number), number)]
