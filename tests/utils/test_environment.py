import importlib.metadata
import subprocess

from tf_robust.utils import environment


def test_description_has_versions_and_threads():
    description = environment.describe()
    assert description["numpy"] == importlib.metadata.version("numpy") and description["threads"] >= 1
    assert environment.version("no_such_package") == "not installed"


def test_commit_marks_changes_outside_of_results(tmp_path, monkeypatch):
    def git(*arguments):
        own = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run([*own, *arguments], check=True, capture_output=True, text=True).stdout.strip()

    code, result = tmp_path / "tf_robust" / "utils" / "environment.py", tmp_path / "results" / "a.json"
    for path in (code, result):
        path.parent.mkdir(parents=True)
        path.write_text("1")
    monkeypatch.setattr(environment, "__file__", str(code))
    assert environment.commit().startswith("version ")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    head = git("rev-parse", "--short=12", "HEAD")
    assert environment.commit() == head
    result.write_text("2")
    assert environment.commit() == head
    code.write_text("2")
    assert environment.commit() == f"{head}+changes"


def test_bfloat16_is_among_the_flags_of_the_cpu(tmp_path):
    path = tmp_path / "cpuinfo"
    assert environment.has_bfloat16(str(path)) is None
    path.write_text("model name : a bf16x CPU\nflags : fpu avx512f avx512_vnni\n")
    assert environment.has_bfloat16(str(path)) is False
    path.write_text("flags : fpu avx512f avx512_bf16 avx512_vnni\n")
    assert environment.has_bfloat16(str(path)) is True
