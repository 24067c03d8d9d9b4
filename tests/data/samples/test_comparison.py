"""A day against the day before: each planted fault is found, and no good day is stopped."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from shoal.cli.main import main
from shoal.config.expected import DEFAULTS, RELATIVE, Expected
from shoal.data import open_reader
from shoal.data.samples.analysis import analyze
from shoal.data.samples.comparison import compare, read_statistics
from shoal.errors import UserError
from tests.data.samples.shop import FAULTS, Shop, put


def statistics(table, folder):
    path = folder / "day.parquet"
    pq.write_table(table, path)
    return analyze(open_reader(str(path), "--data"))


def found(now, before, folder, expect=""):
    told = [statistics(each, folder) for each in (now, before)]
    return compare(*told, Expected(expect, compares=True))


def said(comparison):
    return "\n".join(map(str, comparison.findings))


# ---------------------------------------------------------------- good days and bad ones


@pytest.mark.slow
@pytest.mark.parametrize("records", [500, 6_000])
def test_no_good_day_is_stopped(tmp_path, records):
    days = 0
    for seed in range(10):
        shop, before = Shop(seed, records), None
        for _ in range(4):
            now = statistics(shop.next_day(), tmp_path)
            if before is not None:
                comparison = compare(now, before, Expected(compares=True))
                assert (said(comparison), comparison.notes) == ("", []), seed
                days += 1
            before = now
    assert days == 30


@pytest.fixture(scope="module", params=[1, 2, 3])
def days(request):
    shop = Shop(request.param, 12_000)
    return shop.next_day(), shop.next_day()


COLUMNS = {
    "the unit of prices": ("price", "99.*times the earlier ones|100 times the earlier ones"),
    "miles for kilometres": ("dwell", "times the earlier ones: has its unit changed"),
    "milliseconds for seconds": ("time", "its times begin at"),
    "a column of nulls": ("age", "all values are missing"),
    "a tenth is missing": ("price", "of the values are missing, and 0.0% were"),
    "users hashed anew": ("user", "named or hashed anew"),
    "items numbered anew": ("item", "named or hashed anew"),
    "labels late": ("bought", "of the values are 1, and"),
    "labels all zero": ("clicked", "it has one value only, 0, and had 2"),
    "a constant column": ("device", "it has one value only, 'web', and had 4"),
    "another type": ("age", "it is of type string, and was of int64"),
    "the day before again": ("", "are they the same data"),
    "the day twice": ("", "records, and were"),
    "a day that ends at noon": ("time", "its times span 1.*hours, and spanned 2"),
    "two columns changed places": ("user", "named or hashed anew"),
    "like columns changed places": ("position", "are outside of the earlier ones, 1 to 20"),
    "ages of 999": ("age", "% of its numbers are outside"),
    "one price of a billion": ("price", "it has numbers from .* to 1e.09"),
    "times of last week": ("time", "days before the earlier ones ended"),
    "half of another day": ("time", "its times span 3.*days"),
    "a vocabulary doubled": ("country", "are the rest of its values, and 0.\\d% were"),
    "a column is gone": ("query", "it is not there any more"),
    "lists cut": ("tags", "elements on average, and had"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_told_of_its_column(days, fault, tmp_path):
    before, now = days
    comparison = found(FAULTS[fault](now, before), before, tmp_path)
    column, sentence = COLUMNS[fault]
    mine = [str(each) for each in comparison.findings if each.column == column]
    assert any(re.search(sentence, each) for each in mine), said(comparison)
    others = {"two columns changed places": {"user", "item"}}
    others |= {"like columns changed places": {"age", "position"}, "the day before again": {"time"}}
    others |= {"a day that ends at noon": {"time"}}
    allowed = {"", column} | others.get(fault, set())
    assert {each.column for each in comparison.findings} <= allowed


def test_half_of_the_ids_hashed_anew_are_found_by_a_limit_of_ones_own(days, tmp_path):
    """Not by the defaults: half of the users of yesterday may well stay away."""
    before, now = days
    ids = now["user"].to_numpy()
    half = put(now, "user", np.where(np.arange(len(ids)) % 2, ids, ids + 1))
    assert found(now, before, tmp_path, "user:overlap>=70%").findings == []
    assert "column 'user': its" in said(found(half, before, tmp_path, "user:overlap>=70%"))


# ---------------------------------------------------------------- limits


def table(records=1000, seed=0, **columns):
    draw = np.random.default_rng(seed)
    return pa.table({"x": draw.normal(0, 1, records), **columns})


def test_limits_of_columns_count_before_those_of_all_and_these_before_the_defaults(tmp_path):
    draw = np.random.default_rng(1)
    before = table(a=draw.normal(0, 1, 1000), b=draw.normal(0, 1, 1000))
    now = table(seed=5, a=draw.normal(0.8, 1, 1000), b=draw.normal(0.8, 1, 1000))

    def columns(expect):
        return {each.column for each in found(now, before, tmp_path, expect).findings}

    assert columns("") == {"a", "b"}
    assert columns("psi<=5") == set()
    assert columns("psi<=5,a:psi<=0.1") == {"a"}
    assert columns("a:psi<=0.1,psi<=5") == {"a"}
    assert columns("a:psi<=5") == {"b"}
    assert columns("a:any") == {"b"}
    assert columns("b:any, a:any") == set()


def test_limits_of_today_alone_need_no_earlier_day(tmp_path):
    now = statistics(
        pa.table({"label": [0, 0, 0, 1], "name": ["a", "b", None, "c"], "x": [1.0, 2.0, 3.0, 9.0]}),
        tmp_path,
    )

    def of(expect):
        return said(compare(now, None, Expected(expect, compares=False)))

    assert of("records>=4,label:mean>=20%,x:max<=9,x:min>=1,x:median<3,distinct<=4") == ""
    assert of("records>=5") == "there are 4 records (expected: records>=5)"
    assert of("label:mean<0.2,x:min>1,x:max<9,label:distinct>=3") == (
        "column 'label': its mean is 0.25 (expected: label:mean<0.2)\n"
        "column 'label': its distinct is 2 (expected: label:distinct>=3)\n"
        "column 'x': its min is 1 (expected: x:min>1)\n"
        "column 'x': its max is 9 (expected: x:max<9)"
    )
    assert of("missing<=10%") == "column 'name': its missing is 0.25 (expected: missing<=0.1)"
    # Of all columns it is that of numbers.
    assert of("max<=8") == "column 'x': its max is 9 (expected: max<=8)"
    with pytest.raises(UserError, match="column 'name' of type string has no mean"):
        of("name:mean>0")


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        ("price", "'price' is no condition"),
        ("price:ps<=1", r"there is no measure 'ps' \(did you mean psi"),
        ("price:psi<=x", "'x' is no number"),
        ("price:records>=5", "records is no measure of a column"),
        ("prize:psi<=1", r"there is no column 'prize' \(did you mean price\?\)"),
        ("prize:any", r"there is no column 'prize'"),
    ],
)
def test_what_is_no_limit_is_refused_by_name(expect, message):
    with pytest.raises(UserError, match=f"--expect: .*{message}"):
        Expected(expect, compares=True).check_columns(["price", "item"])


def test_what_compares_needs_an_earlier_day():
    for measure in RELATIVE:
        with pytest.raises(UserError, match=f"{measure} compares with an earlier day: .*--against"):
            Expected(f"{measure}<=1", compares=False)


# ---------------------------------------------------------------- kinds of columns


def test_columns_of_other_forms_of_one_type_are_compared(tmp_path):
    words = ["a", "b", "c", "a"] * 50
    before = pa.table(
        {"word": words, "n": pa.array(range(200), pa.int32()), "l": pa.array([[1.0]] * 200)}
    )
    now = pa.table(
        {
            "word": pa.array([*words[1:], "a"]).dictionary_encode(),
            "n": pa.array(range(1, 201), pa.int64()),
            "l": pa.array([[2.0 + i % 2] for i in range(200)], pa.large_list(pa.float32())),
        }
    )
    told = said(found(now, before, tmp_path, "l:psi<=99,l:outside<=1"))
    assert told == ""
    other = put(now, "l", pa.array([["1"]] * 200))
    assert "of type list<" in said(found(other, before, tmp_path))


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("ms", "UTC")])
def test_times_of_any_type_follow_those_of_the_day_before(kind, tmp_path):
    def day(number, hours=24):
        begin = np.datetime64("2026-03-01") + np.timedelta64(number, "D")
        times = begin + (np.arange(1000) * hours * 3.6).astype("timedelta64[s]")
        return pa.table(
            {"at": pa.array(times).cast(kind, safe=False), "n": np.arange(1000) * number}
        )

    for number in (1, 3, 7):
        assert said(found(day(number), day(0), tmp_path, "n:any")) == ""
    for number in (-1, 0, 9):
        told = said(found(day(number), day(0), tmp_path, "n:any"))
        assert "column 'at': its times begin at 2026-0" in told
    assert said(found(day(9), day(0), tmp_path, "n:any,gap<=10")) == ""
    if kind != pa.date32():
        assert "its times span 11.8 hours, and spanned 23.5 hours" in said(
            found(day(1, 12), day(0), tmp_path, "n:any")
        )


def test_few_records_differ_by_chance(tmp_path):
    """Of one distribution, PSI alone is often above the limit."""
    for seed in range(40):
        days = [table(70, seed), table(70, seed + 1000)]
        assert said(found(*days, tmp_path)) == "", seed


def test_numbers_that_name_records_may_go_on_counting(tmp_path):
    before, now = (table(seed=i, order=range(1000 * i, 1000 * (i + 1))) for i in range(2))
    assert said(found(now, before, tmp_path)) == ""
    twice = table(seed=3, order=[each // 2 for each in range(1000)])
    assert "column 'order'" in said(found(twice, before, tmp_path))


def test_a_scale_is_one_of_small_and_large_numbers_alike(tmp_path):
    draw = np.random.default_rng(1)
    before, now = (table(seed=i, price=np.exp(draw.normal(3, 0.2, 1000))) for i in range(2))
    prices = now["price"].to_numpy()
    some = put(now, "price", np.where(prices > np.quantile(prices, 0.35), prices * 3, prices))
    assert said(found(some, before, tmp_path, "psi<=99,outside<=1")) == ""
    every = put(now, "price", prices * 3)
    told = said(found(every, before, tmp_path, "psi<=99,outside<=1"))
    assert "column 'price': its numbers are 3" in told


def test_a_new_column_is_noted_and_stops_nothing(tmp_path):
    before = table(word=["a", "b"] * 500)
    more = found(table(word=["a", "b"] * 500, new=range(1000), seed=3), before, tmp_path)
    assert (more.findings, more.notes) == ([], ["column 'new' is new, and compared with nothing"])


def test_values_that_are_no_finite_numbers_are_compared(tmp_path):
    odd = np.array([np.inf, -np.inf, np.nan, 0.0] * 250)
    assert found(table(odd=odd, seed=2), table(odd=odd), tmp_path).findings == []
    assert "column 'odd'" in said(found(table(odd=np.ones(1000)), table(odd=odd), tmp_path))


# ---------------------------------------------------------------- the command


def run(*arguments):
    done = CliRunner().invoke(main, ["analyze", *map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


@pytest.fixture
def files(tmp_path):
    """Data of a day, its statistics, and faulty data of the next."""
    shop = Shop(4, 1000)
    pq.write_table(shop.next_day(), tmp_path / "monday.parquet")
    pq.write_table(
        FAULTS["the unit of prices"](shop.next_day(), None), tmp_path / "tuesday.parquet"
    )
    assert run("--data", tmp_path / "monday.parquet", "--output", tmp_path / "monday.json")[0] == 0
    return tmp_path


def test_the_command_exits_with_3_and_says_why(files):
    data = "--data", files / "tuesday.parquet", "--against", files / "monday.json"
    code, output = run(*data, "--output", files / "tuesday.json")
    assert code == 3
    assert "not as expected: column 'price': its numbers are " in output
    # What was found is written all the same.
    assert read_statistics(str(files / "tuesday.json"), "--against")["records"] > 0
    assert run(*data, "--expect", "price:any")[0] == 0
    assert run("--data", files / "monday.parquet", "--expect", "records>=2000")[0] == 3
    (files / "empty.csv").write_text("price\n")
    assert run("--data", files / "empty.csv", "--against", files / "monday.json")[0] == 2
    assert DEFAULTS.replace(",", ", ").split(", ")[-1] in run("--help")[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "--against: cannot read .*monday.json: No such file"),
        ("{", "monday.json is not JSON"),
        ("[]", "was not written by shoal analyze"),
        ({"records": "5"}, "was changed since shoal analyze wrote it"),
        ({"columns": {"x": {"type": "int64", "values": 3}}}, "was changed since"),
        ({"columns": {"x": 5}}, "was changed since"),
    ],
)
def test_an_earlier_file_that_is_none_is_named_before_the_data_is_read(files, change, message):
    path = files / "monday.json"
    told = json.loads(path.read_text())
    path.unlink()
    if isinstance(change, dict):
        path.write_text(json.dumps(told | change))
    elif change is not None:
        path.write_text(change)
    code, output = run("--data", files / "nothing.parquet", "--against", path)
    assert code == 2
    assert re.search(message, output.replace("\n", " ")), output


def test_the_command_needs_something_to_do(files):
    code, output = run("--data", files / "monday.parquet")
    assert code == 2
    assert "--output is required by shoal analyze without --against and --expect" in output
