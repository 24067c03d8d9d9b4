"""Statistics against NumPy's own: exact where it is said, within the stated error otherwise."""

import collections
import itertools
import json
import math
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from shoal.cli.main import main
from shoal.data import CsvReader, DataReader, Source, open_reader
from shoal.data.samples.analysis import QUANTILES, analyze, save_statistics
from shoal.data.samples.sketches import DistinctCounter, FrequentValues, QuantileSketch, mixed
from shoal.errors import UserError
from shoal.preprocessing import Discretization, IndexLookup, Normalizer, Statistics


def statistics_of(tmp_path, table, **options):
    path = tmp_path / "data.parquet"
    pq.write_table(table, path, row_group_size=1000)
    return analyze(open_reader(str(path), "--data"), **options)["columns"]


def test_numbers_are_those_of_numpy(tmp_path):
    draw = np.random.default_rng(3)
    values = np.exp(draw.normal(2, 3, 60_000))
    values[::97] = np.nan
    ages = draw.integers(-5, 90, 60_000)
    lists = [[1.0, 2.0], [], None, [4.0]] * 15_000
    table = pa.table(
        {
            "value": values,
            "age": pa.array(ages, mask=ages == 7),
            "on": ages > 20,
            "list": pa.array(lists, pa.list_(pa.float32())),
            "day": pa.array(ages, pa.int32()).cast(pa.date32()),
            "none": pa.nulls(60_000),
        }
    )
    told = statistics_of(tmp_path, table)
    there = values[~np.isnan(values)]
    value = told["value"]
    assert (value["values"], value["missing"]) == (there.size, 60_000 - there.size)
    for what, expected in (("mean", there.mean()), ("stddev", there.std())):
        assert value[what] == pytest.approx(expected, rel=1e-12)
    assert (value["min"], value["max"]) == (there.min(), there.max())
    # The rank of each quantile is off by less than 0.2 % of all values.
    assert not value["quantiles_exact"]
    ranks = np.searchsorted(np.sort(there), value["quantiles"]) / there.size
    assert np.abs(ranks - np.linspace(0, 1, QUANTILES + 1)).max() < 0.002
    assert value["distinct"] == pytest.approx(np.unique(there).size, rel=0.03)
    assert not value["distinct_exact"]
    assert "vocabulary" not in value

    kept = ages[ages != 7]
    age = told["age"]
    assert age["missing"] == (ages == 7).sum()
    assert (age["min"], age["max"], age["distinct"]) == (-5, 89, 94)
    assert age["mean"] == pytest.approx(kept.mean(), rel=1e-12)
    counted = collections.Counter(kept.tolist())
    assert age["vocabulary"]["complete"] is True
    assert dict(zip(*list(age["vocabulary"].values())[:2], strict=True)) == counted

    assert told["on"]["mean"] == pytest.approx((ages > 20).mean())
    assert told["list"]["lengths"] == {"min": 0, "max": 2, "mean": 1.0}
    assert (told["list"]["mean"], told["list"]["missing"]) == (pytest.approx(7 / 3), 15_000)
    assert told["day"]["max"] == 89
    assert (told["none"]["values"], told["none"]["missing"]) == (0, 60_000)


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), min_size=1, max_size=20))
def test_quantiles_have_the_rank_that_is_asked_within_the_sketchs_error(chunks):
    sketch = QuantileSketch(capacity=16)
    for chunk in chunks:
        sketch.add(np.array(chunk))
    values = np.sort(np.concatenate(chunks))
    ranks = np.linspace(0, 1, 21)
    found = sketch.quantiles(ranks)
    if sketch.exact:
        expected = values[np.maximum(np.ceil(ranks * values.size).astype(int) - 1, 0)]
        np.testing.assert_array_equal(found, expected)
    assert (np.diff(found) >= 0).all()
    low = np.searchsorted(values, found, "left") / values.size
    high = np.searchsorted(values, found, "right") / values.size
    # Each compaction of a buffer moves ranks by at most its weight: the worst, not 1.5 / k.
    worst = 1 / values.size + 5 * 2 / 16
    assert (low - worst <= ranks).all()
    assert (ranks <= high + worst).all()


@pytest.mark.parametrize("count", [100, 8192, 50_000, 2_000_000])
def test_distinct_values_within_three_percent(count):
    counter = DistinctCounter()
    values = np.arange(count, dtype=np.uint64)
    for _ in range(2):
        for part in np.array_split(values, 7):
            counter.add(mixed(part))
    assert counter.exact == (count <= 8192)
    assert counter.count() == pytest.approx(count, rel=0.0 if counter.exact else 0.03)


@given(st.lists(st.lists(st.integers(0, 30), max_size=40), max_size=30), st.integers(1, 12))
def test_frequent_values_are_too_low_by_no_more_than_is_told(chunks, capacity):
    frequent = FrequentValues(capacity)
    for chunk in chunks:
        counted = collections.Counter(chunk)
        frequent.add(counted.keys(), counted.values())
    truth = collections.Counter(itertools.chain(*chunks))
    found = dict(frequent.most(100))
    assert len(found) <= capacity
    assert frequent.error * capacity <= truth.total()
    for value, count in truth.items():
        assert count - frequent.error <= found.get(value, 0) <= count


def test_a_vocabulary_of_text_with_more_words_than_are_held(tmp_path):
    chance = random.Random(1)
    often = [f"word {i}" for i in range(5)]
    words = [w for i, w in enumerate(often) for _ in range(400 * (5 - i))]
    words += [f"rare {i}" for i in range(30_000)]
    chance.shuffle(words)
    table = pa.table({"word": pa.array(words).dictionary_encode()})
    told = statistics_of(tmp_path, table, max_vocabulary=5)["word"]
    assert told["vocabulary"]["values"][:3] == often[:3]
    assert told["vocabulary"]["complete"] is False
    assert 0 < told["vocabulary"]["count_error"] <= len(words) / 50
    assert told["distinct"] == pytest.approx(30_005, rel=0.03)


class Custom(DataReader):
    """A reader of the user's: dicts of arrays."""

    def sources(self):
        return [Source("made", 3)]

    def schema(self):
        return pa.schema([("n", pa.int64()), ("tags", pa.list_(pa.string()))])

    def read(self, source, start, end):
        yield {"n": np.arange(start, end), "tags": [["a", "b"], ["a"], []][start:end]}


def test_a_reader_of_the_users():
    columns = analyze(Custom())["columns"]
    assert (columns["n"]["max"], columns["n"]["quantiles_exact"]) == (2, True)
    assert columns["tags"]["vocabulary"]["values"] == ["a", "b"]
    assert columns["tags"]["lengths"]["max"] == 2


def test_columns_that_are_not_there_or_have_no_statistics(tmp_path):
    table = pa.table({"a": [1], "b": pa.array([{"x": 1}])})
    with pytest.raises(UserError, match=r"column 'b' is of type struct.*choose others with"):
        statistics_of(tmp_path, table)
    with pytest.raises(UserError, match="--columns: there is no column 'c'; the columns are a, b"):
        statistics_of(tmp_path, table, columns=["c"])
    assert list(statistics_of(tmp_path, table, columns=["a"])) == ["a"]


@pytest.fixture
def analyzed(tmp_path):
    """The path of statistics that the command wrote, of numbers 0 to 99 and of a few words."""
    rows = "".join(f"{i},{i / 10},{'abb'[i % 3]}\n" for i in range(100))
    (tmp_path / "a.csv").write_text("id,price,word\n" + rows)
    path = tmp_path / "statistics.json"
    line = ["analyze", "--data", str(tmp_path / "a.csv"), "--output", str(path)]
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 0, done.output
    assert "100 records" in done.output
    return path


def test_the_command_writes_what_a_module_reads(analyzed):
    statistics = Statistics(analyzed)
    assert (statistics.records, list(statistics)) == (100, ["id", "price", "word"])
    price, word = statistics["price"], statistics["word"]
    assert price.stddev == pytest.approx(np.arange(100).std() / 10)
    boundaries = price.boundaries(4)
    assert boundaries == pytest.approx([2.4, 4.9, 7.4])
    bins = Discretization(boundaries)(np.arange(100) / 10).numpy()
    assert np.bincount(bins).tolist() == [24, 25, 25, 26]
    scaled = Normalizer(price.mean, price.stddev)(np.arange(100) / 10).numpy()
    assert (scaled.mean(), scaled.std()) == (pytest.approx(0, abs=1e-6), pytest.approx(1))
    assert word.vocabulary() == ["b", "a"]
    assert list(word.counts) == ["b", "a"]
    assert sum(word.counts.values()) == word.values
    assert (word.vocabulary(limit=1), word.vocabulary(min_count=60)) == (["b"], ["b"])
    assert IndexLookup(word.vocabulary())(["a", "b"]).numpy().tolist() == [1, 0]
    assert statistics["id"].vocabulary(limit=3) == [0, 1, 2]


def test_what_statistics_do_not_have_is_told_by_name(analyzed, tmp_path):
    statistics = Statistics(analyzed)
    with pytest.raises(KeyError, match=r"column 'prize' \(did you mean price"):
        statistics["prize"]
    with pytest.raises(
        ValueError, match="column 'word' of type string with 100 values has no mean"
    ):
        _ = statistics["word"].mean
    with pytest.raises(ValueError, match=r"column 'price' .* has no vocabulary"):
        statistics["price"].vocabulary()
    with pytest.raises(ValueError, match="bins must be at least 2"):
        statistics["price"].boundaries(1)
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(ValueError, match=r"other\.json was not written by shoal analyze"):
        Statistics(tmp_path / "other.json")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["--data", "none.csv", "--output", "o"], "--data: there is no file or folder none.csv"),
        (["--data", "a.csv", "--output", "no/o"], "--output: cannot write no/o: No such file"),
        (
            ["--data", "a.csv", "--output", "o", "--columns", "y"],
            "--columns: there is no column 'y'",
        ),
    ],
)
def test_wrong_input_is_one_line(tmp_path, monkeypatch, line, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("x\n1\n")
    done = CliRunner().invoke(main, ["analyze", *line])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"Error: {message}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv"]


def test_infinities_survive_the_file(tmp_path):
    (tmp_path / "a.csv").write_text("x\n1.5\ninf\n")
    save_statistics(tmp_path / "s.json", analyze(CsvReader(str(tmp_path / "a.csv"))))
    assert Statistics(tmp_path / "s.json")["x"].max == math.inf
    assert json.loads((tmp_path / "s.json").read_text())["records"] == 2
