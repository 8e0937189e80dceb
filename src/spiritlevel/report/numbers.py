"""Estimates as a page shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spiritlevel.base.estimate import Estimate, Status, format_error, format_value


def read(data: Mapping[str, Any]) -> Estimate:
    """The estimate that was written as plain data."""
    known = {name: data[name] for name in Estimate.__dataclass_fields__ if name in data}
    return Estimate(**{**known, "status": Status(known["status"])})


def estimate_words(data: Mapping[str, Any]) -> dict[str, str]:
    """Value, error, and what is wrong with them."""
    estimate = read(data)
    sign = "≥ " if estimate.status is Status.LOWER_BOUND else ""
    return {
        "value": sign + format_value(estimate.value, estimate.error),
        "error": format_error(estimate.error) if estimate.error else "",
        "remark": "" if estimate.converged else f"{estimate.status.value}: {estimate.remedy}",
    }
