"""As much of the package mlflow as shoal calls, with runs in memory, for tests without it."""

import types
from collections import defaultdict
from typing import ClassVar


class MlflowException(Exception):  # noqa: N818, the package's name
    """As the package's."""

    def __init__(self, message, error_code="INTERNAL_ERROR"):
        super().__init__(message)
        self.error_code = error_code


class Client:
    """MlflowClient. trouble: what each call raises, while it is set."""

    stores: ClassVar = defaultdict(lambda: ({}, {}))
    trouble: ClassVar = None

    def __init__(self, tracking_uri=None):
        self.experiments, self.runs = self.stores[tracking_uri]

    def _run(self, run):
        if Client.trouble is not None:
            raise Client.trouble
        if run not in self.runs:
            raise MlflowException(f"no run {run}", "RESOURCE_DOES_NOT_EXIST")
        return self.runs[run]

    def get_experiment_by_name(self, name):
        if Client.trouble is not None:
            raise Client.trouble
        found = self.experiments.get(name)
        return found and types.SimpleNamespace(experiment_id=found, name=name)

    def create_experiment(self, name):
        self.experiments[name] = str(len(self.experiments) + 1)
        return self.experiments[name]

    def create_run(self, experiment_id, tags, run_name):
        run = f"run{len(self.runs)}"
        info = types.SimpleNamespace(
            run_id=run,
            experiment_id=experiment_id,
            run_name=run_name,
            status="RUNNING",
            lifecycle_stage="active",
        )
        data = types.SimpleNamespace(params={}, tags=dict(tags), metrics=[])
        self.runs[run] = types.SimpleNamespace(info=info, data=data)
        return self.runs[run]

    def get_run(self, run):
        return self._run(run)

    def update_run(self, run, status):
        self._run(run).info.status = status

    def set_terminated(self, run, status):
        self._run(run).info.status = status

    def set_tag(self, run, key, value):
        self._run(run).data.tags[key] = value

    def log_batch(self, run, metrics=(), params=()):
        data = self._run(run).data
        assert len(metrics) <= 1000
        assert len(params) <= 100
        data.metrics.extend(metrics)
        data.params.update({each.key: each.value for each in params})

    def get_metric_history(self, run, key):
        return [each for each in self._run(run).data.metrics if each.key == key]

    def search_runs(self, experiment_ids):
        return [each for each in self.runs.values() if each.info.experiment_id in experiment_ids]


def modules():
    """Its modules by name, as sys.modules has them."""

    def metric(key, value, timestamp, step):
        return types.SimpleNamespace(key=key, value=value, timestamp=timestamp, step=step)

    def param(key, value):
        return types.SimpleNamespace(key=key, value=value)

    Client.stores.clear()
    Client.trouble = None
    return {
        "mlflow": types.SimpleNamespace(MlflowClient=Client),
        "mlflow.entities": types.SimpleNamespace(Metric=metric, Param=param),
        "mlflow.exceptions": types.SimpleNamespace(MlflowException=MlflowException),
    }
