"""Samples by mini-batches, noise models, dropout masks, noise of the network's own layers, or several of these;
and prediction-time BatchNorm, one pass in which every layer normalises evaluated points by the batch they pass in.

Source of the last: Nado et al. 2020, "Evaluating Prediction-Time Batch Normalization for Robustness under Covariate
Shift".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from bnuq import devices
from bnuq.data import Points
from bnuq.errors import SamplingError, is_out_of_memory
from bnuq.evaluation.methods.sampler import MethodSampler, Network, SamplerInputs
from bnuq.evaluation.subject import Subject
from bnuq.methods import Method, Source
from bnuq.sampling import counter_rng
from bnuq.sampling.bank_tiles import BankEngine
from bnuq.sampling.dropout import Dropout
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.interception import forward, undisturbed, with_autograd_if_needed
from bnuq.sampling.measure import MeasurementMode
from bnuq.sampling.noise import Learned
from bnuq.sampling.plain_loop import Engine, tensor_output
from bnuq.sampling.recorded_calls import OtherCallsError, other_calls
from bnuq.sampling.site_search import listed
from bnuq.sampling.sites import having
from bnuq.shapes import Int64


class LayerSampler(MethodSampler):
    """Draws the statistics of BatchNorms, masks of dropout, and noise of layers that have their own."""

    def why_not(self, network: Network) -> str:
        reasons: Mapping[Source, Callable[[Network], str]] = {
            "mini-batches": why_no_mini_batches,
            "noise model": partial(_why_no_noise_model, self.method),
            "masks": _why_no_masks,
            "noise": _why_no_noise,
        }
        for source, why in reasons.items():
            if source in self.method.differs_by and (reason := why(network)):
                return reason
        return "" if self.method.is_sampled_batchnorm else network.why_not_alone(self.method)

    def engine(self, subject: Subject, draws: range, inputs: SamplerInputs) -> Engine:
        return layer_engine(self.method, subject, draws, inputs)

    def why_agree(self, subject: Subject) -> str:
        return why_layers_agree(self.method, subject)


def layer_engine(method: Method, subject: Subject, draws: range, inputs: SamplerInputs) -> Stochastic | BankEngine:
    """The engine of what a method draws inside the network."""
    seed, bank = subject.run.seed, subject.bank if method.is_sampled_batchnorm else None
    # a draw of the bank includes its mask and its noise
    numbers = (len(draws), seed, draws.start) if bank is None else (bank, seed)
    engine = Stochastic(
        subject.model,
        subject.plan.sites,
        omega=inputs.omegas[method.omega_key] if method.is_sampled_batchnorm else None,
        dropout=Dropout(*numbers) if "masks" in method.differs_by else None,
        learned=Learned(*numbers) if "noise" in method.differs_by else None,
        arithmetic=subject.pipeline.arithmetic,
        task=subject.plan.task,
    )
    return engine if bank is None else BankEngine(engine, samples=len(draws), seed=seed)


def why_layers_agree(method: Method, subject: Subject) -> str:
    """Why samples agree that differ by what is drawn inside the network."""
    plan = subject.plan
    if method.draws_mini_batches:
        return (
            f"the outputs are the same for every mini-batch of {plan.batch_size}; is the training set one example "
            "repeated, or does the output not depend on these BatchNorms?"
        )
    if method.is_sampled_batchnorm:
        return "the outputs are the same for every draw of the noise model; do they not depend on these BatchNorms?"
    if "noise" in method.differs_by:
        return f"the noise of its layers changes no output: {', '.join(site.name for site in plan.sites.live_noises)}."
    rates = ", ".join(f"{site.name} {site.p:g}" for site in plan.sites.live_dropouts)
    return f"dropout at these rates changes no output: {rates}."


def why_no_mini_batches(network: Network) -> str:
    """Why mini-batches of the reference cannot give a network's BatchNorms their statistics."""
    if why := why_no_batchnorm(network):
        return why
    if network.train is None:
        return 'there is no training set to draw mini-batches from; add --train REF, or train = "REF" under [data]'
    return ""


def why_no_batchnorm(network: Network) -> str:
    """Why a network's BatchNorms cannot have other statistics than their running ones."""
    sites, unsampled = network.sites, network.unsampled
    if not sites.batchnorms:
        return f"the network has no BatchNorm layer{unsampled and f' that could be sampled ({unsampled})'}"
    if not sites.live_batchnorms:
        return f"{having(sites.batchnorms)} nothing to sample ({sites.batchnorms[0].reason})"
    return ""


def _why_no_noise_model(method: Method, network: Network) -> str:
    """A model that is not fitted to mini-batches is drawn around the running statistics."""
    is_fitted = method.is_fitted_to_mini_batches or network.run.sampler.counts == "measured"
    missing = why_no_mini_batches(network) if is_fitted else why_no_batchnorm(network)
    if missing or method.is_fitted_to_mini_batches:
        return missing
    return network.untracked and f"{network.untracked}, which an analytic noise model needs"


def _why_no_masks(network: Network) -> str:
    sites = network.sites
    if not sites.dropouts:
        named = f" ({hidden})" if (hidden := listed(sites.hidden)) else ""
        return f"the network has no dropout layer that its evaluation-mode forward pass calls{named}"
    if sites.live_dropouts:
        return ""
    dead = all(site.p == 0 for site in sites.dropouts)
    return f"{having(sites.dropouts)} " + ("rate 0" if dead else f"nothing to sample ({sites.dropouts[0].reason})")


def _why_no_noise(network: Network) -> str:
    noises = network.sites.noises
    if not noises:
        return "no layer of the network asks torch for normal, uniform or Bernoulli numbers in evaluation mode"
    if not network.sites.live_noises:
        return f"the noise of {noises[0].name} cannot be drawn ({noises[0].reason})"
    return ""


class OwnBatchesSampler(MethodSampler):
    """A single sample, of batches of evaluated points."""

    def why_not(self, network: Network) -> str:
        if network.task.is_dense:
            return "it is not offered for a segmentation: the outputs of all images are too large to be kept"
        if network.run.batch_size == 1:
            return "an example alone has no batch; use --batch-size 2 or more"
        return why_no_batchnorm(network)

    def engine(self, subject: Subject, draws: range, inputs: SamplerInputs) -> Engine:
        return OwnBatches(subject)

    def why_agree(self, subject: Subject) -> str:
        return "there is a single one."


def own_batches(count: int, batch_size: int, *, seed: int) -> Int64[np.ndarray, "batch row"]:
    """The rows of each batch, along a random permutation of `count` points: sets are often sorted by class.

    All have `batch_size` rows, as statistics of fewer points vary more: the last batch is filled up with the first
    points, whose predictions are those of the first batch. Fewer points are one batch.
    """
    order = counter_rng.batch_indices(seed, 0, population=count, batch_size=count, purpose=counter_rng.OWN_BATCHES)
    return order[None] if count <= batch_size else np.resize(order, (-(-count // batch_size), batch_size))


@dataclass
class OwnBatches:
    """The engine of all sets; `of` gives that of one. Its outputs are computed together when the first are asked for:
    consecutive points are in many batches, which do not depend on chunks or on the process."""

    subject: Subject
    points: Points | None = None
    samples: int = 1

    def of(self, name: str, points: Points) -> Engine:
        """The engine for the points of this set."""
        return replace(self, points=points)

    def passes(self, inputs: Tensor, start: int = 0) -> Tensor:
        """Outputs (1, n, K) for points number `start`, `start` + 1, … of the set; `inputs` says how many."""
        return self._outputs[None, start : start + len(inputs)]

    @cached_property
    def _outputs(self) -> Tensor:
        plan, run, points = self.subject.plan, self.subject.run, self.points
        assert points is not None and plan.batch_size is not None  # ensured by the plan
        batches = own_batches(len(points), plan.batch_size, seed=run.seed)
        # From the last batch on, so that points that fill it up get their outputs from the first one.
        outputs: Tensor | None = None
        for rows in batches[::-1]:
            of_batch = self._of_batch(self.subject.pipeline.evaluated(points, rows))
            if outputs is None:
                outputs = of_batch.new_empty((len(points), *of_batch.shape[1:]))
            outputs[devices.upload(torch.from_numpy(rows.copy()), outputs.device)] = of_batch
        assert outputs is not None  # no set is empty
        return outputs

    def _of_batch(self, inputs: Tensor) -> Tensor:
        model, layers = self.subject.model, self.subject.plan.sites.live_batchnorms

        def run() -> Tensor:
            with MeasurementMode(layers) as mode:  # with the biased variance, as in training
                output = tensor_output(forward(model, inputs.clone()))  # a network may write into its input
            mode.measurement()  # which checks that no layer was left out
            return output

        try:
            with undisturbed(model):
                try:
                    return with_autograd_if_needed(run).clone()
                except OtherCallsError:
                    raise other_calls(model, layers, inputs) from None
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        raise SamplingError(
            f"a batch of {len(inputs)} examples does not fit into memory, and deterministic+own cannot cut it into "
            "chunks; use a smaller --batch-size."
        )
