"""Launchers: the same files as in one process, and what happens to failures, locked runs, and machines that die."""

import functools
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import types
from unittest import mock

import pytest

from tests.command_line import main
from tests.launchers_agree import evaluations
from tests.ray_cluster import Cluster, free_port, kill
from tests.small_runs import COMMON, table  # noqa: F401
from tf_robust.cli import checks
from tf_robust.evaluation.recording import read_records
from tf_robust.integrations import launchers
from tf_robust.integrations.launchers import Outcome, call
from tf_robust.runs import scheduler
from tf_robust.utils import environment
from tf_robust.utils.files import read_json
from tf_robust.utils.locks import WorkdirLocked


class Tasks:
    """A launcher of tasks that end in the opposite order, some of them locked or failed at first."""

    def __init__(self, outcomes):
        self.outcomes, self.submitted = outcomes, []

    def submit(self, function, log):
        run, (folder,) = function.func.__self__, function.args
        assert log == os.path.join(folder, launchers.LOG)
        self.submitted.append((run.row, run.seed, run.init_path, folder))
        return len(self.submitted) - 1

    def ended(self, handles, seconds):
        return [max(handles)]

    def outcome(self, handle):
        row, seed, _, _ = self.submitted[handle]
        outcomes = self.outcomes.get((row, seed))
        return outcomes.pop(0) if outcomes else Outcome({"row": row, "seed": seed})

    def cancel(self, handles):
        self.cancelled = list(handles)


class FakeRun:
    def __init__(self, row, seed, start=""):
        self.row, self.seed, self.init_path = row, seed, ""
        data = types.SimpleNamespace(data="digits", image_size=0, image_fit="crop")
        evaluation = types.SimpleNamespace(evaluations=(), evaluation_split="test", subset=0)
        train = types.SimpleNamespace(strategy="none", init_from_row=start)
        self.config = types.SimpleNamespace(data=data, train=train, evaluation=evaluation)

    def complete(self, folder, begin=None):
        raise NotImplementedError


def test_tasks_begin_after_their_predecessors_and_failures_do_not_stop_the_others(monkeypatch, capsys):
    monkeypatch.setattr(scheduler, "_POLL_SECONDS", 0.01)
    runs = [FakeRun(row, seed, start) for seed in (0, 1) for row, start in (("tuned", "base"), ("base", ""), ("other", ""))]
    tasks = Tasks({("base", 1): [Outcome(None, "diverged")], ("other", 0): [Outcome(None, "held", locked=True)] * 2})
    done, failures = scheduler.run_all(runs, lambda run: f"{run.row}/{run.seed}", tasks)
    assert [(one["row"], one["seed"]) for one in done] == [("tuned", 0), ("base", 0), ("other", 0), ("other", 1)]  # in order of the runs
    assert [failure.split(",")[0] for failure in failures] == ["tuned", "base"] and "task.log" in failures[1]
    assert "the row from which it starts, base, failed" in failures[0]
    begun = [(row, seed) for row, seed, _, _ in tasks.submitted]
    assert begun.index(("base", 0)) < begun.index(("tuned", 0)) and ("tuned", 1) not in begun and begun.count(("other", 0)) == 3
    assert {init for row, _, init, _ in tasks.submitted if row == "tuned"} == {"base/0"}
    assert all(os.path.isabs(folder) for *_, folder in tasks.submitted)
    said = capsys.readouterr().out
    assert said.count("Skipped for now") == 1 and said.count("] other, seed 0: other/0") == 2  # when it is skipped, and when it is done


def test_a_skipped_run_has_a_header_when_it_is_taken_up_again(monkeypatch, capsys):
    monkeypatch.setattr(scheduler, "_POLL_SECONDS", 0.0)
    held = ["held", "held", ""]

    class Held(FakeRun):
        def complete(self, folder, begin):
            if self.row == "a" and (message := held.pop(0)):
                raise WorkdirLocked(message)
            if self.row == "c":
                raise ImportError("no keras_hub")  # before it holds the folder
            begin()
            print("  trains")
            return {"row": self.row}

    done, failures = scheduler.run_all([Held(row, 0) for row in "abc"], lambda run: run.row)
    assert [one["row"] for one in done] == ["a", "b"] and failures == ["c, seed 0, failed: no keras_hub"]
    assert capsys.readouterr().out.splitlines() == [
        "[1/3] a, seed 0: a",
        "  held. Skipped for now.",
        "[2/3] b, seed 0: b",
        "  trains",
        "[3/3] c, seed 0: c",
        "  FAILED: no keras_hub",
        "[1/3] a, seed 0: a",
        "  trains",
    ]


def test_other_numbers_of_threads_are_noted_once(monkeypatch, capsys):
    own = environment.thread_count()
    for threads in (0, own, own + 1):
        outcomes = {("a", seed): [Outcome({"row": "a", "seed": seed}, threads=threads)] for seed in (0, 1)}
        scheduler.run_all([FakeRun("a", 0), FakeRun("a", 1)], lambda run: "folder", Tasks(outcomes))
        notes = [line for line in capsys.readouterr().out.splitlines() if "Note" in line]
        expected = f"  Note: tasks have {own + 1} threads, this command {own}, so that results can differ in rounding"
        assert notes == ([expected] if threads > own else [])


def test_an_interrupted_suite_interrupts_its_tasks():
    tasks = Tasks({})
    tasks.ended = mock.Mock(side_effect=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        scheduler.run_all([FakeRun("a", 0), FakeRun("a", 1)], lambda run: "folder", tasks)
    assert tasks.cancelled == [0, 1]


@pytest.mark.parametrize("text", ["num_cpus", "=2", ""])
def test_options_without_a_value_are_refused(text, tmp_path):
    with pytest.raises(ValueError, match="Expected --launcher_options=NAME=VALUE"):
        launchers.launcher_of("ray", [text], str(tmp_path))


def test_a_plugin_adds_a_launcher(monkeypatch, tmp_path):
    monkeypatch.setitem(launchers.LAUNCHERS, "mine", lambda options, workdir: (options, workdir))
    assert launchers.launcher_of("mine", ["queue=fast", "cores=2"], str(tmp_path)) == ({"queue": "fast", "cores": 2}, str(tmp_path))
    checks.check_choices("train", {"launcher": "mine", "evaluations": ("clean",)})
    with pytest.raises(ValueError, match="--launcher.*mime.*mine"):
        checks.check_choices("train", {"launcher": "mime", "evaluations": ("clean",)})


def test_missing_clusters_and_unknown_options_are_named(tmp_path, monkeypatch):
    pytest.importorskip("submitit")  # of the extra [slurm]
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConnectionError, match="Slurm's commands.*cluster=local"):
        launchers.launcher_of("slurm", [], str(tmp_path))
    with pytest.raises(ValueError, match="'num_gpu': 1"):
        launchers.launcher_of("slurm", ["cluster=local", "num_gpu=1"], str(tmp_path))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["harden", "zoo:digits/lenet_augmix", "--launcher=ray"], "--launcher: it belongs to tf-robust train or .* or tf-robust sweep"),
        (["evaluate", "zoo:digits/lenet_augmix", "--launcher=ray", "--formats=keras"], "Expected --launcher=local with --formats"),
        (["train", "--launcher=ray", "--evaluations=none"], "Expected evaluations with --launcher=ray"),
        (["suite", "flags/fcl/small", "--launcher_options=num_cpus=2"], "Expected --launcher=ray or slurm with --launcher_options"),
        (["sweep", "fcl_k=1..9", "--method=fcl", "--sweep_engine=optuna", "--launcher=slurm"], "--launcher=local with --sweep_engine"),
    ],
)
def test_commands_without_tasks_refuse_a_launcher(arguments, message, tmp_path):
    for package in ("ray", "submitit", "optuna"):
        pytest.importorskip(package)
    with pytest.raises(ValueError, match=message):
        main(*arguments, f"--workdir={tmp_path}")


def test_while_tasks_go_on_their_last_lines_are_printed_and_those_that_ended_are_shown(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(scheduler, "_STATUS_SECONDS", 0.0)
    runs, shown = [FakeRun("a", seed) for seed in (0, 1, 2)], []
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / launchers.LOG).write_text("Epoch 1/2\nEpoch 2/2\n\n")
    scheduler.run_all(runs, lambda run: str(tmp_path / str(run.seed)), Tasks({}), show=lambda done: shown.append(len(done)))
    assert shown == [1, 2]
    printed = capsys.readouterr().out
    assert printed.count("a, seed 0: Epoch 2/2") == 2 and printed.count("a, seed 1: not begun") == 1


class Sharing:
    """A launcher whose tasks are called at once, until one of them is not a failure."""

    tasks = 3

    def __init__(self, *failures):
        self.failures, self.cancelled, self.called = list(failures), [], 0

    def submit(self, function, log):
        self.called += 1
        return log

    def ended(self, handles, seconds):
        return [handles[0]]

    def outcome(self, handle):
        return Outcome(None, self.failures.pop(0) if self.failures else "")

    def cancel(self, handles):
        self.cancelled += handles


def test_the_work_is_done_when_one_task_ends_without_a_failure(tmp_path, capsys):
    one = Sharing("node lost")
    scheduler.share(one, lambda: None, str(tmp_path))
    assert one.called == 3 and one.cancelled == [str(tmp_path / "task_2.log")]
    assert "FAILED: node lost (output: " in capsys.readouterr().out
    with pytest.raises(ValueError, match="(?s)All tasks failed.*a.*b.*c"):
        scheduler.share(Sharing(*"abc"), lambda: None, str(tmp_path))
    unknown = Sharing()
    unknown.tasks = 0
    with pytest.raises(ValueError, match="--launcher_options=tasks=N"):
        scheduler.share(unknown, lambda: None, str(tmp_path))


def test_a_task_works_in_the_folder_of_the_command_and_writes_its_output(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()

    def function():
        os.write(1, str(os.listdir(".")).encode())
        raise ValueError("no data")

    monkeypatch.chdir("/")
    log = tmp_path / "logs" / "task.log"
    assert call(function, str(log), str(tmp_path), []) == Outcome(None, "no data")
    assert call(dict, str(log), str(tmp_path), []) == Outcome({}, threads=environment.thread_count())
    assert "'data'" in log.read_text()


def test_a_cluster_that_does_not_answer_is_named_at_once(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port()}")
    with pytest.raises(ConnectionError, match=r"Expected a Ray cluster at RAY_ADDRESS=127.0.0.1:\d+. Received: no connection .*refused"):
        launchers.launcher_of("ray", [], str(tmp_path))


def test_the_death_of_the_commands_own_node_is_named(monkeypatch):
    ray = pytest.importorskip("ray")
    launcher = launchers.RayLauncher.__new__(launchers.RayLauncher)
    monkeypatch.setattr(ray, "get", mock.Mock(side_effect=[ray.exceptions.LocalRayletDiedError, ray.exceptions.WorkerCrashedError]))
    with pytest.raises(ConnectionError, match="Expected the Ray node of this command .* Received: it died"):
        launcher.outcome(None)
    assert launcher.outcome(None).failure.startswith("the task was lost (")


class Job:
    """A job of Slurm in a state, whose log has lines of TensorFlow."""

    cancelled = False

    def __init__(self, name, state, folder):
        self.job_id, self.state, self.paths = name, state, types.SimpleNamespace(stderr=folder / "err")

    def done(self):
        return self.state not in ("RUNNING", "PREEMPTED")  # as submitit says

    def get_info(self, mode):
        return {"State": self.state}

    def result(self):
        if self.state != "COMPLETED":
            import submitit

            raise submitit.core.utils.UncompletedJobError("no output")
        return Outcome({"job": self.job_id})

    def cancel(self, check=True):
        self.cancelled = True


@pytest.fixture
def slurm(tmp_path):
    """A function: states of the jobs -> (launcher that submits them one after the other, the jobs)."""
    pytest.importorskip("submitit")  # of the extra [slurm]
    (tmp_path / "err").write_text(LOG_OF_TENSORFLOW)

    def of(*states):
        jobs = [Job(str(number), state, tmp_path) for number, state in enumerate(states)]
        waiting, launcher = list(jobs), launchers.SlurmLauncher.__new__(launchers.SlurmLauncher)
        launcher._executor = types.SimpleNamespace(submit=lambda *_: waiting.pop(0))
        return launcher, jobs

    return of


LOG_OF_TENSORFLOW = """srun: error: node3: task 0: Killed
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1764314463.123456   28652 cuda_platform.cc:51] This binary is optimized
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the appropriate compiler flags.
2026-11-28 07:20:00.123456: E external/local_xla/xla/stream_executor/cuda/cuda_platform.cc:51] failed call to cuInit
"""


def test_lost_jobs_are_submitted_again(slurm, capsys):
    launcher, jobs = slurm("NODE_FAIL", "PREEMPTED", "CANCELLED", "COMPLETED")
    task = launcher.submit(None, "log")
    assert launcher.ended([task], 60.0) == [task] and launcher.outcome(task) == Outcome({"job": "3"})
    assert [job.cancelled for job in jobs] == [True, True, True, False]
    assert capsys.readouterr().out.splitlines()[0] == (
        "  Note: the job 0 was lost (NODE_FAIL: srun: error: node3: task 0: Killed). It is submitted again."
    )
    running, _ = slurm("RUNNING")
    assert running.ended([running.submit(None, "log")], 0.0) == []


def test_a_job_that_is_lost_six_times_is_a_failure(slurm):
    launcher, jobs = slurm(*["NODE_FAIL"] * 7)
    task = launcher.submit(None, "log")
    assert launcher.ended([task], 60.0) == [task] and [job.cancelled for job in jobs] == [True] * 6 + [False]
    assert launcher.outcome(task).failure.startswith(
        "the job 5 was lost (NODE_FAIL: srun: error: node3: task 0: Killed), as were 5 before it. Its log: "
    )


def test_a_killed_job_of_this_machine_is_submitted_again(tmp_path, monkeypatch):
    submitit = pytest.importorskip("submitit")
    monkeypatch.setattr(submitit.core.core.Job, "_results_timeout_s", 0.5)  # until a result counts as missing
    launcher = launchers.launcher_of("slurm", ["cluster=local"], str(tmp_path))
    task = launcher.submit(functools.partial(_die_once, str(tmp_path / "begun")), str(tmp_path / "logs" / "task.log"))
    assert launcher.ended([task], 120.0) == [task] and launcher.outcome(task).evaluation == {"attempts": 2}


def _die_once(path):
    """Kills its process at the first call; at the second returns the number of calls."""
    with open(path, "a+") as file:
        file.write("x")
        file.flush()
        file.seek(0)
        count = len(file.read())
    if count == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"attempts": count}


@pytest.fixture
def alone():
    """The environment of commands that use Ray without a cluster, on a machine where there once was one."""
    pytest.importorskip("ray")
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as short:  # the paths of sockets are limited
        folder = pathlib.Path(short, "ray")
        folder.mkdir()
        (folder / "ray_current_cluster").write_text(f"127.0.0.1:{free_port()}")
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        yield {**environment, "PYTHONPATH": os.pathsep.join(sys.path), "RAY_TMPDIR": short}


@pytest.mark.slow
def test_resources_that_this_machine_lacks_are_refused(alone, tmp_path):
    command = [sys.executable, "-m", "tf_robust", "train", *COMMON, "--seeds=0,1", "--launcher=ray", "--launcher_options=num_cpus=1000"]
    done = subprocess.run([*command, f"--workdir={tmp_path}/run"], env=alone, capture_output=True, text=True, timeout=300)
    assert "Ray on this machine alone. RAY_ADDRESS=HOST:6379 names a cluster." in done.stdout
    assert done.returncode == 2 and "Expected --launcher_options with resources of this machine. Received: CPU=1000" in done.stderr


@pytest.mark.slow
def test_slurm_jobs_of_this_machine_write_the_files_of_one_process(table, tmp_path, capfd):
    pytest.importorskip("submitit")  # of the extra [slurm]
    here, jobs = str(tmp_path / "here"), str(tmp_path / "jobs")
    main("suite", table, "--seeds=0", f"--workdir={here}")
    main("suite", table, "--seeds=0", "--launcher=slurm", "--launcher_options=cluster=local,cpus_per_task=1", f"--workdir={jobs}")
    assert len(evaluations(here)) == 2 and evaluations(here) == evaluations(jobs)
    assert os.path.getsize(os.path.join(jobs, "low", "seed_0", launchers.LOG)) and "2 of 2 complete" in capfd.readouterr().out


MEASURED = ["evaluate", "zoo:digits/lenet_augmix", "--evaluations=clean,noise,corruptions", "--severities=2", "--subset=60"]


def assert_measured_alike(here, other):
    """Asserts that two workdirs have the same evaluation, of sets that were measured once each. Returns their names."""
    one, two = (read_json(os.path.join(folder, "evaluation.json")) for folder in (here, other))
    assert one == {**two, "date": one["date"]}
    sets, others = ([record["set"] for record in read_records(os.path.join(folder, "measured.jsonl"))] for folder in (here, other))
    assert sorted(sets) == sorted(others)
    return sets


@pytest.mark.slow
def test_jobs_share_the_sets_of_an_evaluation(tmp_path, capfd):
    pytest.importorskip("submitit")  # of the extra [slurm]
    here, jobs = str(tmp_path / "here"), str(tmp_path / "jobs")
    main(*MEASURED, f"--workdir={here}")
    main(*MEASURED, "--launcher=slurm", "--launcher_options=cluster=local,tasks=2", f"--workdir={jobs}")
    assert_measured_alike(here, jobs)
    measured = [pathlib.Path(jobs, f"task_{number}.log").read_text().count("60 images") for number in (0, 1)]
    assert min(measured) > 0 and "60 images" not in capfd.readouterr().out.partition("2 tasks")[2].partition("Report:")[0]


@pytest.fixture
def cluster():
    """Two Ray nodes on this machine."""
    pytest.importorskip("ray")
    with Cluster() as started:
        yield started


@pytest.mark.slow
def test_a_cluster_of_two_nodes_writes_the_files_of_one_process_after_kills(table, tmp_path, cluster):
    """A task is killed, then the command, which is started again. For more kills: python tests/killed_launcher.py FOLDER 30 0."""
    here, tasks = str(tmp_path / "here"), str(tmp_path / "tasks")
    main("suite", table, "--seeds=0", f"--workdir={here}")
    command = [sys.executable, "-m", "tf_robust", "suite", table, "--seeds=0", "--launcher=ray", f"--workdir={tasks}"]
    with subprocess.Popen(command, env=cluster.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        _kill_a_task(cluster)
        time.sleep(2)
        first.kill()
    done = subprocess.run(command, env=cluster.environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert len(evaluations(here)) == 2 and evaluations(here) == evaluations(tasks)
    assert "2 of 2 complete" in done.stdout and "no node" not in done.stdout


@pytest.mark.slow
def test_resources_that_no_node_has_are_named(table, tmp_path, cluster):
    command = [sys.executable, "-m", "tf_robust", "suite", table, "--launcher=ray", "--launcher_options=num_cpus=1,num_gpus=2"]
    with subprocess.Popen(
        [*command, f"--workdir={tmp_path / 'tasks'}"], env=cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as waiting:
        try:  # it waits, since a node with them may join
            assert any("no node of the Ray cluster has CPU=1, GPU=2" in line for line in waiting.stdout)
        finally:
            waiting.kill()


@pytest.mark.slow
def test_two_commands_on_one_workdir_measure_nothing_twice(tmp_path, cluster):
    pytest.importorskip("pyarrow")
    here, shared = tmp_path / "here", tmp_path / "shared"
    arguments = [*MEASURED, "--per_image"]
    main(*arguments, f"--workdir={here}")
    command = [sys.executable, "-m", "tf_robust", *arguments, "--launcher=ray", f"--workdir={shared}"]
    logs = [tmp_path / f"log_{number}" for number in (0, 1)]
    running = []
    for log in logs:
        with open(log, "w") as file:
            running.append(subprocess.Popen(command, env=cluster.environment, stdout=file, stderr=subprocess.STDOUT))
    _kill_a_task(cluster)
    assert [process.wait(900) for process in running] == [0, 0], [log.read_text() for log in logs]
    sets = assert_measured_alike(here, shared)
    files = [{path.relative_to(folder): path.read_bytes() for path in folder.glob("per_image/**/*.parquet")} for folder in (here, shared)]
    assert len(files[0]) == len(sets) and files[0] == files[1]


def _kill_a_task(cluster):
    """Kills the first task two seconds after it began."""
    while not (tasks := cluster.tasks()):
        time.sleep(0.1)
    time.sleep(2)
    kill(tasks[0])
