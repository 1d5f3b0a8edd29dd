"""Arrays are divided evenly, each row to one part; folders are named so that they sort."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.checkpoint.layout import MAX_STEP, Spec, divide, part_name, step_name, step_of

shapes = st.lists(st.integers(0, 9), max_size=3).map(tuple)
spec_lists = st.lists(st.tuples(shapes, st.sampled_from(["float32", "bool", "bfloat16", "float64"])), max_size=8).map(
    lambda rows: [Spec(f"leaf/{index}", shape, dtype) for index, (shape, dtype) in enumerate(rows)]
)


@settings(max_examples=150, deadline=None)
@given(specs=spec_lists, parts=st.integers(1, 7))
def test_each_row_is_in_exactly_one_part_and_in_order(specs, parts):
    divided = divide(specs, parts)
    assert len(divided) == parts
    slices = [one for part in divided for one in part]
    for spec in specs:
        ranges = [(one.start, one.stop) for one in slices if one.spec == spec]
        assert ranges[0][0] == 0 and ranges[-1][1] == spec.rows
        assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))
        assert len(ranges) == 1 or all(start < stop for start, stop in ranges)
    order = [specs.index(one.spec) for one in slices]
    assert order == sorted(order)
    assert sum(one.nbytes for one in slices) == sum(spec.nbytes for spec in specs)


@settings(max_examples=150, deadline=None)
@given(specs=spec_lists, parts=st.integers(1, 7))
def test_each_part_is_within_one_row_of_even(specs, parts):
    even = sum(spec.nbytes for spec in specs) / parts
    row = max((spec.row_nbytes for spec in specs), default=0)
    for part in divide(specs, parts):
        assert abs(sum(one.nbytes for one in part) - even) <= row


def test_a_large_model_is_cut_within_its_arrays():
    specs = [Spec("embedding", (1000, 10), "float32"), Spec("bias", (), "float32"), Spec("head", (10, 1000), "float32")]
    divided = divide(specs, 3)
    assert [[(one.spec.name, one.start, one.stop) for one in part] for part in divided] == [
        [("embedding", 0, 667)],
        [("embedding", 667, 1000), ("bias", 0, 1), ("head", 0, 3)],
        [("head", 3, 10)],
    ]
    assert divided == divide(specs, 3)


def test_a_part_below_one_is_refused():
    with pytest.raises(ValueError, match="parts must be at least 1, got 0"):
        divide([], 0)


@pytest.mark.parametrize("step", [0, 12, 10**12, MAX_STEP - 1])
def test_a_step_is_read_from_its_name(step):
    assert step_of(step_name(step)) == step


@pytest.mark.parametrize(
    "name",
    ["step-12", "step-0000000000012", "step-00000000000a", "step--00000000001", "xstep-000000000001", "quarantine", "",
     "step-9999999999999999", "step-000000000001/", "step-" + "\u0661" * 12],
)  # fmt: skip
def test_other_names_are_no_steps(name):
    assert step_of(name) is None


def test_names_sort_as_their_numbers():
    assert part_name(3) == "part-0003"
    assert sorted(map(step_name, (100, 9, 20))) == [step_name(9), step_name(20), step_name(100)]
    for step in (-1, MAX_STEP):
        with pytest.raises(ValueError, match="step must be"):
            step_name(step)
