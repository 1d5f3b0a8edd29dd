"""Fixtures of the tests with workers: clusters, and plain training to compare with."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.strategies import jobs
from tfdist.testing import LocalCluster


@pytest.fixture(scope="session")
def plain(fork_server, tmp_path_factory) -> Callable[..., dict[str, Any]]:
    """plain(kind="adam", ...): what one process without tfdist gives; each set of options is computed once."""
    known: dict[str, dict[str, Any]] = {}

    def training(timeout: float = 90.0, **options: Any) -> dict[str, Any]:
        key = json.dumps(options, sort_keys=True)
        if key not in known:
            with LocalCluster(1, server=fork_server, dir=tmp_path_factory.mktemp("plain")) as cluster:
                known[key] = cluster.run(jobs.train, {**options, "plain": True}, timeout=timeout).values[0]
        return known[key]

    return training
