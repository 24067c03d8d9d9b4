"""Gradients that are not finite: named, left out on all servers or on none, or let through."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.errors import UserError
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.worker.model.learning.finite import FiniteCheck
from shoal.worker.reports.progress import Progress
from shoal.worker.servers.pushing import Push
from tests.worker.given import train
from tests.worker.networks import CONFIG, as_batch, batches

SPEC = pb.ModelSpec(
    tables=[pb.TableSpec(name="users", dim=2), pb.TableSpec(name="items", dim=2)],
    trainable=[pb.VariableSpec(name="kernel", offset=0), pb.VariableSpec(name="bias", offset=3)],
    non_trainable=[pb.VariableSpec(name="mean", offset=0)],
)


def push_of(**changes):
    ids = np.array([7, -3, 2**62], np.int64)
    tables = {0: (ids, np.ones((3, 2), np.float32)), 1: (ids, np.ones((3, 2), np.float32))}
    dense = np.ones(4, np.float32), np.ones(2, np.float32)
    return replace(Push(tables, dense, 0.1, [5, 9], [0.0, 0.0], [0, 0], 1, 10), **changes)


def broken(which, value):
    push = push_of()
    if which == "table":
        push.tables[1][1][1:, 0] = value
    else:
        push.dense[which == "state"][-1] = value
    return push


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("which", "words"),
    [
        ("table", f"the gradient of table 'items' is not finite at id -3, {2**62}"),
        ("dense", "the gradient of variable 'bias' is"),
        ("state", "the change of variable 'mean' is"),
    ],
)
def test_what_is_not_finite_is_named(which, words, value):
    push = broken(which, value)
    assert words in FiniteCheck("skip", SPEC, 3).checked(0.5, push).left_out
    with pytest.raises(UserError, match="clip gradients") as caught:
        FiniteCheck("fail", SPEC, 3).checked(0.5, push)
    assert str(caught.value).startswith(words)
    assert "(worker 3, model version 9)" in str(caught.value)
    assert FiniteCheck("allow", SPEC, 3).checked(0.5, push) is push


def test_a_loss_that_is_not_finite_counts_too_and_a_good_step_passes():
    check = FiniteCheck("skip", SPEC, 0)
    assert check.checked(np.inf, push_of()).left_out == "the loss is inf"
    push = push_of()
    assert check.checked(0.5, push) is push


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_minibatch_is_left_out_on_all_servers(served, cluster, server_group, accumulate):
    made = cluster(2)
    config = replace(CONFIG, nonfinite_gradients="skip", accumulate=accumulate)
    model = served(config=config, group=server_group(made))
    steps = list(batches(4))
    steps[1][1][0, 0] = np.nan
    progress = Progress()
    progress.begin(1)
    given = (as_batch(*step, done=4 * (i + 1)) for i, step in enumerate(steps))
    train(model, 0, progress, given)
    beat = progress.take(0, 0)
    assert (beat.left_out, beat.left_out_records) == (1, 4)
    assert beat.left_out_why == "the loss is nan"
    assert beat.records_done == 16
    pushed = 3 if accumulate == 1 else 2
    assert [server.model.version for server in made.servers] == [pushed, pushed]
    model.pull_dense()
    assert np.isfinite(model.trainable.read().numpy()).all()


def test_with_fail_nothing_is_pushed_and_what_is_sent_all_the_same_is_refused(
    served, cluster, server_group
):
    made = cluster(2)
    model = served(group=server_group(made))
    step = next(iter(batches()))
    step[1][0, 0] = np.inf
    # The loss is finite, as tanh of an infinity is; its gradient is not.
    with pytest.raises(UserError, match="the gradient of variable 'dense/kernel' is nan"):
        model.train_batch(as_batch(*step), 1)
    assert [server.model.version for server in made.servers] == [0, 0]
    _, push = model.compute(model.prepare(as_batch(*list(batches())[1])), 1)
    push.dense[0].setflags(write=True)
    push.dense[0][0] = np.nan
    with pytest.raises(WireError, match="was refused by server 0: the gradient of variable"):
        model.servers.push(push)
    assert made.servers[0].model.version == 0
