"""From TF_CONFIG and the environment to a session: whether there are others, and how they are found."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.membership.options import MembershipOptions, resolve
from tfdist.membership.session import Session
from tfdist.membership.stores import open_store
from tfdist.observe.events import emit
from tfdist.tf_config import Task, TaskConfig, parse_tf_config, require_worker_cluster


def _number(environ: Mapping[str, str], name: str, given: int | None, default: int | None) -> int | None:
    if given is not None:
        return given
    text = environ.get(name, "")
    if not text:
        return default
    if not text.isdigit():
        raise ConfigError(name, text, "must be a positive integer", "Unset it or give a number.")
    return int(text)


def bounds_of(min_workers: int | None, max_workers: int | None, environ: Mapping[str, str]) -> tuple[int, int | None]:
    """Arguments before TFDIST_MIN_WORKERS and TFDIST_MAX_WORKERS before the defaults (1 and no bound), checked."""
    low = _number(environ, "TFDIST_MIN_WORKERS", min_workers, 1)
    high = _number(environ, "TFDIST_MAX_WORKERS", max_workers, None)
    for name, value in (("min_workers", low), ("max_workers", high)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ConfigError(name, value, "must be a whole number of at least 1")
    if high is not None and high < low:
        raise ConfigError("max_workers", high, f"must not be below min_workers ({low})")
    return low, high


def _from_resolver(resolver: Any) -> TaskConfig:
    spec = resolver.cluster_spec()
    cluster = {job: {i: spec.task_address(job, i) for i in spec.task_indices(job)} for job in spec.jobs}
    return TaskConfig(Task(resolver.task_type, int(resolver.task_id)), cluster)


def open_session(
    resolver: Any,
    min_workers: int | None,
    max_workers: int | None,
    options: MembershipOptions | None,
    compression: Any,
    communication: str,
    environ: Mapping[str, str],
) -> tuple[Callable[..., Session] | None, TaskConfig | None]:
    """(what makes a session, or None where this process is alone for good; what TF_CONFIG says, or None)."""
    if compression is not None:
        raise ConfigError("gradient_compression", compression, "is not available yet", "Leave it out.")
    if communication not in ("auto", "tensorflow"):
        raise ConfigError("communication", communication, "must be 'auto' or 'tensorflow'")
    low, high = bounds_of(min_workers, max_workers, environ)
    config = _from_resolver(resolver) if resolver is not None else parse_tf_config(environ)
    if config is None:
        if environ.get("TFDIST_STORE"):
            sentence = "TFDIST_STORE is set, but there is no TF_CONFIG: this process trains alone"
            emit("solo", sentence, level=logging.WARNING)
        return None, None
    if config.is_evaluator:
        return None, config
    require_worker_cluster(config)
    options = resolve(options or MembershipOptions(), environ)
    others = [task for task in config.workers if task != config.task]
    if options.store is None:
        if others:
            raise ConfigError(
                "MembershipOptions.store",
                None,
                f"TF_CONFIG names {len(others)} other worker(s), but there is no store to agree through",
                "Set TFDIST_STORE (sqlite:////shared/by/this/machine.db), or start the workers with `tfdist run`.",
            )
        return None, None
    replaces = environ.get("TFDIST_INCARNATION_NUMBER", "0") != "0"  # as `tfdist run` says
    store = open_store(options.store, must_exist=replaces) if isinstance(options.store, str) else options.store

    _check_port(config)

    def connect(devices: int) -> Session:
        return Session(
            task=config.task,
            address=address_of(config),
            expected=config.workers,
            store=store,
            options=options,
            min_workers=low,
            max_workers=high,
            devices=devices,
        )

    return connect, config


def _check_port(config: TaskConfig) -> None:
    """TensorFlow's own message for a port in use names neither the port nor what to do."""
    port = address_of(config)[1]
    with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return
            raise ConfigError(
                f"TF_CONFIG cluster.{config.task.job}[{config.task.index}]",
                config.address,
                f"port {port} is in use on this machine",
                "End the process that listens there (ss -ltnp shows it), or give this worker another port.",
            ) from None


def address_of(config: TaskConfig) -> tuple[str, int]:
    host, _, port = config.address.rpartition(":")
    return host.strip("[]"), int(port)


def resolver_of(config: TaskConfig | None) -> Any:
    """A resolver that knows this process only: the group is formed from the roster, not from TF_CONFIG.

    TensorFlow wants the tasks below this one to exist; it never speaks to the addresses given for them.
    """
    if config is None or config.is_evaluator:
        return tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec({}))
    job, index = config.task
    nobody = [f"127.0.0.1:{port}" for port in range(1, index + 1)]
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({job: [*nobody, config.address]}), task_type=job, task_id=index, rpc_layer="grpc"
    )
