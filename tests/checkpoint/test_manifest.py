"""A manifest is read as it was written, or not at all."""

import dataclasses
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.checkpoint import manifest as manifests
from tfdist.checkpoint.layout import Spec
from tfdist.checkpoint.manifest import Leaf, Manifest, Piece, assemble, from_json, to_json
from tfdist.checkpoint.parsing import manifest_from
from tfdist.errors import CheckpointError, DamagedCheckpointError, IncompatibleCheckpointError

SUM = "0123456789abcdef" * 2


def piece(start, stop, row=8, part=0, path="part-0000/a/0.0"):
    return Piece(part, start, stop, path, (stop - start) * row, SUM)


GOOD = Manifest(
    step=12,
    run_id="run",
    generation=3,
    parts=2,
    leaves=(
        Leaf("a", (3, 2), "float32", (piece(0, 2), piece(2, 3, part=1, path="part-0001/a/0.0"))),
        Leaf("ü/none", (), "bfloat16", (piece(0, 1, row=2, path="part-0000/n/0"),)),
        Leaf("empty", (0, 4), "bool", (piece(0, 0, path="part-0000/e/0.0"),)),
    ),
    facts={"epoch": 1, "history": {"loss": [0.5, -math.inf]}, "text": 'a "quoted"\n}'},
    metric=0.25,
    versions={"tfdist": "1"},
    saved_at="2026-01-01T00:00:00Z",
)


def test_it_is_read_as_it_was_written():
    assert from_json(to_json(GOOD)) == GOOD
    assert json.loads(to_json(GOOD))["format"] == manifests.FORMAT
    assert GOOD.nbytes == 26


def test_nan_is_kept():
    read = from_json(to_json(dataclasses.replace(GOOD, facts={"loss": math.nan}, metric=math.nan)))
    assert math.isnan(read.facts["loss"]) and read.metric is not None and math.isnan(read.metric)


def test_no_flipped_or_missing_byte_is_believed():
    text = to_json(GOOD)
    for index in range(len(text)):
        for damaged in (text[:index] + bytes([text[index] ^ 1]) + text[index + 1 :], text[:index]):
            with pytest.raises(DamagedCheckpointError, match=r"here/manifest\.json is damaged"):
                from_json(damaged, "here/manifest.json")


@settings(max_examples=50, deadline=None)
@given(text=st.binary(max_size=300))
def test_any_bytes_are_refused(text):
    with pytest.raises(DamagedCheckpointError):
        from_json(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_value_in_any_field_is_read_or_refused(data):
    value = json.loads(to_json(GOOD))
    target = value
    while True:  # down to a random place, which gets a random value
        key = data.draw(st.sampled_from(sorted(target) if isinstance(target, dict) else range(len(target))))
        if isinstance(target[key], (dict, list)) and target[key] and data.draw(st.booleans()):
            target = target[key]
            continue
        target[key] = data.draw(json_values)
        break
    try:
        read = manifest_from(value, "m")
    except (DamagedCheckpointError, IncompatibleCheckpointError) as error:
        assert str(error).startswith("m ")
    else:
        assert isinstance(read, Manifest)
        to_json(read)


REFUSED = [
    # (the field, its value, the text names)
    ("format", 2, "has format 2"),
    ("format", True, "format = True"),
    ("step", -1, "step = -1"),
    ("step", 1.0, "step = 1.0"),
    ("parts", 0, "parts = 0"),
    ("parts", 1, r"leaves\[0\]\.pieces\[1\] part = 1"),  # a piece of a part that does not exist
    ("metric", "0.5", "metric = '0.5'"),
    ("metric", 10**400, "metric"),
    ("facts", [], r"facts = \[\]"),
    ("versions", {"a": 1}, "versions"),
    ("run_id", None, "run_id = None"),
    ("leaves", {}, "leaves"),
    ("leaves", [1], r"leaves\[0\] = 1"),
]


@pytest.mark.parametrize(("name", "value", "text"), REFUSED)
def test_a_field_out_of_bounds_is_named(name, value, text):
    with pytest.raises(CheckpointError, match=text):
        manifest_from({**json.loads(to_json(GOOD)), name: value}, "m")


REFUSED_PIECES = [
    ({"path": "/etc/passwd"}, "path"),
    ({"path": "part-0000/../../x"}, "path"),
    ({"path": "part-0001/a/0.0"}, "path"),  # the folder of another part
    ({"checksum": "x" * 32}, "checksum"),
    ({"nbytes": 15}, "are not 15 bytes"),
    ({"start": 1}, "where row 0 is the next"),
    ({"stop": 1, "nbytes": 8}, "where row 1 is the next"),
    ({"stop": 3, "nbytes": 24}, "where row 3 is the next"),
]


@pytest.mark.parametrize(("change", "text"), REFUSED_PIECES)
def test_a_piece_that_does_not_fit_is_named(change, text):
    leaf = GOOD.leaves[0]
    bad = dataclasses.replace(leaf, pieces=(dataclasses.replace(leaf.pieces[0], **change), leaf.pieces[1]))
    with pytest.raises(DamagedCheckpointError, match=text):
        from_json(to_json(dataclasses.replace(GOOD, leaves=(bad,))))


def test_a_name_twice_is_refused():
    with pytest.raises(DamagedCheckpointError, match="twice"):
        from_json(to_json(dataclasses.replace(GOOD, leaves=GOOD.leaves[:1] * 2)))


def test_facts_that_are_no_json_or_too_large_are_refused(monkeypatch):
    with pytest.raises(CheckpointError, match="no JSON"):
        to_json(dataclasses.replace(GOOD, facts={"a": object()}))
    monkeypatch.setattr(manifests, "MAX_BYTES", 1000)
    with pytest.raises(CheckpointError, match="more than 1000"):
        to_json(dataclasses.replace(GOOD, facts={"a": "x" * 1000}))
    with pytest.raises(CheckpointError, match="more than 1000"):
        from_json(b" " * 1001)


def test_the_pieces_of_all_writers_become_leaves():
    specs = [leaf.spec for leaf in GOOD.leaves]
    written = [(leaf.name, one) for leaf in GOOD.leaves for one in leaf.pieces]
    assert assemble(specs, reversed(written)) == GOOD.leaves
    with pytest.raises(CheckpointError, match="'a': its pieces end at row 2 of 3"):
        assemble(specs, [*written[:1], *written[2:]])
    with pytest.raises(CheckpointError, match="'empty': it has no piece"):
        assemble(specs, written[:3])
    with pytest.raises(CheckpointError, match="holds 'b', which is none"):
        assemble(specs[:1], [*written[:2], ("b", piece(0, 1))])
    with pytest.raises(CheckpointError, match="where row 3 is the next"):
        assemble(specs, [*written, written[1]])
    assert assemble([Spec("z", (2, 0), "bool")], [("z", piece(0, 2, row=0))])[0].pieces[0].nbytes == 0
