"""The engines: what computes with the user's model, each behind the same Protocol.

    engine.py         the Protocol, which all the rest of the worker knows
    keras_backend.py  the Protocol of what computes with models of Keras, beside their steps
    host/             what engines that compute on NumPy's arrays share
    tensorflow/       the engine of TensorFlow, the only module that imports it
    jax/, torch/      the engines of JAX and of PyTorch, likewise

A process has one engine, as Keras has one backend. Its main chooses it by the job's configuration.
It is imported when it is first asked for, so that importing the rest of the worker imports no
framework.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING

from shoal.base.modules.engines import AUTO, FRAMEWORKS, VARIABLE, Framework, asked_for
from shoal.base.modules.user_module import path_of
from shoal.errors import UserError

if TYPE_CHECKING:
    from shoal.config.job import JobConfig
    from shoal.worker.engines.engine import Engine
    from shoal.worker.engines.keras_backend import KerasBackend

_chosen = "tensorflow"


def choose_engine_of(job: JobConfig) -> None:
    """Choose the engine of a job, before anything imports Keras.

    A client could not look at a module that is in the pods' image only. Raises UserError if that
    asks for two engines, or there is no such engine.
    """
    if job.engine == AUTO:
        choose_engine(asked_for(path_of(job.model_zoo, job.model_def)))
    else:
        choose_engine(job.engine)


def choose_engine(name: str) -> None:
    """Choose the engine of this process by its name. Raises UserError if there is no such one."""
    global _chosen
    if importlib.util.find_spec(_package(name)) is None:
        raise UserError(f"--engine {name}: this version of shoal has no such engine")
    os.environ[VARIABLE] = name
    _chosen = name


def engine_name() -> str:
    """The name of the engine of this process."""
    return _chosen


def framework() -> Framework:
    """The framework of the engine."""
    return FRAMEWORKS[_chosen]


def import_framework() -> None:
    """Import the framework of the engine, and nothing else. Raises ImportError."""
    importlib.import_module(_package(_chosen))


def check_backend() -> None:
    """Raise UserError if Keras has been imported with another backend than the engine's."""
    keras = sys.modules.get("keras")
    if keras is not None and (found := keras.backend.backend()) != _chosen:
        raise UserError(
            f"--engine {_chosen}: Keras was imported with its backend {found} in a process of this "
            f"job: your module must leave the backend as it is, or give --engine {found}"
        )


def chosen_engine() -> Engine:
    """The engine of this process."""
    return _engine(_chosen)


@functools.cache
def _engine(name: str) -> Engine:
    made: Engine = importlib.import_module(f"{_package(name)}.engine").ENGINE
    return made


def backend_of_keras() -> KerasBackend:
    """The part of this process's engine that is about models of Keras. Imports Keras."""
    return _keras_backend(_chosen)


@functools.cache
def _keras_backend(name: str) -> KerasBackend:
    # A worker of a torch.nn.Module, which the engine of PyTorch trains too, has no Keras.
    module = f"{_package(name)}.{'keras.' if name == 'torch' else ''}backend"
    made: KerasBackend = importlib.import_module(module).BACKEND
    return made


def _package(name: str) -> str:
    return f"{__name__}.{name}"
