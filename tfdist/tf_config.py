"""Reads TF_CONFIG, and nothing else does. Pure: the environment is a parameter.

TF_CONFIG is JSON: ``{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}``. Understood
as well: clusters given as ``{"worker": {"3": "host:port"}}``, the ``sparseCluster`` of a TFJob with dynamic workers,
and a task left out in an Indexed Job of Kubernetes, where JOB_COMPLETION_INDEX is the worker's index.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tfdist.errors import ConfigError

ROSTER_JOBS = ("chief", "worker")
KNOWN_JOBS = ("chief", "master", "worker", "ps", "evaluator")
MAX_INDEX = 1_000_000

_ADDRESS = re.compile(r"^(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:/\s\[\]]+):(?P<port>\d+)$")
_TASK_REMEDY = 'Give {"type": "worker", "index": 0}, or set JOB_COMPLETION_INDEX as an Indexed Job does.'


class Task(NamedTuple):
    """A TensorFlow (job, index). Ordered by job, then index: chief comes before worker."""

    job: str
    index: int  # type: ignore[assignment]  # tuple.index is not needed

    def __str__(self) -> str:
        return f"{self.job}/{self.index}"

    @classmethod
    def parse(cls, text: str) -> "Task":
        """Returns the task that ``str(task)`` wrote, such as ``worker/2``.

        Raises:
            ConfigError: it is not a known job, a slash and a number.
        """
        job, slash, index = text.partition("/") if isinstance(text, str) else ("", "", "")
        if job not in KNOWN_JOBS or not slash or not re.fullmatch(r"\d{1,7}", index) or int(index) > MAX_INDEX:
            raise ConfigError("task", text, "must be a job, a slash and an index, such as worker/2")
        return cls(job, int(index))


@dataclass(frozen=True)
class TaskConfig:
    """What TF_CONFIG says, checked.

    Attributes:
        task: this process's own task.
        cluster: ``host:port`` by job and index.
        rpc_layer: "grpc" unless TF_CONFIG says otherwise.
    """

    task: Task
    cluster: Mapping[str, Mapping[int, str]]
    rpc_layer: str = "grpc"

    @property
    def workers(self) -> tuple[Task, ...]:
        """Tasks of the jobs chief and worker, sorted: those that may be in a roster."""
        return tuple(sorted(Task(job, i) for job in ROSTER_JOBS for i in self.cluster.get(job, {})))

    @property
    def address(self) -> str:
        """``host:port`` of this process; empty for an evaluator, which is not in the cluster."""
        return self.cluster.get(self.task.job, {}).get(self.task.index, "")

    @property
    def is_evaluator(self) -> bool:
        """True for an evaluator: it is never chief and never in the roster."""
        return self.task.job == "evaluator"


def split_address(address: str, field: str = "address") -> tuple[str, int]:
    """Returns (host, port) of ``host:port``; brackets of an IPv6 host are taken off.

    Raises:
        ConfigError: a scheme, no port, or a port outside 1 to 65535.
    """
    if not isinstance(address, str):
        raise ConfigError(field, address, "must be text, host:port")
    if "://" in address:
        bare_address = address.split("://", 1)[1]
        raise ConfigError(field, address, "must be host:port without a scheme", f"Write {bare_address!r}.")
    match = _ADDRESS.match(address)
    if not match:
        bare = re.fullmatch(r"[^:/\s]+:?", address)
        remedy = f"Add the port, for example {address.rstrip(':') + ':2222'!r}." if bare else ""
        raise ConfigError(field, address, "must be host:port, the port a number", remedy)
    port = int(match["port"]) if len(match["port"]) <= 5 else 0
    if not 1 <= port <= 65535:
        raise ConfigError(field, address, "the port must be 1 to 65535")
    return match["host"].strip("[]"), port


def parse_tf_config(environ: Mapping[str, str]) -> TaskConfig | None:
    """Returns the checked TF_CONFIG of `environ`, or None if it is unset or empty.

    Raises:
        ConfigError: names the field, the value, the rule and where there is one the remedy.
    """
    text = environ.get("TF_CONFIG", "").strip()
    if not text:
        if task_from_environ(environ) is not None:
            raise ConfigError(
                "TF_CONFIG",
                None,
                "is missing in an Indexed Job, whose pods would each train alone as their own chief",
                'Set it to {"cluster": {"worker": ["host:port", ...]}}, the same in all pods: JOB_COMPLETION_INDEX is '
                "the task.",
            )
        return None
    try:
        config = json.loads(text)
    except ValueError as error:
        where = getattr(error, "pos", 0)
        part = text[max(0, where - 40) : where + 40]
        raise ConfigError("TF_CONFIG", part, f"is not JSON ({error}; the part around it is shown)") from None
    if not isinstance(config, dict):
        raise ConfigError("TF_CONFIG", config, "must be a JSON object with cluster and task")
    if not config:
        return None
    sparse = config.get("sparseCluster")
    if not config.get("cluster") and not sparse:
        raise ConfigError(
            "TF_CONFIG cluster",
            config.get("cluster"),
            "is missing, so this process would train alone as its own chief",
            'Add {"cluster": {"worker": ["host:port", ...]}}, or unset TF_CONFIG to train in one process.',
        )
    task = _task(config.get("task"), environ)
    cluster = _parse_cluster(config["cluster"] if config.get("cluster") else _expand_sparse(sparse, task))
    _check_task(task, cluster)
    rpc_layer = config.get("rpc_layer", "grpc")
    if not isinstance(rpc_layer, str) or not rpc_layer:
        raise ConfigError("TF_CONFIG rpc_layer", rpc_layer, 'must be text, such as "grpc"')
    return TaskConfig(task, cluster, rpc_layer)


def require_worker_cluster(config: TaskConfig) -> None:
    """Refuses a cluster with parameter servers, for the strategies that have none.

    Raises:
        ConfigError: TF_CONFIG names a ``ps`` job.
    """
    if config.cluster.get("ps"):
        raise ConfigError(
            "TF_CONFIG cluster.ps",
            list(config.cluster["ps"].values()),
            "parameter servers have no part in a multi-worker mirrored strategy",
            "Remove ps from the cluster, or use tfdist.ElasticParameterServerStrategy.",
        )


def task_from_environ(environ: Mapping[str, str]) -> Task | None:
    """Returns worker/JOB_COMPLETION_INDEX of an Indexed Job, or None outside one.

    Raises:
        ConfigError: JOB_COMPLETION_INDEX is not a number.
    """
    text = environ.get("JOB_COMPLETION_INDEX", "").strip()
    if not text:
        return None
    if not re.fullmatch(r"\d{1,7}", text) or int(text) > MAX_INDEX:
        raise ConfigError("JOB_COMPLETION_INDEX", text, f"must be a whole number, 0 to {MAX_INDEX}")
    return Task("worker", int(text))


def _task(value: Any, environ: Mapping[str, str]) -> Task:
    if value is None:
        task = task_from_environ(environ)
        if task is None:
            raise ConfigError("TF_CONFIG task", None, "is missing", _TASK_REMEDY)
        return task
    if not isinstance(value, dict):
        raise ConfigError("TF_CONFIG task", value, "must be an object with type and index", _TASK_REMEDY)
    job = value.get("type")
    if job not in KNOWN_JOBS:
        raise ConfigError("TF_CONFIG task.type", job, f"must be one of {', '.join(KNOWN_JOBS)}", _TASK_REMEDY)
    index = value.get("index")
    if index is None:
        from_job = task_from_environ(environ)
        if from_job is None:
            raise ConfigError("TF_CONFIG task.index", index, "is missing", _TASK_REMEDY)
        index = from_job.index
    return Task(job, _index(index, "TF_CONFIG task.index"))


def _index(value: Any, field: str) -> int:
    if isinstance(value, str) and re.fullmatch(r"\d{1,7}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_INDEX:
        raise ConfigError(field, value, f"must be a whole number, 0 to {MAX_INDEX}")
    return value


def _parse_cluster(value: Any) -> dict[str, dict[int, str]]:
    if not isinstance(value, dict):
        raise ConfigError("TF_CONFIG cluster", value, "must be an object of jobs")
    cluster: dict[str, dict[int, str]] = {}
    seen: dict[str, str] = {}
    for job, tasks in value.items():
        field = f"TF_CONFIG cluster.{job}"
        if job not in KNOWN_JOBS:
            raise ConfigError("TF_CONFIG cluster", job, f"unknown job type; known are {', '.join(KNOWN_JOBS)}")
        if isinstance(tasks, list):
            pairs: dict[int, Any] = dict(enumerate(tasks))
        elif isinstance(tasks, dict):
            pairs = {_index(i, f"{field} index"): address for i, address in tasks.items()}
        else:
            raise ConfigError(field, tasks, "must be a list of host:port, or an object index: host:port")
        for index, address in pairs.items():
            name = f"{field}[{index}]"
            split_address(address, name)
            if address in seen:
                rule = f"is also the address of {seen[address]}"
                raise ConfigError(name, address, rule, "Give each task its own port.")
            seen[address] = f"{job}[{index}]"
        cluster[job] = pairs
    return cluster


def _expand_sparse(value: Any, task: Task) -> dict[str, Any]:
    """Turns a TFJob's sparseCluster {"worker": {"2": address}, "ps": [...]} into a cluster of objects and lists."""
    if not isinstance(value, dict):
        raise ConfigError("TF_CONFIG sparseCluster", value, "must be an object of jobs")
    cluster = {job: tasks for job, tasks in value.items() if tasks}
    one = cluster.get(task.job)
    if isinstance(one, str):  # some operators give only this worker's own address
        cluster[task.job] = {str(task.index): one}
    return cluster


def _check_task(task: Task, cluster: Mapping[str, Mapping[int, str]]) -> None:
    if task.job == "evaluator":
        return  # TensorFlow leaves the evaluator out of the cluster; both ways are accepted
    if task.job not in cluster:
        raise ConfigError("TF_CONFIG task.type", task.job, f"is not a job of the cluster ({', '.join(cluster)})")
    if task.index not in cluster[task.job]:
        known = sorted(cluster[task.job])
        span = f"{known[0]} to {known[-1]}" if known == list(range(len(known))) and known else str(known)
        raise ConfigError("TF_CONFIG task.index", task.index, f"is not in cluster.{task.job}, which has {span}")
