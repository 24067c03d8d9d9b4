"""A pipeline of a module whose feed_batch has a given body."""

import textwrap

import pytest

from shoal.data.opening import open_reader
from shoal.proto import shoal_pb2 as pb
from shoal.worker.engines.host.pipeline import HostPipeline
from shoal.worker.input.modes import TRAINING

MODULE = """
import numpy as np

def custom_model():
    pass

def loss(labels, predictions):
    pass

def optimizer():
    pass

def feed_batch(columns, mode, metadata):
"""

PAIR = 'return {"x": columns["x"]}, columns["y"]'


def text_of(body):
    """The text of a module, with this body of feed_batch."""
    return MODULE + textwrap.indent(textwrap.dedent(body), "    ")


@pytest.fixture
def pipeline(module):
    """Makes the pipeline of a file, with a body of feed_batch."""

    def make(path, body=PAIR, mode=TRAINING, size=8, **options):
        reader = open_reader(path, "--training-data")
        return HostPipeline(reader, module(text_of(body)), mode, "--training-data", size, **options)

    return make


def records(path, start, end):
    return pb.Range(source=path, start=start, end=end)
