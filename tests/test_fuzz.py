"""Hostile flags, flagfiles and files, drawn at random: a message that the command line prints, or training begins; no traceback."""

import copy
import json
import os
import random
import shutil

import pytest

from tests.command_line import main
from tests.corrupted_datasets import corrupted_images as corrupted_images
from tests.small_runs import CLEAN, evaluated, omit_charts  # noqa: F401
from tf_robust import methods
from tf_robust.cli import commands
from tf_robust.cli.command_line import COMMANDS
from tf_robust.corrupted_datasets import reader
from tf_robust.data.augment import VIEWS
from tf_robust.training import loop

VALUES = (
    "",
    "-1",
    "0",
    "nan",
    "inf",
    "1e400",
    "9" * 20,
    "../../etc/passwd",
    "a,b",
    "\u2603",
    "x" * 3000,
    "true",
    "[1]",
    "0.5,",
    "{}",
    "%s",
)
BASE = ["--data=digits", "--train_examples=60", "--epochs=1", "--batch_size=12"]
DRAWS = 24
JUNK = (None, True, -1, 5, 1e400, "", "x", "\u2603", [], [5], [[]], {}, {"a": 1})
FILES = ("flags.txt", "environment.json", "evaluation.json", "history.json", "measured.jsonl", "saved_model/card.json")

arrays = corrupted_images.arrays  # the fixture


class Began(Exception):
    """Training did."""


def began(*_, **__):
    raise Began


def friendly_errors(work, *arguments):
    """Does some work; it may end in a message. Nothing else is expected."""
    try:
        with commands.friendly_errors():
            work(*arguments)
    except Began:
        pass
    except SystemExit as ended:
        assert str(ended).startswith("Error: ") and len(str(ended)) > 60, str(ended)


def beside(workdir):
    """{path: content} of all files around a workdir."""
    return {path: path.read_bytes() for path in workdir.parent.rglob("*") if path.is_file() and workdir not in path.parents}


def junk(draw):
    return bytes(draw.randrange(256) for _ in range(draw.randrange(60)))


def spoiled(content, draw):
    """The bytes of a file cut, changed or, where they are JSON, with a node that is lost or something else."""
    kind = draw.randrange(4)
    if kind == 0:
        return content[: draw.randrange(len(content))]
    if kind == 1:
        at = draw.randrange(len(content))
        return content[:at] + junk(draw) + content[at + draw.randrange(9) :]
    try:
        whole = [json.loads(content)]
    except ValueError:
        lines = content.split(b"\n")
        lines[draw.randrange(len(lines))] = draw.choice([b"", junk(draw), b"--epochs", b"--epochs=", b"{}", b"[]"])
        return b"\n".join(lines)
    nodes = [(whole, 0)]
    for parent, key in nodes:
        inside = parent[key]
        keys = inside if isinstance(inside, dict) else range(len(inside)) if isinstance(inside, list) else ()
        nodes += [(inside, name) for name in keys]
    parent, key = draw.choice(nodes)
    if draw.random() < 0.4 and parent is not whole:
        del parent[key]
    else:
        parent[key] = copy.deepcopy(draw.choice(JUNK))
    return json.dumps(whole[0]).encode()


@pytest.fixture(autouse=True)
def quick(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loop, "fit", began)  # after the first batch
    omit_charts(monkeypatch)


def drawn_flag(draw):
    """The name of a flag, a value, and what makes it count."""
    owner = draw.choice([[], [f"--method={draw.choice([*methods.METHODS])}"], [f"--views={draw.choice([*VIEWS])}"]])
    names = COMMANDS["train"].parameters(owner).keys() - {"download", "workdir"}
    return [*owner, f"--{draw.choice(sorted(names))}={draw.choice(VALUES)}"]


@pytest.mark.parametrize("number", range(DRAWS))
def test_no_flag_value_gives_a_traceback(number, tmp_path):
    friendly_errors(main, *BASE, *drawn_flag(random.Random(number)), f"--workdir={tmp_path}/run")
    assert set(os.listdir(tmp_path)) <= {"run"}


@pytest.mark.parametrize("number", range(DRAWS // 2))
def test_no_flagfile_gives_a_traceback(number, tmp_path):
    draw, suite = random.Random(number), tmp_path / "suite"
    suite.mkdir()
    files = ("suite/a.flags", "suite/../suite/a.flags", "suite/b.flags", ".", "\0")
    flags = ("--flagfile", "--no", "--nodry_run=1", "-", "--", "---epochs=1", "--epochs", "--e p=1", "--\u2603=1", "--=1", "# \ud800")
    hostile = [*(f"--flagfile={file}" for file in files), *flags]
    for name in ("a.flags", "b.flags"):
        lines = [*BASE, *drawn_flag(draw), *draw.sample(hostile, draw.randrange(3))] if draw.random() < 0.8 else BASE
        content = "\n".join(lines).encode("utf-8", "surrogatepass")
        (suite / name).write_bytes(content if draw.random() < 0.7 else spoiled(content, draw))
    (tmp_path / "run").mkdir()
    shutil.copy(suite / "b.flags", tmp_path / "run" / "flags.txt")
    before = beside(tmp_path / "run")
    for arguments in (["--flagfile=suite/a.flags"], ["suite", "suite"], ["evaluate"], ["train", *BASE]):
        friendly_errors(main, *arguments, "--workdir=run")
    assert beside(tmp_path / "run") == before


@pytest.mark.parametrize("number", range(DRAWS // 4))
def test_no_damaged_file_of_a_run_gives_a_traceback(number, evaluated, tmp_path):
    draw, run = random.Random(number), shutil.copytree(evaluated, tmp_path / "run")
    for _ in range(3):
        name = draw.choice(FILES)
        (run / name).write_bytes(spoiled((evaluated / name).read_bytes(), draw))
        before = beside(run)
        how = draw.choice([CLEAN, ["evaluate"], ["report", "run"], ["train", *CLEAN]])
        friendly_errors(main, *how, "--workdir=run")
        assert beside(run) == before
        (run / name).write_bytes((evaluated / name).read_bytes())


def test_no_damaged_corrupted_set_gives_a_traceback(arrays):
    source = corrupted_images.clean()
    card = {"layout": "npy", "data": {"name": "clean", "fingerprint": source.fingerprint()}, "seed": 0, "corruptions": ["fog"]}
    (arrays / "card.json").write_text(json.dumps(card))
    whole = {name: (arrays / name).read_bytes() for name in ("card.json", "fog.npy", "labels.npy")}

    def read():
        list(reader.open_corrupted(str(arrays), source, "fog", 2).ordered(4))

    for number in range(150):
        draw = random.Random(number)
        name = draw.choice(sorted(whole))
        content = bytearray(whole[name])
        for _ in range(3):  # a .npy file's header has 128 bytes
            content[draw.randrange(min(128, len(content)))] = draw.choice([draw.randrange(256), *b"()[]{}'\",:0123456789LOuf|<>\n"])
        (arrays / name).write_bytes(spoiled(whole[name], draw) if name == "card.json" else content)
        friendly_errors(read)
        (arrays / name).write_bytes(whole[name])
