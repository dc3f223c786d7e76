"""Samples by mini-batches, noise models, dropout masks, noise of the network's own layers, or several of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from bnuq.evaluation.methods.sampler import MethodSampler, Network, SamplerInputs
from bnuq.evaluation.subject import Subject
from bnuq.methods import Method, Source
from bnuq.sampling.bank_tiles import BankEngine
from bnuq.sampling.dropout import Dropout
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.noise import Learned
from bnuq.sampling.plain_loop import Engine
from bnuq.sampling.site_search import listed
from bnuq.sampling.sites import having


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
            f"the outputs are the same for every mini-batch of {plan.batch_size}; is the reference one point "
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
        return 'there is no reference to draw mini-batches from; add --train REF, or train = "REF" under [data]'
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
