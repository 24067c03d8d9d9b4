"""Paddle's parameter server in asynchronous mode: one server and one trainer, by its own launcher.

The trainer is train_from_dataset on an InMemoryDataset with two threads, which is told one file
after the other: the first minibatch, the warm-up, and the rest, loaded before it is timed.
A row of the one sparse table is a linear weight and sixteen factors, as its accessors have it. The
table has StdAdaGradSGDRule, which is Adagrad; dense values have Adam, as this server allows no
Adagrad for them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import common

TABLE = "factors"
DENSE_RATE = 0.001


def settings(batch: int) -> dict[str, object]:
    """The sparse table's accessor: a weight from 0, sixteen factors from +-INITIAL.

    The server gets the sum of a minibatch's gradients, where the others have the mean, and its rule
    multiplies the rate by the root of the first sum of squares. With these the updates are equal.
    """
    first = common.ACCUMULATOR * batch**2
    rule = {
        "name": "StdAdaGradSGDRule",
        "adagrad.learning_rate": common.RATE / first**0.5,
        "adagrad.initial_g2sum": first,
        "adagrad.weight_bounds": [-10.0, 10.0],
    }
    accessor = {
        "accessor_class": "SparseAccessor",
        "fea_dim": common.DIM + 1 + 2,
        "embedx_dim": common.DIM,
        "embedx_threshold": 0,
    }
    for part, initial in (("embed", 0.0), ("embedx", common.INITIAL)):
        values = rule | {"adagrad.initial_range": initial}
        accessor |= {f"{part}_sgd_param.{key}": value for key, value in values.items()}
    prefix = f"table_parameters.{TABLE}"
    return {f"{prefix}.accessor.{key}": value for key, value in accessor.items()} | {
        f"{prefix}.table_class": "MemorySparseTable",
        f"{prefix}.shard_num": 16,
    }


def network(paddle):
    """The DeepFM: its inputs and the outputs (loss, scores)."""
    static, nn = paddle.static, paddle.nn.functional
    ids = static.data("ids", [None, 26], "int64")
    dense = static.data("dense", [None, 13], "float32")
    labels = static.data("label", [None, 1], "float32")
    rows = static.nn.sparse_embedding(
        input=ids.reshape([-1, 1]),
        size=[1 << 40, common.DIM + 1],
        param_attr=paddle.ParamAttr(
            name=TABLE,
            initializer=paddle.nn.initializer.Uniform(-common.INITIAL, common.INITIAL),
        ),
    )
    rows = rows.reshape([-1, 26, common.DIM + 1])
    linear = paddle.slice(rows, axes=[2], starts=[0], ends=[1])
    vectors = paddle.slice(rows, axes=[2], starts=[1], ends=[common.DIM + 1])
    wide = paddle.sum(linear, axis=1) + static.nn.fc(dense, 1)
    total = paddle.sum(vectors, axis=1)
    pairs = paddle.sum(total * total, axis=1, keepdim=True)
    pairs = pairs - paddle.sum(vectors * vectors, axis=[1, 2]).reshape([-1, 1])
    deep = paddle.concat([vectors.reshape([-1, 26 * common.DIM]), dense], axis=1)
    for units in common.UNITS:
        deep = static.nn.fc(deep, units, activation="relu")
    logits = wide + pairs / 2 + static.nn.fc(deep, 1)
    loss = paddle.mean(nn.binary_cross_entropy_with_logits(logits, labels, reduction="none"))
    return [ids, dense, labels], loss, logits


def process(given) -> None:
    """The server's or the trainer's part, as the launcher's variables tell."""
    import numpy as np
    import paddle
    from paddle.distributed import fleet

    paddle.enable_static()
    paddle.seed(0)
    fleet.init()
    inputs, loss, logits = network(paddle)
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    strategy.sparse_table_configs = {TABLE: settings(given.batch)}
    optimizer = paddle.optimizer.Adam(DENSE_RATE)
    fleet.distributed_optimizer(optimizer, strategy).minimize(loss)
    role = "server" if fleet.is_server() else "worker"
    (given.dir / role).write_text(str(os.getpid()))
    if role == "server":
        fleet.init_server()
        fleet.run_server()
        return
    executor = paddle.static.Executor(paddle.CPUPlace())
    program = paddle.static.default_main_program()
    executor.run(paddle.static.default_startup_program())
    fleet.init_worker()
    while not (given.dir / "server").exists():
        time.sleep(0.01)
    progress = common.Progress(given)
    progress.roles(worker=os.getpid(), server=int((given.dir / "server").read_text()))
    folder = given.data / f"train-text-{given.batch}-{given.warm}"

    def loaded(names, threads):
        dataset = paddle.distributed.InMemoryDataset()
        dataset.init(batch_size=given.batch, thread_num=threads, use_var=inputs, pipe_command="cat")
        dataset.set_filelist([str(folder / f"{name}.txt") for name in names])
        dataset.load_into_memory()
        return dataset

    def train(dataset):
        executor.train_from_dataset(program, dataset, thread=2)

    rest = loaded([path.stem for path in sorted(folder.glob("[0-9]*.txt"))], 2)
    train(loaded(["first"], 1))
    progress.at(given.batch)
    train(loaded(["warm"], 1))
    progress.at(given.warm * given.batch)
    progress.begin()
    train(rest)
    progress.at(len(common.Data(given.data)) // given.batch * given.batch)
    rest.release_memory()
    from paddle.distributed.fleet.utils.ps_util import DistributedInfer

    infer = DistributedInfer(program, paddle.static.default_startup_program())
    testing = infer.get_dist_infer_program()
    scores, kept = [], []
    for ids, dense, labels in common.Data(given.data, "validation").batches(given.batch):
        feed = {"ids": ids, "dense": dense, "label": labels[:, None]}
        (found,) = executor.run(testing, feed=feed, fetch_list=[logits.name])
        scores.append(found[:, 0])
        kept.append(labels)
    auc = common.area_under_curve(np.concatenate(kept), np.concatenate(scores))
    progress.tell(auc, "paddlepaddle")
    fleet.stop_worker()


def launch(given) -> int:
    """Start both by Paddle's launcher; prints the trainer's line, which is in its log."""
    given.dir.mkdir(parents=True, exist_ok=True)
    logs = given.dir / "logs"
    for each in (given.dir / "server", given.dir / "worker", *logs.glob("*")):
        each.unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "paddle.distributed.launch"),
        *("--server_num", "1", "--trainer_num", "1", "--log_dir", str(logs)),
        *(__file__, *sys.argv[1:]),
    ]
    launched = subprocess.Popen(
        command, env=os.environ | {"HEAD_TO_HEAD_ROLE": "1"}, stdout=sys.stderr
    )
    # The launcher waits for the server, which serves on after its trainer has ended.
    while launched.poll() is None and not told(logs):
        time.sleep(0.1)
    launched.terminate()
    launched.wait()
    if line := told(logs):
        print(line, flush=True)
        return 0
    for path in sorted(logs.glob("*")):
        for line in path.read_text(errors="replace").splitlines():
            if "Error" in line:
                print(line, file=sys.stderr)
    return launched.returncode or 1


def told(logs) -> str:
    """The trainer's line, once it is in its log."""
    path = logs / "workerlog.0"
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return next((line for line in lines if line.startswith('{"records"') and line[-1] == "}"), "")


def main() -> None:
    given = common.options()
    if "HEAD_TO_HEAD_ROLE" in os.environ:
        process(given)
    else:
        raise SystemExit(launch(given))


if __name__ == "__main__":
    main()
