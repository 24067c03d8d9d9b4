"""Each kind of trouble whose outcome the guide describes has a test."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "guide" / "when-things-die.md"

PROOFS = {
    "a worker is killed or crashes": [
        "jobs/test_kill.py::test_a_killed_worker_costs_nothing_but_time",
    ],
    "a worker hangs, or its heartbeats do not come": [
        "master/job/test_worker_lifecycle.py::test_a_silent_worker_is_killed_and_fenced_at_exactly_the_timeout",
        "master/test_runner.py::test_a_silent_worker_is_replaced",
        "ps/test_service.py::test_a_fenced_worker_cannot_push",
    ],
    "your code stands still: `feed`, the model or your own reader does not come back": [
        "jobs/test_progress.py::"
        "test_a_worker_whose_feed_stands_still_is_named_with_its_line_and_replaced",
        "jobs/test_count.py::"
        "test_a_worker_whose_step_stands_still_is_named_with_its_stacks_and_replaced",
        "master/work/tasks/test_poison.py::test_a_range_at_which_workers_stand_still_is_at_fault",
    ],
    "your code raises an exception": [
        "jobs/test_bad_records.py::test_bad_records_are_left_out_and_all_others_are_trained_once",
        "jobs/test_bad_input.py::test_an_error_in_the_user_s_code_is_shown_whole",
    ],
    "a server dies: killed, crashed, out of memory": [
        "jobs/test_server_kill.py::"
        "test_a_server_restores_the_newest_good_checkpoint_and_the_loss_is_counted",
    ],
    "a server dies in a job with `--sync`": [
        "jobs/test_sync.py::test_servers_killed_at_points_of_an_update_lose_nothing",
        "jobs/test_sync.py::test_without_a_log_a_server_s_death_ends_the_job_and_resume_goes_on",
    ],
    "a server is told to end (SIGTERM) while the job trains": [
        "jobs/test_server_kill.py::test_a_server_that_is_told_to_end_loses_nothing",
    ],
    "a server dies and there is no checkpoint yet": [
        "jobs/test_server_kill.py::"
        "test_a_hung_server_is_replaced_and_without_a_checkpoint_its_rows_start_anew",
    ],
    "a server dies and the newest checkpoint is damaged": [
        "jobs/test_server_kill.py::"
        "test_a_server_restores_the_newest_good_checkpoint_and_the_loss_is_counted",
        "ps/saved/test_checkpoint.py::"
        "test_every_damaged_checkpoint_is_refused_by_name_and_the_one_before_is_taken",
    ],
    "a server dies and the storage of the checkpoints fails": [
        "ps/saved/test_patience.py::test_whichever_call_fails_the_newest_checkpoint_is_restored",
        "ps/test_starting.py::test_a_server_waits_for_storage_and_says_so",
        "ps/test_starting.py::"
        "test_a_server_whose_storage_stays_away_has_the_job_end_as_one_to_be_resumed",
    ],
    "a job is resumed, and its newest checkpoint is damaged": [
        "jobs/test_resume.py::"
        "test_servers_find_the_checkpoint_damaged_and_all_begin_with_the_one_before",
    ],
    "a server or the master dies while a checkpoint is taken": [
        "jobs/test_server_kill.py::test_servers_and_master_die_while_a_checkpoint_is_taken",
    ],
    "a server dies in `shoal evaluate` or `shoal predict`, or while `--restore-from` is loaded": [
        "jobs/test_server_kill.py::test_servers_that_die_while_a_saved_model_is_used_have_it_again",
    ],
    "a server is slow": [
        "jobs/test_exactly_once.py::test_kills_between_servers_of_all_workers_and_in_evaluation",
        "ps/test_service.py::test_a_retried_push_is_applied_once",
    ],
    "a server hangs: it is there and answers nothing": [
        "jobs/test_server_kill.py::"
        "test_a_hung_server_is_replaced_and_without_a_checkpoint_its_rows_start_anew",
        "master/job/test_server_lifecycle.py::test_a_hung_server_is_killed_once_and_started_again",
        "tools/chaos/test_hooks.py::"
        "test_a_process_that_answers_pings_only_handles_no_call_and_loses_none",
    ],
    "there is no room for a process that is to start, or start again": [
        "master/test_runner.py::"
        "test_processes_without_room_wait_and_their_job_begins_when_there_is_some",
        "jobs/test_count.py::test_storage_hangs_half_sent_requests_and_no_room_cost_time_only",
    ],
    "requests to a server are sent by half, and their senders stand still": [
        "tools/chaos/test_hooks.py::"
        "test_half_sent_requests_leave_the_state_to_be_asked_for_and_end_with_their_sender",
        "jobs/test_count.py::test_storage_hangs_half_sent_requests_and_no_room_cost_time_only",
    ],
    "the disk of the checkpoints is full, or their folder unwritable or gone": [
        "master/journal/test_full_disk.py::"
        "test_a_checkpoint_without_room_is_refused_and_the_one_before_stays",
        "jobs/test_checkpoints.py::"
        "test_a_folder_that_vanishes_is_made_anew_and_one_that_cannot_be_costs_warnings",
        "jobs/test_count.py::"
        "test_a_job_killed_whole_goes_on_with_other_numbers_of_servers_and_a_full_disk",
    ],
    "the master is killed": ["jobs/test_master_kill.py::test_kills_of_the_master_cost_nothing"],
    "the master and others die together": [
        "jobs/test_master_kill.py::test_worker_and_master_die_together",
    ],
    "the disk of the job folder is full, or does not answer": [
        "master/journal/test_full_disk.py::test_the_journal_waits_for_room_and_then_has_everything",
        "master/journal/test_journal.py::test_a_full_disk_is_told_and_nobody_waits_longer_than_he_will",
    ],
    "the disk of the job folder fails with another error": [
        "master/journal/test_journal.py::test_an_error_that_does_not_end_is_the_end",
    ],
    "the master stands still for a while (stopped, a machine that sleeps)": [
        "master/job/test_job.py::test_silence_while_the_master_itself_stood_still_is_nobodys",
        "master/test_runner.py::test_a_master_that_stood_still_takes_nobody_for_dead",
    ],
    "a server answers the master, and no worker: its disk hangs, say": [
        "master/job/test_server_lifecycle.py::"
        "test_a_server_that_answers_the_master_and_no_worker_is_killed",
        "master/job/test_server_lifecycle.py::test_one_of_several_workers_may_have_a_network_of_its_own",
    ],
    "the network is cut between two processes, and comes back": [
        "proto/test_network.py::test_a_cut_and_its_return_cost_time_only",
        "proto/test_network.py::test_a_cut_that_lasts_is_an_error_that_names_server_and_flag",
        "jobs/test_chaos.py::"
        "test_thirteen_kills_leave_every_record_trained_once_and_no_update_lost",
        "jobs/test_cuts.py::test_cuts_from_the_master_and_their_return_cost_time_only",
        "jobs/test_cuts.py::test_whoever_is_cut_from_the_master_for_too_long_is_replaced",
    ],
    "the machine of the other end vanishes without a word": [
        "proto/test_network.py::"
        "test_a_half_open_connection_is_found_by_pings_long_before_the_deadline",
        "proto/test_network.py::test_a_server_whose_old_path_is_dead_is_found_at_another",
    ],
    "the clock of the machine is set": [
        "master/test_clock.py::test_nothing_that_decides_reads_the_time_of_day",
        "master/test_clock.py::test_a_new_master_s_time_goes_on_and_never_backwards",
    ],
    "storage fails: a disk, a mounted folder, a bucket, a database, an OSError in your reader": [
        "jobs/test_progress.py::test_storage_that_fails_for_a_while_costs_nothing_but_time",
        "jobs/test_progress.py::"
        "test_storage_that_fails_for_a_while_at_the_export_costs_nothing_but_time",
        "jobs/test_progress.py::"
        "test_storage_that_fails_for_a_while_as_predictions_are_completed_costs_only_time",
        "jobs/test_progress.py::"
        "test_storage_that_stays_away_ends_the_job_as_something_to_be_mended",
        "worker/test_storage_patience.py::test_every_record_comes_once_however_often_reading_fails",
    ],
    "storage hangs: a read that does not come back": [
        "worker/reports/test_watch.py::test_a_read_that_hangs_is_the_storages_and_no_records",
        "master/work/tasks/test_poison.py::"
        "test_storage_that_fails_before_the_data_is_known_ends_the_job_and_later_costs_a_start",
    ],
    "a gradient is NaN or infinite": [
        "worker/model/learning/test_finite.py::test_a_minibatch_is_left_out_on_all_servers",
        "ps/test_service.py::test_a_push_that_is_not_finite_changes_nothing_and_is_named",
    ],
    "everything dies at once, as when the machine does": [
        "jobs/test_resume.py::test_killed_whole_and_resumed_with_other_numbers_of_processes",
        "jobs/test_resume.py::test_what_is_in_a_log_in_files_is_not_lost_when_all_die",
    ],
    "`shoal train` itself is killed with SIGKILL": [
        "jobs/test_interruptions.py::"
        "test_a_name_is_taken_while_its_job_runs_also_without_its_command",
    ],
    "`shoal train` and the master are both killed with SIGKILL": [
        "jobs/test_interruptions.py::test_a_job_without_client_and_master_ends_by_itself",
    ],
}
"""By the first cell of the table's rows."""


# tox tests the wheel, beside which there is no docs folder.
@pytest.mark.skipif(not PAGE.parent.is_dir(), reason="the docs are not beside the tests")
def test_every_row_of_the_table_has_its_tests():
    section = PAGE.read_text().partition("\n## When something dies\n")[2].partition("\n## ")[0]
    lines = section.partition("| --- | --- |\n")[2].partition("\n\n")[0].splitlines()
    table = [line.removeprefix("| ").split(" | ")[0] for line in lines]
    assert table == list(PROOFS)


@pytest.mark.parametrize("test", sorted({test for tests in PROOFS.values() for test in tests}))
def test_the_test_is_there(test):
    file, _, name = test.partition("::")
    tree = ast.parse((TESTS / file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
