"""A file whose existence is the notice: for schedulers and scripts of one's own, and for trying things out."""

import os

from tfdist.errors import ConfigError
from tfdist.preemption.notice import Notice, SourceUnavailable, plain, require_interval

REASON_CHARACTERS = 500


class File:
    """Says that this machine goes as soon as `path` exists; what it contains is the reason. It is never removed here.

    Args:
        path: of the file; a relative one counts from the directory in which this is made.
        interval: seconds between two looks.
    """

    def __init__(self, path: str | os.PathLike[str], interval: float = 0.5):
        try:
            text = os.fspath(path)
        except TypeError:
            text = ""
        if not isinstance(text, str) or not text or "\0" in text:
            raise ConfigError("path of the preemption source file", path, "must be the path of a file")
        self.path = os.path.abspath(text)
        self.name = f"file:{self.path}"
        self.interval = require_interval(interval, "File.interval")

    def look(self) -> Notice | None:
        """Reads the beginning of the file. Only that it exists counts: it may be empty, a directory or unreadable."""
        try:
            os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise SourceUnavailable(f"{self.name}: {error.strerror}") from None
        return Notice(self.name, self._content() or f"the file {self.path} exists", None)

    def _content(self) -> str:
        try:
            # Not blocking: the path may be a pipe, which nobody writes to.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            data = os.read(descriptor, 4 * REASON_CHARACTERS)  # bytes; UTF-8 has at most four a character
        except OSError:
            return ""
        finally:
            os.close(descriptor)
        return plain(data.decode("utf-8", "replace"), REASON_CHARACTERS)
