"""Where checkpoints are kept: a directory, or a URL that fsspec knows."""

from __future__ import annotations

import os

from tfdist.checkpoint.files.base import Files, Seen
from tfdist.checkpoint.files.local import LocalFiles
from tfdist.errors import ConfigError

__all__ = ["Files", "LocalFiles", "Seen", "open_files"]


def open_files(directory: str | os.PathLike[str]) -> Files:
    """Opens a directory for checkpoints; it need not exist.

    Args:
        directory: a path, a file:// URL, or a URL for fsspec, such as gs://bucket/run or s3://bucket/run.

    Raises:
        ConfigError: no text, an unknown scheme, or a package that the URL needs is missing; the package is named.
    """
    text = os.fspath(directory) if isinstance(directory, (str, os.PathLike)) else directory
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigError("checkpoint directory", directory, "must be a path or a URL")
    scheme, separator, rest = text.partition("://")
    if not separator or scheme == "file":
        return LocalFiles(rest if separator else text)
    from tfdist.checkpoint.files.remote import RemoteFiles

    return RemoteFiles(text)
