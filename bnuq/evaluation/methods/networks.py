"""Single passes: of the deterministic network, of one with population statistics, and of each network of an
ensemble."""

from __future__ import annotations

from dataclasses import replace

from bnuq.evaluation.features import evaluation_of
from bnuq.evaluation.methods.sampler import MethodSampler, Network, SamplerInputs
from bnuq.evaluation.subject import Subject
from bnuq.methods import POPULATION
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.plain_loop import Engine, Ensemble


class NetworkSampler(MethodSampler):
    """A single sample: the deterministic network, as it is or with pooled statistics of the drawn mini-batches."""

    def why_not(self, network: Network) -> str:
        return ""

    def engine(self, subject: Subject, draws: range, inputs: SamplerInputs) -> Engine:
        """The statistics of all mini-batches so far are pooled for every layer of "deterministic+population", and for
        layers that keep no running statistics."""
        sites = subject.plan.sites
        untracked = {site.name for site in sites.live_batchnorms if not site.tracked}
        if self.method.plain.name != POPULATION and not untracked:
            return evaluation_of(subject)
        omega = inputs.omegas["mcbn"]  # the plan ensures that it holds these layers
        if self.method.plain.name != POPULATION:
            omega = replace(omega, layers=tuple(layer for layer in omega.layers if layer.name in untracked))
        return Stochastic(subject.model, sites, omega=omega.pooled())

    def why_agree(self, subject: Subject) -> str:
        return "there is a single one."


class EnsembleSampler(MethodSampler):
    """The deterministic networks of several checkpoints."""

    def why_not(self, network: Network) -> str:
        return network.untracked if network.run.members else "there is one network; name the checkpoints of several"

    def engine(self, subject: Subject, draws: range, inputs: SamplerInputs) -> Engine:
        return Ensemble([subject.model, *subject.members])

    def why_agree(self, subject: Subject) -> str:
        return "all networks give the same outputs."
