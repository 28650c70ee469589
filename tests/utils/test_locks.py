"""Locks are exclusive, and freed when the holder is killed; without file locks one process can train and evaluate."""

import errno
import fcntl
import logging
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tf_robust.evaluation.recording import SetLocks
from tf_robust.runs import workdir
from tf_robust.utils import locks
from tf_robust.utils.locks import WorkdirLocked, file_lock

HOLD = "import sys; from tf_robust.utils.locks import file_lock\nwith file_lock(sys.argv[1]): print('held', flush=True); input()"


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path):
    path = str(tmp_path / "new" / "lock")
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(WorkdirLocked, match="Another process holds .*lock"), file_lock(path, wait=False):
            pass
        other.kill()
    with file_lock(path, wait=False):
        pass
    assert os.path.exists(path)


def test_a_removed_lock_file_is_locked_anew(tmp_path):
    path = str(tmp_path / "lock")
    with file_lock(path, remove=True):
        stale = os.open(path, os.O_RDWR)
    assert os.listdir(tmp_path) == []
    fcntl.flock(stale, fcntl.LOCK_EX)  # the removed file's lock excludes nobody
    with file_lock(path, wait=False), pytest.raises(WorkdirLocked), file_lock(path, wait=False):
        pass
    os.close(stale)


def test_a_folder_removed_by_another_process_is_created_again(tmp_path, monkeypatch):
    path, acquire = str(tmp_path / "locks" / "lock"), locks.filelock.BaseFileLock.acquire
    errors = [errno.ENOENT, errno.EEXIST, errno.ESTALE]

    def removed(lock):
        if errors:
            raise OSError(errors.pop(), "", path)
        return acquire(lock)

    monkeypatch.setattr(locks.filelock.BaseFileLock, "acquire", removed)
    with file_lock(path, wait=False):
        assert os.path.exists(path)


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"), file_lock(str(tmp_path / "file" / "lock")):
        pass


def test_set_locks_leave_no_files(tmp_path):
    path = tmp_path / "locks"
    set_locks = SetLocks(str(path))
    with set_locks.try_lock("a") as first, set_locks.try_lock("a") as again, set_locks.try_lock("b") as other, set_locks.writing():
        assert (first, again, other) == (True, False, True) and len(os.listdir(path)) == 3
        set_locks.clear()
        assert len(os.listdir(path)) == 3
    assert os.listdir(path) == []
    set_locks.clear()
    assert not path.exists()


@pytest.mark.parametrize("number", ["ENOSYS", "ENOLCK", "EOPNOTSUPP"])
def test_one_process_may_work_on_a_file_system_without_locks(tmp_path, monkeypatch, caplog, number):
    def flock(*_):
        raise OSError(getattr(errno, number), os.strerror(getattr(errno, number)))

    monkeypatch.setattr(fcntl, "flock", flock)
    set_locks = SetLocks(str(tmp_path / "locks"))
    with caplog.at_level(logging.WARNING), workdir.claim(str(tmp_path), {}):
        with set_locks.try_lock("x") as acquired, set_locks.writing():
            assert acquired
        with set_locks.try_lock("x") as acquired:
            assert acquired
    set_locks.clear()
    assert not (tmp_path / "locks").exists()
    messages = [record.message for record in caplog.records if "only one process may work in it" in record.message]
    assert [message.split(" has no file locks")[0] for message in messages] == [str(tmp_path), str(tmp_path / "locks")]


@pytest.mark.slow
def test_every_module_can_be_imported_and_used_without_posix_modules(tmp_path):
    """As on Windows. In one process, since importing takes long."""
    script = """
import sys; sys.modules["fcntl"] = sys.modules["resource"] = None
import importlib, logging, pkgutil
import tf_robust
names = [module.name for module in pkgutil.walk_packages(tf_robust.__path__, "tf_robust.")]
names = [name for name in names if not name.endswith(("__main__", ".beam"))]  # beam: of an extra
for name in names:
    importlib.import_module(name)
from tf_robust.runs import dry_run, workdir
from tf_robust.evaluation.recording import SetLocks
from tf_robust.utils import files
from tf_robust.utils.locks import file_lock
folder = sys.argv[1]
with workdir.claim(folder, {}):
    files.write_json(f"{folder}/a.json", {"b": 1})
    set_locks = SetLocks(f"{folder}/locks")
    with set_locks.try_lock("x") as acquired, set_locks.writing(), file_lock(f"{folder}/other", wait=False):
        print(len(names), acquired, files.read_json(f"{folder}/a.json"), dry_run._peak())
"""
    process = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    count, rest = process.stdout.split(" ", 1)
    assert int(count) > 100 and rest == "True {'b': 1} None\n"
