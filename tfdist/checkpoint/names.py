"""How the leaves of a checkpoint are called in the file system. Pure.

"/" in a name makes folders. Everything else is kept where Orbax, people and file systems all can read it, and becomes
"%" and two hexadecimal digits per byte (as in URLs) where not. So ``urllib.parse.unquote`` of a folder's path, which is
also the key under which Orbax finds the leaf, is the name of the leaf; for nearly all names the two are the same.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import quote

import xxhash

_KEPT = frozenset("-_.+,=@: ()")
_CHUNK = re.compile(r"[0-9]+(\.[0-9]+)*")
_LONGEST_COMPONENT = 200  # bytes; file systems allow 255
_LONGEST_PATH = 1000  # bytes; the system allows 4096 for the whole path


def folder_of(name: str, leaves: Collection[str]) -> str:
    """Returns the folder of a leaf within its part, relative, with "/" between folders.

    Args:
        name: of the leaf, not empty.
        leaves: names of all leaves of the part; of two names the folders differ, and none is a file of the other.

    Returns:
        A name too long for a file system (a folder of more than 200 bytes, or more than 1000 in all) becomes its
        beginning, "~" and a checksum: of those the manifest alone has the name.

    Raises:
        ValueError: the name is empty.

    Example:
        >>> folder_of("dense/kernel", ()), folder_of("a:0//50%", ())
        ('dense/kernel', 'a:0/%2F50%25')
    """
    if not name:
        raise ValueError("the name of a leaf must not be empty")
    cuts = [i for i in range(1, len(name) - 1) if name[i] == "/" and name[i - 1] != "/"]
    components = []
    for start, stop in zip([0, *(cut + 1 for cut in cuts)], [*cuts, len(name)], strict=True):
        encoded = "".join(map(_character, name[start:stop]))
        hidden = encoded.startswith(".")  # also ".", ".." and zarr's own files
        orbax = start == 0 and encoded.startswith("_")  # such as _METADATA
        # The chunk of a leaf is a file such as "0.0" in its folder, where another leaf must not want a folder.
        chunk = start and _CHUNK.fullmatch(encoded) and name[: start - 1] in leaves
        if hidden or orbax or chunk:
            encoded = f"%{ord(encoded[0]):02X}{encoded[1:]}"
        components.append(encoded)
    if max(map(_size, components)) > _LONGEST_COMPONENT or sum(map(_size, components)) > _LONGEST_PATH:
        beginning = re.sub(r"[^0-9A-Za-z]", "_", name[:60])
        return f"{beginning}~{xxhash.xxh3_128_hexdigest(name.encode('utf-8', 'surrogatepass'))}"
    return "/".join(components)


def _character(character: str) -> str:
    if character.isalnum() or character in _KEPT:
        return character
    return quote(character, safe="", errors="surrogatepass").replace("~", "%7E")


def _size(component: str) -> int:
    return len(component.encode())
