"""The job's data as this worker sees it: readers, descriptions, pipelines.

Owns which flag feeds which mode. Formats are data/'s, batches the engine's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial
from typing import TypeVar

from shoal.base.shuffling import by_numbers
from shoal.checkpoints.continued import read_trained
from shoal.checkpoints.trained import Trained, only_new
from shoal.config.groups.event_time import EventTime
from shoal.config.job import JobConfig
from shoal.data.custom import open_custom_reader
from shoal.data.indexed_reader import IndexedReader
from shoal.data.opening import open_reader
from shoal.data.places.index_store import IndexStore, Known
from shoal.data.reader import DataReader, Source
from shoal.files.described import DescribedSources
from shoal.files.patience import Patience
from shoal.files.storage import open_storage
from shoal.proto import shoal_pb2 as pb
from shoal.worker.code.module import UserModule, user_code
from shoal.worker.engines import chosen_engine
from shoal.worker.engines.engine import InputPipeline
from shoal.worker.input.listings import Listings
from shoal.worker.input.modes import EVALUATION, PREDICTION, TRAINING
from shoal.worker.input.shuffling import Shuffled
from shoal.worker.reports.progress import Progress

Result = TypeVar("Result")

FLAGS = {
    TRAINING: "--training-data",
    EVALUATION: "--validation-data",
    PREDICTION: "--prediction-data",
}


FIRST_WEIGHT = 16.0
"""Of the sources that are described before the first task: as `DataReader.weights`."""

KNOWN_WEIGHT = 0.02
"""Of a source that --index-dir knows."""

KEPT_TOGETHER = 2000
"""Sources of which is written to --index-dir at once what was found out."""

MOVED = "moved"
"""The token of a listing of data that does not arrive, where the next one names other sources."""

BATCH = 8
"""Sources that are described at a time."""


DATA = {TRAINING: "training", EVALUATION: "validation", PREDICTION: "prediction"}
"""Mode -> the data that it reads, as the master calls it."""

_MODES = {data: mode for mode, data in DATA.items()}


class JobData:
    """Readers and pipelines of the data that the job names, opened when first used."""

    def __init__(
        self,
        config: JobConfig,
        module: UserModule,
        progress: Progress | None = None,
        patience: Patience | None = None,
        ask: Callable[[str, str], Known | None] = lambda *_: None,
    ) -> None:
        """progress: as of InputPipeline.

        patience: with the storage; None for none, as where somebody looks on. ask: gives what
        another worker has told of a source, by mode and name.
        """
        self._ask = ask
        self._progress = progress
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
        self._evaluated: InputPipeline | None = None  # of the training data, to be evaluated
        self._stores: dict[str, IndexStore] = {}
        self._describes = False
        self._kept: DescribedSources | None = None
        if config.index_dir:
            self._kept = DescribedSources(open_storage(config.index_dir, "--index-dir"))
        self._to_keep: list[tuple[str, pb.Source]] = []
        self.listings = Listings()

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
                reader = open_reader(pattern, flag, data_format=self._config.format_of_data)
            else:
                with user_code(self._module.describe("custom_data_reader"), reads=True):
                    reader = open_custom_reader(custom, pattern, flag)
            if isinstance(reader, IndexedReader):
                self._stores[mode] = IndexStore(partial(self._known, mode))
                reader.share(self._stores[mode])
            if mode == TRAINING and self._config.arriving:
                reader.grows()
            self._readers[mode] = reader

    def _known(self, mode: str, source: str) -> Known | None:
        return None if self._describes else self._ask(DATA[mode], source)

    def pipeline(self, mode: str) -> InputPipeline:
        """The pipeline of a mode. Raises UserError or UserCodeError as `InputPipeline` does."""
        if mode not in self._pipelines:
            reader = self._reader(mode)
            self._pipelines[mode] = self._patiently(
                partial(self._made, reader, mode, FLAGS[mode]), reader.reopen
            )
        return self._pipelines[mode]

    def _made(self, reader: DataReader, mode: str, flag: str) -> InputPipeline:
        return chosen_engine().pipeline(
            reader,
            self._module,
            mode,
            flag,
            self._config.batch_size,
            self._progress,
            self._patience,
            EventTime.parse(self._config.event_time) if mode == TRAINING else None,
        )

    def evaluated(self, data: str) -> InputPipeline:
        """The pipeline of an evaluation of these data, "validation" or "training"."""
        if data != DATA[TRAINING]:
            return self.pipeline(EVALUATION)
        if self._evaluated is None:
            reader = self._reader(TRAINING)
            self._evaluated = self._patiently(
                partial(self._made, reader, EVALUATION, FLAGS[TRAINING]), reader.reopen
            )
        return self._evaluated

    def feed(self, mode: str) -> str:
        """The function that gives the features of a mode, and of which data, in words."""
        module = self._module
        source = self.pipeline(mode).first_source
        return f"{FLAGS[mode]}, {source}: {module.describe(module.feed_name)}"

    def order(self, task: pb.Task) -> Shuffled | None:
        """The order of the records of a task; None for that of the data."""
        return Shuffled.of(task, self._config.seed)

    def place(self, mode: str, source: str, record: int) -> str:
        """The position of a record, in the words of its reader."""
        return self._reader(mode).place(source, record)

    @property
    def mode(self) -> str:
        """The mode the job is about: that of the first data it names."""
        return next(mode for mode, pattern in self._patterns.items() if pattern)

    def first_range(self, mode: str, records: int = 0) -> pb.Range:
        """The first minibatch of the data of a mode, or so many of the first source's records."""
        source = self._first_source(mode)
        end = min(source.records, records or self._config.batch_size)
        return pb.Range(source=source.name, start=0, end=end)

    def likely_records(self, mode: str) -> int:
        """The number of records of a mode's data if each source has as many as the first."""
        return self._first_source(mode).records * len(self._reader(mode).names())

    def _first_source(self, mode: str) -> Source:
        with user_code(f"listing the sources of {FLAGS[mode]}", reads=True):
            return self._reader(mode).first()

    # ------------------------------------------------------------ describing

    def description(self) -> pb.DataDescription:
        """The sources of the job's data: some described, and the others by name.

        The first of them are described, so that there is something to begin with. Sources of
        training are in an order that the seed draws, if there are many; they become parts of the
        first epoch in this order.
        """
        described = pb.DataDescription()
        for mode, pattern in self._patterns.items():
            if not pattern:
                continue
            if mode == TRAINING:
                self._reader(mode).behind(self._before)
            weights, token = self._listed(mode)
            described.token += token
            if mode == TRAINING and self._config.leaves_out_trained:
                weights = self._only_new(weights, described)
            names = list(weights)
            if self._kept is not None:
                self._kept.tidy()
                reader = self._reader(mode)
                stamps = self._kept.stamps(reader.form)
                for name in names:
                    if stamps.get(name) == reader.stamp(name):
                        weights[name] = KNOWN_WEIGHT
            shuffled = mode == TRAINING and self._config.shuffles_tasks
            if shuffled and sum(weights.values()) > FIRST_WEIGHT:
                random.Random(f"{self._config.seed}/files").shuffle(names)
            else:
                names.sort(key=by_numbers)
            first = self._first(mode, names, weights)
            getattr(described, DATA[mode]).extend(
                sorted(first, key=lambda source: by_numbers(source.name))
            )
            more = getattr(described, f"more_{DATA[mode]}")
            for name in names[len(first) :]:
                more.add(name=name, weight=weights[name])
        return described

    def _listed(self, mode: str, token: str = "") -> tuple[dict[str, float], str]:
        """The weights of sources by name; and the token of this listing, if others differ."""
        reader = self._reader(mode)

        def listed() -> tuple[dict[str, float], str]:
            with user_code(f"listing the sources of {FLAGS[mode]}", reads=True):
                if mode != TRAINING:
                    return reader.weights(), ""
                if not self._config.arriving:
                    return reader.weights(), MOVED if reader.moves else ""
                names, later = reader.arrivals(token)
                return reader.weights(names), later

        return self._patiently(listed, reader.reopen)

    def arrivals(self, token: str) -> pb.DataDescription:
        """The training sources to tell the master of, since a listing of any worker.

        token: of that listing. Once the master has them, `listings` is to be told.
        """
        weights, token = self._listed(TRAINING, token)
        reader, before = self._reader(TRAINING), self._before
        names = [name for name in weights if name not in before]
        stamps = self._patiently(
            lambda: {name: reader.stamp(name) for name in names}, reader.reopen
        )
        found = self.listings.news(stamps)
        more = [
            pb.FoundSource(name=name, weight=weights[name], stamp=found[name])
            for name in sorted(found, key=by_numbers)
        ]
        return pb.DataDescription(more_training=more, token=token)

    @cached_property
    def _before(self) -> Mapping[str, Trained]:
        """The sources that earlier jobs have trained, if these are left out."""
        if not self._config.leaves_out_trained:
            return {}
        return read_trained(self._config.continue_from)

    def _only_new(
        self, weights: dict[str, float], described: pb.DataDescription
    ) -> dict[str, float]:
        """The sources that no earlier job has trained; adds a note with their number."""
        reader = self._reader(TRAINING)
        before = self._before
        known = [name for name in weights if name in before]
        stamps = self._patiently(
            lambda: {name: reader.stamp(name) for name in known}, reader.reopen
        )
        new = only_new(weights, stamps, before)
        said = f"{len(new):,} of {len(weights):,} sources of {FLAGS[TRAINING]} are new"
        described.notes.append(said if new else f"{said}: nothing is to be trained")
        return {name: weight for name, weight in weights.items() if name in new}

    def _first(self, mode: str, names: Sequence[str], weights: dict[str, float]) -> list[pb.Source]:
        """The first of the sources, described: not many, but some that hold records."""
        found: list[pb.Source] = []
        weight = 0.0
        while len(found) < len(names):
            taken = names[len(found) : len(found) + BATCH]
            weight += sum(weights[name] for name in taken)
            if found and weight > FIRST_WEIGHT and any(source.records for source in found):
                break
            found += self._described(mode, taken)
        return found

    def describe(self, data: str, names: Sequence[str]) -> list[pb.Source]:
        """These sources, with all that is to be told of them. data: which, as of DATA."""
        return self._described(_MODES[data], names)

    def _described(self, mode: str, names: Sequence[str]) -> list[pb.Source]:
        reader = self._reader(mode)
        store = self._stores.get(mode)

        def described() -> list[pb.Source]:
            kept = [self._kept_of(reader, name) for name in names]
            reader.prepare([name for name, each in zip(names, kept, strict=True) if each is None])
            with (
                user_code(f"listing the sources of {FLAGS[mode]}", reads=True),
                self._describing(store),
            ):
                found = [
                    _message(_found(reader.describe(name), store)) if each is None else each
                    for name, each in zip(names, kept, strict=True)
                ]
            if self._kept is not None:
                new = [each for each, old in zip(found, kept, strict=True) if old is None]
                self._to_keep += [(reader.form, each) for each in new if each.stamp]
                if len(self._to_keep) >= KEPT_TOGETHER:
                    self.keep()
            return found

        return self._patiently(described, reader.reopen)

    def _kept_of(self, reader: DataReader, name: str) -> pb.Source | None:
        if self._kept is None:
            return None
        return self._kept.get(reader.form, name, reader.stamp(name))

    def keep(self) -> None:
        """Write what was found out of sources to --index-dir."""
        if self._kept is not None:
            self._kept.put(self._to_keep)
        self._to_keep.clear()

    @contextmanager
    def _describing(self, store: IndexStore | None) -> Iterator[None]:
        """Ask nobody for what is known of sources, but find it out, and keep it to be told."""
        self._describes = True
        try:
            with nullcontext() if store is None else store.keeping():
                yield
        finally:
            self._describes = False
            if store is not None:
                store.forget()


def _found(source: Source, store: IndexStore | None) -> Known:
    return Known(source) if store is None else store.told(source)


def _message(known: Known) -> pb.Source:
    source = known.source
    return pb.Source(
        name=source.name,
        records=source.records,
        units=[number for unit in source.units for number in unit],
        stamp=known.stamp,
        index=known.index,
    )
