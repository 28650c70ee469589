import functools
import importlib
import sys

from tf_robust import attacks, corruptions, methods
from tf_robust.utils.user_code import digest


def notebook(text):
    """The names that a cell of a notebook defines: its code has no file."""
    names = {"__name__": "cell", "attacks": attacks}
    exec(compile(text, "<cell>", "exec"), names)
    return names


def test_code_of_the_package_has_no_digest():
    fog = corruptions.CORRUPTIONS["fog"]
    assert digest(fog.apply, fog.draw, methods.FCL, attacks.Square, None, functools.partial(fog.apply)) is None


def test_functions_of_a_notebook_differ_by_their_code_their_constants_and_what_they_close_over():
    texts = (
        "f = lambda x: x",
        "f = lambda x: x + 1",
        "f = lambda x: x + 2",
        "f = lambda x, y=1: x + 2",
        "def f(x): return [i + 2 for i in x]",
    )
    digests = [digest(notebook(text)["f"]) for text in (*texts, "def f(x): return [i + 3 for i in x]")]
    assert len({*digests}) == 6 and None not in digests
    assert digest(notebook("\n\n" + texts[1])["f"]) == digests[1]  # the same in another line
    made = notebook("def make(number):\n    return lambda x: x + number")["make"]
    assert digest(made(1)) == digest(made(1)) != digest(made(2))
    assert len({digest(functools.partial(made(1), number)) for number in (1, 2)}) == 2


def test_classes_of_a_notebook_differ_by_their_methods_and_attributes():
    text = "class Mine(attacks.Attack):\n    steps = {}\n    def perturb(self, predict, images, *_): return images + {}"
    digests = [digest(notebook(text.format(*numbers))["Mine"]) for numbers in ((1, 2), (1, 3), (2, 2), (1, 2))]
    assert len({*digests}) == 3 and digests[0] == digests[3]


def test_code_of_a_file_differs_with_the_file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    digests = []
    for text in ("HELP = 1", "HELP = 2"):
        (tmp_path / "users_own_module.py").write_text(f"{text}\ndef f(x):\n    return x + HELP\n")
        sys.modules.pop("users_own_module", None)
        importlib.invalidate_caches()
        digests.append(digest(importlib.import_module("users_own_module").f))
    sys.modules.pop("users_own_module")
    assert len({*digests}) == 2
