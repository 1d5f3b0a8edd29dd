"""What the user gives becomes sources, or is named and refused."""

import math

import pytest

from tfdist.errors import ConfigError
from tfdist.preemption import AmazonSpot, Azure, File, GoogleCloud, parse


class Own:
    def __init__(self, interval=1.0, name="own"):
        self.name, self.interval = name, interval

    def look(self):
        return None


def test_nothing_is_asked_by_default():
    assert parse(None, {}) == () and parse((), {"TFDIST_PREEMPTION": "gce"}) == ()


def test_the_environment_adds_to_the_defaults(monkeypatch):
    text = "gce, aws,azure,file:/tmp/leave,,aws"
    for found in (parse(None, {"TFDIST_PREEMPTION": text}), parse(text)):
        assert [type(source) for source in found] == [GoogleCloud, AmazonSpot, Azure, File]
        assert found[3].name == "file:/tmp/leave"
    monkeypatch.setenv("TFDIST_PREEMPTION", "aws")
    assert [type(source) for source in parse()] == [AmazonSpot]


def test_an_argument_goes_before_the_environment():
    own = Own()
    assert parse([own], {"TFDIST_PREEMPTION": "gce"}) == (own,)


def test_names_and_objects_mix_and_one_alone_will_do():
    own = Own()
    assert parse(own) == (own,)
    assert [source.name for source in parse(["gce", own, "gce"])] == ["gce", "own"]
    assert [source.name for source in parse("file:/a:b")] == ["file:/a:b"]


@pytest.mark.parametrize(
    "value, shown",
    [
        ("gcp", "'gcp'"),
        ("gce:8080", "'gce:8080'"),
        ("file:", "'file:'"),
        (["aws", "amazon"], "'amazon'"),
        ([3], "= 3:"),
        (3, "= 3:"),
        (b"gce", "b'gce'"),
        ({"gce": 1}, "{'gce': 1}"),
        (GoogleCloud, r"Write GoogleCloud\(\)"),
        ([GoogleCloud], r"Write GoogleCloud\(\)"),
        ([Own(name=None)], "must be a Source"),
        ([Own(), Own()], "'own': is the name of two sources"),
    ],
)
def test_what_is_no_source_is_named(value, shown):
    with pytest.raises(ConfigError, match=rf"PreemptionHandler\.sources.*{shown}"):
        parse(value)


def test_a_wrong_environment_is_named():
    with pytest.raises(ConfigError, match="TFDIST_PREEMPTION = 'gcp'"):
        parse(None, {"TFDIST_PREEMPTION": "aws,gcp"})


@pytest.mark.parametrize("interval", [0, -1, math.nan, math.inf, None, "1", True])
def test_an_interval_that_is_none_is_refused(interval):
    for make in (lambda: parse(Own(interval)), lambda: AmazonSpot(interval=interval), lambda: File("/x", interval)):
        with pytest.raises(ConfigError, match="interval"):
            make()
