"""The noise of a layer of your own: drawn by torch in training, zeros in evaluation mode, sampled by bnuq."""

from bnuq.nn.noise import standard_normal

__all__ = ["standard_normal"]
