"""Sweeps over the mini-batch size, as a report and as a picture."""

from bnuq.report.sweep.plots import save_figures
from bnuq.report.sweep.terminal import print_sweep, report_parts

__all__ = ["print_sweep", "report_parts", "save_figures"]
