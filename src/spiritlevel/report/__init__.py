"""Results as pages that explain themselves."""

from spiritlevel.report.page import audit_page, claims_page, comparison_page, table_page
from spiritlevel.report.writing import write_claims, write_report

__all__ = [
    "audit_page",
    "claims_page",
    "comparison_page",
    "table_page",
    "write_claims",
    "write_report",
]
