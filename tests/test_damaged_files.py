"""Files of ours that were damaged or are not what they should be: a ValueError that names them, or they count as not there."""

import json
import os
import random
import zlib

import pytest

from tests.conftest import tiny_network
from tf_robust import evaluation, models
from tf_robust.corrupted_datasets import reader
from tf_robust.evaluation import read_records
from tf_robust.runs import suite, workdir
from tf_robust.training import callbacks, checkpoints

EVALUATION = {
    "row": "xe",
    "seed": 0,
    "method": "cross_entropy",
    "data": "digits",
    "model": "lenet",
    "split": "test",
    "commit": "c",
    "saved_model": "m",
    "rows": [{"metric": "clean", "value": 0.5, "count": 10, "low": 0.4, "high": 0.6}],
}
TABLE = {
    "title": "t",
    "baseline": "b",
    "rows": ["a"],
    "notes": ["n"],
    "paper": {"a": {"clean": [0.9, None]}},
    "shown_as": {"a": "b"},
    "panels": {"p": ["b"]},
}
CARD = {"layout": "npy", "data": {"name": "digits", "fingerprint": "f"}, "seed": 0, "corruptions": []}


def read_table(path):
    folder = os.path.dirname(path)
    with open(os.path.join(folder, "a.flags"), "w"):
        return suite.table_of(folder, folder)


READERS = {
    "evaluation.json": (EVALUATION, evaluation.read_evaluation),
    "suite.json": (TABLE, read_table),
    "card.json": (CARD, lambda path: reader.card_of(os.path.dirname(path))),
    "history.json": ([{"epoch": 0, "total": 1.5}, {"epoch": 1, "total": 1.0}], callbacks.read_history),
}


def spoiled(data, draw):
    """The bytes cut off, changed, replaced."""
    kind = draw.randrange(4)
    if kind == 0:
        return data[: draw.randrange(len(data))]
    if kind == 1:
        places = {draw.randrange(len(data)): draw.randrange(256) for _ in range(draw.choice([1, 5, 50]))}
        return bytes(places.get(at, value) for at, value in enumerate(data))
    return draw.choice([b"", b"[]", b"{}", b"null", b"[1, 2]", b"[" * 10**5, b'"x"', b'{"rows": 3}', b'{"rows": [{}]}', bytes(range(256))])


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_named_or_still_valid(name, tmp_path):
    content, read = READERS[name]
    path, draw, refused = str(tmp_path / name), random.Random(0), 0
    (tmp_path / name).write_text(json.dumps(content))
    read(path)
    for _ in range(300):
        (tmp_path / name).write_bytes(spoiled(json.dumps(content).encode(), draw))
        try:
            read(path)
        except ValueError as error:
            refused += 1
            assert path in str(error)
    assert refused > 150


def test_damaged_records_are_ignored(tmp_path):
    """Cut short, no JSON, another number, a lost key."""
    record = {"kind": "accuracy", "set": "clean", "depends": "d", "count": 3, "correct": 2}
    line = json.dumps({**record, "crc32": zlib.crc32(json.dumps(record).encode())}).encode()
    others = [line[:9], line.replace(b":", b"\xff"), b"[1]", b'{"a":' * 10**5 + b"}", line.replace(b"3", b"4", 1)]
    others += [line.replace(b', "correct": 2', b""), json.dumps(record).encode()]
    (tmp_path / "measured.jsonl").write_bytes(b"\n".join([line, *others, line]) + b"\n" + line)
    assert read_records(str(tmp_path / "measured.jsonl")) == [record] * 2


def test_damaged_weights_and_checkpoints_are_named(tmp_path):
    models.write_weights(tiny_network(), str(tmp_path))
    whole, draw, network = (tmp_path / "weights.npz").read_bytes(), random.Random(1), tiny_network()
    for _ in range(100):
        (tmp_path / "weights.npz").write_bytes(spoiled(whole, draw))
        try:
            models.load_encoder(network, str(tmp_path), head=True)
        except ValueError as error:
            assert "weights.npz" in str(error)
    at = whole.index(b"PK\x01\x02") + 10  # in the directory at its end: how the first array is compressed, which zipfile may not know
    for content in (b"", whole[:100], b"[]", whole[:at] + b"\x63" + whole[at + 1 :]):
        (tmp_path / "step_000000001.npz").write_bytes(content)
        with pytest.raises(ValueError, match="only damaged ones \\(1\\)"):
            checkpoints.restore(None, str(tmp_path))


@pytest.mark.parametrize("content", [b"--epochs\n", b"--epochs=1\n--\n", b"--data=\xff\n"])
def test_a_damaged_flags_txt_is_named(content, tmp_path):
    (tmp_path / "flags.txt").write_bytes(content)
    with pytest.raises(ValueError, match="--NAME=VALUE in .*flags.txt"), workdir.claim(str(tmp_path), {"epochs": "1"}):
        pass
    assert (tmp_path / "flags.txt").read_bytes() == content
