"""callbacks() of a module in whole jobs: the same end, however many workers."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.jobs.running import run

pytestmark = pytest.mark.job


def test_max_steps_is_exact_with_any_number_of_workers(tmp_path, clicks):
    def one(workers):
        return run(
            "train",
            tmp_path,
            f"workers-{workers}",
            model_def="stopping.custom_model",
            training_data=clicks,
            validation_data=clicks,
            minibatch_size=25,
            num_minibatches_per_task=4,
            num_epochs=3,
            num_workers=workers,
        ).succeeded()

    # 24 minibatches an epoch: 30 are one epoch and a quarter of the next.
    with ThreadPoolExecutor(2) as pool:
        for ended in pool.map(one, (1, 2)):
            assert ended.ledger["total"] == ended.ledger["trained_once"] == 750
            assert set(ended.result["versions"].values()) == {30}
            # One evaluation as the epoch ended, for EarlyStopping, and one at the end.
            assert len(ended.result["evaluations"]) == 2
