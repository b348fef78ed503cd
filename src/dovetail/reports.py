"""Reports: what fused, what did not and why, what was measured, and the page for a browser."""

from dovetail.report.analysis import Analysis, analyze
from dovetail.report.measured import KernelTime, Measured
from dovetail.report.report import Report
from dovetail.runtime.page import write_report

__all__ = ["Analysis", "KernelTime", "Measured", "Report", "analyze", "write_report"]
