"""Google Compute Engine: "preempted" and "maintenance-event" of the metadata server.

Source: https://cloud.google.com/compute/docs/instances/preemptible and .../docs/metadata/getting-live-migration-notice

It is polled. The server's ``wait_for_change`` would answer sooner, but holds a connection open for each of the two
values, which closing would have to break off.
"""

import re

from tfdist.preemption.endpoint import INTERVAL, Endpoint, deadline
from tfdist.preemption.notice import Notice, plain, require_interval

PREEMPTED_SECONDS = 30.0  # what Google documents between the notice and the end; the answer itself has no time
ENDS = "TERMINATE_ON_HOST_MAINTENANCE"

_HEADERS = {"Metadata-Flavor": "Google"}
_WORD = re.compile(r"[A-Z][A-Z0-9_]{0,99}")


class GoogleCloud:
    """Says that a spot or preemptible VM is preempted, or that maintenance of its host ends the VM.

    Of maintenance-event only TERMINATE_ON_HOST_MAINTENANCE counts (VMs with GPUs or TPUs, and others set so): the VM is
    stopped. MIGRATE_ON_HOST_MAINTENANCE does not: the VM goes on elsewhere after a pause below the heartbeat timeout.
    How long it takes until the VM stops is not told: 60 s at least, up to an hour with GPUs.

    Args:
        base_url: the metadata server; a VM with IPv6 alone has it at "http://[fd20:ce::254]".
        interval: seconds between two looks.
    """

    name = "gce"

    def __init__(self, base_url: str = "http://metadata.google.internal", interval: float = INTERVAL):
        self.interval = require_interval(interval, "GoogleCloud.interval")
        self._endpoint = Endpoint(self.name, base_url)

    def look(self) -> Notice | None:
        """Asks for both values, one after the other."""
        until = deadline()
        if self._value("preempted", until) == "TRUE":
            return Notice(self.name, "Google Cloud preempts this VM (instance/preempted is TRUE)", PREEMPTED_SECONDS)
        if self._value("maintenance-event", until) == ENDS:
            reason = f"Google Cloud stops this VM for maintenance of its host (instance/maintenance-event is {ENDS})"
            return Notice(self.name, reason, None)
        return None

    def _value(self, key: str, until: float) -> str:
        answer = self._endpoint.ask("GET", f"/computeMetadata/v1/instance/{key}", _HEADERS, until)
        if answer.status != 200:
            raise self._endpoint.unavailable(f"instance/{key} answered {answer.status}")
        if answer.headers.get("metadata-flavor") != "Google":  # clouds share the address; a proxy answers anything
            raise self._endpoint.unavailable("the answer does not come from a metadata server of Google")
        text = answer.text()
        if not _WORD.fullmatch(text):
            raise self._endpoint.unavailable(f"instance/{key} is {plain(text, 80)!r}, which is no value of it")
        return text
