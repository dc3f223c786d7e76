"""Checks the network on the run's own points before anything is drawn: MCBN must compute what training computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from bnuq.data import Points
from bnuq.evaluation import memory
from bnuq.evaluation.draws import always_passed, part_drawn, passes_of_samples
from bnuq.evaluation.ensemble import named
from bnuq.evaluation.pipeline import Pipeline
from bnuq.evaluation.plan import by_reason
from bnuq.evaluation.subject import Subject
from bnuq.findings import Finding, note, warning
from bnuq.frozen import frozen
from bnuq.sampling import counter_rng
from bnuq.sampling.exactness import check_each_point, check_exact, check_repeatable, check_unchanged
from bnuq.sampling.recorded_calls import smallest_batch
from bnuq.sampling.site_search import find_sites
from bnuq.sampling.sites import BatchNormSite, Sites
from bnuq.sampling.trace import CHECKED_ROWS

_BATCH_WITHOUT_REFERENCE = 64  # evaluated points used as a mini-batch where there is no reference
_POINTS = 32  # of each set that are checked: of large points fewer
_SHARE = 100  # of the samples' passes, a mini-batch may have the hundredth part: it passes four or five times


@frozen
class Checked:
    """Findings of the checks, and the outputs of each network for a few test points."""

    findings: tuple[Finding, ...]
    outputs: tuple[Tensor, ...] = ()


def check_network(subject: Subject, *, batch_sizes: Sequence[int] = ()) -> Checked:
    """Raise SamplingError unless the network, and every other of an ensemble, is deterministic and treats points
    independently on every set, and its MCBN is exact: at these batch sizes, or at that of the plan."""
    model, pipeline, test = subject.model, subject.pipeline, subject.sets["test"]
    affordable = max(always_passed(test), passes_of_samples(subject) // _SHARE)
    sizes = batch_sizes or ((min(subject.batch_size, affordable),) if subject.batch_size is not None else ())
    if subject.train is None or not sizes:
        batches = [pipeline.evaluated(test, slice(0, min(_BATCH_WITHOUT_REFERENCE, affordable)))]
    else:
        train = subject.train if batch_sizes else part_drawn(subject)
        assert train is not None
        batches = [mini_batch(pipeline, train, size) for size in sizes]
    outputs = list[Tensor]()
    for number, network in enumerate((model, *subject.members)):
        with named(subject.checkpoints, number):
            outputs.append(_outputs_on_test(subject, network))
            if number:
                check_mcbn(network, find_sites(network, batches[0][:3]), batches, ())
    return replace(check_mcbn(model, subject.sites, batches, subject.layers), outputs=tuple(outputs))


def _outputs_on_test(subject: Subject, model: nn.Module) -> Tensor:
    """The outputs of a network for a few test points, once it is checked on every set."""
    tracked = model is not subject.model or all(site.tracked for site in subject.sites.live_batchnorms)
    check = check_each_point if tracked else check_repeatable

    def outputs(name: str, points: Points) -> Tensor:
        most = max(subject.pipeline.settings.chunk_size or _POINTS, CHECKED_ROWS)
        size = min(len(points), most, always_passed(points))
        inputs = partial(subject.pipeline.evaluated, points)
        return next(memory.in_halves(lambda rows: check(model, inputs(rows), where=f" on {name}"), size))

    return {name: outputs(name, points) for name, points in subject.sets.items()}["test"]


def check_network_unchanged(checked: Checked, subject: Subject) -> None:
    """Raise SamplingError where a network is no longer the one that was checked: one forward of a few points."""
    for number, (model, outputs) in enumerate(zip((subject.model, *subject.members), checked.outputs, strict=True)):
        points = subject.pipeline.evaluated(subject.sets["test"], slice(0, len(outputs)))
        with named(subject.checkpoints, number):
            check_unchanged(model, points, outputs, where=" on test")


def check_mcbn(model: nn.Module, sites: Sites, batches: Sequence[Tensor], layers: Sequence[BatchNormSite]) -> Checked:
    """Raise SamplingError unless MCBN of these layers is exact for each of these mini-batches."""
    least = smallest_batch(layers) if layers else 2
    checked = [check_exact(model, sites, batch, layers) for batch in batches if len(batch) >= least]
    findings = list[Finding]()
    compared = [(result.deviation, result.points) for result in checked if result.deviation is not None]
    if layers and compared:
        deviation, points = max(compared)
        with_exceptions = any(result.fixed for result in checked)
        findings.append(
            note("mcbn-verified", points=points, deviation=float(deviation), with_exceptions=with_exceptions)
        )
    unreachable = dict(sites.unreachable)
    fixed = {layer: why for result in checked for layer, why in result.fixed if layer not in unreachable}
    findings += [warning("unreachable", layer=names, reason=reason) for reason, names in by_reason(fixed)]
    why_not = [result.why_not for result in checked if result.deviation is None]
    if layers and why_not:
        findings.append(warning("exactness-unchecked", reason=why_not[0]))
    return Checked(tuple(findings))


def mini_batch(pipeline: Pipeline, train: Points, size: int) -> Tensor:
    """A random mini-batch of the reference, through the training pipeline; not one that ω is drawn from."""
    rows = counter_rng.batch_indices(
        pipeline.settings.seed, 0, population=len(train), batch_size=min(size, len(train)), purpose=counter_rng.CHECK
    )
    return pipeline.trained(train, rows, draw=0, purpose=counter_rng.CHECK_AUGMENT)
