"""Results as pages that explain themselves."""

from spiritlevel.report.page import page, write_report

__all__ = ["page", "write_report"]
