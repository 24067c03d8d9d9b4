"""What `shoal top` draws for the statuses of the last seconds."""

import io

import pytest
from rich.console import Console

from shoal.client.show.top import BAR, WINDOW_SECONDS, Seen, bar, page
from shoal.proto import shoal_pb2 as pb


def server(index, seconds, pulls=0, cpu=0.0, **fields):
    told = pb.ServerStatus(
        seconds=seconds,
        pulls=pulls,
        pushes=pulls // 2,
        cpu_seconds=cpu,
        tables=[
            pb.TableStatus(name="user", rows=1000, memory_bytes=1 << 20),
            pb.TableStatus(name="item", rows=234, memory_bytes=1 << 20),
        ],
    )
    return pb.ServerView(server=index, state="alive", starts=1, told=told, **fields)


def worker(index, stages, state="alive", incarnation=0, **fields):
    return pb.WorkerView(
        worker=index,
        state=state,
        incarnation=incarnation,
        starts=incarnation + 1,
        stage_seconds=stages,
        **fields,
    )


def status(servers=(), workers=(), **fields):
    values = {
        "job_name": "swim",
        "state": "training",
        "epochs": 2,
        "tasks_done": 3,
        "tasks_total": 12,
        "ledger": pb.Ledger(total=100, pending=50),
        "samples_per_second": 1234.0,
        "workers_wanted": 2,
        "workers_alive": 2,
    }
    return pb.JobStatus(servers=servers, workers=workers, **(values | fields))


def seen(*statuses):
    found = Seen()
    for now, each in statuses:
        found.add(each, now)
    return found


def drawn(found, rows=60, problem="", width=120):
    console = Console(file=io.StringIO(), width=width, height=rows)
    console.print(page(found, rows, problem))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def line_of(lines, begin):
    (line,) = [each for each in lines if each.startswith(begin)]
    return " ".join(line.split())


def test_rates_are_those_between_two_words_of_a_server():
    first = status([server(0, 100.0, pulls=1000, cpu=10.0)])
    again = seen((0.0, first), (1.0, first))
    assert not again.rates_known
    assert "1,234 2.1 MB" in line_of(drawn(again), "ps-0")
    found = seen((0.0, first), (4.0, status([server(0, 104.0, pulls=1400, cpu=13.0)])))
    assert found.rates_known
    # 100 pulls and 50 pushes a second, three quarters of a core, no restart.
    assert line_of(drawn(found), "ps-0") == "ps-0 alive 1,234 2.1 MB 100 50 0.75 0"


def test_tables_that_count_ids_or_remove_rows_have_columns_of_it():
    first, second = server(0, 100.0), server(1, 100.0)
    assert "counted" not in " ".join(drawn(seen((0.0, status([first, second])))))
    first.told.tables[0].removed.MergeFrom(pb.RemovedIds(expired=30, evicted=4, counts=9))
    second.told.tables[1].counting = 1500
    second.told.clock_doubt = "the event time jumps"
    lines = drawn(seen((0.0, status([first, second]))))
    assert line_of(lines, "server").startswith("server state rows counted removed memory")
    assert line_of(lines, "ps-0").startswith("ps-0 alive 1,234 0 34 2.1 MB")
    assert line_of(lines, "ps-1").startswith("ps-1 alive 1,234 1,500 0 2.1 MB")
    assert line_of(lines, "ps-1").endswith("the event time jumps")


def test_a_server_that_was_restarted_is_not_compared_with_the_one_before():
    before = status([server(0, 900.0, pulls=100_000)])
    after = status([server(0, 3.0, pulls=10, incarnation=1)])
    assert not seen((0.0, before), (1.0, after)).rates_known


def test_the_shares_are_those_of_the_last_seconds():
    slow = worker(0, {"training": 100.0, "step": 90.0, "wait for pull": 5.0})
    now = worker(0, {"training": 104.0, "step": 91.0, "wait for pull": 8.0})
    lines = drawn(seen((0.0, status(workers=[slow])), (4.0, status(workers=[now]))))
    assert line_of(lines, "step").endswith("25%")
    assert line_of(lines, "wait for pull").endswith("75%")
    assert "wait for pull 75%, step 25%" in line_of(lines, "worker-0")
    # With one status alone they are those of the whole time.
    assert line_of(drawn(seen((0.0, status(workers=[slow])))), "step").endswith("90%")
    # What is older than the window counts no more.
    later = worker(0, {"training": 204.0, "step": 91.0, "wait for pull": 108.0})
    found = seen(
        (0.0, status(workers=[slow])),
        (4.0, status(workers=[now])),
        (5.0 + WINDOW_SECONDS, status(workers=[later])),
    )
    assert found.stages()["step"] == pytest.approx(91 / 204)


def test_who_is_in_trouble_comes_first_and_says_why():
    many = [worker(index, {"training": 1.0, "step": 1.0}) for index in range(40)]
    many[30] = worker(30, {}, state="dead", incarnation=2)
    many[31].waits_for = "storage: part-3: timed out"
    found = seen((0.0, status([server(0, 1.0)], many)))
    lines = drawn(found, rows=30)
    assert len(lines) <= 30
    shown = [line.split()[0] for line in lines if line.startswith("worker-")]
    assert shown[:2] == ["worker-30", "worker-0"]
    assert f"... {40 - len(shown)} more workers" in lines
    assert "dead" in line_of(lines, "worker-30")
    assert "waiting for storage: part-3: timed out" in line_of(drawn(found, 200), "worker-31")


def test_a_task_is_told_with_its_records():
    task = pb.Task(kind=pb.TRAIN, range=pb.Range(source="/data/clicks.csv", start=1000, end=2000))
    found = seen((0.0, status(workers=[worker(0, {}, task=task, records_done=250)])))
    assert line_of(drawn(found), "worker-0").endswith("train 1,000-2,000 of clicks.csv, 25%")


def test_what_is_known_of_the_job_and_what_is_not():
    text = drawn(seen((0.0, status())), problem="no answer")
    assert "the master does not answer: no answer" in text
    assert not any("checkpoint" in line for line in text)
    text = drawn(seen((0.0, status(checkpoint_seconds=75.0, messages=["old", "3.0 s: new"]))))
    assert "the newest checkpoint is 1 min old" in text
    assert "3.0 s: new" in text
    assert "old" not in text


@pytest.mark.parametrize(
    ("share", "drawing"), [(0.0, ""), (1.0, "█" * BAR), (1.7, "█" * BAR), (1 / (8 * BAR), "▏")]
)
def test_bars(share, drawing):
    assert bar(share) == drawing.ljust(BAR)
