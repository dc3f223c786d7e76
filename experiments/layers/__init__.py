"""Layers whose noise is learned, of the papers: ordinary modules, deterministic in evaluation mode, sampled by bnuq."""

from experiments.layers.analytic import AnalyticSequential, propagated
from experiments.layers.flows import MNFLinear
from experiments.layers.learned import LearnedNoise, kl
from experiments.layers.mean_field import (
    DropoutLinear,
    MeanFieldConv1d,
    MeanFieldConv2d,
    MeanFieldConv3d,
    MeanFieldLinear,
)
from experiments.layers.moments import Moments, data_moments
from experiments.layers.normalization import (
    BatchNorm,
    NormalizedConv1d,
    NormalizedConv2d,
    NormalizedConv3d,
    NormalizedLinear,
    project,
    start_from_data,
)
from experiments.layers.scales import StochasticScale

__all__ = [
    "AnalyticSequential",
    "BatchNorm",
    "DropoutLinear",
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
    "data_moments",
    "kl",
    "project",
    "propagated",
    "start_from_data",
]
