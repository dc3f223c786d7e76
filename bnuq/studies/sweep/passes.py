"""The passes of one network of a sweep: at all sizes, for its reference check, and of what MCBN is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from bnuq.evaluation.draws import check_reference
from bnuq.evaluation.executors import UnitExecutor
from bnuq.evaluation.provenance import Stopwatch
from bnuq.evaluation.subject import Subject
from bnuq.findings import Finding, warning
from bnuq.frozen import frozen
from bnuq.methods import DETERMINISTIC, POPULATION
from bnuq.progress import Progress
from bnuq.records.evaluation import ReferenceCheck
from bnuq.studies.sweep.estimates import compared, with_running_statistics
from bnuq.studies.sweep.likelihood import Training
from bnuq.studies.sweep.record import Stopped, SweepComparison
from bnuq.studies.sweep.sizes import SweepPasses, banks_of, run_at_sizes

_FEW_VALUES = 3  # values per channel up to which 1/S has no finite variance
Comparisons = dict[int, dict[str, dict[str, SweepComparison]]]  # by size, method and metric
Rounds = Callable[[SweepPasses | None], tuple[Mapping[int, range], Stopped]]
"""The draws of the next round by size, from what is evaluated; none where the sweep ends, and why it does."""


@frozen
class NetworkPasses:
    """The check of the network's reference, ω and scores at each size, what MCBN is compared with, and why no more was
    evaluated."""

    check: ReferenceCheck | None
    at_sizes: SweepPasses
    comparisons: Comparisons
    stopped: Stopped

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Settings without effect, few values per channel, draws that do not differ, and fits at the end of their
        range."""
        yield from subject.notes
        at_sizes = self.at_sizes.at
        for size, bank in self.at_sizes.banks.items():
            thinnest = min(bank.layers, key=lambda layer: int(layer.count.min()))
            if (values := int(thinnest.count.min())) <= _FEW_VALUES:
                yield warning("few-values", batch_size=size, layer=thinnest.name, values=values)
        degenerate = [size for size, at_size in at_sizes.items() if at_size.degenerate]
        if degenerate and len(degenerate) == len(at_sizes):
            yield warning("nothing-random", batch_sizes=degenerate)
        for size, at_size in at_sizes.items():
            fits = at_size.fitted  # of a regression
            fits_at_end = [fit for fit in fits if fit.at_end]
            where = f"b = {size}"
            if 0 < len(fits_at_end) < len(fits):
                where += f", {len(fits_at_end)} of {len(fits)} draw sets"
            for fit in (fits_at_end or fits)[:1]:
                yield from fit.findings(where, subject.settings.scoring)


def network_passes(
    subject: Subject,
    rounds: Rounds,
    training: Training | None,
    executor: UnitExecutor,
    *,
    samples: int,
    watch: Stopwatch,
    progress: Progress,
) -> NetworkPasses:
    """The passes of all rounds of draws: those units of them that the executor computes."""
    train = subject.train
    assert train is not None  # a sweep needs a reference
    at_sizes, (draws, stopped) = None, rounds(None)
    while draws or at_sizes is None:
        banks = banks_of(draws, subject, executor, progress)
        watch.lap("draw")
        passes = run_at_sizes(banks, draws, subject, executor, progress, samples=samples, training=training)
        at_sizes = passes if at_sizes is None else at_sizes.joined(passes)
        watch.lap("evaluate")
        draws, stopped = rounds(at_sizes)
    check = check_reference(
        subject.model,
        subject.pipeline,
        train,
        subject.sites.live_batchnorms,
        progress,
        trained_with=subject.trained_with,
        train_size=subject.draws.train_size,
        executor=executor,
    )
    watch.lap("draw")
    # Only where the running statistics do not match the reference is MCBN compared with the deterministic network.
    comparisons = {} if check is None or check.passed else _comparisons(subject, at_sizes, executor, progress)
    watch.lap("evaluate")
    return NetworkPasses(check, at_sizes, comparisons, stopped)


def _comparisons(subject: Subject, at_sizes: SweepPasses, executor: UnitExecutor, progress: Progress) -> Comparisons:
    """MCBN compared with the network under its running statistics, and under population statistics, at each size."""
    pooled = {size: bank.pooled() for size, bank in at_sizes.banks.items()}
    running = {size: with_running_statistics(bank, subject.layers) for size, bank in pooled.items()}
    labelled = replace(subject, sets=subject.labelled)
    comparisons: Comparisons = {size: {} for size in pooled}
    single = dict.fromkeys(pooled, range(1))
    for name, omegas in ((DETERMINISTIC, running), (POPULATION, pooled)):
        passes = run_at_sizes(omegas, single, labelled, executor, progress, samples=1, training=None, method=name)
        for size, network in passes.at.items():
            comparisons[size][name] = compared(at_sizes.at[size], network, subject.sets["test"], subject.task)
    return comparisons
