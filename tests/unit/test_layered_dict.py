"""A LayeredDict is a dict, and a change of a copy is not seen by those that it was made from."""

from hypothesis import given
from hypothesis import strategies as st

from tilewright.support.layered_dict import LayeredDict

KEYS = st.integers(0, 300)
CHANGES = st.lists(
    st.tuples(st.sets(KEYS, max_size=5), st.dictionaries(KEYS, st.text(max_size=2), max_size=90))
)


@given(CHANGES)
def test_a_changed_copy_has_what_a_dict_would_have(changes: list[tuple[set[int], dict[int, str]]]) -> None:
    versions = [(LayeredDict[int, str](), dict[int, str]())]
    for gone, new in changes:
        layered, plain = versions[-1]
        kept = {k: v for k, v in plain.items() if k not in gone}
        versions.append((layered.changed(gone, new), {**kept, **new}))
    for layered, plain in versions:  # the old ones too
        assert {k: layered.get(k) for k in range(301)} == {k: plain.get(k) for k in range(301)}
