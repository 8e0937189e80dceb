"""Results as pages that explain themselves."""

from spiritlevel.report.page import audit_page
from spiritlevel.report.writing import write_report

__all__ = ["audit_page", "write_report"]
