"""The software that a result was computed with: versions, threads and commit."""

import importlib.metadata
import os
import subprocess

import tensorflow as tf

PACKAGES = ("tensorflow", "keras", "numpy", "tensorflow-datasets", "tf_robust")


def describe():
    """Returns versions and the thread count: bit-identical runs need equal ones."""
    versions = {name: version(name) for name in PACKAGES}
    return {**versions, "threads": tf.config.threading.get_intra_op_parallelism_threads()
            or int(os.environ.get("TF_NUM_INTRAOP_THREADS", 0)) or os.cpu_count()}


def version(package):
    """Returns the version of an installed package, or "not installed"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def commit():
    """Returns the commit of the source tree, with `+changes` if files outside results/ have uncommitted changes; outside of git the version."""
    def git(*words):
        run = subprocess.run(["git", "-C", os.path.dirname(__file__), *words], capture_output=True, text=True, check=False)
        return run.stdout.strip() if run.returncode == 0 else ""
    head = git("rev-parse", "--short=12", "HEAD")
    if not head:
        return f"version {version('tf_robust')}"
    changes = git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", ":(top,exclude)results")
    return head + ("+changes" if changes else "")
