"""What an inspection found, as a report, as a page and as pictures."""

from bnuq.report.inspection.page import page_parts
from bnuq.report.inspection.plots import noise_panels, save_figures
from bnuq.report.inspection.terminal import print_inspection, report_parts

__all__ = ["noise_panels", "page_parts", "print_inspection", "report_parts", "save_figures"]
