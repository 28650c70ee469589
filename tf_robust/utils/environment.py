"""Versions, threads and commit, on which a result depends besides its flags; the model and the instructions of the CPU."""

import importlib.metadata
import os
import platform
import subprocess

import tensorflow as tf

PACKAGES = ("tensorflow", "keras", "numpy", "tensorflow-datasets", "tf_robust")


def describe() -> dict[str, str | int]:
    """Returns package versions and the thread count; only runs with equal ones are bit-identical."""
    return {**{name: version(name) for name in PACKAGES}, "threads": thread_count()}


def thread_count() -> int:
    """Returns the number of threads within an operation."""
    return (
        tf.config.threading.get_intra_op_parallelism_threads() or int(os.environ.get("TF_NUM_INTRAOP_THREADS", "0")) or os.cpu_count() or 1
    )


def has_bfloat16(path: str = "/proc/cpuinfo") -> bool | None:
    """Returns whether the CPU has instructions for bfloat16; None: unknown, on other systems than Linux."""
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return bool({"avx512_bf16", "amx_bf16", "bf16"} & set(file.read().split()))


def cpu_model() -> str:
    """Returns the CPU's model name and, where a name covers several generations, its family and model numbers."""
    fields: dict[str, str] = {}
    if os.path.exists("/proc/cpuinfo"):  # Linux
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for name, _, value in (line.partition(":") for line in file):
                fields.setdefault(name.strip(), value.strip())
    model = fields.get("model name") or platform.processor() or platform.machine()
    family = fields.get("cpu family")
    return f"{model} (family {family}, model {fields.get('model', '')})" if family else model


def version(package: str) -> str:
    """Returns the version of an installed package, or "not installed"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def commit() -> str:
    """Returns the commit of the source tree; outside of git the version of the package.

    `+changes` is appended if files outside results/ have uncommitted changes.
    """

    def git(*arguments):
        run = subprocess.run(["git", "-C", os.path.dirname(__file__), *arguments], capture_output=True, text=True, check=False)
        return run.stdout.strip() if run.returncode == 0 else ""

    head = git("rev-parse", "--short=12", "HEAD")
    if not head:
        return f"version {version('tf_robust')}"
    changes = git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", ":(top,exclude)results")
    return head + ("+changes" if changes else "")
