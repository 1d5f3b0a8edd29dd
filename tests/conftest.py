"""Fixtures of all tests: one fork server a session, so that TensorFlow is imported once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Before anything imports TensorFlow.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")


@pytest.fixture(scope="session")
def fork_server() -> Iterator[object]:
    """The fork server with TensorFlow imported, which every LocalCluster without a `server` of its own uses as well."""
    from tfdist.testing import shared_fork_server

    server = shared_fork_server()
    server.wait_ready()
    yield server


@pytest.fixture(scope="session")
def light_fork_server() -> Iterator[object]:
    """A fork server without TensorFlow, for tests that do not need it: ready at once."""
    from tfdist.launch.fork_server import ForkServer

    with ForkServer(preload=("numpy",)) as server:
        yield server


@pytest.fixture
def cluster_of(fork_server: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """cluster_of(workers, faults=…, restart=…): a cluster that is gone after the test."""
    from tfdist.testing import LocalCluster

    clusters: list[LocalCluster] = []

    def make(workers: int, **options: Any) -> LocalCluster:
        clusters.append(LocalCluster(workers, server=fork_server, dir=tmp_path, **options))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.close()
