"""Each name has a folder of its own, from which the name can be read."""

from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.checkpoint.names import folder_of

KEPT = ["dense/kernel", "optimizer/vars/0", "a.b:0", "ü/层 (1)", "0"]
ENCODED = [
    ("a//b", "a/%2Fb"),
    ("/a", "%2Fa"),
    ("a/", "a%2F"),
    ("//", "%2F%2F"),
    (".", "%2E"),
    ("../../etc/passwd", "%2E./%2E./etc/passwd"),
    ("a/.zarray", "a/%2Ezarray"),
    ("_METADATA", "%5FMETADATA"),
    ("a/_b", "a/_b"),
    ("50%", "50%25"),
    ("a\0\n\\*?[]~#", "a%00%0A%5C%2A%3F%5B%5D%7E%23"),
]


@pytest.mark.parametrize(("name", "folder"), [*((name, name) for name in KEPT), *ENCODED])
def test_the_folder_is(name, folder):
    assert folder_of(name, {name}) == folder
    assert unquote(folder) == name


def test_a_leaf_does_not_want_a_folder_where_another_has_its_chunk():
    leaves = {"a", "a/0.0", "a/0/b", "a/kernel", "b/0"}
    assert {leaf: folder_of(leaf, leaves) for leaf in leaves} == {
        "a": "a",
        "a/0.0": "a/%30.0",
        "a/0/b": "a/%30/b",
        "a/kernel": "a/kernel",
        "b/0": "b/0",
    }


@pytest.mark.parametrize("name", ["x" * 201, "ü" * 150, "/".join(["x" * 150] * 8), "%" * 100])
def test_a_long_name_is_shortened(name):
    folder = folder_of(name, ())
    assert "~" in folder and len(folder) < 120
    assert folder_of(name + "y", ()) != folder


def test_no_name_is_refused():
    with pytest.raises(ValueError, match="must not be empty"):
        folder_of("", ())


names = st.lists(st.sampled_from(["a", "0", ".", "/", "%", "_", "2F", "~", "ü", "\ud800"]), min_size=1, max_size=6)


@settings(max_examples=200, deadline=None)
@given(some=st.lists(names.map("".join), max_size=8, unique=True))
def test_folders_differ_and_stay_inside(some):
    folders = [folder_of(name, set(some)) for name in some]
    assert len(set(folders)) == len(some)
    for name, folder in zip(some, folders, strict=True):
        assert unquote(folder, errors="surrogatepass") == name
        assert not folder.startswith(("/", "_"))
        assert not any(component in ("", ".", "..") for component in folder.split("/"))
