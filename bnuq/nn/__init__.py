"""Layers whose noise is learned: ordinary modules for training, deterministic in evaluation mode, sampled by bnuq."""

from bnuq.nn.analytic import AnalyticSequential, propagated
from bnuq.nn.converting import convert
from bnuq.nn.flows import MNFLinear
from bnuq.nn.learned import LearnedNoise, kl
from bnuq.nn.mean_field import MeanFieldConv1d, MeanFieldConv2d, MeanFieldConv3d, MeanFieldLinear
from bnuq.nn.moments import Moments, data_moments
from bnuq.nn.noise import standard_normal
from bnuq.nn.normalization import (
    BatchNorm,
    NormalizedConv1d,
    NormalizedConv2d,
    NormalizedConv3d,
    NormalizedLinear,
    project,
)
from bnuq.nn.scales import StochasticScale

__all__ = [
    "AnalyticSequential",
    "BatchNorm",
    "LearnedNoise",
    "MNFLinear",
    "MeanFieldConv1d",
    "MeanFieldConv2d",
    "MeanFieldConv3d",
    "MeanFieldLinear",
    "Moments",
    "NormalizedConv1d",
    "NormalizedConv2d",
    "NormalizedConv3d",
    "NormalizedLinear",
    "StochasticScale",
    "convert",
    "data_moments",
    "kl",
    "project",
    "propagated",
    "standard_normal",
]
