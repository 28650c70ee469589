import importlib.metadata
import subprocess

from tf_robust.utils import environment


def test_description_has_versions_and_threads():
    description = environment.describe()
    assert description["numpy"] == importlib.metadata.version("numpy") and description["threads"] >= 1
    assert environment.version("no_such_package") == "not installed"


def test_commit_marks_changes_outside_of_results(tmp_path, monkeypatch):
    def git(*arguments):
        return subprocess.run(
            ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    monkeypatch.setattr(environment, "__file__", str(tmp_path / "environment.py"))
    assert environment.commit().startswith("version ")
    (tmp_path / "results").mkdir()
    for name in ("environment.py", "results/a.json"):
        (tmp_path / name).write_text("1")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    head = git("rev-parse", "--short=12", "HEAD")
    assert environment.commit() == head
    (tmp_path / "results" / "a.json").write_text("2")
    assert environment.commit() == head
    (tmp_path / "environment.py").write_text("2")
    assert environment.commit() == f"{head}+changes"
