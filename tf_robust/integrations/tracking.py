"""Trackers of runs: Weights & Biases (extra `[wandb]`) and MLflow (extra `[mlflow]`). TensorBoard's files are written in any case.

Both packages are configured by their own environment variables, such as WANDB_MODE=offline and MLFLOW_TRACKING_URI.
"""

import contextlib
import logging
import os
import re
import time
import typing
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import keras

from tf_robust.training.loop import TrainingStopped
from tf_robust.utils.errors import message_of
from tf_robust.utils.files import read_json, write_json
from tf_robust.utils.progress import print_note

PROJECT = "tf_robust"  # unless WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME is set
RUN_IDS = "trackers.json"  # {tracker: ID of its run}, in a workdir
_BATCH = 100  # parameters or metrics that MLflow takes at once
_CHARACTERS = 200  # of a message that is shown
Ending = typing.Literal["finished", "failed", "interrupted"]
_REFUSED = re.compile(r"[^\w\-. :/]")  # in the names of MLflow's metrics
_MAX_NAME = 250  # characters of such a name


class WandB:
    """A run of Weights & Biases, whose files are in a folder: that with `run_id`, or a new one if it is empty.

    `group` of similar runs; `flags`: {name: text}.
    """

    def __init__(self, folder: str, run_id: str, name: str, group: str, flags: Mapping[str, str]):
        import wandb

        self._wandb = wandb
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=run_id or uuid.uuid4().hex,
            resume="allow",
            reinit="create_new",
            name=None if run_id else name,
            group=None if run_id else group,
            config=dict(flags),
            allow_val_change=True,  # of the flags of the evaluation
            dir=folder,
            settings=wandb.Settings(silent=True, console="off"),
        )
        self.run_id = self._run.id
        self._run.define_metric("*", step_metric="epoch")

    @staticmethod
    def check() -> None:
        """Raises an error if the service does not answer or there is no login."""
        import wandb

        if os.environ.get("WANDB_MODE", "online") == "online" and not wandb.login(prompt=False):
            raise ConnectionError("no login. Try: wandb login, or WANDB_MODE=offline")

    def epoch(self, epoch: int, values: Mapping[str, float]) -> None:
        """Records the values of an epoch."""
        self._run.log({**values, "epoch": epoch})

    def results(self, values: Mapping[str, float]) -> None:
        """Records the metrics of an evaluation."""
        self._run.summary.update(values)

    def files(self, kind: str, paths: Sequence[str]) -> None:
        """Copies files and folders, of the kind run or report."""
        artifact = self._wandb.Artifact(f"{self.run_id}-{kind}", type=kind)
        for path in paths:
            (artifact.add_dir if os.path.isdir(path) else artifact.add_file)(path, name=os.path.basename(path))
        self._run.log_artifact(artifact)

    def end(self, ending: Ending) -> None:
        self._run.finish(exit_code={"finished": 0, "failed": 1, "interrupted": 255}[ending])


def accepted_name(name: str) -> str:
    """Returns the name of a metric as MLflow takes it: unchanged, or without what it refuses and with a checksum of the name."""
    parts = _REFUSED.sub("_", name).split("/")
    accepted = "/".join("_" if part in ("", ".", "..") else part for part in parts)[:_MAX_NAME]
    if accepted == name:
        return name
    checksum = f"_{zlib.crc32(name.encode('utf-8', 'surrogatepass')):08x}"  # different names stay different
    return accepted[: _MAX_NAME - len(checksum)] + checksum


class MLflow:
    """A run of MLflow. Arguments and methods as in `WandB`."""

    def __init__(self, folder: str, run_id: str, name: str, group: str, flags: Mapping[str, str]):
        mlflow = self._configured()
        self._entities, self._client = mlflow.entities, mlflow.MlflowClient()
        if run_id:
            self._client.update_run(run_id, status="RUNNING")
        else:
            experiment = mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)).experiment_id
            run_id = self._client.create_run(experiment, run_name=name, tags={"row": group}).info.run_id
            self._log("params", run_id, [self._entities.Param(*pair) for pair in sorted(flags.items())])
        self.run_id = run_id

    @staticmethod
    def check() -> None:
        MLflow._configured().MlflowClient().search_experiments(max_results=1)

    def epoch(self, epoch: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        metrics = [self._entities.Metric(accepted_name(name), value, now, epoch) for name, value in values.items()]
        self._log("metrics", self.run_id, metrics)

    def results(self, values: Mapping[str, float]) -> None:
        self.epoch(0, values)

    def files(self, kind: str, paths: Sequence[str]) -> None:
        for path in paths:
            if os.path.isdir(path):
                self._client.log_artifacts(self.run_id, path, os.path.basename(path))
            else:
                self._client.log_artifact(self.run_id, path)

    def end(self, ending: Ending) -> None:
        self._client.set_terminated(self.run_id, {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}[ending])

    @staticmethod
    def _configured():
        """The package, which tells little and gives up after two requests, not after eight in three minutes."""
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        import mlflow

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        logging.getLogger("urllib3").setLevel(logging.ERROR)
        return mlflow

    def _log(self, kind, run_id, entities):
        for start in range(0, len(entities), _BATCH):
            self._client.log_batch(run_id, **{kind: entities[start : start + _BATCH]})


TRACKERS: dict[str, type[WandB] | type[MLflow]] = {"wandb": WandB, "mlflow": MLflow}


def check(names: Sequence[str]) -> None:
    """Raises ConnectionError if one of some `TRACKERS` does not answer, or there is no login: before a command trains."""
    for name in names:
        try:
            TRACKERS[name].check()
        except Exception as error:  # of the network or the server, in the classes of each package
            raise ConnectionError(
                f"Expected tracker={name} that can be used. Received: {_short(error)}. Its settings are environment variables, such "
                "as WANDB_MODE=offline or MLFLOW_TRACKING_URI=http://HOST:5000"
            ) from error


def _short(error):
    text = message_of(error)
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}..."


class Tracked(keras.callbacks.Callback):
    """Forwards epochs, results and files to some of `TRACKERS`.

    One that fails is left out from then on, with a note: no run is lost by it.
    """

    def __init__(self, names: Sequence[str], folder: str, name: str, group: str, flags: Mapping[str, str]):
        """Begins a run of each tracker, or continues that of the workdir. Arguments as in `WandB`."""
        super().__init__()
        self.trackers: dict[str, WandB | MLflow] = {}
        path = os.path.join(folder, RUN_IDS)
        run_ids = read_json(path) if names and os.path.exists(path) else {}
        for tracker in names:
            for run_id in dict.fromkeys((run_ids.get(tracker, ""), "")):  # a new run where the earlier one does not exist any more
                with self._noted(tracker, quiet=bool(run_id)):
                    self.trackers[tracker] = TRACKERS[tracker](folder, run_id, name, group, flags)
                    break
        if self.trackers:
            write_json(path, {**run_ids, **{tracker: one.run_id for tracker, one in self.trackers.items()}})

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        values = {name: float(value) for name, value in (logs or {}).items()}
        self._each(lambda tracker: tracker.epoch(epoch, values))

    def results(self, rows: Sequence[Mapping]) -> None:
        """Records the rows of an evaluation."""
        values = {row["metric"]: row["value"] for row in rows if row["value"] is not None}
        self._each(lambda tracker: tracker.results(values))

    def files(self, kind: str, folder: str, names: Sequence[str]) -> None:
        """Copies those files and subfolders of a folder that exist; kind: run or report."""
        paths = [path for name in names if os.path.exists(path := os.path.join(folder, name))]
        self._each(lambda tracker: tracker.files(kind, paths))

    def end(self, ending: Ending) -> None:
        """Ends the runs of the trackers."""
        self._each(lambda tracker: tracker.end(ending))

    def _each(self, call: Callable) -> None:
        for name, tracker in list(self.trackers.items()):
            with self._noted(name):
                call(tracker)

    @contextlib.contextmanager
    def _noted(self, name, quiet=False):
        """A context in which a tracker may fail; it is left out then, with a note unless `quiet`."""
        try:
            yield
        except Exception as error:  # of a network, a server or a full disk, in the classes of each package
            failed = self.trackers.pop(name, None)
            if not quiet:
                print_note(f"tracker={name} failed and is left out: {_short(error)}", repeat=True)
            if failed:
                with contextlib.suppress(Exception):
                    failed.end("failed")


@contextlib.contextmanager
def tracked(names: Sequence[str], folder: str, name: str, group: str, flags: Mapping[str, str]) -> Iterator[Tracked]:
    """Opens a context in which a run is tracked by some of `TRACKERS`; arguments as in `WandB`."""
    trackers = Tracked(names, folder, name, group, flags)
    try:
        yield trackers
    except BaseException as error:
        trackers.end("interrupted" if isinstance(error, KeyboardInterrupt | TrainingStopped) else "failed")
        raise
    trackers.end("finished")
