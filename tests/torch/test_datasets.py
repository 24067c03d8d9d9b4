"""Map-style data sets as readers."""

import numpy as np
import pytest

from shoal.data.columns import read_columns
from shoal.data.custom import open_custom_reader
from shoal.errors import UserError
from shoal.torch import reader

torch = pytest.importorskip("torch")


class Squares(torch.utils.data.Dataset):
    """Records of numbers, a nested vector and a text."""

    def __init__(self, pattern="40"):
        self.count = int(pattern)

    def __len__(self):
        return self.count

    def __getitem__(self, place):
        vector = torch.tensor([place, place**2])
        return {"place": place, "of": {"vector": vector}, "text": f"t{place % 3}"}, float(place)


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield 1


def columns_of(function, pattern, start, end):
    made = open_custom_reader(function, pattern, "--training-data")
    (source,) = made.sources()
    (columns,) = read_columns(made, source.name, start, end)
    return source, columns


@pytest.mark.parametrize("given", [Squares, Squares("40")], ids=["a class", "an object"])
def test_records_are_read_by_their_numbers(given):
    source, columns = columns_of(reader(given), "40", 7, 33)
    assert source.records == 40
    assert sorted(columns) == ["0/of/vector", "0/place", "0/text", "1"]
    places = np.arange(7, 33)
    np.testing.assert_array_equal(columns["0/place"], places)
    np.testing.assert_array_equal(columns["0/of/vector"], np.stack([places, places**2], 1))
    np.testing.assert_array_equal(columns["1"], places.astype(float))
    assert list(columns["0/text"][:3]) == [b"t1", b"t2", b"t0"]


def test_what_has_no_record_numbers_is_refused():
    for given in (Endless, Endless()):
        with pytest.raises(UserError, match="IterableDataset, which has no record numbers"):
            reader(given)
    with pytest.raises(UserError, match="IterableDataset, which has no record numbers"):
        reader(lambda pattern: Endless())("any")
    with pytest.raises(UserError, match="dataset is a int"):
        reader(5)


def test_a_collate_fn_that_loses_records_is_told():
    made = reader(Squares, collate_fn=lambda records: {"first": np.ones(1)})("5")
    with pytest.raises(UserError, match="the first axis must be of the records"):
        list(made.read("5", 0, 5))
