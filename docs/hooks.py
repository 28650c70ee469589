"""Pages of the site that are made when it is built: from `--help`, the recorded flags, docstrings, `examples/` and `results/`.

A page has a marker such as `<!-- generated: flags -->` where the generated text goes. Code spans that name a document of the
repository, such as `results/fcl/table1.md`, become links.
"""

import ast
import glob
import json
import os
import posixpath
import re
import subprocess
import sys

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ZOO = "tf_robust/saved_models/zoo"
PROJECT = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
_SPAN = re.compile(r"(?<!\[)`([\w/.-]+\.(?:md|ipynb))`(?!\])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the recorded results, the project's pages, the notebook and one page of the API for each module."""
    recorded = [path for path in _found("results/**/*") if path.endswith((".md", ".png"))]
    for path in (*recorded, *PROJECT):
        files.append(File.generated(config, path, abs_src_path=os.path.join(ROOT, path)))
    files.append(File.generated(config, "notebook.md", content=_notebook()))
    for module in re.findall(r"api/([\w.]+)\.md", json.dumps(config.nav)):
        files.append(File.generated(config, f"api/{module}.md", content=_api(module)))
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

    return _SPAN.sub(linked, markdown.replace("](../results/", "](results/"))


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
    lines = [f"# {module}", "", f"::: {module}", "    options:", "      show_root_toc_entry: false"]
    if package:
        lines += ["      members:", *(f"        - {name}" for name in _public(_read(f"{path}/__init__.py"), module))]
    return "\n".join(lines)


def _public(source, module):
    """Returns the public names of a package: the functions, classes and constants that it defines or imports from its own modules."""
    names = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module.startswith(f"{module}."):
            names += [alias.asname or alias.name for alias in node.names]
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, ast.AnnAssign):
            names.append(node.target.id)
    return [name for name in names if not name.startswith("_")]


def _help():
    """Returns the `--help` of every command."""
    sys.path.insert(0, ROOT)
    from tf_robust.cli.command_line import COMMANDS

    parts = []
    for command in ("", *COMMANDS):
        run = subprocess.run(
            [sys.executable, "-m", "tf_robust", *command.split(), "--help"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        parts.append(f"## tf-robust {command}\n\n```text\n{run.stdout.strip()}\n```")
    return "\n\n".join(parts)


def _table(head, rows):
    def cell(text):
        return str(text).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")

    cells = [map(cell, row) for row in (head, ["---"] * len(head), *rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)


def _flags():
    """Returns tables of the flags of a training, of evaluations, of each other command, and of each method and view that has
    flags of its own."""
    sys.path.insert(0, ROOT)
    from tf_robust.utils import quiet

    with quiet.importing([]):
        from tf_robust import methods
        from tf_robust.cli.command_line import COMMANDS
        from tf_robust.configs import EvalConfig
        from tf_robust.data.augment import VIEWS
        from tf_robust.runs.config import own_parameters
        from tf_robust.utils.hyperparameters import parameters
    training, of_evaluations = COMMANDS["train"].parameters(), parameters(EvalConfig)
    sections = {"Flags of train": training}
    for name, command in COMMANDS.items():
        if name != "train" and (
            own := {flag: one for flag, one in command.parameters().items() if flag not in {**training, **of_evaluations}}
        ):
            sections[f"Further flags of {name}"] = own
    for name in methods.METHODS:
        sections[f"Flags of the method {name}"] = own_parameters(name)
    for name in VIEWS:
        sections[f"Flags of the view {name}"] = own_parameters("", (name,))
    tables = [
        f"## {title}\n\n" + _table(("flag and its default", "meaning"), [(_flag(one), one.help) for _, one in sorted(found.items())])
        for title, found in sections.items()
        if found
    ]
    owners = {name: ", ".join(f"`--{owner}`" for owner in of_flag) for name, of_flag in sorted(COMMANDS["train"].unused().items())}
    further = [(_flag(of_evaluations[name]), belongs, of_evaluations[name].help) for name, belongs in owners.items()]
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
        sys.path.insert(0, ROOT)
        from tf_robust.utils import quiet

        with quiet.importing([]):
            from tf_robust.cli.show import names

            return _table((head, "meaning"), [(f"`{name}`", text) for name, text in names()[section][1].items()])

    return table


def _metrics():
    """Returns tables of the metrics with their long names and meanings."""
    sys.path.insert(0, ROOT)
    from tf_robust.utils import quiet

    with quiet.importing([]):
        from tf_robust.evaluation.metric_table import examples
        from tf_robust.evaluation.metric_value import describe

    parts = []
    for heading, names in examples().items():
        described = [(name, describe(name)) for name in names]
        rows = [(f"`{name}`", words.name, words.meaning) for name, words in described]
        parts.append(f"### {heading}\n\n" + _table(("metric", "name", "meaning"), rows))
    return "\n\n".join(parts)


def _examples():
    """Returns every script of `examples/` with its docstring as introduction."""
    parts = []
    for path in _found("examples/*.py"):
        source = _read(path)
        introduction = ast.get_docstring(ast.parse(source))
        code = source.split('"""', 2)[2].strip()
        parts.append(f"## {os.path.basename(path)}\n\n{introduction}\n\n```python\n{code}\n```")
    return "\n\n".join(parts)


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
    "help": _help,
    "flags": _flags,
    "metrics": _metrics,
    "methods": _names("methods", "method"),
    "models": _names("models", "model"),
    "views": _names("views", "view"),
    "attacks": _names("attacks", "attack"),
    "examples": _examples,
    "recorded": _recorded,
    "zoo": _zoo,
}
