"""The files around the raw bytes of a part, which let zarr, tensorstore and Orbax read it. Pure.

A part is what Orbax calls a PyTree checkpoint of a flat dictionary, without OCDBT: a folder per array with `.zarray`
(zarr version 2, uncompressed) and a single chunk, and `_METADATA`, which lists the keys.
``orbax.checkpoint.PyTreeCheckpointer().restore(path)`` returns {key: array}.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from tfdist.checkpoint.dtypes import zarr_name
from tfdist.checkpoint.layout import Slice

ARRAY_FILE = ".zarray"
TREE_FILE = "_METADATA"

_DICT_KEY = 2  # orbax.checkpoint.metadata.KeyType.DICT


def chunk_name(rank: int) -> str:
    """Returns the file of an array's only chunk: "0.0" for rank 2, "0" for rank 0."""
    return ".".join("0" * max(rank, 1))


def array_file(one: Slice) -> bytes:
    """Returns the text of `.zarray` for some rows of an array."""
    value = {
        "chunks": [max(size, 1) for size in one.shape],
        "compressor": None,
        "dimension_separator": ".",
        "dtype": zarr_name(one.spec.dtype),
        "fill_value": None,
        "filters": None,
        "order": "C",
        "shape": list(one.shape),
        "zarr_format": 2,
    }
    return json.dumps(value).encode()


def tree_file(folders: Iterable[str]) -> bytes:
    """Returns the text of `_METADATA` for arrays in these folders (in any order); each is the key of its array."""
    tree = {
        str((folder,)): {
            "key_metadata": [{"key": folder, "key_type": _DICT_KEY}],
            "value_metadata": {"value_type": "np.ndarray", "skip_deserialize": False},
        }
        for folder in sorted(folders)
    }
    value = {
        "tree_metadata": tree,
        "use_ocdbt": False,
        "use_zarr3": False,
        "store_array_data_equal_to_fill_value": True,
        "custom_metadata": None,
    }
    return json.dumps(value).encode()
