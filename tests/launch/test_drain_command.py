"""`tfdist drain` on its own: what it refuses."""

import pytest

from tfdist.errors import EXIT_CONFIG
from tfdist.launch.cli import main


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["worker/1"], "names no store"),
        (["--store", "sqlite:///{}/run.db", "worker/1"], "worker/1': is not a member of the run (none yet)"),
        (["--store", "sqlite:///{}/run.db", "nobody"], "nobody"),
        (["--store", "zookeeper://here", "worker/1"], "zookeeper"),
    ],
)
def test_what_can_not_be_drained_is_named(capsys, monkeypatch, tmp_path, arguments, text):
    monkeypatch.delenv("TFDIST_STORE", raising=False)
    assert main(["drain", *(argument.format(tmp_path) for argument in arguments)]) == EXIT_CONFIG
    assert text in capsys.readouterr().err
