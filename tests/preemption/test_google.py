"""Google Compute Engine: which values are a notice."""

import pytest

from tests.preemption import servers
from tests.preemption.conftest import noticed
from tfdist.preemption import GoogleCloud, SourceUnavailable
from tfdist.preemption.endpoint import Endpoint, deadline


@pytest.mark.parametrize(
    "key, value, seconds",
    [
        ("preempted", "TRUE", 30.0),
        ("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE", None),
    ],
)
def test_what_ends_the_vm_is_a_notice(google, key, value, seconds):
    source = GoogleCloud(google.url)
    assert source.look() is None
    google.values[key] = value
    notice = noticed(source)
    assert (notice.source, notice.seconds) == ("gce", seconds)
    assert f"instance/{key} is {value}" in notice.reason


@pytest.mark.parametrize(
    "value",
    [
        "NONE",
        "MIGRATE_ON_HOST_MAINTENANCE",  # the VM goes on elsewhere
        "SOMETHING_NEW",
    ],
)
def test_a_migration_is_none(google, value):
    google.values["maintenance-event"] = value
    assert GoogleCloud(google.url).look() is None


def test_the_server_refuses_a_request_without_the_header(google):
    """So that the other tests show that the source sends it."""
    answer = Endpoint("gce", google.url).ask("GET", "/computeMetadata/v1/instance/preempted", {}, deadline())
    assert answer.status == 403


@pytest.mark.parametrize("value", ["", "true", "<html>TRUE</html>", "TRUE\nFALSE", "\u00c4", "T" * 200])
def test_what_is_no_value_is_no_notice(google, value):
    google.values["preempted"] = value
    with pytest.raises(SourceUnavailable, match=r"gce at 127\.0\.0\.1:\d+: instance/preempted is .*no value"):
        GoogleCloud(google.url).look()


def test_another_server_at_the_address_is_not_believed(google):
    google.fault = lambda handler: handler.reply(200, "TRUE")
    with pytest.raises(SourceUnavailable, match="not come from a metadata server of Google"):
        GoogleCloud(google.url).look()


def test_a_vm_that_is_moved_answers_503_for_a_while(google):
    source = GoogleCloud(google.url)
    google.fault = servers.status(503)
    with pytest.raises(SourceUnavailable, match="answered 503"):
        source.look()
    google.fault = None
    assert source.look() is None
