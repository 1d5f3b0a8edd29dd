"""Sources: what is a sample, and what is refused with which words."""

from collections import namedtuple

import numpy as np
import pytest

from tfdist.data.errors import DataError
from tfdist.data.sources import ArraySource, RandomAccessSource, Source, as_source
from tfdist.errors import ConfigError

Pair = namedtuple("Pair", "x y")


class Samples:
    """Has a length and an index, like a data set of PyTorch."""

    def __init__(self, *samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, position):
        return self.samples[position]


def test_arrays_are_read_by_position_in_the_order_asked_for():
    source = ArraySource({"a": np.arange(6).reshape(3, 2), "b": (np.array([1.5, 2.5, 3.5]),)})
    read = source.read([2, 0, 2])
    assert read["a"].tolist() == [[4, 5], [0, 1], [4, 5]]
    assert read["b"][0].tolist() == [3.5, 1.5, 3.5] and read["b"][0].dtype == np.float64
    assert len(source) == 3


def test_what_is_read_is_not_the_source_s_own_memory():
    array = np.zeros((3, 2))
    ArraySource(array).read([0, 1, 2])[:] = 1
    assert not array.any()


def test_named_tuples_stay_and_lists_of_arrays_become_tuples():
    assert isinstance(ArraySource(Pair(np.zeros(2), np.ones(2))).read([0]), Pair)
    assert isinstance(ArraySource([np.zeros(2), np.ones(2)]).read([0]), tuple)


@pytest.mark.parametrize(
    "texts", [np.array(["a", "bcd"]), np.array([b"a\0", b"bcd"], dtype=object), np.array(["a", "bcd"], dtype=object)]
)
def test_texts_and_bytes_are_samples(texts):
    assert list(ArraySource(texts).read([1, 0])) == [texts[1], texts[0]]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((np.zeros(3), np.zeros(4)), r"source\[1\] = '4 rows': must have the 3 rows of source\[0\]"),
        ({"x": np.zeros(3), "y": np.float64(1)}, r"source\['y'\].*is a scalar"),
        ([1.0, 2.0], r"source\[0\] = 1.0: must be an array.*numpy.asarray"),
        (([[1, 2], [3, 4]], np.zeros(2)), r"source\[0\]\[0\]\[0\] = 1: must be an array"),
        ((), "must hold at least one array"),
        (np.array([None, 1]), "dtype object and holds NoneType, int"),
        (np.array([np.zeros(2), np.zeros(3)], dtype=object), "different lengths to one shape"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), "datetime64.*TensorFlow does not have"),
        ((np.zeros(2), object()), r"source\[1\] is a object"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_naming_the_one(arrays, message):
    with pytest.raises(ConfigError, match=message):
        ArraySource(arrays)


@pytest.mark.parametrize("positions", [[3], [-1], [0, 7]])
def test_positions_outside_the_arrays_are_refused(positions):
    with pytest.raises(DataError, match=r"must be in \[0, 3\)"):
        ArraySource(np.zeros(3)).read(positions)


def test_samples_of_an_indexable_object_are_stacked():
    source = RandomAccessSource(Samples(*({"x": np.full(2, n, np.float32), "n": n, "t": "t" * n} for n in range(4))))
    read = source.read(np.array([3, 1]))
    assert read["x"].tolist() == [[3, 3], [1, 1]] and read["x"].dtype == np.float32
    assert read["n"].tolist() == [3, 1] and read["n"].dtype == np.int64
    assert read["t"].tolist() == ["ttt", "t"]


def test_several_samples_are_asked_for_at_once_where_the_object_can():
    class Several(Samples):
        def __getitems__(self, positions):
            return [("several", position) for position in positions]

    assert RandomAccessSource(Several(1, 2, 3)).read([2, 0])[1].tolist() == [2, 0]


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ((np.zeros(2), np.zeros(3)), r"position 1 is float64\[3\], of the one at position 0 float64\[2\].*pad"),
        ((0, 0.5), "position 1 is float64"),
        (((1, 2), (1, 2, 3)), r"position 1 has the structure \(\*, \*, \*\)"),
        (({"a": 1}, {"b": 1}), "position 1 has the structure {'b'"),
        ((([1, 2], 0), ([1, 2], 1)), r"part \[0\] of the sample at position 0 is a list of numbers"),
        ((0, None), "position 1 is a NoneType"),
    ],
)
def test_samples_that_do_not_fit_together_are_refused_naming_the_position(samples, message):
    with pytest.raises(DataError, match=message):
        RandomAccessSource(Samples(*samples)).read([0, 1])


def test_an_error_in_the_object_names_the_position():
    class Broken(Samples):
        def __getitem__(self, position):
            raise OSError("disk")

    with pytest.raises(DataError, match="position 1 failed: OSError: disk"):
        RandomAccessSource(Broken(1, 2)).read([1])


def test_a_source_stays_and_other_things_become_one():
    source = ArraySource(np.zeros(3))
    assert as_source(source) is source and isinstance(source, Source)
    assert isinstance(as_source((np.zeros(3), np.zeros(3))), ArraySource)
    assert isinstance(as_source(Samples(1)), RandomAccessSource)


@pytest.mark.parametrize("value", [7, iter([1]), (sample for sample in [1])])
def test_things_without_positions_are_refused(value):
    with pytest.raises(ConfigError, match=r"must have __len__ and __getitem__"):
        as_source(value)
