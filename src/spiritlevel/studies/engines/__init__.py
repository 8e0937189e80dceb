"""Where jobs are done: in this process, in a pool of processes, on a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spiritlevel.base import doors
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.studies.engines.base import Engine

ENGINES = ("here", "pool", "ray")
RESOURCES = ("num_cpus", "num_gpus", "memory")


def chosen(
    engine: str | Engine,
    workers: int | None = None,
    ray_address: str | None = None,
    resources: Mapping[str, float] | None = None,
) -> Engine:
    """The engine of a name, with what was chosen about it; an Engine as it is."""
    if workers is not None:
        doors.number("workers", workers, 1, whole=True)
    doors.a("resources", resources, (Mapping, type(None)), "numbers by name, such as num_gpus")
    for name, amount in (resources or {}).items():
        doors.one_of("a name in resources", name, RESOURCES)
        doors.number(f"resources[{name!r}]", amount, 0)
    given: dict[str, Any] = {"ray_address": ray_address, "resources": resources or None}
    if engine != "ray" and any(value is not None for value in given.values()):
        name = next(name for name, value in given.items() if value is not None)
        raise SpiritlevelError(f'{name} needs engine="ray"')
    if not isinstance(engine, str):
        doors.function("engine.submit", getattr(engine, "submit", None), "a number and a task")
        return engine
    doors.one_of("engine", engine, ENGINES)
    if engine == "ray":
        from spiritlevel.studies.engines.ray import Cluster

        return Cluster(ray_address, workers, dict(resources or {}))
    if engine == "pool":
        from spiritlevel.studies.engines.pool import Pool

        return Pool(workers)
    if workers not in (None, 1):
        raise SpiritlevelError(f'workers={workers} needs engine="pool" or engine="ray"')
    from spiritlevel.studies.engines.here import Here

    return Here()
