"""The error of everything that goes wrong with samples."""

from __future__ import annotations

from tfdist.errors import TfdistError


class DataError(TfdistError):
    """A sample could not be read, mapped or stacked; the text names its position in the source and the remedy."""
