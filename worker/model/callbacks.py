"""The user's callbacks() in a job of many workers.

Owns what each callback means here: a rule for the master, a learning rate, or hooks that
this worker calls. Anything that could not mean the same as in Keras is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from shoal import callbacks as ours
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.proto import shoal_pb2 as pb
from shoal.worker.code.module import UserModule, user_code
from shoal.worker.code.of_keras import is_keras_own, is_of_keras
from shoal.worker.model.built import Optimizers

UPWARDS = ("acc", "auc", "precision", "recall", "f1", "fmeasure")
DOWNWARDS = ("loss", "error", "mse", "mae", "rmse", "entropy")

HOOKS = (
    *("on_train_begin", "on_train_end", "on_train_batch_begin", "on_train_batch_end"),
    *("on_batch_begin", "on_batch_end", "on_test_end"),
)
"""What this worker calls. on_train_batch_begin calls on_batch_begin, and so does its end."""

NOT_CALLED = (
    *("on_epoch_begin", "on_epoch_end", "on_test_begin"),
    *("on_test_batch_begin", "on_test_batch_end", "on_predict_begin", "on_predict_end"),
    *("on_predict_batch_begin", "on_predict_batch_end"),
)

IGNORED = ("History", "ProgbarLogger", "TerminateOnNaN")
"""Keras's own whose work shoal does anyway."""

INSTEAD = {
    "ModelCheckpoint": (
        "no worker has the whole model; take shoal.callbacks.ExportBest for a model file of the "
        "best evaluation, shoal.callbacks.Checkpoint for the job's own checkpoints"
    ),
    "OrbaxCheckpoint": "take shoal.callbacks.Checkpoint",
    "BackupAndRestore": "the job takes checkpoints, and shoal train --resume goes on from them",
    "CSVLogger": "no worker sees a whole epoch; metrics.csv in the job folder has every evaluation",
    "RemoteMonitor": "no worker sees a whole epoch; result.json has every evaluation",
    "SwapEMAWeights": "servers keep no averages of weights",
}
"""Keras's own that would write or read what no worker has, and what there is instead."""


class Callbacks:
    """The callbacks of a module, sorted by who acts on them."""

    def __init__(self, module: UserModule, optimizers: Optimizers) -> None:
        """Call callbacks(). Raises UserError for what cannot act in a job."""
        self._what = module.describe("callbacks")
        self._optimizers = optimizers
        self.rules = pb.TrainingRules()
        self._schedules: list[Callable[[int, int], float]] = []
        self._hooked: list[Any] = []
        self._batches = 0
        self._rates: list[float] = []
        self._model: Any = None
        self._training = False
        self._plateau: ours.ReduceLROnPlateau | None = None
        self._tensorboard = False
        self.rate_reductions = 0
        """How often the master has reduced the rate, as ReduceLROnPlateau says."""
        self.epoch = 0
        if module.callbacks is None:
            return
        with user_code(self._what):
            given = module.callbacks()
        if not isinstance(given, list | tuple):
            raise UserError(
                f"{self._what} returned {type(given).__name__}, not a list of callbacks"
            )
        for each in given:
            self._take(each)
        if len(self._schedules) > 1:
            raise UserError(f"{self._what}: there are two schedules of the learning rate")

    def _take(self, callback: Any) -> None:
        own_keras = is_keras_own(callback)
        name = type(callback).__name__
        if isinstance(callback, ours.MaxSteps):
            least = min(self.rules.max_steps or callback.steps, callback.steps)
            self.rules.max_steps = least
        elif isinstance(callback, ours.EarlyStopping):
            self._early_stopping(callback)
        elif isinstance(callback, ours.LearningRateScheduler):
            schedule, by = callback.schedule, callback.by
            self._schedules.append(
                lambda version, epoch: float(schedule(version if by == "version" else epoch))
            )
        elif isinstance(callback, ours.ReduceLROnPlateau):
            self._reduce(callback)
        elif isinstance(callback, ours.Checkpoint):
            self._once("checkpoint", name)
            self._best(self.rules.checkpoint, callback)
        elif isinstance(callback, ours.ExportBest):
            self._once("export", name)
            self._best(self.rules.export, callback)
        elif isinstance(callback, ours.MLflow):
            self._record(callback)
        elif not is_of_keras(callback, "callbacks.Callback"):
            raise UserError(
                f"{self._what}: {name} is neither of shoal.callbacks nor a keras.callbacks.Callback"
            )
        elif own_keras and is_of_keras(callback, "callbacks.EarlyStopping"):
            self._early_stopping(self._translated(callback))
        elif own_keras and is_of_keras(callback, "callbacks.LearningRateScheduler"):
            self._schedules.append(self._by_epoch(callback.schedule))
        elif own_keras and is_of_keras(callback, "callbacks.ReduceLROnPlateau"):
            self._reduce(_plateau_of(callback))
        elif own_keras and name == "TensorBoard":
            self._tensorboard = True
        elif own_keras and name in INSTEAD:
            raise UserError(f"{self._what}: {name} is not supported: {INSTEAD[name]}")
        elif not (own_keras and name in IGNORED):
            self._check_hooks(callback, name)
            self._hooked.append(callback)

    def _record(self, callback: ours.MLflow) -> None:
        self._once("mlflow", "MLflow")
        if find_spec("mlflow") is None:
            raise UserError(
                f"{self._what}: MLflow needs the package mlflow, which is missing: "
                "pip install mlflow-skinny"
            )
        target = self.rules.mlflow
        target.tracking_uri, target.experiment = callback.tracking_uri, callback.experiment
        target.run_name = callback.run_name
        target.tags.update(callback.tags)
        target.SetInParent()

    def _once(self, rule: str, name: str) -> None:
        if self.rules.HasField(rule):
            raise UserError(f"{self._what}: there are two callbacks {name}")

    def _check_hooks(self, callback: Any, name: str) -> None:
        import keras  # late: it is loaded, since the callback is of it

        base = keras.callbacks.Callback
        for hook in NOT_CALLED:
            defined = getattr(type(callback), hook) is not getattr(base, hook)
            if defined or hook in vars(callback):
                raise UserError(
                    f"{self._what}: {name} needs {hook}(), which a job of many workers cannot "
                    f"call at one place and time; shoal calls {', '.join(HOOKS)}"
                )

    def _translated(self, callback: Any) -> ours.EarlyStopping:
        if callback.restore_best_weights:
            raise UserError(
                f"{self._what}: EarlyStopping(restore_best_weights=True) is not supported: the "
                "tables on the servers go on with the last values; add shoal.callbacks.ExportBest"
                f"({callback.monitor.removeprefix('val_')!r}), which exports the best"
            )
        return ours.EarlyStopping(
            monitor=callback.monitor.removeprefix("val_"),
            patience=callback.patience,
            min_delta=abs(callback.min_delta),
            mode=callback.mode,
            baseline=callback.baseline,
            start_from_epoch=callback.start_from_epoch,
        )

    def _maximize(self, callback: Any) -> bool:
        """True if the metric of one of our callbacks is to rise. Raises UserError if unclear."""
        if callback.mode != "auto":
            return bool(callback.mode == "max")
        name = callback.monitor.lower()
        upwards = any(part in name for part in UPWARDS)
        if upwards == any(part in name for part in DOWNWARDS):
            raise UserError(
                f"{self._what}: the name does not say whether {callback.monitor!r} should rise or "
                f"fall: give {type(callback).__name__} mode='max' or mode='min'"
            )
        return upwards

    def _early_stopping(self, callback: ours.EarlyStopping) -> None:
        self.rules.early_stopping.add(
            monitor=callback.monitor,
            maximize=self._maximize(callback),
            min_delta=callback.min_delta,
            patience=callback.patience,
            baseline=callback.baseline,
            start_from_epoch=callback.start_from_epoch,
        )

    def _best(self, rule: pb.BestRule, callback: Any) -> None:
        """Fill in which evaluation is the best to one of our callbacks."""
        rule.SetInParent()
        if callback.monitor is not None:
            rule.monitor, rule.min_delta = callback.monitor, callback.min_delta
            rule.maximize = self._maximize(callback)

    def _reduce(self, callback: ours.ReduceLROnPlateau) -> None:
        self._once("plateau", "ReduceLROnPlateau")
        self._plateau = callback
        self._best(self.rules.plateau.best, callback)
        self.rules.plateau.patience = callback.patience
        self.rules.plateau.cooldown = callback.cooldown

    def _by_epoch(self, schedule: Callable[..., float]) -> Callable[[int, int], float]:
        """Keras's schedule(epoch, rate), where each epoch's rate follows from the last's."""

        def rate(_version: int, epoch: int) -> float:
            while len(self._rates) <= epoch:
                last = self._rates[-1] if self._rates else self._optimizers.default.learning_rate(0)
                try:
                    made = schedule(len(self._rates), last)
                except TypeError:  # as Keras: a schedule of the epoch alone
                    made = schedule(len(self._rates))
                self._rates.append(float(made))
            return self._rates[epoch]

        return rate

    def check(self, config: JobConfig) -> None:
        """Raises UserError if a rule lacks what it needs of the job."""
        rules = {
            "EarlyStopping": bool(self.rules.early_stopping),
            "Checkpoint": self.rules.HasField("checkpoint"),
            "ExportBest": self.rules.HasField("export"),
            "ReduceLROnPlateau": self.rules.HasField("plateau"),
        }
        for name, there in rules.items():
            if there and not (config.validation_data or config.progressive_steps):
                raise UserError(
                    f"{self._what}: {name} needs evaluations: give --validation-data, or "
                    "--progressive-steps"
                )
        if self._tensorboard and not config.tensorboard_dir:
            raise UserError(
                f"{self._what}: TensorBoard is written by the master, which does not read the "
                "callback's log_dir: give --tensorboard-dir FOLDER"
            )
        if self.rules.HasField("mlflow") and not config.metrics_seconds:
            raise UserError(
                f"{self._what}: MLflow needs --metrics-seconds above 0, at which its run is written"
            )
        if rules["ExportBest"] and not config.output:
            raise UserError(f"{self._what}: ExportBest needs a folder to export to: give --output")
        if rules["Checkpoint"] and not (config.checkpoint_steps or config.checkpoint_seconds):
            raise UserError(
                f"{self._what}: Checkpoint needs a job that takes checkpoints: "
                "--checkpoint-seconds and --checkpoint-steps are both 0"
            )

    # ------------------------------------------------------------ while training

    def learning_rates(self, version: int, minibatches: int = 1) -> tuple[float, tuple[float, ...]]:
        """The rates of a step at `version` in the present epoch.

        Gives that of the default optimizer, and those of all tables, which are empty where all
        have the first one. A schedule of callbacks() is the default optimizer's;
        ReduceLROnPlateau reduces all of them.

        minibatches: of which a push is made. An optimizer's own schedule counts these, in
        Keras too, of which the last one before an update decides.
        """
        minibatch = (version + 1) * minibatches - 1
        if self._schedules:
            with user_code(f"the learning rate of {self._what}"):
                rate = self._schedules[0](version, self.epoch)
        else:
            rate = self._optimizers.default.learning_rate(minibatch)
        rate = self._reduced(rate)
        return rate, self._optimizers.rates(rate, minibatch, self._reduced)

    def _reduced(self, rate: float) -> float:
        """The rate that ReduceLROnPlateau leaves of a rate."""
        if self._plateau is None:
            return rate
        reduced = rate * self._plateau.factor**self.rate_reductions
        return max(reduced, min(rate, self._plateau.min_lr))

    def begin(self, model: Any, epoch: int) -> None:
        """A training task of `epoch` begins; before the first, on_train_begin.

        model: Keras's.
        """
        self.epoch = epoch
        if not self._training:
            self._training = True
            self._tell(model, "on_train_begin")

    def _tell(self, model: Any, hook: str, *arguments: Any) -> None:
        if not self._hooked:
            return
        self._model = model
        with user_code(self._what):
            for each in self._hooked:
                if each.model is not model:
                    each.set_model(model)
                getattr(each, hook)(*arguments)

    def step(self, loss: float) -> None:
        """A step of this worker: on_train_batch_begin and on_train_batch_end."""
        if not self._hooked:
            return
        with user_code(self._what):
            for each in self._hooked:
                each.on_train_batch_begin(self._batches)
                each.on_train_batch_end(self._batches, {"loss": loss})
        self._batches += 1

    def evaluated(self, model: Any, metrics: dict[str, float]) -> None:
        """A round of evaluation was finished by this worker: on_test_end."""
        self._tell(model, "on_test_end", dict(metrics))

    def stop_reason(self) -> str:
        """The reason why a callback has set model.stop_training; empty if none has."""
        if self._hooked and getattr(self._model, "stop_training", False):
            return f"a callback of {self._what} set model.stop_training"
        return ""

    def end(self) -> None:
        """The worker has trained its last task: on_train_end."""
        if self._training:
            self._tell(self._model, "on_train_end")


def _plateau_of(callback: Any) -> ours.ReduceLROnPlateau:
    """Keras's, which counts epochs, as ours, which counts evaluations."""
    return ours.ReduceLROnPlateau(
        monitor=callback.monitor.removeprefix("val_"),
        factor=callback.factor,
        patience=callback.patience,
        min_delta=callback.min_delta,
        mode=callback.mode,
        cooldown=callback.cooldown,
        min_lr=callback.min_lr,
    )
