"""Samples of the weights of the last layer: its Laplace approximation, fitted to the reference."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bnuq.evaluation.executors import UnitExecutor
from bnuq.evaluation.features import fitted_points, head_of, heads
from bnuq.evaluation.methods.sampler import Fit, MethodSampler, Network, SamplerInputs
from bnuq.evaluation.resources import check_memory_of_last_layer
from bnuq.evaluation.subject import Subject
from bnuq.evaluation.units import UnitGroup, tiles
from bnuq.files.journal import Arrays
from bnuq.findings import Finding, note
from bnuq.progress import Progress
from bnuq.sampling.head import Head, NoHeadError, head
from bnuq.sampling.laplace import LastLayerPasses, Posterior, fitted, terms
from bnuq.sampling.outputs import unconverted
from bnuq.sampling.plain_loop import Engine

_TILE = 1024  # reference points of a unit


class LastLayerSampler(MethodSampler):
    """Draws the weights of the last linear layer of a classifier."""

    def why_not(self, network: Network) -> str:
        if network.task.is_regression:
            return "it is for classifiers, and this is a regression; use mcbn or mcdo"
        if network.task.is_dense:
            return "it is not offered for outputs of a segmentation"
        if network.task.outputs == "labels":
            return "it is for classifiers of one class per example, and here there are several labels per example"
        if network.untracked:
            return f"{network.untracked}, so features depend on the other examples"
        try:
            head(unconverted(network.model), network.example)
        except NoHeadError as error:
            return f"it needs a network that ends in one linear layer ({error})"
        if network.train is None:
            return 'there is no training set to fit its posterior to; add --train REF, or train = "REF" under [data]'
        return ""

    def fitted(self, subject: Subject, progress: Progress, executor: UnitExecutor | None) -> Fit:
        return fit_posterior(subject, progress, executor)

    def engine(self, subject: Subject, draws: range, inputs: SamplerInputs) -> Engine:
        to = {"device": subject.pipeline.device, "dtype": subject.pipeline.dtype}
        return LastLayerPasses(subject.model, inputs.fitted, draws=draws, seed=subject.run.seed, **to)

    def why_agree(self, subject: Subject) -> str:
        return "the posterior of the last layer is too narrow for any sample to differ."


def fit_posterior(
    subject: Subject, progress: Progress, executor: UnitExecutor | None = None
) -> tuple[Posterior, tuple[Finding, ...]]:
    """The posterior of the network's last layer, and a note on it.

    The network runs once over the reference in evaluation mode, without augmentation: over at most 50,000 points, of a
    reference that is read as needed at most 5,000. They stand for the whole training set (`train_size`), and are units
    of the `executor`, if there is one.
    """
    run, train = subject.run, subject.train
    assert train is not None  # ensured by the plan
    last, structure = head_of(subject, subject.sets["test"], slice(0, 1)), run.sampler.laplace
    outputs, features = last.weight.shape
    check_memory_of_last_layer(subject, features=features, outputs=outputs)
    points, train_size = fitted_points(subject), run.train_size or len(train)
    units = tiles("train", points, _TILE, method="curvature", draws=range(1))
    with progress(f"Curvature of the last layer at {len(points)} training examples", len(points)) as advance:

        def counted(last: Head) -> Head:
            advance(len(last.features))
            return last

        def run_group(group: UnitGroup) -> Iterator[Arrays]:
            for unit in group:
                of_unit = points.subset(np.arange(unit.points.start, unit.points.stop))
                yield terms(map(counted, heads(subject, of_unit)), structure)

        if executor is None:
            of_units = list(run_group(tuple(units)))
        else:
            of_units = [arrays for (arrays,) in executor.run(zip(units), run_group)]
    posterior = fitted(of_units, last, structure, train_size=train_size)
    fit = note(
        "laplace-fitted",
        curvature=structure,
        points=len(points),
        train_size=train_size,
        prior_precision=posterior.prior_precision,
        effective=posterior.effective_parameters,
        parameters=posterior.curvature.size,
    )
    return posterior, (fit,)
