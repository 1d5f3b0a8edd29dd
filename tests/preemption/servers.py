"""Metadata servers that answer like the real ones, and faults that replace an answer."""

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from email.utils import formatdate

MOST_SECONDS = 20.0  # after which a fault gives up by itself


class Server(http.server.ThreadingHTTPServer):
    """Subclasses answer in `respond`. `fault(handler)`, if set, answers instead."""

    daemon_threads = False
    block_on_close = True
    dated = True  # answers have the header Date

    def __init__(self):
        self.requests: list[tuple[str, str]] = []
        self.fault: Callable[[Handler], None] | None = None
        self.over = threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, request, client_address):
        pass  # clients that hang up are what is tested

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def respond(self, handler: "Handler") -> None:
        handler.reply(404)


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def _handle(self) -> None:
        self.sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.command, self.path))
        (self.server.fault or self.server.respond)(self)

    do_GET = do_PUT = do_POST = _handle

    def log_message(self, format, *args):
        pass

    def reply(self, status: int, body: str | bytes = b"", **headers: str) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response_only(status)
        if self.server.dated:
            self.send_header("Date", formatdate(self.server_time(), usegmt=True))
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def server_time(self) -> float:
        return NOW


NOW = 1_500_000_000.0  # the servers' clock: not this machine's, by years. Fri, 14 Jul 2017 02:40:00 GMT


class Google(Server):
    def __init__(self):
        self.values = {"preempted": "FALSE", "maintenance-event": "NONE"}
        super().__init__()

    def respond(self, handler: Handler) -> None:
        if handler.headers.get("Metadata-Flavor") != "Google":
            return handler.reply(403, "Missing Metadata-Flavor:Google header.")
        directory, _, key = handler.path.rpartition("/")
        if directory != "/computeMetadata/v1/instance" or key not in self.values:
            return handler.reply(404)
        handler.reply(200, self.values[key], Metadata_Flavor="Google", Content_Type="application/text")


class Amazon(Server):
    def __init__(self):
        self.action: str | bytes | None = None
        self.tokens: list[str] = []
        self.valid: set[str] = set()
        super().__init__()

    def respond(self, handler: Handler) -> None:
        if (handler.command, handler.path) == ("PUT", "/latest/api/token"):
            ttl = handler.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            if not ttl.isdigit() or not 1 <= int(ttl) <= 21600:
                return handler.reply(400)
            token = f"AQAEA-{len(self.tokens)}=="
            self.tokens.append(token)
            self.valid.add(token)
            return handler.reply(200, token, X_aws_ec2_metadata_token_ttl_seconds=ttl)
        if handler.headers.get("X-aws-ec2-metadata-token") not in self.valid:
            return handler.reply(401)
        if handler.path == "/latest/meta-data/events/recommendations/rebalance":
            return handler.reply(200, json.dumps({"noticeTime": "2017-07-14T02:40:00Z"}))
        if handler.path != "/latest/meta-data/spot/instance-action" or self.action is None:
            return handler.reply(404)
        handler.reply(200, self.action)


class AzureService(Server):
    def __init__(self):
        self.machine = "trainer_1"
        self.events: list[object] = []
        self.document: str | bytes | None = None
        self.approved: list[str] = []
        super().__init__()

    def respond(self, handler: Handler) -> None:
        path, _, query = handler.path.partition("?")
        if handler.headers.get("Metadata") != "true":
            return handler.reply(400, json.dumps({"error": "Bad request. Required metadata header not specified"}))
        if path == "/metadata/instance/compute/name" and query == "api-version=2021-02-01&format=text":
            return handler.reply(200, self.machine)
        if path != "/metadata/scheduledevents" or query != "api-version=2020-07-01":
            return handler.reply(404)
        if handler.command == "POST":
            self.approved += [one["EventId"] for one in json.loads(handler.sent)["StartRequests"]]
            return handler.reply(200)
        document = {"DocumentIncarnation": 1, "Events": self.events}
        handler.reply(200, json.dumps(document) if self.document is None else self.document)


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="test-server")
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join(MOST_SECONDS)


def status(code: int, **headers: str) -> Callable[[Handler], None]:
    return lambda handler: handler.reply(code, b"{}", **headers)


def raw(data: bytes) -> Callable[[Handler], None]:
    """Answers with these bytes, then hangs up."""

    def answer(handler: Handler) -> None:
        handler.close_connection = True
        handler.wfile.write(data)

    return answer


def silent(handler: Handler) -> None:
    """Does not answer until the test is over."""
    handler.close_connection = True
    handler.server.over.wait(MOST_SECONDS)


def dripping(handler: Handler) -> None:
    """A header without an end, a byte at a time: no single wait is long."""
    handler.close_connection = True
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    while not handler.server.over.wait(0.02):
        handler.wfile.write(b"x")


def huge(handler: Handler) -> None:
    """A body without an end, as fast as the client takes it."""
    handler.close_connection = True
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not handler.server.over.is_set():
        handler.wfile.write(b" " * 65536)
