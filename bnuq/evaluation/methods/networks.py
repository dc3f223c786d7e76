"""Single passes: of the deterministic network, of one with population statistics, and of each network of an ensemble;
and samples by test-time augmentation."""

from __future__ import annotations

from dataclasses import replace

from bnuq.evaluation.augmentation import Augmented, augmenting
from bnuq.evaluation.features import evaluation_of
from bnuq.evaluation.methods.layers import layer_engine, why_layers_agree, why_no_mini_batches
from bnuq.evaluation.methods.sampler import MethodSampler, Network, SamplerInputs
from bnuq.evaluation.subject import Subject
from bnuq.methods import POPULATION
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.plain_loop import Engine, Ensemble, Evaluation


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


class AugmentationSampler(MethodSampler):
    """Augments the evaluated points anew for every draw."""

    def why_not(self, network: Network) -> str:
        if self.method.draws_mini_batches and (reason := why_no_mini_batches(network)):
            return reason
        augment = network.run.augment if network.run.tta is None else network.run.tta
        if augment is None:
            return (
                "there is no augmentation; add --augment pad=4,crop=32,flip, as in training, or a table [tta] with "
                "these keys to the run file, for evaluated examples alone"
            )
        if not self.method.draws_mini_batches and (reason := network.why_not_alone(self.method)):
            return reason
        moves = augment.pad or augment.crop is not None or augment.resized_crop is not None
        if network.task.is_dense and moves:
            return (
                "the pixels of a segmentation can be flipped back, not cropped back; say how evaluated images are "
                "augmented in a table [tta] of the run file, with flip or jitter alone"
            )
        return ""

    def engine(self, subject: Subject, draws: range, inputs: SamplerInputs) -> Engine:
        is_deterministic = not self.method.draws_mini_batches
        inner = Evaluation(subject.model) if is_deterministic else layer_engine(self.method, subject, draws, inputs)
        return Augmented(inner, len(draws), draws.start, augmenting(subject))

    def why_agree(self, subject: Subject) -> str:
        if self.method.draws_mini_batches:
            return why_layers_agree(self.method, subject)
        return "the augmentation ([tta], or augment under [data]) changes no output."
