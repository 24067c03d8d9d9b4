"""A server's memory at the end of an epoch, by what it was until now."""

import numpy as np
import pytest

from shoal.master.job.scaling.memory_forecast import EARLIEST, MemoryForecast, MemoryForecasts

EPOCH = 100_000
EMPTY = 120 << 20
ROW = 156


def told(rows, until=EPOCH // 4, every=500, forecast=None):
    """A forecast after so many records. rows: of a number of records."""
    forecast = forecast or MemoryForecast()
    for records in range(0, until + 1, every):
        tables = int(ROW * 1000 * rows(records))
        forecast.note(records, EMPTY + tables, tables, EPOCH)
    return forecast.bytes


def needed(rows):
    return EMPTY + ROW * 1000 * rows(EPOCH)


@pytest.mark.parametrize("power", [0.3, 0.7, 1.0])
@pytest.mark.parametrize("share", [1 / 8, 1 / 4, 3 / 4])
def test_rows_that_grow_by_a_power_of_the_records(power, share):
    def rows(records):
        return 20 * records**power

    assert told(rows, int(EPOCH * share)) == pytest.approx(needed(rows), rel=0.02)


@pytest.mark.parametrize("exponent", [0.9, 1.05, 1.3])
def test_ids_by_zipf(exponent):
    """Of real draws, whose growth is no power: a forecast at a quarter is within a sixth."""
    chance = np.random.default_rng(0)
    weights = np.arange(1, 2_000_000) ** -exponent
    ids = chance.choice(weights.size, EPOCH, p=weights / weights.sum())
    first = np.zeros(EPOCH, bool)
    first[np.unique(ids, return_index=True)[1]] = True
    distinct = np.concatenate([[0], np.cumsum(first)])
    found = told(lambda records: distinct[records])
    assert found == pytest.approx(needed(lambda records: distinct[records]), rel=1 / 6)


def test_tables_that_have_met_all_ids_grow_no_more():
    assert told(lambda records: min(records, 5_000)) == needed(lambda _: 5_000)


def test_a_cap_that_holds_is_seen_within_a_doubling():
    forecast = MemoryForecast()
    early = told(lambda records: min(records, 10_000), 10_000, forecast=forecast)
    late = told(lambda records: min(records, 10_000), 25_000, forecast=forecast)
    assert early > 5 * late
    assert late == needed(lambda _: 10_000)


def test_no_id_is_new_after_the_first_epoch():
    forecast = MemoryForecast()
    told(lambda records: records, EPOCH, forecast=forecast)
    forecast.note(3 * EPOCH // 2, 7 << 30, 6 << 30, EPOCH)
    assert forecast.bytes == 7 << 30


@pytest.mark.parametrize(
    ("records", "used", "epoch"),
    [(EPOCH // 2, 1 << 30, 0), (EPOCH // 2, 0, EPOCH), (int(EPOCH * EARLIEST) - 1, 1 << 30, EPOCH)],
)
def test_nothing_is_known_without_an_epoch_or_memory_or_too_early(records, used, epoch):
    forecast = MemoryForecast()
    forecast.note(0, used and EMPTY, 0, epoch)
    forecast.note(records, used, used - EMPTY, epoch)
    assert forecast.bytes == 0


def test_one_sample_says_that_memory_grows_with_the_records():
    forecast = MemoryForecast()
    forecast.note(0, EMPTY, 0, EPOCH)
    forecast.note(EPOCH // 2, EMPTY + (1 << 30), 1 << 30, EPOCH)
    assert forecast.bytes == EMPTY + (2 << 30)


def test_what_a_checkpoint_takes_once_is_no_growth_of_the_tables():
    forecast = MemoryForecast()
    forecast.note(0, EMPTY, 0, EPOCH)
    forecast.note(EPOCH // 4, EMPTY + 1000, 1000, EPOCH)
    forecast.note(EPOCH // 2, EMPTY + 2000 + (1 << 30), 2000, EPOCH)
    assert forecast.bytes == EMPTY + 4000 + (1 << 30)


def test_many_samples_of_a_stream_are_thinned():
    forecast = MemoryForecast()
    for records in range(10_000):
        forecast.note(records, EMPTY + 1000 * records, 1000 * records, 0)
    assert forecast.bytes == 0
    forecast.note(10_000, EMPTY + 10_000_000, 10_000_000, 20_000)
    assert forecast.bytes == EMPTY + 20_000_000


def test_a_server_that_was_restored_begins_with_its_rows():
    forecast = MemoryForecast()
    for records in range(EPOCH // 2, 3 * EPOCH // 4, 500):
        tables = (4 << 30) + 1000 * (records - EPOCH // 2)
        forecast.note(records, (1 << 30) + tables, tables, EPOCH)
    assert forecast.bytes == pytest.approx((5 << 30) + 1000 * EPOCH // 2, rel=0.01)


def warnings(forecasts, servers, limit, rate=100_000):
    said = []
    for records in range(0, EPOCH, 500):
        for server in range(servers):
            tables = rate * records
            if text := forecasts.note(server, records, EMPTY + tables, tables, limit, EPOCH):
                said.append((records, text))
    return said


def test_a_server_that_will_need_too_much_is_told_of_once():
    ((records, text),) = warnings(MemoryForecasts(1, shared=False), 1, 8 << 30)
    assert records < EPOCH / 10
    assert text.startswith("warning: ps-0 will need about 10.1 GB of memory at the end of the")
    assert "8.6 GB is there" in text


def test_it_is_told_again_if_it_gets_much_worse():
    forecasts = MemoryForecasts(1, shared=False)
    assert len(warnings(forecasts, 1, 8 << 30)) == 1
    forecasts.begin(0)
    assert len(warnings(forecasts, 1, 8 << 30, rate=110_000)) == 0
    forecasts.begin(0)
    assert len(warnings(forecasts, 1, 8 << 30, rate=150_000)) == 1


def test_enough_memory_or_an_unknown_limit_is_no_warning():
    assert not warnings(MemoryForecasts(1, shared=False), 1, 12 << 30)
    assert not warnings(MemoryForecasts(1, shared=False), 1, 0)


def test_servers_of_one_machine_share_its_memory():
    assert not warnings(MemoryForecasts(2, shared=False), 2, 12 << 30)
    ((_, text),) = warnings(MemoryForecasts(2, shared=True), 2, 12 << 30)
    assert text.startswith("warning: the servers will need about 20.3 GB")
