"""Nested structures (tuples, named tuples, lists, dictionaries) of arrays, without TensorFlow.

Dictionaries are walked in the order of their sorted keys, as TensorFlow does. A list comes out as a tuple: tf.data
knows no lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Structure = Any  # a leaf, or a tuple, list or dictionary of Structure


def is_nested(value: object) -> bool:
    """True for what is walked into, False for a leaf."""
    return isinstance(value, (tuple, list, Mapping))


def leaves(structure: Structure, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (path, leaf); a path reads as in Python: `[0]['image']`, and is empty for a structure that is a leaf."""
    if isinstance(structure, Mapping):
        for key in sorted(structure):
            yield from leaves(structure[key], f"{path}[{key!r}]")
    elif is_nested(structure):
        for number, item in enumerate(structure):
            yield from leaves(item, f"{path}[{number}]")
    else:
        yield path, structure


def map_leaves(fn: Callable[[str, Any], Any], structure: Structure, path: str = "") -> Structure:
    """The structure of `fn(path, leaf)`."""
    if isinstance(structure, Mapping):
        return {key: map_leaves(fn, structure[key], f"{path}[{key!r}]") for key in sorted(structure)}
    if is_nested(structure):
        return _like(structure, [map_leaves(fn, item, f"{path}[{n}]") for n, item in enumerate(structure)])
    return fn(path, structure)


def fill(structure: Structure, values: Iterator[Any]) -> Structure:
    """The structure with its leaves replaced, in the order of `leaves`."""
    return map_leaves(lambda _path, _leaf: next(values), structure)


def shape_of(structure: Structure) -> str:
    """The nesting in words for error messages and for comparing: `(*, {'a': *})`."""
    if isinstance(structure, Mapping):
        return "{" + ", ".join(f"{key!r}: {shape_of(structure[key])}" for key in sorted(structure)) + "}"
    if is_nested(structure):
        return "(" + ", ".join(shape_of(item) for item in structure) + ")"
    return "*"


def _like(structure: Any, items: list[Any]) -> Any:
    if hasattr(structure, "_fields"):  # a named tuple
        return type(structure)(*items)
    return tuple(items)
