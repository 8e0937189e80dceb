"""Estimates as a page shows them."""

from __future__ import annotations

from spiritlevel.base.estimate import Estimate, Status, format_error, format_value
from spiritlevel.base.spoken import at_least, at_most


def estimate_words(estimate: Estimate) -> dict[str, str]:
    """Value, error, and what is wrong with them."""
    return {
        "value": _value(estimate),
        "error": format_error(estimate.error) if estimate.error else "",
        "remark": "" if estimate.converged else f"{estimate.status.value}: {estimate.remedy}",
    }


def _value(estimate: Estimate) -> str:
    if estimate.status is Status.LOWER_BOUND:
        return f"≥ {at_least(estimate.value, 6)}"
    if estimate.status is Status.UPPER_BOUND:
        return f"≤ {at_most(estimate.value, 6)}"
    return format_value(estimate.value, estimate.error)
