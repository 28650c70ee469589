from tf_robust.utils import environment

"""How long calls take, on the CPU's clock and on the wall's, and where: command, commit, machine, versions."""

import contextlib
import importlib.metadata
import math
import os
import platform
import sys
import time

import numpy as np


def provenance(*packages):
    """What a measurement's file begins with: {"command", "commit", "machine", "versions"}, of these packages too where they are there."""
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


def cpu_model():
    """Returns the CPU's model name and, where a name covers several generations, its family and model numbers."""
    name = _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()
    family, number = (_field("/proc/cpuinfo", field) for field in ("cpu family", "model\t"))
    return f"{name} (family {family}, model {number})" if family else name


def machine():
    """Returns the CPU model, the cores that this process may use, memory and system as text."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores, system = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores", f"{platform.system()} {platform.release()}"
    return f"{cpu_model()}, {cores}, {memory:.0f} GiB, {system}"


def _field(path, name):
    """The first value of a name in a file of lines `name: value`; empty if there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith(name)), "")
    except OSError:
        return ""


def seconds(call, count):
    """[CPU, wall] that `count` calls take."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        call()
    return np.array([time.process_time() - cpu, time.perf_counter() - wall])


def calls_needed(call, wanted):
    """How many calls take `wanted` seconds of CPU; the first two trace, compile, read and warm up."""
    seconds(call, 2)
    count = 1
    while (taken := seconds(call, count)[0]) < wanted / 4:
        count *= 2
    return math.ceil(count * wanted / taken)
