"""callbacks() of a module in whole jobs: the same end, however many workers."""

import json
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
            batch_size=25,
            num_minibatches_per_task=4,
            epochs=3,
            workers=str(workers),
            checkpoint_seconds=1000,
            output=tmp_path / f"export-{workers}",
        ).succeeded()

    # 24 minibatches an epoch: 30 are one epoch and a quarter of the next.
    with ThreadPoolExecutor(2) as pool:
        for workers, ended in zip((1, 2), pool.map(one, (1, 2)), strict=True):
            assert ended.ledger["total"] == ended.ledger["trained_once"] == 750
            assert set(ended.result["versions"].values()) == {30}
            # One evaluation as the epoch ended, for EarlyStopping, and one at the end.
            assert len(ended.result["evaluations"]) == 2
            # What --output holds, and which checkpoint is kept, goes by the best of them.
            aucs = [each["metrics"]["auc"] for each in ended.result["evaluations"]]
            best = ended.result["evaluations"][aucs.index(max(aucs))]
            manifest = json.loads((tmp_path / f"export-{workers}" / "manifest.json").read_text())
            assert manifest["version"] >= best["version"]
            checkpoints = ended.result["checkpoints"]
            assert checkpoints["best"] in [each["number"] for each in checkpoints["kept"]]
            if workers == 1:  # with two, training may end while the first one is computed
                said = [text for text in ended.result["messages"] if "best so far" in text]
                assert len(said) == 1  # after the first; that of the end is no news
                assert checkpoints["taken"] == 2
                assert checkpoints["best"] == 1 + aucs.index(max(aucs))
