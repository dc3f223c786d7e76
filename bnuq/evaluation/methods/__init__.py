"""How each method of `bnuq.methods` makes samples: one file for a family, chosen by what the samples differ by."""

from __future__ import annotations

from collections.abc import Mapping

from bnuq.evaluation.methods.last_layer import LastLayerSampler
from bnuq.evaluation.methods.layers import LayerSampler, OwnBatchesSampler
from bnuq.evaluation.methods.networks import AugmentationSampler, EnsembleSampler, NetworkSampler
from bnuq.evaluation.methods.sampler import Fit, MethodSampler, Network, SamplerInputs
from bnuq.methods import Method, Source

__all__ = ["Fit", "MethodSampler", "Network", "SamplerInputs", "sampler_of"]

_FAMILIES: Mapping[Source, type[MethodSampler]] = {  # by a source that their samples have; else it is one of layers
    "networks": EnsembleSampler,
    "weights": LastLayerSampler,
    "augmentation": AugmentationSampler,
}


def sampler_of(method: Method) -> MethodSampler:
    """How a method makes samples."""
    if method.is_single:
        return OwnBatchesSampler(method) if method.normalizes_jointly else NetworkSampler(method)
    family = next((family for source, family in _FAMILIES.items() if source in method.differs_by), LayerSampler)
    return family(method)
