"""Reports sweeps over the mini-batch size."""

from bnuq.report.sweep.report import report

__all__ = ["report"]
