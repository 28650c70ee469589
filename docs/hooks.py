"""Pages of the site that are made when it is built: from `--help`, flags, docstrings, `examples/` and `results/`.

A page has a marker such as `<!-- generated: methods -->` where the generated text goes. Code spans that name a document of the
repository, such as `results/fcl/table1.md`, become links.
"""

import ast
import functools
import glob
import hashlib
import importlib
import inspect
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ZOO = "tf_robust/saved_models/zoo"
PROJECT = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
_CITED = re.compile(r"\(([A-Z][^()]*\b20\d\d[^()]*)\)|\b([A-Z]\w+ paper)")
_SPAN = re.compile(r"(?<!\[)`([\w/.-]+\.(?:md|ipynb))`(?!\])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the recorded results, the project's pages, the notebook and one page of the API for each module."""
    recorded = [path for path in _found("results/**/*") if path.endswith((".md", ".png"))]
    for path in (*recorded, *PROJECT):
        files.append(File.generated(config, path, abs_src_path=os.path.join(ROOT, path)))
    files.append(File.generated(config, "notebook.md", content=_notebook()))
    for module in re.findall(r"api/([\w.]+)\.md", json.dumps(config.nav)):
        files.append(File.generated(config, f"api/{module}.md", content=_api(module)))
    for command in re.findall(r"commands/(\w+)\.md", json.dumps(config.nav)):
        files.append(File.generated(config, f"reference/commands/{command}.md", content=_command(command)))
    for script in _found("examples/*.py"):
        if figure := _figure(script):
            files.append(File.generated(config, f"gallery/{os.path.basename(figure)}", abs_src_path=figure))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fills the markers of a page and links the documents that it names."""
    markdown = re.sub(r"<!-- generated: (\w+) -->", lambda match: GENERATED[match[1]](), markdown)
    folder = posixpath.dirname(page.file.src_uri)

    def linked(match):
        beside = posixpath.join(folder, match[1])
        target = match[1].removeprefix("docs/").replace(".ipynb", ".md") if files.get_file_from_path(beside) is None else beside
        if files.get_file_from_path(target) is None:
            return match[0]
        return f"[`{match[1]}`]({posixpath.relpath(target, folder)})"

    start = posixpath.relpath(".", folder)
    return _SPAN.sub(linked, re.sub(r"\]\((?:\.\./)+(results/|CONTRIBUTING|CHANGELOG)", rf"]({start}/\1", markdown))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keeps the dashes and the name of a flag in one line."""
    return re.sub(r"<code>(--\w+|tf-robust)", r'<code><span class="flag">\1</span>', html)


def _found(pattern):
    return sorted(glob.glob(pattern, root_dir=ROOT, recursive=True))


def _read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def _notebook():
    cells = json.loads(_read("docs/notebook.ipynb"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    parts = [text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```" for cell, text in zip(cells, texts)]
    return "\n\n".join([parts[0], "[Download the notebook](notebook.ipynb)", *parts[1:]])


def _api(module):
    """Returns the page of a module: its public names, those that a package imports included."""
    path = module.replace(".", "/")
    package = os.path.exists(os.path.join(ROOT, path, "__init__.py"))
    source = _read(f"{path}/__init__.py" if package else f"{path}.py")
    note = "Examples use `np` (NumPy), `tf` (TensorFlow), `keras`, and `tfr` (`import tf_robust as tfr`)."
    lines = [f"# {module}", "", note, "", f"::: {module}", "    options:", "      show_root_toc_entry: false"]
    if package or "__all__" in source:
        lines += ["      members:", *(f"        - {name}" for name in _public(source, module))]
    return "\n".join(lines)


def _public(source, module):
    """Returns the public names of a package: its `__all__`, or the names that it defines or imports from its own modules."""
    names = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
        if isinstance(node, ast.ImportFrom) and node.module.startswith(f"{module}."):
            names += [alias.asname or alias.name for alias in node.names]
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, ast.AnnAssign):
            names.append(node.target.id)
    return [name for name in names if not name.startswith("_")]


def _import_package():
    """Makes the package importable, without TensorFlow's messages."""
    sys.path.insert(0, ROOT)
    from tf_robust.utils import quiet

    return quiet.importing([])


def _command(name):
    """Returns the page of a command: its purpose, examples and tables of its flags."""
    with _import_package():
        from tf_robust.cli.command_line import COMMANDS
    command = COMMANDS[name]
    examples = "\n".join(f"tf-robust {example}" for example in command.examples)
    usage = " ".join(filter(None, ("tf-robust", name, command.argument, "[--FLAG=VALUE ...]")))
    return f"# tf-robust {name}\n\n{command.purpose}\n\n`{usage}`\n\n```sh\n{examples}\n```\n\n{_flags(name)}"


def _commands():
    """Returns a table of the commands."""
    with _import_package():
        from tf_robust.cli.command_line import COMMANDS
    return _table(("command", "purpose"), [(f"[{name}](commands/{name}.md)", one.purpose) for name, one in COMMANDS.items()])


def _table(head, rows):
    def cell(text):
        return str(text).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")

    cells = [map(cell, row) for row in (head, ["---"] * len(head), *rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)


def _flags(name):
    """Returns tables of the flags of a command: its own, of evaluations, and for `train` of each method, augmentation and view."""
    with _import_package():
        from tf_robust import methods
        from tf_robust.cli.command_line import COMMANDS
        from tf_robust.configs import EvalConfig
        from tf_robust.data.augment import VIEWS
        from tf_robust.runs.config import own_parameters
        from tf_robust.utils.hyperparameters import parameters
    command, of_evaluations = COMMANDS[name], parameters(EvalConfig)
    sections = {"Flags": command.parameters()}
    if name == "train":
        sections |= {f"Flags of the method {method}": own_parameters(method) for method in methods.METHODS}
        sections |= {f"Flags of the view {view}": own_parameters("", (view,)) for view in VIEWS}
    tables = [
        f"## {title}\n\n" + _table(("flag and its default", "meaning"), [(_flag(one), one.help) for _, one in sorted(found.items())])
        for title, found in sections.items()
        if found
    ]
    owners = {flag: ", ".join(f"`--{owner}`" for owner in of_flag) for flag, of_flag in sorted(command.unused().items())}
    if further := [(_flag(of_evaluations[flag]), belongs, of_evaluations[flag].help) for flag, belongs in owners.items()]:
        tables.insert(1, "## Flags of evaluations\n\n" + _table(("flag and its default", "belongs to", "meaning"), further))
    return "\n\n".join(tables)


def _flag(parameter):
    """A flag and its default."""
    default = parameter.default if isinstance(parameter.default, tuple) else (parameter.default,)
    shown = [str(value).lower() if isinstance(value, bool) else str(value) for value in default if value != ""]
    return f"`--{parameter.name}`" + (" = " if shown else "") + ", ".join(f"`{value}`" for value in shown)


def _names(section, head):
    """Returns a function that returns a table of the names in a section of `tf-robust list`."""

    def table():
        with _import_package():
            from tf_robust.cli.show import names

            return _table((head, "meaning"), [(f"`{name}`", text) for name, text in names()[section][1].items()])

    return table


def _classes(registry, module):
    """Returns a function that returns a table of classes: name, first paragraph of the docstring, source, cost where it is recorded."""

    def table():
        with _import_package():
            entries = getattr(importlib.import_module(module), registry)
        costs = _costs() if registry == "METHODS" else {}
        rows = []
        for name, entry in entries.items():
            meaning = inspect.getdoc(entry).split("\n\n")[0]
            module_line = inspect.getdoc(inspect.getmodule(entry)).split("\n")[0]
            cited = _CITED.findall(meaning) or _CITED.findall(module_line)
            source = "".join(cited[0]) if cited else ""
            link = f"[`{name}`](../api/{module}.md#{module}.{entry.__name__})"
            rows.append((link, meaning, source, *([costs.get(name, "")] if costs else [])))
        return _table(("name", "meaning", "source", *(["time of a step"] if costs else [])), rows)

    return table


def _costs():
    """Returns {method: smallest and largest recorded time of a training step of ResNet-20, relative to cross-entropy}."""
    found = {}
    for path in _found("results/benchmarks/*/train_step.json"):
        for row in json.loads(_read(path))["rows"]:
            if row["model"] == "resnet20":
                found.setdefault(row["row"], []).append(row["ratio"])
    return {name: "–".join(sorted({f"{min(ratios):.1f}", f"{max(ratios):.1f}"})) for name, ratios in found.items()}


def _metrics():
    """Returns tables of the metrics with their long names and meanings."""
    with _import_package():
        from tf_robust.evaluation.metric_table import examples
        from tf_robust.evaluation.metric_value import describe

    parts = []
    for heading, names in examples().items():
        described = [(name, describe(name)) for name in names]
        rows = [(f"`{name}`", words.name, words.meaning) for name, words in described]
        parts.append(f"### {heading}\n\n" + _table(("metric", "name", "meaning"), rows))
    return "\n\n".join(parts)


def _examples():
    """Returns every script of `examples/` with its figure and its docstring as introduction."""
    parts = []
    for path in _found("examples/*.py"):
        source = _read(path)
        title, _, introduction = ast.get_docstring(ast.parse(source)).partition(".\n")
        code = source.split('"""', 2)[2].strip()
        figure = f"![{title}](gallery/{os.path.basename(_figure(path))})\n\n" if _figure(path) else ""
        parts.append(f'## {title}\n\n{introduction.strip()}\n\n{figure}```python title="{path}"\n{code}\n```')
    return "\n\n".join(parts)


@functools.cache
def _figure(script):
    """Runs a script that writes a figure of its own name into a folder, and returns the figure; "": it writes none.

    Figures are kept in `.cache/gallery`, by the text of the script.
    """
    name = os.path.splitext(os.path.basename(script))[0]
    if f"{name}.png" not in _read(script):
        return ""
    folder = os.path.join(ROOT, ".cache", "gallery", hashlib.sha256(_read(script).encode()).hexdigest()[:16])
    figure = os.path.join(folder, f"{name}.png")
    if not os.path.exists(figure):
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryDirectory() as written:
            environment = {**os.environ, "PYTHONPATH": ROOT}
            run = subprocess.run([sys.executable, os.path.join(ROOT, script), written], env=environment, capture_output=True, text=True)
            if run.returncode:
                raise RuntimeError(f"{script} failed:\n{run.stderr}")
            shutil.move(os.path.join(written, f"{name}.png"), figure)
    return figure


def _recorded():
    """Returns a list of the recorded results with their titles."""
    paths = _found("results/**/*.md")
    titles = {path: _read(path).splitlines()[0].removeprefix("# ") for path in paths}
    return "\n".join(f"- [{title}]({path})" for path, title in titles.items())


def _zoo():
    """Returns a table of the pretrained models of each data set, the most robust first."""
    parts = []
    cards = {os.path.relpath(os.path.dirname(path), ZOO): json.loads(_read(path)) for path in _found(f"{ZOO}/*/*/card.json")}
    for data in sorted({card["data"] for card in cards.values()}):
        rows = []
        for name, card in cards.items():
            if card["data"] == data:
                values = {row["metric"]: row["value"] for row in card["evaluation"]["rows"]}
                rows.append((f"`{name.partition('/')[2]}`: {card['title']}", f"{card['weights']['parameters']:,}", values))
        first = next(card for card in cards.values() if card["data"] == data)
        heads = {"clean": "clean", "corruptions/mean15": "15 corruptions", "un": "UN", "calibration/rms": "calibration error"}
        heads |= {m: m.removeprefix("robust/").replace("/", " ").replace("_", " ") for m in rows[0][-1] if m.startswith("robust/")}
        rows.sort(key=lambda row: -row[-1]["corruptions/mean15"])
        cells = [(name, *(f"{values[m]:.3f}" for m in heads), parameters) for name, parameters, values in rows]
        count = next(row["count"] for row in first["evaluation"]["rows"] if row["metric"] == "clean")
        note = f"{first['note']} " if first["note"] else ""
        parts.append(f"### {data}\n\n{note}{count:,} test images.\n\n" + _table((f"{data}/", *heads.values(), "parameters"), cells))
    return "\n\n".join(parts)


GENERATED = {
    "commands": _commands,
    "metrics": _metrics,
    "methods": _classes("METHODS", "tf_robust.methods"),
    "attacks": _classes("ATTACKS", "tf_robust.attacks"),
    "models": _names("models", "model"),
    "views": _names("views", "view"),
    "corruptions": _names("corruptions", "corruption"),
    "examples": _examples,
    "recorded": _recorded,
    "zoo": _zoo,
}
