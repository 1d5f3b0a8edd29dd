"""The rules of faults, without processes."""

import json

import pytest

from tfdist.errors import ConfigError
from tfdist.observe import points
from tfdist.testing import faults


@pytest.mark.parametrize(
    ("fault", "point", "facts", "expected"),
    [
        (faults.kill(0, step=3), "step_begin", {"step": 3}, True),
        (faults.kill(0, step=3), "step_begin", {"step": 4}, False),
        (faults.kill(0, step=3), "step_end", {"step": 3}, False),
        (faults.kill(0, step=3), "step_begin", {}, False),  # a point without a step is no step 3
        (faults.kill(0, point="settle"), "settle", {}, True),
        (faults.kill(0, step=3, phase="fit"), "step_begin", {"step": 3, "phase": "evaluate"}, False),
        (faults.kill(0, point="transfer_chunk", facts={"chunk": 1}), "transfer_chunk", {"chunk": 1}, True),
    ],
)
def test_a_fault_matches_its_point_and_facts(fault, point, facts, expected):
    assert fault.matches(point, facts) is expected


def test_faults_survive_the_way_through_the_environment():
    some = [faults.freeze(1, step=3, seconds=2.0), faults.thaw(1, when=0, step=9), faults.raise_in(2, 4, message="m")]
    assert faults.from_json(faults.to_json(some)) == some


@pytest.mark.parametrize("text", ["", "[1]", '[{"action": "explode", "worker": 0}]', '[{"worker": 0}]'])
def test_other_text_is_refused(text):
    with pytest.raises(ConfigError):
        faults.from_json(text)


@pytest.fixture
def installed(monkeypatch, tmp_path):
    removers = []

    def install(some, worker=0, incarnation=0):
        monkeypatch.setenv("TF_CONFIG", json.dumps({"task": {"type": "worker", "index": worker}}))
        monkeypatch.setenv("TFDIST_INCARNATION_NUMBER", str(incarnation))
        monkeypatch.setenv(faults.FAULTS_VARIABLE, faults.to_json(some))
        monkeypatch.setenv(faults.FIRED_VARIABLE, str(tmp_path / "fired"))
        removers.append(faults.install_from_environment())
        return tmp_path / "fired"

    yield install
    for remove in removers:
        if remove:
            remove()


def test_a_fault_happens_once_and_tells_so_first(installed):
    fired = installed([faults.raise_in(0, step=2)])
    points.reach("step_begin", step=1)
    with pytest.raises(faults.InjectedError):
        points.reach("step_begin", step=2)
    points.reach("step_begin", step=2)
    assert [json.loads(line)["fault"] for line in fired.read_text().splitlines()] == [0]


def test_the_nth_time_counts(installed):
    installed([faults.raise_in(0, point="settle", nth=3)])
    points.reach("settle")
    points.reach("settle")
    with pytest.raises(faults.InjectedError):
        points.reach("settle")


@pytest.mark.parametrize(("worker", "incarnation"), [(1, 0), (0, 1)])
def test_another_worker_and_a_replacement_are_left_alone(installed, worker, incarnation):
    installed([faults.raise_in(0, step=2)], worker, incarnation)
    points.reach("step_begin", step=2)
