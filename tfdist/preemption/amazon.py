"""Amazon EC2 spot: "instance-action" of the instance metadata service, version 2 (with a token).

Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
"""

import re

from tfdist.preemption.endpoint import INTERVAL, Answer, Endpoint, deadline
from tfdist.preemption.notice import Notice, SourceUnavailable, require_interval
from tfdist.preemption.remaining import from_iso, seconds_until

TOKEN_SECONDS = 21600  # the longest that is allowed
ACTIONS = {"terminate": "terminates", "stop": "stops", "hibernate": "hibernates"}

_TOKEN = re.compile(r"[!-~]{1,1024}")


class AmazonSpot:
    """Says that a spot instance is interrupted, usually two minutes before.

    "terminate", "stop" and "hibernate" all count: a hibernated instance keeps its memory, but is away for hours, and it
    goes at once. The rebalance recommendation does not count: it says that an interruption has become more
    likely, which may never come, and a worker that left for it would give up a machine that it could keep.

    Args:
        base_url: the metadata service; "http://[fd00:ec2::254]" by IPv6.
        interval: seconds between two looks.
    """

    name = "aws"

    def __init__(self, base_url: str = "http://169.254.169.254", interval: float = INTERVAL):
        self.interval = require_interval(interval, "AmazonSpot.interval")
        self._endpoint = Endpoint(self.name, base_url)
        self._token: str | None = None

    def look(self) -> Notice | None:
        """Asks with the token that it has; one that is refused is replaced once."""
        until = deadline()
        kept, self._token = self._token, None  # forgotten unless it works
        answer = self._ask(kept, until) if kept is not None else None
        if answer is None or answer.status == 401:
            kept = self._new_token(until)
            answer = self._ask(kept, until)
        if answer.status == 401:
            raise self._endpoint.unavailable("a new token is refused (401)")
        self._token = kept
        return self._notice(answer)

    def _new_token(self, until: float) -> str:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
        try:
            answer = self._endpoint.ask("PUT", "/latest/api/token", headers, until)
        except SourceUnavailable as error:
            hint = "in a container on EC2, the instance's http-put-response-hop-limit has to be 2"
            raise SourceUnavailable(f"{error} ({hint})") from None
        token = answer.text()
        if answer.status != 200 or not _TOKEN.fullmatch(token):
            what = "something that is no token" if answer.status == 200 else str(answer.status)
            raise self._endpoint.unavailable(f"PUT /latest/api/token answered {what}")
        return token

    def _ask(self, token: str | None, until: float) -> Answer:
        headers = {"X-aws-ec2-metadata-token": token or ""}
        return self._endpoint.ask("GET", "/latest/meta-data/spot/instance-action", headers, until)

    def _notice(self, answer: Answer) -> Notice | None:
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise self._endpoint.unavailable(f"spot/instance-action answered {answer.status}")
        try:
            value = answer.json()
        except ValueError:
            value = None
        action = value.get("action") if isinstance(value, dict) else None
        if not isinstance(action, str) or action not in ACTIONS:
            raise self._endpoint.unavailable("spot/instance-action is not JSON with an action that is known")
        seconds, how = seconds_until(from_iso(value.get("time")), answer.headers.get("date"))
        if action == "hibernate":
            seconds, how = 0.0, "now"
        return Notice(self.name, f"Amazon EC2 {ACTIONS[action]} this spot instance {how}", seconds)
