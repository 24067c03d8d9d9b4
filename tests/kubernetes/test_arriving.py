"""Files that arrive on a volume of a real cluster, while pods of the job are killed."""

import shutil
from pathlib import Path

from benchmarks.arriving import RECORDS, write
from shoal.tools import counting
from shoal.tools.chaos.count import found_rows
from tests.kubernetes.conftest import SECONDS
from tests.kubernetes.jobs import Watched, following, kill, process_of, result_in, until

NAME = "stream"


def test_each_record_that_arrives_is_trained_once_whatever_is_killed(shoal, namespace):
    shutil.copytree(Path(counting.__file__).parent, shoal.path / "zoo")
    data = shoal.path / "in"
    data.mkdir()
    write(data, 0)
    flags = shoal.flags(
        NAME,
        model_zoo="/work/zoo",
        model_def="counts.custom_model",
        training_data="/work/in",
        output="/work/out",
        job_dir="/work/job",
        arriving="1",
        until_idle="60",
        batch_size="50",
        num_minibatches_per_task="1",
        workers="2",
        servers="2",
        relaunch_limit="9",
    )
    job = Watched(NAME, namespace)
    with following(shoal, *flags) as (train, said):

        def trained(files):
            until(
                f"{files} files", lambda: train.poll() is not None or job.done() >= files * RECORDS
            )
            assert train.poll() is None, said()

        trained(1)
        write(data, 1)
        write(data, 2)
        kill("shoal.worker", namespace, 0)
        trained(3)
        write(data, 3)
        write(data, 4)
        kill("shoal.ps", namespace, 1)
        trained(5)
        write(data, 5)
        write(data, 6)
        kill("shoal.master.in_cluster", namespace)
        until("another master", lambda: process_of("shoal.master.in_cluster", namespace))
        trained(7)
        write(data, 7)
        assert train.wait(SECONDS) == 0, said()
    assert "no more data is looked for (--until-idle)" in said()
    assert result_in(shoal, NAME)["ledger"]["trained_once"] == 8 * RECORDS
    rows = found_rows(shoal.path / "out", "records")
    assert rows == dict.fromkeys(range(8 * RECORDS), 1.0)
