"""Layers whose noise is learned: ordinary modules for training, deterministic in evaluation mode, sampled by bnuq."""

from bnuq.nn.noise import standard_normal

__all__ = ["standard_normal"]
