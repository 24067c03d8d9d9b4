"""One server, called as a worker calls it."""

import numpy as np

from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.wire import frames

SGD = OptimizerSpec("sgd").to_json()


CONSTANT = InitializerSpec("constant", {"value": 1.0})


def model_spec(
    dim=3, tables=("items",), size=5, state=2, *, optimizer=SGD, initial=CONSTANT, seed=7
):
    """A model with tables of one width, a dense block and statistics."""
    return pb.ModelSpec(
        tables=[
            pb.TableSpec(
                name=name,
                dim=dim,
                initializer=initial.to_json(),
                optimizer=optimizer,
                seed=seed,
            )
            for name in tables
        ],
        trainable=[pb.VariableSpec(name="w", shape=[size])],
        non_trainable=[pb.VariableSpec(name="mean", shape=[state])],
        dense_optimizer=optimizer,
    )


class Caller:
    """One server as a worker calls it, without the worker's code."""

    def __init__(self, connection, epoch=1):
        self.connection = connection
        self.epoch = epoch

    def register(self, spec=None):
        return self.connection.call(
            methods.REGISTER, pb.RegisterRequest(model=spec or model_spec())
        )

    def initialize(self, trainable, state):
        arrays = [np.asarray(each, np.float32) for each in (trainable, state)]
        frame = frames.encode(pb.InitializeDenseRequest(), arrays)
        reply, _ = frames.decode(
            self.connection.call(methods.INITIALIZE_DENSE, frame), pb.InitializeDenseReply
        )
        return reply.initialized

    def pull(self, *ids, training=True, dense_version=-1, tables=None, caller=None):
        header = pb.PullRequest(
            caller=caller,
            routing_epoch=self.epoch,
            tables=range(len(ids)) if tables is None else tables,
            dense_version=dense_version,
            training=training,
            ids_of=range(len(ids)),
        )
        arrays = [np.asarray(each, np.int64) for each in ids]
        return frames.decode(
            self.connection.call(methods.PULL, frames.encode(header, arrays)), pb.PullReply
        )

    def push(
        self,
        ids,
        gradients,
        dense=None,
        sequence=1,
        rate=1.0,
        pulled=0,
        pulled_time=0.0,
        modulate_rate=False,
        own=0,
        table_rates=(),
        **identity,
    ):
        header = pb.PushRequest(
            identity=pb.PushIdentity(sequence=sequence, **identity),
            routing_epoch=self.epoch,
            tables=[0],
            ids_of=[0],
            has_dense=dense is not None,
            learning_rate=rate,
            pulled_version=pulled,
            pulled_time=pulled_time,
            modulate_rate=modulate_rate,
            own_pushes=own,
            table_rates=table_rates,
        )
        arrays = [np.asarray(ids, np.int64), np.asarray(gradients, np.float32)]
        arrays += [np.asarray(each, np.float32) for each in dense or ()]
        return frames.decode(
            self.connection.call(methods.PUSH, frames.encode(header, arrays)), pb.PushReply
        )[0]
