"""What a worker tells the master of the sources that there are."""

from __future__ import annotations

from shoal.worker.input.listings import Listings


def test_each_state_is_told_twice_and_what_nobody_answered_again():
    listings = Listings()
    assert listings.news({"a": "1", "b": "1"}) == {"a": "1", "b": "1"}
    assert listings.news({"a": "1", "b": "1"}) == {"a": "1", "b": "1"}  # nobody has answered
    listings.confirmed()
    assert listings.news({"a": "1", "b": "2"}) == {"a": "1", "b": "2"}
    listings.confirmed()
    assert listings.news({"a": "1", "b": "2"}) == {"b": "2"}
    listings.confirmed()
    assert listings.news({"a": "1", "b": "2", "c": "1"}) == {"c": "1"}
    assert listings.news({"a": "2", "b": "2", "c": "1"}) == {"a": "2", "c": "1"}


def test_a_source_without_a_state_is_told_each_time():
    listings = Listings()
    for _ in range(3):
        assert listings.news({"topic/0@0-5": ""}) == {"topic/0@0-5": ""}
        listings.confirmed()
