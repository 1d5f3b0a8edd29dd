"""Asks a metadata server of a cloud, with bounds on everything: time, bytes, where it leads.

``http.client`` knows neither proxies of the environment nor redirects, which is as it must be: these addresses answer
for this machine only. ``urllib.request`` would follow both.
"""

import http.client
import json
import re
import socket
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tfdist.errors import ConfigError
from tfdist.preemption.notice import SourceUnavailable, plain

LOOK_SECONDS = 1.0  # of all requests of one look together; a metadata server answers within milliseconds
MOST_BYTES = 64 << 10
# A little less than 1 s, so that a notice is found within 1 s although the answer takes time.
INTERVAL = 0.8

_HOST = re.compile(r"[A-Za-z0-9._:-]+")
_WELL_KNOWN = {"metadata.google.internal": "169.254.169.254"}  # elsewhere, looking up the name can take half a minute


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        status: the HTTP status; a redirect is one like others.
        headers: by lower-case name.
        body: at most 64 KiB.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    def text(self) -> str:
        """Returns the body as stripped text; what is not ASCII becomes a replacement character."""
        return self.body.decode("ascii", "replace").strip()

    def json(self) -> Any:
        """Returns the body as JSON.

        Raises:
            ValueError: it is not JSON, or nested too deeply.
        """
        try:
            return json.loads(self.body)
        except RecursionError:
            raise ValueError("nested too deeply") from None


class Endpoint:
    """A metadata server.

    Args:
        name: name of the source, for messages.
        base_url: "http://host" or "http://host:port".

    Raises:
        ConfigError: a base_url that is something else.
    """

    def __init__(self, name: str, base_url: str):
        self._name = name
        rule = "must be http://host or http://host:port"
        try:
            parts = urlsplit(base_url if isinstance(base_url, str) else "")
            port = parts.port or 80
        except ValueError:
            raise ConfigError(f"base_url of {name}", base_url, rule) from None
        host = parts.hostname or ""
        rest = (parts.path.strip("/"), parts.query, parts.fragment, parts.username or "")
        if parts.scheme != "http" or any(rest) or not _HOST.fullmatch(host):
            raise ConfigError(f"base_url of {name}", base_url, rule)
        self._host, self._port = host, port
        self._address = _WELL_KNOWN.get(host, host)

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], until: float, body: bytes | None = None
    ) -> Answer:
        """Returns the answer to one request.

        Args:
            method: such as "GET".
            path: from the first "/" on.
            headers: to send.
            until: monotonic seconds at which this gives up, wherever it is.
            body: to send.

        Raises:
            SourceUnavailable: no answer, none in time, one that is too large or not HTTP.
        """
        connection = _Connection(self._host, self._port, self._address, until)
        try:
            with closing(connection):
                connection.request(method, path, body, {**headers, "Connection": "close"})
                with connection.getresponse() as response:
                    data = response.read(MOST_BYTES + 1)
                    kept = {key.lower(): value for key, value in response.getheaders()}
                    answer = Answer(response.status, kept, data)
        except (OSError, http.client.HTTPException, ValueError) as error:
            text = plain(str(error), 200) or type(error).__name__
            raise self.unavailable(f"{method} {path} got no answer: {text}") from None
        if len(answer.body) > MOST_BYTES:
            raise self.unavailable(f"{method} {path} answered with more than {MOST_BYTES} bytes")
        return answer

    def unavailable(self, why: str) -> SourceUnavailable:
        """Returns the error to raise, which names the source and the server."""
        return SourceUnavailable(f"{self._name} at {self._host}:{self._port}: {why}")


def deadline() -> float:
    """Returns `until` of a look that begins now."""
    return time.monotonic() + LOOK_SECONDS


class _Connection(http.client.HTTPConnection):
    def __init__(self, host: str, port: int, address: str, until: float):
        super().__init__(host, port)  # `host` goes into the header Host; the connection goes to `address`
        self._address, self._until = address, until

    def connect(self) -> None:
        connected = socket.create_connection((self._address, self.port), timeout=_left(self._until))
        self.sock = _TimedSocket(connected, self._until)
        self.sock.settimeout(_left(self._until))  # for sending


class _TimedSocket(socket.socket):
    """A timeout of a socket begins anew with each byte; this one holds for all that arrives."""

    def __init__(self, connected: socket.socket, until: float):
        super().__init__(fileno=connected.detach())
        self._until = until

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        self.settimeout(_left(self._until))
        return super().recv_into(buffer, nbytes, flags)


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError(f"not within {LOOK_SECONDS} s")
    return left
