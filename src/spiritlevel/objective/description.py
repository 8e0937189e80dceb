"""What an objective is, for the provenance of results."""

from __future__ import annotations

from typing import Any

from spiritlevel.objective.objective import Objective


def described(objective: Objective) -> dict[str, Any]:
    return {
        "parameters": objective.size,
        "examples": objective.examples,
        "mode": objective.mode,
        "dtype": str(objective.dtype).removeprefix("torch."),
        "device": str(objective.device),
    }
