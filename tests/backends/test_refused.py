"""Ids that only TensorFlow has are refused by name where another backend looks them up."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from shoal.bags import padded
from shoal.data.columns import ListColumn
from shoal.errors import UserError

torch = pytest.importorskip("torch")

LISTS = ListColumn(np.arange(3), np.array([1, 2]))
NESTED = torch.nested.nested_tensor([torch.tensor([1]), torch.tensor([1, 2])], layout=torch.jagged)
FORMS = {
    "ragged": [tf.ragged.constant([[1]]), keras.Input([2], dtype="int64", ragged=True), LISTS],
    "sparse": [
        tf.sparse.from_dense([[1]]),
        keras.Input([2], dtype="int64", sparse=True),
        torch.tensor([[1]]).to_sparse(),
    ],
    "nested": [NESTED],
}


@pytest.mark.parametrize(
    ("form", "ids"), [(form, ids) for form, given in FORMS.items() for ids in given]
)
def test_a_form_of_ids_is_refused(form, ids):
    with pytest.raises(UserError, match=rf"^embedding 'e' was given {form} ids.*column.padded"):
        padded.refuse_form(ids, "embedding 'e'")
    with pytest.raises(UserError, match=f"was given {form} ids"):
        padded.look_up(lambda ids: ids, ids, None, "sum", mask_zero=True)


@pytest.mark.parametrize("ids", [np.array([b"a"], object), keras.Input([], dtype="string")])
def test_strings_are_refused(ids):
    with pytest.raises(UserError, match=r"was given strings.*dtype='int64'"):
        padded.refuse_form(ids, "embedding 'e'")


@pytest.mark.parametrize(
    "ids",
    [None, np.array([1]), tf.constant([1]), torch.tensor([1]), keras.Input([], dtype="int64")],
)
def test_dense_ids_are_taken(ids):
    padded.refuse_form(ids, "embedding 'e'")


def test_weights_need_a_combiner():
    with pytest.raises(ValueError, match="weights of ids need a combiner"):
        padded.look_up(lambda ids: ids, np.array([1]), np.array([1.0]), None, mask_zero=False)


def test_the_empty_string_is_padding_as_zero_is():
    empty = int(tf.strings.to_hash_bucket_fast("", 2**63 - 1))
    assert empty == padded.EMPTY_STRING
    ids = tf.constant([empty, 0, 1], tf.int64)
    assert padded.present(ids).numpy().tolist() == [False, False, True]
