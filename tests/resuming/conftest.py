"""Fixtures of the tests that stop training and go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.resuming import jobs
from tfdist.testing import LocalCluster


@pytest.fixture(scope="session")
def uninterrupted(fork_server, tmp_path_factory) -> Callable[..., dict[str, Any]]:
    """uninterrupted(data="tf.data", ...): what one process gives that is not stopped; saving as it goes."""
    known: dict[str, dict[str, Any]] = {}

    def training(**options: Any) -> dict[str, Any]:
        key = json.dumps(options, sort_keys=True)
        if key not in known:
            folder = tmp_path_factory.mktemp("uninterrupted")
            with LocalCluster(1, server=fork_server, dir=folder) as cluster:
                given = {**options, "directory": str(folder / "ckpt")}
                known[key] = cluster.run(jobs.train, given, timeout=90).values[0]
        return known[key]

    return training
