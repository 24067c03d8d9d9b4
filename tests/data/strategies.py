"""Hypothesis strategies for tables of records and the ranges read from them."""

from hypothesis import strategies as st

TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\0\r", exclude_categories=("Cs",))
    | st.sampled_from('",\n ä😀'),
    max_size=12,
)

RECORDS = st.lists(
    st.tuples(st.integers(-(2**63), 2**63 - 1), TEXT, st.floats(-1e6, 1e6)),
    min_size=1,
    max_size=60,
)


@st.composite
def ranges(draw, length):
    """(start, end) with 0 <= start <= end <= length."""
    start = draw(st.integers(0, length))
    return start, draw(st.integers(start, length))
