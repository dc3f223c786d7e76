"""The Laplace approximation of a run: its posterior, fitted to the reference, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bnuq.config import LAPLACE
from bnuq.evaluation.executors import Executor
from bnuq.evaluation.features import fitted_points, head_of, heads
from bnuq.evaluation.resources import check_memory_of_last_layer
from bnuq.evaluation.subject import Subject
from bnuq.evaluation.units import UnitGroup, tiles
from bnuq.files.journal import Arrays
from bnuq.findings import Finding, note
from bnuq.progress import Progress
from bnuq.sampling.head import Head
from bnuq.sampling.laplace import Posterior, fitted, terms

_TILE = 1024  # reference points of a unit


def fit_posterior(
    subject: Subject, progress: Progress, executor: Executor | None = None
) -> tuple[Posterior | None, tuple[Finding, ...]]:
    """The posterior of the network's last layer, and a note on it; None where no method draws from it.

    The network runs once over the reference in evaluation mode, without augmentation: over at most 50,000 points, of a
    reference that is read as needed at most 5,000. They stand for the whole training set (`train_size`), and are units
    of the `executor`, if there is one.
    """
    if LAPLACE not in subject.todo.methods:
        return None, ()
    run, train = subject.run, subject.train
    assert train is not None  # ensured by the plan
    last, structure = head_of(subject, subject.sets["test"], slice(0, 1)), run.sampler.laplace
    outputs, features = last.weight.shape
    check_memory_of_last_layer(subject, features=features, outputs=outputs)
    points, train_size = fitted_points(subject), run.train_size or len(train)
    units = tiles("train", points, _TILE, method="curvature", draws=range(1))
    with progress(f"Curvature of the last layer at {len(points)} reference points", len(points)) as advance:

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
