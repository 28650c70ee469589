"""Changes lines of the package, one at a time, and counts how many of the faults the tests notice.

    python -m research.mutants OUTPUT.jsonl [--each=25] [--seed=0] [--commit=HEAD]

Draws `each` places of the core and as many of the shell: an operator, a number, a truth value or a condition outside of error messages and
annotations. In a git worktree of the commit, each fault is written into its file and the tests that mirror the module (tests/FOLDER, or
tests/test_MODULE.py) run until the first failure, without the slow ones. Each line of the output has the place, the change and `noticed`:
whether a test failed, or `timeout`. The same command continues after an interruption.
"""

import argparse
import ast
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

CORE = ("methods", "training", "losses.py", "attribution.py", "attacks", "models", "layers", "corruptions", "metrics", "ops")
OPERATORS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in", ast.NotIn: "in",
    ast.Is: "is not", ast.IsNot: "is", ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "+",
    ast.Pow: "*", ast.And: "or", ast.Or: "and",
}  # fmt: skip
SECONDS = 1200  # of the tests of one fault


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--each", type=int, default=25, help="faults in the core, and in the shell")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commit", default="HEAD")
    options = parser.parse_args()
    done = [json.loads(line) for line in options.output.read_text().splitlines()] if options.output.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", str(tree), options.commit], check=True)
        try:
            for mutant in draw(tree, options.each, options.seed)[len(done) :]:
                done.append(mutant | {"noticed": run_tests(tree, mutant)})
                with options.output.open("a") as file:
                    file.write(json.dumps(done[-1]) + "\n")
                print(json.dumps(done[-1]), flush=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], check=True)
    for half in ("core", "shell"):
        rows = [row for row in done if row["half"] == half]
        print(f"{half}: {sum(bool(row['noticed']) for row in rows)} of {len(rows)} noticed")


def draw(tree: pathlib.Path, each: int, seed: int) -> list[dict]:
    """Returns the faults: {half, file, line, before, after, start, end}, the positions in characters of the file."""
    places: dict[str, list[dict]] = {"core": [], "shell": []}
    for path in sorted(tree.glob("tf_robust/**/*.py")):
        name = path.relative_to(tree).as_posix()
        half = "core" if name.split("/")[1] in CORE else "shell"
        if tests_of(tree, name):
            places[half] += [{"half": half, "file": name, **place} for place in changes(path.read_text())]
    chooser = random.Random(seed)
    return [place for half in ("core", "shell") for place in chooser.sample(places[half], each)]


def changes(source: str) -> list[dict]:
    """Returns the possible faults of a module."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def offset(line: int, column: int) -> int:
        text = source[starts[line - 1] : starts[line]]
        return starts[line - 1] + len(text.encode()[:column].decode())

    found = []

    def add(start: int, end: int, after: str) -> None:
        found.append({"line": source.count("\n", 0, start) + 1, "before": source[start:end], "after": after, "start": start, "end": end})

    def add_operator(left: ast.expr, operator: ast.AST, right: ast.expr) -> None:
        if type(operator) in OPERATORS:
            start, end = offset(left.end_lineno, left.end_col_offset), offset(right.lineno, right.col_offset)
            if not set(source[start:end]) & set("()\n#"):
                add(start, end, f" {OPERATORS[type(operator)]} ")

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.AnnAssign | ast.Import | ast.ImportFrom | ast.Assert):
            return
        if isinstance(node, ast.BinOp):
            add_operator(node.left, node.op, node.right)
        elif isinstance(node, ast.Compare):
            add_operator(node.left, node.ops[0], node.comparators[0])
        elif isinstance(node, ast.BoolOp):
            add_operator(node.values[0], node.op, node.values[1])
        elif isinstance(node, ast.If | ast.IfExp):
            start, end = offset(node.test.lineno, node.test.col_offset), offset(node.test.end_lineno, node.test.end_col_offset)
            add(start, end, f"not ({source[start:end]})")
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            start, end = offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)
            add(start, end, str(not node.value if isinstance(node.value, bool) else node.value + 1))
        if isinstance(node, ast.FunctionDef):
            children = [*node.args.defaults, *(default for default in node.args.kw_defaults if default), *node.body]
        else:
            children = [*ast.iter_child_nodes(node)]
        for child in children:
            visit(child)

    visit(ast.parse(source))
    return found


def tests_of(tree: pathlib.Path, name: str) -> str:
    """Returns the folder or file of tests that mirrors a module; empty if there is none."""
    parts = pathlib.PurePosixPath(name).with_suffix("").parts[1:]
    mirror = pathlib.Path("tests", parts[0]) if len(parts) > 1 else pathlib.Path("tests", f"test_{parts[0]}.py")
    return str(mirror) if (tree / mirror).exists() else ""


def run_tests(tree: pathlib.Path, mutant: dict) -> bool | str:
    """Returns whether a test notices the fault."""
    path = tree / mutant["file"]
    source = path.read_text()
    path.write_text(source[: mutant["start"]] + mutant["after"] + source[mutant["end"] :])
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", "pytest", "-o", "addopts=--import-mode=importlib", "-qx", "-m", "not slow", "-p", "no:cacheprovider"]
    try:
        finished = subprocess.run(
            [*command, tests_of(tree, mutant["file"])], cwd=tree, env=environment, timeout=SECONDS, capture_output=True, check=False
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    finally:
        path.write_text(source)
    return finished.returncode != 0


if __name__ == "__main__":
    main()
