"""--engine auto, settled by the client: job.json has the name of an engine."""

from __future__ import annotations

import dataclasses

from shoal.base.modules.engines import AUTO, asked_for
from shoal.base.modules.user_module import path_of
from shoal.config.job import JobConfig


def with_engine(config: JobConfig) -> JobConfig:
    """The same with the engine that the module of --model-def asks for, if none is given.

    A module that is in the pods' image only is looked at there. Raises UserError.
    """
    if config.engine != AUTO or config.image:
        return config
    path = path_of(config.model_zoo, config.model_def)
    return dataclasses.replace(config, engine=asked_for(path))
