"""What the figures were measured on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    """Processor, cores, memory, versions, and the load before the benchmarks began."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: v for name in ("tensorflow-cpu", "tensorflow", "keras", "numpy") if (v := _version(name))},
        "load_before": [round(load, 2) for load in os.getloadavg()],
    }


def _processor() -> str:
    facts = dict(
        (part.strip() for part in line.split(":", 1))
        for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        if ":" in line
    )
    name = facts.get("model name", platform.machine())
    known = [f"family {facts['cpu family']} model {facts['model']}"] if "cpu family" in facts else []
    known += [f"{facts['cpu MHz']} MHz"] if "cpu MHz" in facts else []
    return ", ".join([name, *known])


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
