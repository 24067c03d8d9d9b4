"""DLRM-DCNv2, the recommendation model of MLPerf, on click records in the shape of Criteo's.

The DLRM of M. Naumov et al., 2019, with the low-rank cross layers of R. Wang et al., "DCN V2",
2021, in place of dot products, as in MLPerf Training since version 3.0. The 26 tables are those of
a DistributedEmbedding, which needs keras-rs: pip install 'shoal[keras-rs]'. Data and command as in
deepfm.py, with --model-def dlrm_dcn_v2.custom_model. The layers of MLPerf's model are larger:

    --model-params "dim=128,bottom=[512,256],rank=512,top=[1024,1024,512,256]"
"""

import keras
import keras_rs

from shoal.layers import DistributedEmbedding
from shoal.model_zoo.criteo.deepfm import (
    IDS,
    eval_metrics_fn,
    feed_batch,
    inputs,
    loss,
    multilayer,
    optimizer,
    probability,
)

__all__ = ["custom_model", "eval_metrics_fn", "feed_batch", "loss", "optimizer"]


def tables(dim, rate):
    """A feature and a table for each column of ids, which may be any int64."""
    features = {}
    for column in (f"c{i + 1}" for i in range(IDS)):
        table = keras_rs.layers.TableConfig(
            column,
            vocabulary_size=None,
            embedding_dim=dim,
            optimizer=keras.optimizers.Adagrad(rate),
            combiner="sum",
            placement="parameter_server",
        )
        features[column] = keras_rs.layers.FeatureConfig(column, table, (None,), (None, dim))
    return features


def custom_model(dim=16, bottom=(64,), rank=32, crosses=3, top=(64, 32), rate=0.05):
    """The model to train.

    dim: length of a vector. bottom, top: units of the dense layers below and above the cross
    layers. rank: of a cross layer's kernel. rate: the learning rate of the tables.
    """
    given = inputs()
    dense = multilayer(given["numbers"], *bottom, dim)
    columns = {f"c{i + 1}": given["ids"][:, i] for i in range(IDS)}
    vectors = DistributedEmbedding(tables(dim, rate), name="tables")(columns)
    first = keras.layers.Concatenate()([dense, *vectors.values()])
    crossed = first
    for _ in range(crosses):
        crossed = keras_rs.layers.FeatureCross(projection_dim=rank)(first, crossed)
    return probability(given, keras.layers.Dense(1)(multilayer(crossed, *top)))
