"""Estimates as a page shows them."""

from __future__ import annotations

from spiritlevel.base.estimate import Estimate, Status, format_error, format_value


def estimate_words(estimate: Estimate) -> dict[str, str]:
    """Value, error, and what is wrong with them."""
    sign = "≥ " if estimate.status is Status.LOWER_BOUND else ""
    return {
        "value": sign + format_value(estimate.value, estimate.error),
        "error": format_error(estimate.error) if estimate.error else "",
        "remark": "" if estimate.converged else f"{estimate.status.value}: {estimate.remedy}",
    }
