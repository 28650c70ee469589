"""Imports point down one list of packages, no files import each other in a circle, and only the command line knows of flags."""

import ast
import configparser
import functools
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
# from the top; a package imports from itself and from those after it
ORDER = (
    "cli",
    "api",
    "runs",
    "hardening",
    "exporter",
    "report",
    "integrations",
    "testing",
    "evaluation",
    "saved_models",
    "conversion",
    "methods",
    "training",
    "attribution",
    "attacks",
    "models",
    "layers",
    "losses",
    "corrupted_datasets",
    "data",
    "configs",
    "corruptions",
    "metrics",
    "ops",
    "utils",
)
WITH_FLAGS = {"cli"}
ENTRY_POINTS = [ROOT / "tf_robust" / name for name in ("__init__.py", "__main__.py")]
MODULES = sorted(path for path in (ROOT / "tf_robust").rglob("*.py") if path not in ENTRY_POINTS)


def package_of(path):
    return path.relative_to(ROOT / "tf_robust").parts[0].removesuffix(".py")


@functools.cache
def imports_of(path, functions=True):
    """(line, dotted name) of every import, also those inside functions."""
    tree, found = ast.parse(path.read_text("utf-8")), []
    for node in ast.walk(tree) if functions else tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            found += [(node.lineno, f"{module}{alias.name}") for alias in node.names]
    return found


def violations(path):
    here = package_of(path)
    for line, name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "tf_robust" and len(parts) > 1 and parts[1] != "__version__" and ORDER.index(parts[1]) < ORDER.index(here):
            yield f"{path.relative_to(ROOT)}:{line} imports {name}"
        if name.startswith("absl.flags") and here not in WITH_FLAGS:
            yield f"{path.relative_to(ROOT)}:{line} imports absl's flags"
        if parts[0] in ("tests", "benchmarks", "research"):
            yield f"{path.relative_to(ROOT)}:{line} imports {name}"


def test_every_folder_is_a_package():
    """Otherwise a wheel would lack it."""
    assert not [path.parent for path in MODULES if not (path.parent / "__init__.py").exists()]


def test_every_package_is_in_the_wheel():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = {line for line in setup["options"]["packages"].split("\n") if line and not line.startswith("#")}
    folders = {".".join(path.parent.relative_to(ROOT).parts) for path in MODULES}
    assert listed == {*folders, "tf_robust.flags"}


def test_every_package_is_in_the_order():
    assert {package_of(path) for path in MODULES} <= set(ORDER)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_order(path):
    assert not list(violations(path))


@pytest.mark.parametrize("path", [path for path in MODULES if package_of(path) == "evaluation"], ids=lambda path: path.name)
def test_evaluation_does_not_import_methods(path):
    assert not [name for _, name in imports_of(path) if name.startswith("tf_robust.methods")]


def files_imported_by(path, functions=True):
    """The modules of the package that a file imports, as paths."""
    for _, name in imports_of(path, functions):
        parts = name.split(".")[1:] if name.split(".")[0] == "tf_robust" else []
        while parts:
            for file in (ROOT.joinpath("tf_robust", *parts).with_suffix(".py"), ROOT.joinpath("tf_robust", *parts, "__init__.py")):
                if file.exists() and file != path:
                    yield file
                    parts = []
            parts = parts[:-1]


def test_no_files_import_each_other_in_a_circle():
    graph = {path: {*files_imported_by(path)} & {*MODULES} for path in MODULES}
    while leaves := {path for path, others in graph.items() if not others}:
        graph = {path: others - leaves for path, others in graph.items() if path not in leaves}
    assert not {str(path.relative_to(ROOT)): sorted(str(one.relative_to(ROOT)) for one in others) for path, others in graph.items()}


OPTIONAL = {
    *("ai_edge_litert", "apache_beam", "datasets", "gcsfs", "keras_hub", "mlflow", "onnx", "onnxruntime", "onnxscript", "optuna"),
    *("psycopg", "pyarrow", "ray", "s3fs", "submitit", "tf2onnx", "torch", "torchvision", "wandb"),
}  # packages of the extras


@pytest.mark.parametrize("start", ["api.py", "cli/main.py", "cli/commands.py"])
def test_no_package_of_an_extra_is_imported_at_the_start(start):
    found, left = set(), {ROOT / "tf_robust" / start}
    while left:
        found |= left
        left = {one for path in left for one in files_imported_by(path, functions=False)} - found
    assert ROOT / "tf_robust" / "saved_models" / "loading.py" in found or start == "cli/main.py"
    assert not {str(path) for path in found for _, name in imports_of(path, functions=False) if name.split(".")[0] in OPTIONAL}
