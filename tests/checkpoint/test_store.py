"""What is saved is restored, or it is said which file is wrong; never anything else."""

import errno
import itertools
import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.checkpoint.making import arrays_of, same, save, write
from tfdist.checkpoint.dtypes import NAMES, numpy_dtype
from tfdist.checkpoint.files import open_files
from tfdist.checkpoint.layout import MANIFEST, Slice, Spec, step_name
from tfdist.checkpoint.manifest import Manifest
from tfdist.checkpoint.parts import write_part
from tfdist.checkpoint.store import CheckpointStore
from tfdist.errors import CheckpointError, CheckpointWriteError, IncompatibleCheckpointError

SHAPES = [(), (1,), (7,), (3, 5), (2, 3, 4), (0,), (0, 3), (4, 0), (1, 1, 1, 1)]


def all_arrays() -> dict[str, np.ndarray]:
    """Each type in each shape, with random bits (so there are NaNs), and odd names."""
    random = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for (dtype, shape), odd in zip(
        itertools.product(sorted(NAMES), SHAPES), itertools.cycle(["", "//", "/", " ü", "%"]), strict=False
    ):
        size = int(np.prod(shape)) * numpy_dtype(dtype).itemsize
        bits = random.integers(0, 2 if dtype == "bool" else 8 if "int4" in dtype else 256, size, np.uint8)
        arrays[f"{dtype}/{len(arrays)}{odd}"] = bits.view(numpy_dtype(dtype)).reshape(shape)
    arrays |= {"a": np.arange(6.0).reshape(2, 3), "a/0.0": np.ones(2), "../x": np.ones(1), "_METADATA": np.ones(1)}
    return arrays


@pytest.fixture(params=["local", "memory"])
def directory(request, tmp_path):
    return str(tmp_path / "ckpt") if request.param == "local" else f"memory://{secrets.token_hex(4)}/ckpt"


@pytest.mark.parametrize("parts", [1, 3])
def test_every_type_and_shape_and_name_comes_back(directory, parts):
    arrays = all_arrays()
    manifest = save(directory, 7, arrays, parts=parts, epoch=2, loss=float("inf"))
    store = CheckpointStore(directory)
    restored = store.restore_newest()
    assert restored is not None
    assert restored[0] == manifest
    assert same(restored[1], arrays)
    assert store.verify() == []
    assert manifest.nbytes == sum(array.nbytes for array in arrays.values())


READ_WITH_ORBAX = """
import json, sys, warnings
import numpy as np
import orbax.checkpoint as ocp
digest = {}
for path in sys.argv[1:]:
    for key, array in ocp.PyTreeCheckpointer().restore(path).items():
        array = np.asarray(array)
        digest.setdefault(key, []).append([array.dtype.name, list(array.shape), array.tobytes().hex()])
print(json.dumps(digest))
"""


def test_orbax_reads_every_part(tmp_path):
    from urllib.parse import unquote

    arrays = all_arrays()
    save(tmp_path, 7, arrays, parts=2)
    paths = [str(tmp_path / step_name(7) / part) for part in ("part-0000", "part-0001")]
    done = subprocess.run(
        [sys.executable, "-c", READ_WITH_ORBAX, *paths],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    read = {unquote(key): value for key, value in json.loads(done.stdout).items()}
    assert read.keys() == arrays.keys()
    for name, slices in read.items():
        assert b"".join(bytes.fromhex(bits) for _, _, bits in slices) == arrays[name].tobytes(), name
        assert {dtype for dtype, _, _ in slices} == {arrays[name].dtype.name}
        assert len(slices) > 1 or tuple(slices[0][1]) == arrays[name].shape


def test_some_leaves_are_read_and_into_given_arrays(tmp_path):
    arrays = arrays_of(3)
    manifest = save(tmp_path, 3, arrays, parts=2)
    store = CheckpointStore(tmp_path)
    target = np.zeros((4, 3), "float32")
    read = store.read(manifest, step_name(3), ["dense/kernel"], {"dense/kernel": target})
    assert list(read) == ["dense/kernel"] and read["dense/kernel"] is target
    assert np.array_equal(target, arrays["dense/kernel"])
    with pytest.raises(CheckpointError, match="has no leaf 'x'"):
        store.read(manifest, step_name(3), ["x"])
    for bad in (np.zeros((3, 4), "float32"), np.zeros((4, 3), "float64"), np.zeros((4, 6), "float32")[:, ::2]):
        with pytest.raises(CheckpointError, match="cannot be read into an array"):
            store.read(manifest, step_name(3), None, {"dense/kernel": bad})


def test_arrays_that_are_not_contiguous_and_memoryviews_are_written(tmp_path):
    files = open_files(tmp_path)
    wide = np.arange(12.0).reshape(3, 4)
    spec = Spec("a", (3, 2), "float64")
    write_part(files, "step-000000000001", 0, [Slice(spec, 0, 3)], [wide[:, ::2]])
    assert files.read("step-000000000001/part-0000/a/0.0", 99) == wide[:, ::2].tobytes()
    flat = np.ascontiguousarray(wide[:, ::2]).data
    for buffer in (flat, flat.cast("B")):
        write_part(files, "step-000000000001", 0, [Slice(spec, 0, 3)], [buffer])
        assert files.read("step-000000000001/part-0000/a/0.0", 99) == flat.tobytes()


@pytest.mark.parametrize(
    ("buffer", "text"),
    [
        (np.zeros(3, "float32"), "are 16 bytes, and the buffer has 12"),
        (np.zeros(2, "float64"), "an array of <f8 is no float32"),
        (np.zeros(4, ">f4"), "little-endian"),
        (memoryview(b"123"), "the buffer has 3"),
    ],
)
def test_a_buffer_that_does_not_fit_is_refused(tmp_path, buffer, text):
    one = Slice(Spec("a", (4,), "float32"), 0, 4)
    with pytest.raises(ValueError, match=text):
        write_part(open_files(tmp_path), "step-000000000001", 0, [one], [buffer])
    with pytest.raises(ValueError, match="2 slices of 1 leaves"):
        write_part(open_files(tmp_path), "step-000000000001", 0, [one, one], [buffer, buffer])
    assert not list(tmp_path.iterdir())


def test_a_type_that_cannot_be_stored_is_refused():
    with pytest.raises(CheckpointError, match="dtype 'object' cannot be stored"):
        _ = Spec("a", (1,), "object").nbytes


def test_a_type_whose_package_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    assert Spec("a", (3,), "bfloat16").nbytes == 6
    with pytest.raises(IncompatibleCheckpointError, match="needs the package ml_dtypes"):
        numpy_dtype("bfloat16")


def test_the_sizes_of_types_are_those_of_ml_dtypes():
    for name in NAMES:
        assert Spec("a", (5,), name).nbytes == np.zeros(5, numpy_dtype(name)).nbytes
    assert numpy_dtype("bfloat16") == ml_dtypes.bfloat16


def test_nothing_is_written_into_a_complete_checkpoint(directory):
    manifest = save(directory, 3)
    with pytest.raises(CheckpointError, match="step-000000000003 is complete"):
        write(open_files(directory), 3, arrays_of(3))
    store = CheckpointStore(directory)
    store.commit(manifest, step_name(3))  # the same once more: an answer was lost, say
    with pytest.raises(CheckpointError, match="committed by someone else"):
        store.commit(Manifest(3, "other", 2, 1, manifest.leaves), step_name(3))
    with pytest.raises(ValueError, match="belongs into step-000000000004"):
        store.commit(Manifest(4, "run", 1, 1, manifest.leaves), step_name(3))
    assert store.list() == [manifest]


def test_a_part_that_is_missing_is_not_committed(tmp_path):
    files = open_files(tmp_path)
    manifest = write(files, 3, arrays_of(3), parts=2)
    files.remove_tree("step-000000000003/part-0001")
    with pytest.raises(CheckpointError, match=r"cannot be committed: its file part-0001/.* is missing"):
        CheckpointStore(tmp_path).commit(manifest, step_name(3))


def test_what_an_earlier_save_of_the_step_has_left_is_replaced(directory):
    files = open_files(directory)
    files.make_root()
    write(files, 3, {f"old/{name}": array for name, array in arrays_of(3).items()}, parts=4)
    manifest = save(directory, 3, parts=2)
    assert files.list(step_name(3)) == ["manifest.json", "part-0000", "part-0001"]
    assert set(files.sizes(step_name(3))) == {
        "manifest.json",
        *(piece.path for leaf in manifest.leaves for piece in leaf.pieces),
        *(piece.path.rpartition("/")[0] + "/.zarray" for leaf in manifest.leaves for piece in leaf.pieces),
        *(f"part-000{part}/_METADATA" for part in range(2)),
    }


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
@pytest.mark.parametrize("passes", [0, 3, 6])
def test_a_save_that_fails_leaves_nothing_and_the_one_before_is_good(tmp_path, monkeypatch, number, passes):
    save(tmp_path, 3)
    before = sorted(tmp_path.rglob("*"))
    write_all, count = os.write, itertools.count()

    def fill(descriptor, run):
        if next(count) >= passes:
            raise OSError(number, os.strerror(number))
        return write_all(descriptor, run)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fill)
        with pytest.raises(CheckpointWriteError, match=os.strerror(number)):
            save(tmp_path, 4)
    assert sorted(tmp_path.rglob("*")) == [*before, tmp_path / step_name(4)]
    restored = CheckpointStore(tmp_path).restore_newest()
    assert restored is not None and same(restored[1], arrays_of(3))
    save(tmp_path, 4)


def test_a_manifest_that_cannot_be_written_leaves_no_checkpoint(tmp_path, monkeypatch):
    files = open_files(tmp_path)
    manifest = write(files, 3, arrays_of(3))

    def refuse(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(CheckpointWriteError, match=r"manifest\.json could not be written: No space left"):
            CheckpointStore(tmp_path).commit(manifest, step_name(3))
    assert files.list(step_name(3)) == ["part-0000"] and CheckpointStore(tmp_path).newest() is None


def test_an_empty_or_missing_directory_has_no_checkpoint(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        store = CheckpointStore(path)
        assert store.newest() is None and store.restore_newest(mine=True) is None
        assert store.list() == [] and store.verify() == []
    assert not (tmp_path / "none").exists()


def test_a_newer_format_is_refused_and_left_where_it_is(tmp_path):
    import xxhash

    save(tmp_path, 3)
    path = tmp_path / step_name(3) / MANIFEST
    body = path.read_bytes().partition(b',\n"checksum"')[0].replace(b'"format": 1', b'"format": 2')
    path.write_bytes(body + b',\n"checksum": "' + xxhash.xxh3_128_hexdigest(body).encode() + b'"\n}\n')
    with pytest.raises(IncompatibleCheckpointError, match="format 2"):
        CheckpointStore(tmp_path).newest(mine=True)
    assert path.exists()


def test_the_newest_is_that_of_the_highest_step(tmp_path):
    for step in (9, 20, 100):
        save(tmp_path, step)
    Path(tmp_path, "step-000000000200").mkdir()  # being written
    store = CheckpointStore(tmp_path)
    found = store.newest()
    assert found is not None and found[0].step == 100 and found[1] == step_name(100)
    assert [manifest.step for manifest in store.list()] == [9, 20, 100]
