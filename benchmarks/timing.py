"""Timing of calls in CPU and wall time, and the provenance of measurements: command, commit, machine, versions."""

import contextlib
import importlib.metadata
import math
import os
import platform
import sys
import time

import numpy as np

from tf_robust.utils import environment
from tf_robust.utils.environment import cpu_model
from tf_robust.utils.files import read_json


def provenance(*packages):
    """Returns {"command", "commit", "machine", "versions"} of a measurement; versions include these packages if they are installed."""
    versions = {"python": platform.python_version(), **environment.describe()}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "command": "python " + " ".join([os.path.relpath(sys.argv[0]), *sys.argv[1:]]),
        "commit": environment.commit(),
        "machine": machine(),
        "versions": versions,
    }


def with_earlier_rows(path, rows, source, key):
    """Returns the rows of a file that are not measured again, then new ones with their provenance; `key`: the fields that name a row."""
    earlier = read_json(path)["rows"] if os.path.exists(path) else []
    new = {tuple(row[field] for field in key): {**row, **source} for row in rows}
    return [row for row in earlier if tuple(row[field] for field in key) not in new] + list(new.values())


def sources(rows, key):
    """Returns lines with the command, commit and machine of rows."""
    found = {}
    for row in rows:
        found.setdefault((row["command"], row["commit"], row["machine"]), []).append(", ".join(row[field] for field in key))
    return "".join(f"- {'; '.join(names)}: `{command}`, commit {commit}, {where}\n" for (command, commit, where), names in found.items())


def machine():
    """Returns the CPU model, the cores that this process may use, memory and system as text."""
    cores, system = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores", f"{platform.system()} {platform.release()}"
    return f"{cpu_model()}, {cores}, {total_memory() / 1024:.0f} GiB, {system}"


def total_memory():
    """Returns the memory of the machine in MiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20


def seconds(call, count):
    """Returns [CPU, wall], the time of `count` calls in seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        call()
    return np.array([time.process_time() - cpu, time.perf_counter() - wall])


def calls_needed(call, wanted):
    """Returns the number of calls that take `wanted` seconds of CPU time, after two warm-up calls (tracing, compilation, reading)."""
    seconds(call, 2)
    count = 1
    while (taken := seconds(call, count)[0]) < wanted / 4:
        count *= 2
    return math.ceil(count * wanted / taken)
