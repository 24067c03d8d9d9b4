"""What a worker's progress says that it has done since it began."""

from shoal.worker.reports.progress import TRAINING, Progress


def test_steps_and_records_are_counted_over_all_tasks():
    progress = Progress()
    progress.begin(1)
    progress.add_step(16, 1, 0.5, ())
    progress.add_step(32, 2, 0.5, ())
    progress.begin(2)
    progress.add_step(16, 3, 0.5, ())
    done = progress.done()
    assert (done.steps, done.records, done.version) == (3, 48, 3)


def test_records_that_are_known_at_the_end_of_a_task_only_are_counted_there():
    progress = Progress()
    progress.begin(1)
    progress.add_step(0, 1, 0.5, ())
    assert progress.done().records == 0
    progress.add_step(32, 2, 0.5, ())
    assert progress.done().records == 32


def test_stages_and_training_under_way_are_in_both_reports():
    progress = Progress()
    with progress.training():
        progress.spent("pull", 2.0)
        first = progress.done().stage_seconds
        beat = progress.take(0, 0)
    last = progress.done().stage_seconds
    assert first["pull"] == beat.stage_seconds["pull"] == last["pull"] == 2.0
    assert 0 < first[TRAINING] <= beat.stage_seconds[TRAINING] <= last[TRAINING]
