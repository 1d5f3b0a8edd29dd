"""Whether a worker that outlives a hundred others grows: resident memory, threads, open files."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
from cycles import Training
from figures import bound, summary

CYCLES = 100
RUN_IN = 0.2  # of the cycles: allocators and caches fill
MEMBERS = 3
SETTLE_STEPS = 10
SURVIVOR = 0


def run(events: int | None = None) -> dict[str, Any]:
    """Kills a random worker, but never the first, and has it replaced at once; looks at the first after each cycle."""
    cycles, draw, samples = events or CYCLES, random.Random(7), []
    began = time.monotonic()
    with Training(MEMBERS) as training:
        for _ in range(cycles):
            victim = draw.choice([task for task in training.pids if task != SURVIVOR])
            _, replacement = training.lose(victim, replace_at_once=True)
            training.join(replacement)
            training.wait_steps(SETTLE_STEPS)
            samples.append(_sample(training.pids[SURVIVOR]))
    kept = samples[int(cycles * RUN_IN) :]
    reference = float(np.median([s["resident_mb"] for s in kept[: max(1, len(kept) // 4)]]))
    deviation = max(abs(s["resident_mb"] - reference) / reference for s in kept)
    growth = float(np.polyfit(range(len(kept)), [s["resident_mb"] for s in kept], 1)[0]) if len(kept) > 1 else 0.0
    more = {name: kept[-1][name] - kept[0][name] for name in ("threads", "sockets", "files")}
    return {
        "cycles": cycles,
        "seconds": round(time.monotonic() - began, 1),
        "resident_mb": {**summary([s["resident_mb"] for s in kept], 1), "growth_per_cycle": round(growth, 3)},
        **{name: summary([s[name] for s in kept], 0) for name in more},
        "samples": samples,
        "bounds": [
            bound("memory: largest deviation of the resident size", round(100 * deviation, 2), 5.0, "%"),
            *(bound(f"memory: {name} more at the end than after the run-in", n, 2, "") for name, n in more.items()),
        ],
    }


def _sample(pid: int) -> dict[str, float]:
    """Resident megabytes, threads, sockets and other open files of a process."""
    process = Path(f"/proc/{pid}")
    pages = int((process / "statm").read_text().split()[1])
    links = [_target(link) for link in (process / "fd").iterdir()]
    sockets = sum(link.startswith("socket:") for link in links)
    return {
        "resident_mb": round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1),
        "threads": len(list((process / "task").iterdir())),
        "sockets": sockets,
        "files": len(links) - sockets,
    }


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""  # closed since it was listed
