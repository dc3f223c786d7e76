"""Samples from other software, read from a file."""

from __future__ import annotations

from bnuq.evaluation.methods.sampler import MethodSampler, Network, SamplerInputs
from bnuq.evaluation.predictions import Predicted, subject_of_predictions
from bnuq.evaluation.subject import Subject
from bnuq.sampling.plain_loop import Engine


class ImportedSampler(MethodSampler):
    """The samples in the file of --predictions."""

    def why_not(self, network: Network) -> str:
        if not network.run.predictions:
            return "there is no file of samples; add --predictions FILE.npz"
        return "it is not offered for outputs of a segmentation" if network.task.is_dense else ""

    def engine(self, subject: Subject, draws: range, inputs: SamplerInputs) -> Engine:
        return Predicted(subject, len(draws), draws)

    def why_agree(self, subject: Subject) -> str:
        return "all arrays of the file repeat one sample."

    def scored(self, subject: Subject) -> Subject:
        return subject_of_predictions(subject)
