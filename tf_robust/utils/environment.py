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
    chosen = tf.config.threading.get_intra_op_parallelism_threads()
    return chosen or int(os.environ.get("TF_NUM_INTRAOP_THREADS", "0")) or os.cpu_count() or 1


def _cpu_fields(path="/proc/cpuinfo"):
    """{name: value} of the first CPU; empty on other systems than Linux."""
    fields: dict[str, str] = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            for name, _, value in (line.partition(":") for line in file):
                fields.setdefault(name.strip(), value.strip())
    return fields


def has_bfloat16(path: str = "/proc/cpuinfo") -> bool | None:
    """Returns whether the CPU has instructions for bfloat16; None: unknown, on other systems than Linux."""
    fields = _cpu_fields(path)
    names = (fields.get("flags") or fields.get("Features", "")).split()  # of x86, or of ARM
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & {*names}) if fields else None


def cpu_model() -> str:
    """Returns the CPU's model name and, where a name covers several generations, its family and model numbers."""
    fields = _cpu_fields()
    model, family = fields.get("model name") or platform.processor() or platform.machine(), fields.get("cpu family")
    return f"{model} (family {family}, model {fields.get('model', '')})" if family else model


def version(package: str) -> str:
    """Returns the version of an installed package, or "not installed"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def commit() -> str:
    """Returns the commit of the source tree, with `+changes` if files outside results/ have changes; outside of git the version."""

    def git(*arguments):
        run = subprocess.run(["git", "-C", os.path.dirname(__file__), *arguments], capture_output=True, text=True, check=False)
        return run.stdout.strip() if run.returncode == 0 else ""

    head = git("rev-parse", "--short=12", "HEAD")
    changes = git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", ":(top,exclude)results")
    return f"{head}{'+changes' if changes else ''}" if head else f"version {version('tf_robust')}"
