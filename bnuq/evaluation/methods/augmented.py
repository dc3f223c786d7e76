"""Samples by test-time augmentation: of the deterministic network, or of one that normalises with mini-batches."""

from __future__ import annotations

from bnuq.evaluation.augmentation import Augmented, augmenting
from bnuq.evaluation.methods.layers import layer_engine, why_layers_agree, why_no_mini_batches
from bnuq.evaluation.methods.sampler import MethodSampler, Network, SamplerInputs
from bnuq.evaluation.subject import Subject
from bnuq.sampling.plain_loop import Engine, Evaluation


class AugmentationSampler(MethodSampler):
    """Augments the evaluated points anew for every draw."""

    def why_not(self, network: Network) -> str:
        if self.method.draws_mini_batches and (reason := why_no_mini_batches(network)):
            return reason
        augment = network.run.augment if network.run.tta is None else network.run.tta
        if augment is None:
            return (
                "there is no augmentation; add --augment pad=4,crop=32,flip, as in training, or a table [tta] with "
                "these keys to the run file, for evaluated points alone"
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
