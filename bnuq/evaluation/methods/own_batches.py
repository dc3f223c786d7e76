"""Prediction-time BatchNorm: one pass in which every layer normalises evaluated points by the batch that they pass in.

Source: Nado et al. 2020, "Evaluating Prediction-Time Batch Normalization for Robustness under Covariate Shift".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from bnuq import devices
from bnuq.data import Points
from bnuq.errors import SamplingError, is_out_of_memory
from bnuq.evaluation.methods.layers import why_no_batchnorm
from bnuq.evaluation.methods.sampler import MethodSampler, Network, SamplerInputs
from bnuq.evaluation.subject import Subject
from bnuq.sampling import counter_rng
from bnuq.sampling.batchnorm_calls import OtherCallsError, other_calls
from bnuq.sampling.interception import forward, undisturbed, with_autograd_if_needed
from bnuq.sampling.measure import MeasurementMode
from bnuq.sampling.plain_loop import Engine, tensor_output
from bnuq.shapes import Int64


class OwnBatchesSampler(MethodSampler):
    """A single sample, of batches of evaluated points."""

    def why_not(self, network: Network) -> str:
        if network.task.is_dense:
            return "it is not offered for a segmentation: the outputs of all images are too large to be kept"
        if network.run.batch_size == 1:
            return "a point alone has no batch; use --batch-size 2 or more"
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
            f"a batch of {len(inputs)} points does not fit into memory, and deterministic+own cannot cut it into "
            "chunks; use a smaller --batch-size."
        )
