"""Which tensors travel in one message."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tfdist.collectives.packing import pack

TENSORS = st.lists(st.tuples(st.sampled_from(["float32", "float64", "int32"]), st.integers(0, 5000), st.just(4)))


def test_small_tensors_of_one_dtype_travel_together() -> None:
    (only,) = pack([("float32", 10, 4), ("float32", 0, 4), ("float32", 5, 4)])
    assert only.indices == (0, 1, 2)
    assert only.sizes == (10, 0, 5)


def test_each_dtype_has_messages_of_its_own() -> None:
    packs = pack([("float32", 1, 4), ("int32", 2, 4), ("float32", 3, 4)])
    assert [(p.dtype, p.indices) for p in packs] == [("float32", (0, 2)), ("int32", (1,))]


def test_a_message_is_ended_before_it_exceeds_the_limit() -> None:
    packs = pack([("float32", 60, 4), ("float32", 60, 4), ("float32", 500, 4), ("float32", 1, 4)], limit=400)
    assert [p.indices for p in packs] == [(0,), (1,), (2,), (3,)]


@given(TENSORS)
def test_every_tensor_is_in_exactly_one_message(tensors: list[tuple[str, int, int]]) -> None:
    packs = pack(tensors, limit=4000)
    assert sorted(i for p in packs for i in p.indices) == list(range(len(tensors)))
    for p in packs:
        assert all(tensors[i][0] == p.dtype for i in p.indices)
        assert len(p.indices) == 1 or sum(p.sizes) * 4 <= 4000


def test_the_key_names_what_is_in_a_message() -> None:
    one, other = pack([("float32", 10, 4)])[0], pack([("float32", 11, 4)])[0]
    assert one.key("train", 0) == pack([("float32", 10, 4)])[0].key("train", 0)
    assert len({one.key("train", 0), one.key("train", 1), one.key("test", 0), other.key("train", 0)}) == 4
