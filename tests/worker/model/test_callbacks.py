"""What a module's callbacks() becomes in a worker."""

import dataclasses
import importlib.util

import keras
import pytest

from shoal import callbacks as ours
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.worker.model.callbacks import Callbacks
from shoal.worker.model.learning.optimizer import ServedOptimizer
from shoal.worker.model.learning.optimizers import ServedOptimizers


@pytest.fixture
def taken(module):
    def take(*given, rate=0.5):
        loaded = module()
        object.__setattr__(loaded, "callbacks", lambda: list(given))
        return Callbacks(
            loaded, ServedOptimizers(keras.optimizers.SGD(rate), "optimizer()", ServedOptimizer)
        )

    return take


def test_rules_go_to_the_master(taken):
    found = taken(
        ours.MaxSteps(100),
        ours.EarlyStopping("auc", patience=3, min_delta=0.1),
        keras.callbacks.EarlyStopping("val_loss", patience=2, start_from_epoch=1, baseline=0.5),
        keras.callbacks.TerminateOnNaN(),
    )
    assert found.rules.max_steps == 100
    first, second = found.rules.early_stopping
    assert (first.monitor, first.maximize, first.patience, first.min_delta) == ("auc", True, 3, 0.1)
    assert not first.HasField("baseline")
    assert (second.monitor, second.maximize, second.patience) == ("loss", False, 2)
    assert (second.baseline, second.start_from_epoch) == (0.5, 1)


def with_mlflow(monkeypatch, *, there):
    found = importlib.util.find_spec("json") if there else None
    monkeypatch.setattr("shoal.worker.model.callbacks.find_spec", lambda _: found)


def test_a_run_of_mlflow_goes_to_the_master(taken, monkeypatch):
    with_mlflow(monkeypatch, there=True)
    found = taken(ours.MLflow("http://tracker:5000", "ads", tags={"team": "a"}))
    target = found.rules.mlflow
    assert (target.tracking_uri, target.experiment) == ("http://tracker:5000", "ads")
    assert (target.run_name, dict(target.tags)) == ("", {"team": "a"})
    with pytest.raises(UserError, match="MLflow needs --metrics-seconds above 0"):
        found.check(JobConfig(model_def="m.f", training_data="t", metrics_seconds=0.0))
    assert taken(ours.MLflow()).rules.HasField("mlflow")
    with pytest.raises(UserError, match="there are two callbacks MLflow"):
        taken(ours.MLflow(), ours.MLflow())


def test_without_its_package_mlflow_is_refused_before_training(taken, monkeypatch):
    with_mlflow(monkeypatch, there=False)
    with pytest.raises(UserError, match="package mlflow, which is missing: pip install mlflow-sk"):
        taken(ours.MLflow())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"tracking_uri": "http://me:secret@tracker"}, "set MLFLOW_TRACKING_USERNAME"),
        ({"experiment": 7}, "experiment must be text, not 7"),
        ({"tags": {"a": 1}}, "values of tags must be text"),
    ],
)
def test_what_mlflow_cannot_take_is_named(arguments, said):
    with pytest.raises(ValueError, match=said) as error:
        ours.MLflow(**arguments)
    assert "secret" not in str(error.value)


def test_best_evaluations_and_plateaus_go_to_the_master(taken):
    found = taken(
        ours.Checkpoint(),
        ours.ExportBest("auc", min_delta=0.01),
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=2, min_lr=0.2),
    )
    assert found.rules.HasField("checkpoint")
    assert found.rules.checkpoint.monitor == ""
    export = found.rules.export
    assert (export.monitor, export.maximize, export.min_delta) == ("auc", True, 0.01)
    plateau = found.rules.plateau
    assert (plateau.best.monitor, plateau.best.maximize) == ("loss", False)
    assert (plateau.patience, plateau.best.min_delta) == (2, 1e-4)
    rates = []
    for found.rate_reductions in range(3):
        rates.append(found.learning_rates(0)[0])
    assert rates == [0.5, 0.25, 0.2]


JOB = JobConfig(
    model_def="m.f", training_data="t", validation_data="v", output="o", checkpoint_seconds=1.0
)


@pytest.mark.parametrize(
    ("callback", "lacking", "words"),
    [
        (
            lambda: ours.EarlyStopping("auc"),
            {"validation_data": ""},
            "EarlyStopping needs evaluations: give --validation-data",
        ),
        (
            lambda: ours.ReduceLROnPlateau(),
            {"validation_data": ""},
            "ReduceLROnPlateau needs evaluations",
        ),
        (lambda: ours.ExportBest("auc"), {"output": ""}, "ExportBest needs .* give --output"),
        (
            lambda: ours.Checkpoint("auc"),
            {"checkpoint_seconds": 0.0, "checkpoint_steps": 0},
            "Checkpoint needs .*--checkpoint-seconds and --checkpoint-steps are both 0",
        ),
    ],
)
def test_a_rule_that_lacks_what_it_needs_names_the_flag(taken, callback, lacking, words):
    found = taken(callback())
    found.check(JOB)
    with pytest.raises(UserError, match=words):
        found.check(dataclasses.replace(JOB, **lacking))


def test_the_rate_follows_a_schedule_of_the_version_or_the_epoch(taken):
    assert taken().learning_rates(7) == (0.5, ())
    by_version = taken(ours.LearningRateScheduler(lambda version: 1 / version))
    assert by_version.learning_rates(4) == (0.25, ())
    by_epoch = taken(ours.LearningRateScheduler(lambda epoch: 10.0**-epoch, by="epoch"))
    by_epoch.begin(None, 2)
    assert by_epoch.learning_rates(999)[0] == pytest.approx(0.01)


def test_keras_scheduler_gives_each_epoch_its_rate_whatever_epochs_a_worker_sees(taken):
    found = taken(
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2 if epoch else rate)
    )
    rates = []
    for epoch in (3, 0, 1):
        found.begin(None, epoch)
        rates.append(found.learning_rates(0)[0])
    assert rates == [0.0625, 0.5, 0.25]


class Heard(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.heard = []

    def on_train_begin(self, logs=None):
        self.heard.append("begin")

    def on_train_batch_end(self, batch, logs=None):
        self.heard.append((batch, logs["loss"]))

    def on_test_end(self, logs=None):
        self.heard.append(logs)
        self.model.stop_training = logs["auc"] > 0.9

    def on_train_end(self, logs=None):
        self.heard.append("end")


def test_hooks_are_called_by_the_worker(taken):
    callback = Heard()
    found, model = taken(callback), keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    found.begin(model, 0)
    found.begin(model, 0)
    found.step(0.5)
    found.step(0.25)
    found.evaluated(model, {"auc": 0.5})
    assert found.stop_reason() == ""
    found.evaluated(model, {"auc": 0.95})
    assert "set model.stop_training" in found.stop_reason()
    found.end()
    assert callback.heard == ["begin", (0, 0.5), (1, 0.25), {"auc": 0.5}, {"auc": 0.95}, "end"]


class TwoHooks(keras.callbacks.Callback):
    """A user's own, of which one hook is called nowhere."""

    def on_train_batch_end(self, batch, logs=None):
        pass

    def on_epoch_end(self, epoch, logs=None):
        pass


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (lambda: keras.callbacks.ModelCheckpoint("x.keras"), "ModelCheckpoint is .*ExportBest"),
        (lambda: keras.callbacks.BackupAndRestore("x"), "BackupAndRestore is .*--resume"),
        (lambda: keras.callbacks.CSVLogger("x.csv"), "CSVLogger is .*metrics.csv"),
        (lambda: keras.callbacks.RemoteMonitor(), "RemoteMonitor is .*result.json"),
        (lambda: keras.callbacks.SwapEMAWeights(), "SwapEMAWeights is .*averages"),
        (lambda: TwoHooks(), r"TwoHooks needs on_epoch_end\(\).*shoal calls on_train_begin"),
        (
            lambda: keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: None),
            "LambdaCallback needs on_epoch_end.*shoal calls on_train_begin",
        ),
        (
            lambda: keras.callbacks.EarlyStopping("val_loss", restore_best_weights=True),
            r"restore_best_weights=True.* add shoal.callbacks.ExportBest\('loss'\)",
        ),
        (lambda: ours.EarlyStopping("score"), "whether 'score' should rise or fall"),
        (lambda: "stop", r"callbacks\(\) of model.py: str is neither of shoal.callbacks"),
    ],
)
def test_what_cannot_act_in_a_job_is_refused_by_name(taken, callback, words):
    with pytest.raises(UserError, match=words):
        taken(callback())


def test_two_of_one_rule_are_refused(taken):
    for callback in (ours.Checkpoint(), ours.ExportBest("auc"), ours.ReduceLROnPlateau()):
        with pytest.raises(UserError, match=f"there are two callbacks {type(callback).__name__}"):
            taken(callback, callback)


def test_the_lambda_callback_and_those_whose_work_shoal_does_are_taken(taken):
    heard = []
    found = taken(
        keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: heard.append(logs)),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.ProgbarLogger(),
        keras.callbacks.History(),
    )
    found.begin(keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]), 0)
    found.step(0.5)
    assert heard == [{"loss": 0.5}]


def test_two_schedules_are_refused(taken):
    schedule = ours.LearningRateScheduler(lambda version: 1.0)
    with pytest.raises(UserError, match="two schedules of the learning rate"):
        taken(schedule, schedule)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ours.MaxSteps(0), "steps must be a positive integer"),
        (lambda: ours.EarlyStopping(mode="up"), "mode must be one of"),
        (lambda: ours.EarlyStopping(patience=-1), "patience must be at least 0"),
        (lambda: ours.Checkpoint(mode="up"), "Checkpoint: mode must be one of"),
        (lambda: ours.ExportBest("auc", mode="up"), "ExportBest: mode must be one of"),
        (lambda: ours.ReduceLROnPlateau(factor=1.0), "factor must be between 0 and 1"),
        (lambda: ours.ReduceLROnPlateau(cooldown=-1), "cooldown must be at least 0"),
        (lambda: ours.LearningRateScheduler(lambda x: x, by="step"), "by must be one of"),
        (lambda: ours.LearningRateScheduler(0.5), "schedule must be a function"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
