"""Reports sweeps over the mini-batch size."""

from bnuq.report.sweep.sweep_report import report

__all__ = ["report"]
