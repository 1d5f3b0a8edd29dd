"""The framework for tests of distributed training: real processes on this machine, and faults at scripted places."""

from tfdist.testing import faults
from tfdist.testing.cluster import ClusterError, LocalCluster, shared_fork_server
from tfdist.testing.results import ProcessResult, Results

__all__ = ["ClusterError", "LocalCluster", "ProcessResult", "Results", "faults", "shared_fork_server"]
