"""Imports that the search for cycles leaves alone."""

import gc

import pytest

from shoal.base.garbage import lasting_imports


@pytest.fixture
def as_before():
    yield
    gc.unfreeze()
    gc.enable()


def test_what_is_imported_is_not_searched_and_what_comes_after_is(as_before):
    searched = []
    gc.callbacks.append(lambda phase, _: searched.append(phase))
    try:
        with lasting_imports():
            made = [[i] for i in range(10_000)]
            assert not searched
        assert any(each is not made and each is not made[0] for each in gc.get_objects())
        assert not any(each is made for each in gc.get_objects())
        later = [made]
        assert any(each is later for each in gc.get_objects())
    finally:
        gc.callbacks.pop()


def test_an_import_that_fails_leaves_the_search_on(as_before):
    with pytest.raises(ImportError), lasting_imports():
        raise ImportError("no such module")
    assert gc.isenabled()
