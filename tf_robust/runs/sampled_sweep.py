"""Sweeps by Optuna (extra `[optuna]`): points are sampled by TPE (Bergstra et al., 2011) and pruned by Hyperband (Li et al., 2018).

Trials are in a database that processes share. The draws of a trial depend on the seed, the number of the trial and the results before it.
"""

import dataclasses
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np
import optuna
import sqlalchemy.exc
import tensorflow as tf

from tf_robust.evaluation import parse_metric, read_evaluation
from tf_robust.runs.run import Run
from tf_robust.runs.sweep import Axis, Point, Range, Sweep, middle, name_of
from tf_robust.training import loop
from tf_robust.utils.errors import message_of, unknown
from tf_robust.utils.locks import WorkdirLocked
from tf_robust.utils.progress import print_line

_HEARTBEAT, _GRACE = 10, 60  # seconds: between signs of life of a trial's process, and after which a silent one counts as dead
_POLL_SECONDS = 2.0
_WAITS = 0.2, 0.5, 1.0  # seconds, before a database is opened again
_COMPLETE, _PRUNED, _RUNNING, _WAITING = (getattr(optuna.trial.TrialState, name) for name in ("COMPLETE", "PRUNED", "RUNNING", "WAITING"))


class _Superfluous(Exception):
    """A trial that another process has begun at the same time, when one was left to begin."""


class Pruned(optuna.TrialPruned, loop.TrainingStopped):
    """A training ended early because others were better after as many epochs."""


class Pruning(keras.callbacks.Callback):
    """Ends a training whose validation accuracy, which the trial gets after every epoch, is far behind those of other trials."""

    def __init__(self, trial: optuna.Trial, epochs: int):
        super().__init__()
        self.trial, self.epochs = trial, epochs

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        accuracy = (logs or {}).get("val_accuracy")
        if accuracy is None:
            return
        self.trial.report(accuracy, epoch + 1)
        if epoch + 1 < self.epochs and self.trial.should_prune():
            raise Pruned(f"pruned after epoch {epoch + 1}, with a validation accuracy of {accuracy:.4f}")


def sample(sweep: Sweep, trials: int, storage: str, seeds: Sequence[int]) -> tuple[list[Point], list[dict], list[str]]:
    """Completes points that Optuna samples, and returns them, their evaluations, and messages about the trials.

    `storage`: URL of the database; empty: SQLite in the workdir. The first of the `seeds` of the runs is that of the sampler.
    """

    def runs_at(point):
        return sweep.runs_at(point, "validation")

    example = runs_at(middle(sweep.axes))[0]
    axis = sweep.axes.get("epochs", (example.config.train.epochs,))
    epochs = int(axis.high) if isinstance(axis, Range) else max(map(int, axis))
    flags = {**{name: text for name, text in example.flags.items() if name not in sweep.axes}, "seeds": ",".join(map(str, seeds))}
    sampled = SampledSweep(sweep.axes, sweep.metrics, runs_at, sweep.folder_of, trials, seeds[0], epochs, flags)
    os.makedirs(sweep.workdir, exist_ok=True)
    workdir = os.path.abspath(sweep.workdir)
    return sampled.complete(storage or f"sqlite:///{os.path.join(workdir, 'study.db')}", os.path.basename(workdir))


@dataclasses.dataclass(frozen=True)
class SampledSweep:
    """A sweep whose points are sampled. Trials are pruned, by clean accuracy on validation images, if it is the only metric."""

    axes: Mapping[str, Axis]
    metrics: Sequence[str]  # that are optimized; empty: the first metric of an evaluation
    runs_at: Callable[[Point], list[Run]]  # point -> its runs, one for each seed
    folder_of: Callable[[Run], str]
    trials: int  # with those that are pruned or fail
    seed: int  # of the sampler
    epochs: int  # of the longest training
    flags: Mapping[str, str]  # on which all trials depend

    def complete(self, storage: str, name: str) -> tuple[list[Point], list[dict], list[str]]:
        """Completes the trials of a study (`name`) in a database (the URL `storage`), or resumes it; returns as `sample` does.

        Raises ValueError if the study is one of another sweep, or the database cannot be used.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # of the signs of life
            study = self._study(storage, name)
            while (open_trials := self._open_trials(study)) is not None:
                if open_trials:
                    study.optimize(self._objective, n_trials=1, catch=_Superfluous)
                else:
                    time.sleep(_POLL_SECONDS)  # other processes complete the last trials
        ended = study.get_trials(deepcopy=False, states=(_COMPLETE, _PRUNED))
        points = {name_of(trial.user_attrs["point"]): trial.user_attrs["point"] for trial in ended if trial.state == _COMPLETE}
        runs = [run for point in points.values() for run in self.runs_at(point)]
        try:
            evaluations = [read_evaluation(os.path.join(self.folder_of(run), "evaluation.json")) for run in runs]
        except FileNotFoundError as error:
            raise ValueError(
                f"Expected the workdir of the trials of the study {name!r} in {storage}. Received: one without {error.filename}. Try: "
                "their --workdir, or another"
            ) from error
        others = [f"{name_of(one.user_attrs['point'])}: {one.user_attrs['reason']}" for one in ended if one.state == _PRUNED]
        return [*points.values()], evaluations, [f"{len(ended)} trials, of which {len(others)} were pruned or failed.", *others]

    def _study(self, storage, name):
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        directions = ["minimize" if parse_metric(metric).lower_is_better else "maximize" for metric in self.metrics] or ["maximize"]
        pruner = optuna.pruners.HyperbandPruner(max_resource=self.epochs)
        try:
            study = optuna.create_study(
                storage=_database(storage), study_name=name, directions=directions, pruner=pruner, load_if_exists=True
            )
        except ImportError as error:
            raise ImportError(
                f"Expected a driver of the database in --sweep_storage. Received: {storage} ({message_of(error.__cause__ or error)}). "
                "Try: pip install 'tf_robust[postgresql]' and --sweep_storage=postgresql+psycopg://USER@HOST/NAME"
            ) from error
        except (sqlalchemy.exc.SQLAlchemyError, ValueError) as error:
            raise ValueError(f"Expected --sweep_storage to be the URL of a database. Received: {storage} ({message_of(error)})") from error
        axes = (f"{name}={axis if isinstance(axis, Range) else ','.join(axis)}" for name, axis in self.axes.items())
        given = {**self.flags, "sweep": ";".join(axes), "sweep_metric": ",".join(self.metrics)}
        first = study.user_attrs.get("flags", given)
        if changed := sorted(flag for flag in {*first, *given} if first.get(flag) != given.get(flag)):
            then, now = (" ".join(f"--{flag}={flags.get(flag, '')}" for flag in changed) for flags in (first, given))
            raise ValueError(
                f"Expected the flags that began the study {name!r} in {storage}: {then}. Received: {now}. Try: another --workdir"
            )
        study.set_user_attr("flags", given)
        return study

    def _open_trials(self, study):
        """The number of trials that nobody has begun; None: all have ended."""
        optuna.storages.fail_stale_trials(study)
        states = [trial.state for trial in study.get_trials(deepcopy=False)]
        ended = sum(state in (_COMPLETE, _PRUNED) for state in states)
        return None if ended >= self.trials else max(0, self.trials - ended - states.count(_RUNNING))

    def _objective(self, trial):
        others = trial.study.get_trials(deepcopy=False, states=(_COMPLETE, _PRUNED, _RUNNING, _WAITING))
        before = sum(one.number < trial.number for one in others)  # without those that were interrupted and begun again
        if before >= self.trials:
            raise _Superfluous
        seed = int(np.random.SeedSequence([self.seed, trial.number]).generate_state(1)[0])
        trial.study.sampler = optuna.samplers.TPESampler(seed=seed, multivariate=False)
        point = {name: _sampled(trial, name, axis) for name, axis in self.axes.items()}
        trial.set_user_attr("point", point)
        print_line(f"[trial {before + 1}, of {self.trials}] {name_of(point)}")
        try:
            runs = self.runs_at(point)
            metrics = self.metrics or runs[0].config.evaluation.evaluations[:1]
            if len(metrics) == 1 and parse_metric(metrics[0]).is_clean:
                runs[0].callbacks = (Pruning(trial, runs[0].config.train.epochs),)
            evaluations = [one for run in runs if (one := run.complete(self.folder_of(run)))]
        except optuna.TrialPruned as error:
            return _end(trial, str(error))
        except WorkdirLocked:
            return _end(trial, "a process is completing the same point")
        except (ValueError, OSError, ImportError, tf.errors.OpError, loop.TrainingDiverged) as error:
            return _end(trial, f"failed: {message_of(error)}")
        except KeyboardInterrupt:
            trial.study.enqueue_trial(trial.params)  # resumes in the same folder
            raise
        measured = [{row["metric"]: row["value"] for row in one["rows"]} for one in evaluations]
        names = self.metrics or [*measured[0]][:1]
        for metric in names:
            if not all(metric in values for values in measured):
                raise unknown("metric to choose by", metric, measured[0])
        means = [float(np.mean([values[name] for values in measured])) for name in names]
        if not self.metrics and parse_metric(names[0]).lower_is_better:
            return [-means[0]]  # the study maximizes it: its name was unknown
        return means


def _database(storage):
    """The database of a URL, which is opened again if another process is creating the tables."""
    retry = optuna.storages.RetryHeartbeatStaleTrialCallback()
    for seconds in (*_WAITS, None):
        try:
            return optuna.storages.RDBStorage(
                storage, heartbeat_interval=_HEARTBEAT, grace_period=_GRACE, heartbeat_stale_trial_callback=retry
            )
        except sqlalchemy.exc.DBAPIError:
            if seconds is None:
                raise
            time.sleep(seconds)


def _end(trial, reason):
    trial.set_user_attr("reason", reason)
    print_line(f"  {reason}")
    raise optuna.TrialPruned(reason)


def _sampled(trial, name, axis):
    """The value of a flag, as text."""
    if not isinstance(axis, Range):
        return trial.suggest_categorical(name, axis)
    suggest = trial.suggest_int if axis.integer else trial.suggest_float
    return axis.text(suggest(name, axis.low, axis.high, log=axis.log))
