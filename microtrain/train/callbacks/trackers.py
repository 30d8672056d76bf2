"""TensorBoard, MLflow and Weights & Biases, each by one line: `callbacks: [tensorboard]`.

A tracker gets every row of metrics.jsonl as it is written, and the configuration. Beside them lies
a small file of each tracker that says which run of its own this is and how far it has come: a run
that is resumed goes on in it, and what it takes again since its checkpoint is not logged twice.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from ...common.files import make_directory, read_object, remove, write_whole
from ...config.resolved import as_yaml, read_settings
from ...config.texts import Measure
from ...errors import LaunchError, UserError, install
from ...runs.metrics import read_metrics
from .base import Callback, Ending

if TYPE_CHECKING:
    from ..trainer import Trainer

_PLACES = ("split", "step", "epoch", "samples", "time")  # of a row: what is not a measure


class _Tracker(Callback):
    """What trackers have in common; each of them opens its run, logs values, and closes it."""

    main_only = True
    name = ""  # of the extra, too
    _open = False

    def on_start(self, trainer: Trainer) -> None:
        """Begin a run of the tracker, or go on with that of the run that is resumed.

        Raises LaunchError where that cannot be done, also without the package.
        """
        self._file = trainer.path / f"{self.name}.json"
        self.id = ""  # of its run; empty where there is none yet
        self._steps: dict[str, int] = {}  # of the last value of each measure
        try:
            if self._file.exists():
                kept = read_object(self._file)
                self.id, self._steps = kept["id"], dict(kept["steps"])
            settings = read_settings(trainer.config_text, trainer.path / "config.yaml")
            self.open(trainer, {key: as_yaml(each.value) for key, each in settings.items()})
            self._open = True
            self._keep()
        except UserError:
            raise
        except ModuleNotFoundError as error:
            package = str(error.name).partition(".")[0]
            raise LaunchError(f"{package} is not installed; {install(self.name)}") from None
        except Exception as error:
            raise LaunchError(f"callback {self.name}: {error}") from error

    def on_log(self, trainer: Trainer, row: Mapping[str, Any]) -> None:
        """Log the measures of a row, those that are not there yet."""
        self._try(trainer, lambda: self._log_row(row))

    def _log_row(self, row: Mapping[str, Any]) -> None:
        split, step = row["split"], row["step"]
        values: dict[str, float] = {
            Measure.of(split, key): value for key, value in row.items() if key not in _PLACES
        }
        values = {key: v for key, v in values.items() if step > self._steps.get(key, -1)}
        self.log(values, step, {"epoch": row["epoch"], "samples": row["samples"]})
        self._steps.update(dict.fromkeys(values, step))
        self._keep()

    def on_end(self, trainer: Trainer, ending: Ending) -> None:
        """How it ends; there are rows to come."""
        self._finished = ending.finished

    def on_stop(self, trainer: Trainer) -> None:
        """Say how the run has ended."""
        self._try(trainer, lambda: self.close(self._finished))
        self._open = False

    def on_error(self, trainer: Trainer, error: BaseException) -> None:
        """Say that it has failed."""
        self._finished = False
        self.on_stop(trainer)

    def _keep(self) -> None:
        about = {"id": self.id, "steps": self._steps}
        write_whole(self._file, json.dumps(about).encode(), sync=False)

    def _try(self, trainer: Trainer, function: Callable[[], None]) -> None:
        """Losing the tracker is no reason to lose the run: its rows are in metrics.jsonl."""
        if not self._open:
            return
        try:
            function()
        except Exception as error:
            self._open = False
            go_on = "the run goes on without it, its rows are in metrics.jsonl"
            trainer.output.warn(f"{self.name}: {error}; {go_on}")

    def open(self, trainer: Trainer, settings: dict[str, str]) -> None:
        """Begin a run with these settings and set `id`, or go on with that of `id`."""
        raise NotImplementedError

    def log(self, values: dict[str, float], step: int, place: dict[str, float]) -> None:
        """Log values measured after `step`, and epoch and samples of it."""
        raise NotImplementedError

    def close(self, finished: bool) -> None:
        """The run has ended."""
        raise NotImplementedError


class TensorBoard(_Tracker):
    """Writes event files into `tensorboard/` of the run directory: `tensorboard --logdir runs`.

    Needs the extra `tensorboard` (the package tensorboardX).

    Example:
        >>> callbacks = [mt.train.TensorBoard()]  # of a Trainer; callbacks: [tensorboard] in YAML
    """

    name = "tensorboard"

    def open(self, trainer: Trainer, settings: dict[str, str]) -> None:
        """One more event file; the configuration goes into the first."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.summary import text

        folder = trainer.path / self.name
        make_directory(folder)
        # Not a SummaryWriter: its threads hold back what a run that is killed has logged last. Two
        # files of one second must not have one name.
        self._writer: Any = EventsWriter(str(folder / "events"), f".{os.getpid()}")
        if not self.id:
            self.id = folder.name
            lines = "".join(f"    {key}: {value}\n" for key, value in settings.items())
            self._write(text("configuration", lines), 0)

    def _write(self, summary: Any, step: int) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._writer.write_event(Event(wall_time=time.time(), step=step, summary=summary))

    def log(self, values: dict[str, float], step: int, place: dict[str, float]) -> None:
        """Scalars, on disk when this returns."""
        from tensorboardX.summary import scalar

        for key, value in values.items():
            self._write(scalar(key, value), step)
        self._writer.flush()

    def close(self, finished: bool) -> None:
        """The run has ended."""
        self._writer.close()


class MLflow(_Tracker):
    """Logs into MLflow: where `uri` or MLFLOW_TRACKING_URI says, else `.mlflow` in `run_dir`.

    Needs the extra `mlflow`. There `mlflow ui --backend-store-uri sqlite:///mlflow.db` shows it.

    Args:
        experiment: what runs are kept together under.
        uri: of a tracking server or a database, such as `http://localhost:5000`.

    Example:
        >>> callbacks = [mt.train.MLflow(experiment="iris")]
    """

    name = "mlflow"

    def __init__(self, experiment: str = "microtrain", uri: str | None = None) -> None:
        self.experiment, self.uri = experiment, uri

    def open(self, trainer: Trainer, settings: dict[str, str]) -> None:
        """A run of the experiment; its parameters are those of the configuration."""
        import logging

        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # each table it makes
        place = self.uri or os.environ.get("MLFLOW_TRACKING_URI")
        files = None
        if not place:  # hidden: runs/* are runs
            folder = trainer.path.parent.parent.absolute() / ".mlflow"
            make_directory(folder)
            place, files = f"sqlite:///{folder}/mlflow.db", folder.as_uri()
        self._client = client = MlflowClient(tracking_uri=place)
        if self.id:
            client.update_run(self.id, status="RUNNING")
            return
        found = client.get_experiment_by_name(self.experiment)
        number = found.experiment_id if found else client.create_experiment(self.experiment, files)
        label = f"{trainer.path.parent.name}/{trainer.path.name}"
        self.id = str(client.create_run(number, run_name=label).info.run_id)
        params = [Param(key, value[:500]) for key, value in settings.items()]
        for first in range(0, len(params), 100):  # as many as a request takes
            client.log_batch(self.id, params=params[first : first + 100])

    def log(self, values: dict[str, float], step: int, place: dict[str, float]) -> None:
        """Metrics of the run."""
        for key, value in values.items():
            self._client.log_metric(self.id, key, value, step=step)

    def close(self, finished: bool) -> None:
        """The run has ended."""
        self._client.set_terminated(self.id, "FINISHED" if finished else "KILLED")


class WandB(_Tracker):
    """Logs into Weights & Biases: offline, into `wandb/` of the run directory, unless told.

    Needs the extra `wandb`. `wandb sync RUN/wandb/offline-run-*` sends what was logged offline.

    Args:
        project: what runs are kept together under.
        mode: "online" sends everything to W&B's servers while the run lasts.
        entity: the account or team; None: the one that is logged in.

    Example:
        >>> callbacks = [mt.train.WandB(project="iris", mode="offline")]
    """

    name = "wandb"

    def __init__(
        self,
        project: str = "microtrain",
        mode: Literal["offline", "online"] = "offline",
        entity: str | None = None,
    ) -> None:
        self.project, self.mode, self.entity = project, mode, entity

    def open(self, trainer: Trainer, settings: dict[str, str]) -> None:
        """A run of the project, of the same id after a resume.

        A run that was killed may have lost what it had logged last. Online the server knows how far
        it has come; offline the log is written anew, from the rows of the run.
        """
        import wandb

        folder, again = trainer.path / self.name, bool(self.id)
        if again and self.mode == "offline":
            remove(folder)
        make_directory(folder)
        self.id = self.id or os.urandom(6).hex()
        self._steps.clear()
        self._run: Any = wandb.init(
            project=self.project,
            entity=self.entity,
            mode=self.mode,
            dir=str(trainer.path),
            id=self.id,
            resume="allow" if self.mode == "online" else None,
            name=f"{trainer.path.parent.name}/{trainer.path.name}",
            config=settings,
            settings=wandb.Settings(console="off", silent=True),
        )
        if again and self.mode == "offline":
            for row in read_metrics(trainer.path / "metrics.jsonl"):
                self._log_row(row)

    def log(self, values: dict[str, float], step: int, place: dict[str, float]) -> None:
        """A point of the history; test values, which are of the best step, into the summary."""
        if any(Measure(key).part == "test" for key in values):
            self._run.summary.update(values)
        else:
            self._run.log({**values, **place}, step=step)

    def close(self, finished: bool) -> None:
        """The run has ended."""
        self._run.finish(exit_code=0 if finished else 1)
