"""Without the POSIX modules, as on Windows, everything can be imported, and one process can train and measure."""

import subprocess
import sys

WITHOUT = "import sys; sys.modules['fcntl'] = sys.modules['resource'] = None\n"


def run(script, *arguments):
    return subprocess.run([sys.executable, "-c", WITHOUT + script, *arguments], capture_output=True, text=True, timeout=120)


def test_every_module_is_imported_and_a_run_says_that_it_is_not_locked(tmp_path):
    """In one process, since importing takes long."""
    done = run("""
import importlib, logging, pkgutil
import tf_robust
names = [module.name for module in pkgutil.walk_packages(tf_robust.__path__, "tf_robust.")]
names = [name for name in names if not name.endswith(("__main__", ".beam"))]  # Beam is optional
for name in names:
    importlib.import_module(name)
from tf_robust.experiments import dry_run, workdir
from tf_robust.evaluation.set_locks import SetLocks
from tf_robust.utils import files
from tf_robust.utils.locks import held
folder = sys.argv[1]
with workdir.claimed(folder, {}):
    files.write_json(f"{folder}/a.json", {"b": 1})
    claims = SetLocks(f"{folder}/claims")
    with claims.taken("x") as taken, claims.writing(), held(f"{folder}/lock", wait=False):
        print(len(names), taken, files.read_json(f"{folder}/a.json"), dry_run._peak())
""", str(tmp_path))
    assert done.returncode == 0, done.stderr
    count, rest = done.stdout.split(" ", 1)
    assert int(count) > 100 and rest == "True {'b': 1} None\n"
    assert f"This system has no POSIX file locks: only one process may work in {tmp_path}." in done.stderr
