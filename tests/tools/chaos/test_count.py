"""The comparison of a job's rows with its data and its audit, on rows made by hand."""

import dataclasses
import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.errors import UserError
from shoal.native.ids import slot_of
from shoal.proto.values.routing import Routing, slice_of
from shoal.tools.chaos.count import Part, compare
from shoal.tools.chaos.count_job import GROUPS, admit_after_of, read_input, write_input
from shoal.tools.counting import counts

RECORDS = 40
EPOCHS = 2


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_input(folder, records=RECORDS, users=7, seed=3)
    return read_input(folder)


def holder(table, key, servers):
    if table == "groups":
        return next(
            s for s in range(servers) if key in range(*slice_of(GROUPS, s, servers).indices(GROUPS))
        )
    return Routing.even(servers).owners[slot_of(np.array([key], np.int64))][0]


def keys_of(source, position):
    record = int(source.records[position])
    return {"records": record, "users": int(source.users[position]), "groups": record % GROUPS}


def rows_of(sources, ranges):
    """{table: Counter of id}, one record of one range after another."""
    rows = {name: Counter() for name in ("records", "users", "groups")}
    for source in sources:
        for position in range(len(source.records)):
            for table, key in keys_of(source, position).items():
                rows[table][key] += EPOCHS
    by_name = {source.name: source for source in sources}
    for each in ranges:
        for position in range(each["start"], each["end"]):
            for table, key in keys_of(by_name[each["source"]], position).items():
                if each["server"] in (None, holder(table, key, each["servers"])):
                    rows[table][key] += 1 if each["kind"] == "repeated" else -1
    return rows


def write_export(folder, rows):
    (folder / "tables").mkdir(exist_ok=True)
    for name in ("records", "users"):
        ids, vectors = list(rows[name]), [[-float(n)] for n in rows[name].values()]
        table = pa.table({"id": pa.array(ids, pa.int64()), "vector": vectors})
        pq.write_table(table, folder / "tables" / f"{name}.parquet")
    values = [-float(rows["groups"][group]) for group in range(GROUPS)]
    dense = {"name": ["dense/groups"], "shape": [[GROUPS]], "values": [values]}
    pq.write_table(pa.table(dense), folder / "dense.parquet")


def a_range(source, start, end, *, kind, server, servers):
    return {
        "kind": kind,
        "server": server,
        "servers": servers,
        "worker": "worker-0",
        "incarnation": 1,
        "source": source.name,
        "start": start,
        "end": end,
        "epoch": 0,
    }


def compared(folder, sources, ranges, servers):
    return compare(folder, [Part(sources, EPOCHS, {"ranges": ranges})], servers)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_ranges_make_every_row_exact_and_any_other_row_differs(data, sources, tmp_path):
    # Of a job that is resumed on another number of servers.
    numbers = [data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))]
    ranges = []
    for _ in range(data.draw(st.integers(0, 4))):
        source = data.draw(st.sampled_from(sources))
        start = data.draw(st.integers(0, len(source.records)))
        servers = data.draw(st.sampled_from(numbers))
        ranges.append(
            a_range(
                source,
                start,
                data.draw(st.integers(start, len(source.records))),
                kind=data.draw(st.sampled_from(["repeated", "lost"])),
                server=data.draw(st.none() | st.integers(0, servers - 1)),
                servers=servers,
            )
        )
    rows = rows_of(sources, ranges)
    write_export(tmp_path, rows)
    comparison = compared(tmp_path, sources, ranges, numbers[-1])
    assert not comparison.differs, comparison.lines()
    assert all(count.exact == count.rows for count in comparison.counts)

    table = data.draw(st.sampled_from(sorted(rows)))
    key = data.draw(st.sampled_from(sorted(rows[table])))
    rows[table][key] += data.draw(st.sampled_from([-1, 1, 0.5]))
    write_export(tmp_path, rows)
    comparison = compared(tmp_path, sources, ranges, numbers[-1])
    found = {count.table: count.differences for count in comparison.counts}
    assert [each.id for each in found.pop(table)] == [key]
    assert not any(found.values())
    assert f"DIFFERENCE: {table}: {key} of ps-" in "\n".join(comparison.lines())


@pytest.mark.parametrize("admit_after", [EPOCHS, EPOCHS + 1])
def test_with_admission_a_record_has_the_times_from_the_admitting_one_on(
    sources, tmp_path, admit_after
):
    repeated = a_range(sources[0], 0, 2, kind="repeated", server=None, servers=2)
    rows = rows_of(sources, [repeated])
    rows["records"] = {
        i: n - admit_after + 1 for i, n in rows["records"].items() if n >= admit_after
    }
    write_export(tmp_path, rows)
    parts = [Part(sources, EPOCHS, {"ranges": [repeated]})]

    def compared_with(admit_after):
        return compare(tmp_path, parts, 2, {"records": {"admit_after": admit_after}})

    comparison = compared_with(admit_after)
    assert not comparison.differs, comparison.lines()
    assert compared_with(admit_after + 1).differs
    assert compared_with(admit_after - 1).differs


def test_where_rows_moved_a_range_of_one_server_gives_bounds(sources, tmp_path):
    ranges = [
        a_range(sources[0], 0, 4, kind="repeated", server=0, servers=2),
        a_range(sources[1], 0, 4, kind="lost", server=1, servers=2),
    ]
    rows = rows_of(sources, [])  # neither came to pass where the servers of the start had the rows
    write_export(tmp_path, rows)
    parts = [Part(sources, EPOCHS, {"ranges": ranges}, moved=True)]
    comparison = compare(tmp_path, parts, 2)
    assert not comparison.differs, comparison.lines()
    assert "80, expected 76 to 84" in "\n".join(comparison.lines())
    rows["records"][int(sources[0].records[0])] += 2
    write_export(tmp_path, rows)
    assert compare(tmp_path, parts, 2).differs


def test_a_stopped_job_trained_what_its_rows_and_its_audit_say(sources, tmp_path):
    early = [dataclasses.replace(each, records=each.records[:5]) for each in sources]
    early = [dataclasses.replace(each, users=each.users[:5]) for each in early]
    write_export(tmp_path, rows_of(early, []))
    audit = {"ranges": [], "records": {"once": 10 * EPOCHS, "more": 0}}
    parts = [Part(sources, EPOCHS, audit, stopped=True)]
    assert not compare(tmp_path, parts, 2).differs
    assert compare(tmp_path, [dataclasses.replace(parts[0], stopped=False)], 2).differs
    audit["records"]["once"] += 1
    comparison = compare(tmp_path, parts, 2)
    assert comparison.differs
    assert "by the rows 20 records were trained, by the audit 21" in "\n".join(comparison.lines())
    rows = rows_of(early, [])
    rows["users"][int(early[0].users[0])] -= 1
    write_export(tmp_path, rows)
    assert compare(tmp_path, parts, 2).counts[1].differences


def test_a_stopped_job_whose_rows_moved_has_bounds_of_what_it_trained(sources, tmp_path):
    early = [dataclasses.replace(each, records=each.records[:5]) for each in sources]
    early = [dataclasses.replace(each, users=each.users[:5]) for each in early]
    again = a_range(early[0], 0, 4, kind="repeated", server=0, servers=2)
    # Another server than today's held them.
    of_today = {holder("records", i, 2) for i in early[0].records[:4]}
    assert of_today == {0, 1}
    write_export(tmp_path, rows_of(early, [again | {"servers": 1}]))
    told = {"once": 10 * EPOCHS, "more": 0}
    part = Part(sources, EPOCHS, {"ranges": [again], "records": told}, stopped=True, moved=True)
    assert not compare(tmp_path, [part], 2).differs
    assert compare(tmp_path, [dataclasses.replace(part, moved=False)], 2).differs
    told["once"] += 1
    lines = "\n".join(compare(tmp_path, [part], 2).lines())
    assert "by the rows 20 records were trained, by the audit 21" in lines


def test_an_update_of_two_gradients_halves_them_but_for_short_ones(sources, tmp_path):
    rows = rows_of(sources, [])
    halves = {name: {key: n / 2 for key, n in each.items()} for name, each in rows.items()}
    write_export(tmp_path, halves)
    part = Part(sources, EPOCHS, {"ranges": []}, gradients=2, batch=3)
    assert not compare(tmp_path, [part], 2).differs
    for name in halves:
        halves[name][min(halves[name])] += 0.5  # one record of a gradient alone
    write_export(tmp_path, halves)
    assert compare(tmp_path, [part], 2).differs
    assert not compare(tmp_path, [dataclasses.replace(part, short=1)], 2).differs


def test_a_series_has_trained_the_data_of_all_its_jobs(sources, tmp_path):
    write_export(tmp_path, rows_of(sources, []))
    parts = [Part([each], EPOCHS, {"ranges": []}) for each in sources]
    assert not compare(tmp_path, parts, 2).differs
    assert compare(tmp_path, parts[1:], 2).differs


def test_an_option_of_a_table_that_is_no_count_is_refused():
    assert admit_after_of("") == 1
    assert admit_after_of("records.admit_after=3") == 3
    with pytest.raises(UserError, match=r"users.admit_after cannot be given.*records.admit_after"):
        admit_after_of("records.admit_after=3,users.admit_after=2")


def test_an_id_that_is_not_in_the_input_differs(sources, tmp_path):
    rows = rows_of(sources, [])
    rows["users"][12345] = 1
    write_export(tmp_path, rows)
    comparison = compared(tmp_path, sources, [], 2)
    assert comparison.differs
    assert any("12345 of ps-" in line for line in comparison.lines())
    assert any("expected none of this id, found 1" in line for line in comparison.lines())


def test_the_data_has_each_record_once_and_users_that_repeat(sources, tmp_path):
    records = np.concatenate([source.records for source in sources])
    users = np.concatenate([source.users for source in sources])
    assert sorted(records) == list(range(RECORDS))
    assert len(set(users)) < RECORDS / 4
    assert len(sources) == 2
    assert math.prod(len(source.records) for source in sources) > 0
    (tmp_path / "mine.csv").touch()
    with pytest.raises(UserError, match=r"holds mine\.csv, which is not its data"):
        write_input(tmp_path)


def test_the_model_counts_in_as_many_dense_weights():
    assert counts.GROUPS == GROUPS
