"""The job's data as this worker sees it: readers, descriptions, pipelines.

Owns which flag feeds which mode. Formats are data/'s, tensors feed.py's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from shoal.config.event_time import EventTime
from shoal.config.job import JobConfig
from shoal.data.custom import open_custom_reader
from shoal.data.opening import open_reader
from shoal.data.reader import DataReader, Source
from shoal.proto import shoal_pb2 as pb
from shoal.worker.input.feed import EVALUATION, PREDICTION, TRAINING, InputPipeline
from shoal.worker.module import UserModule, user_code
from shoal.worker.storage_patience import StoragePatience

Result = TypeVar("Result")

FLAGS = {
    TRAINING: "--training-data",
    EVALUATION: "--validation-data",
    PREDICTION: "--prediction-data",
}


class JobData:
    """Readers and pipelines of the data that the job names, opened when first used."""

    def __init__(
        self,
        config: JobConfig,
        module: UserModule,
        spent: Callable[[str, float], None] = lambda *_: None,
        patience: StoragePatience | None = None,
    ) -> None:
        """spent: told of the seconds of reading and of feed, of the training data.

        patience: with the storage; None for none, as where somebody looks on.
        """
        self._spent = spent
        self._patience = patience
        self._config = config
        self._module = module
        self._patterns = {
            TRAINING: config.training_data,
            EVALUATION: config.validation_data,
            PREDICTION: config.prediction_data,
        }
        self._readers: dict[str, DataReader] = {}
        self._pipelines: dict[str, InputPipeline] = {}

    def _patiently(self, work: Callable[[], Result], again: Callable[[], object]) -> Result:
        return work() if self._patience is None else self._patience.call(work, again)

    def _reader(self, mode: str) -> DataReader:
        if mode not in self._readers:
            self._patiently(partial(self._open, mode), lambda: None)
        return self._readers[mode]

    def _open(self, mode: str) -> None:
        if mode not in self._readers:
            pattern, flag = self._patterns[mode], FLAGS[mode]
            custom = self._module.custom_data_reader
            if custom is None:
                self._readers[mode] = open_reader(
                    pattern,
                    flag,
                    index_folder=os.path.join(self._config.job_dir, "index"),
                    data_format=self._config.format_of_data,
                )
            else:
                with user_code(self._module.describe("custom_data_reader"), reads=True):
                    self._readers[mode] = open_custom_reader(custom, pattern, flag)

    def pipeline(self, mode: str) -> InputPipeline:
        """The pipeline of a mode. Raises UserError or UserCodeError as `InputPipeline` does."""
        if mode not in self._pipelines:
            reader = self._reader(mode)
            self._pipelines[mode] = self._patiently(
                lambda: InputPipeline(
                    reader,
                    self._module,
                    mode,
                    FLAGS[mode],
                    self._config.minibatch_size,
                    self._spent,
                    self._patience,
                    EventTime.parse(self._config.event_time) if mode == TRAINING else None,
                ),
                reader.reopen,
            )
        return self._pipelines[mode]

    def place(self, mode: str, source: str, record: int) -> str:
        """Where a record is, in the words of its reader."""
        return self._reader(mode).place(source, record)

    @property
    def mode(self) -> str:
        """The mode the job is about: that of the first data it names."""
        return next(mode for mode, pattern in self._patterns.items() if pattern)

    def first_range(self, mode: str) -> pb.Range:
        """The first minibatch of the data of a mode."""
        with user_code(f"listing the sources of {FLAGS[mode]}", reads=True):
            source = next(each for each in self._reader(mode).sources() if each.records)
        end = min(source.records, self._config.minibatch_size)
        return pb.Range(source=source.name, start=0, end=end)

    def description(self) -> pb.DataDescription:
        """All sources of the job's data."""

        def sources(mode: str) -> list[pb.Source]:
            if not self._patterns[mode]:
                return []
            reader = self._reader(mode)

            def listed() -> list[Source]:
                with user_code(f"listing the sources of {FLAGS[mode]}", reads=True):
                    return reader.sources()

            found = self._patiently(listed, reader.reopen)
            return [pb.Source(name=source.name, records=source.records) for source in found]

        return pb.DataDescription(
            training=sources(TRAINING),
            validation=sources(EVALUATION),
            prediction=sources(PREDICTION),
        )
