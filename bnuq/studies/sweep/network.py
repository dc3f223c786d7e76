"""One network at all its mini-batch sizes: its passes, its estimates, and its ELBO."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from bnuq.arithmetic import Arithmetic
from bnuq.config import DrawSettings, Run, ScoreSettings, SweepSection
from bnuq.data import Points
from bnuq.errors import RequestError
from bnuq.evaluation.exactness import Checked, check_network, check_network_unchanged
from bnuq.evaluation.executors import UnitExecutor
from bnuq.evaluation.plan import plan_of
from bnuq.evaluation.provenance import Stopwatch, behaviour, identity, surrounding
from bnuq.evaluation.reference_check import findings as reference_findings
from bnuq.evaluation.resources import check_resources_of_sweep
from bnuq.evaluation.setup import Prepared, findings_on_labels, findings_on_outputs, scored_sets, subject_of
from bnuq.evaluation.subject import VALIDATION, Plan
from bnuq.files.journal import Journal, WorkFolder
from bnuq.findings import Finding, note
from bnuq.frozen import frozen
from bnuq.progress import Announce, Progress, forecast, in_words, silence, stage
from bnuq.sampling.interception import undisturbed
from bnuq.sampling.recorded_calls import largest_batch
from bnuq.sampling.statistics import check_batch_size
from bnuq.studies.sweep.elbo import LowerBound, TrainingErrors, lower_bound
from bnuq.studies.sweep.estimates import decays, set_estimates
from bnuq.studies.sweep.likelihood import training_likelihood
from bnuq.studies.sweep.passes import NetworkPasses, network_passes
from bnuq.studies.sweep.recommendation import CriterionData, Grid, SizeCandidate, recommend
from bnuq.studies.sweep.record import Decay, Stopped, SweepPoint, SweptModel
from bnuq.studies.sweep.sizes import AtSize, SweepPasses, noise_points

_SMALLEST, _LARGEST = 16, 2048  # of the default sizes


def default_sizes(reference_points: int) -> tuple[int, ...]:
    """Powers of two from 16 to 2048, at most half the reference; only 2 if that is below 16."""
    largest = min(_LARGEST, reference_points // 2)
    return tuple(size for size in (_SMALLEST * 2**k for k in range(8)) if size <= largest) or (2,)


def sizes_of(requested: Sequence[int] | None, default: Sequence[int]) -> tuple[int, ...]:
    """The requested sizes in ascending order without repeats; the default if none were requested."""
    return tuple(sorted(set(requested if requested is not None else default)))


@frozen
class Swept:
    """The sweep of one network; `candidates` are the sizes that may be recommended, `arithmetic` that of its
    samples."""

    model: SweptModel
    points: tuple[SweepPoint, ...]
    candidates: tuple[SizeCandidate, ...]
    stopped: Stopped
    findings: tuple[Finding, ...]
    arithmetic: Arithmetic


class SweptNetwork:
    """One network of a sweep: at `sizes`, or at its training batch size `trained_with`, or both."""

    def __init__(
        self, number: int, name: str, run: Run, prepared: Prepared, settings: SweepSection, *, several: bool
    ) -> None:
        assert prepared.data.train is not None  # ensured by check_complete
        self._number, self.name, self.run, self.prepared, self._settings = number, name, run, prepared, settings
        self._train: Points = prepared.data.train
        self.trained_with = run.train_batch_size or prepared.loaded.checkpoint.train_batch_size
        if several and self.trained_with is None:
            file = (run.run_file or run.checkpoint.with_suffix(".toml")).name
            raise RequestError(
                f"{run.checkpoint.name}: with several networks, each is sampled at its training batch size, and "
                f"this network's is not known. Add to {file}:\n\n[model]\ntrain_batch_size = 128"
            )
        self._swept_sizes = sizes_of(settings.batch_sizes, () if several else default_sizes(len(self._train)))
        self._matched = several
        sizes = {*self._swept_sizes} | ({self.trained_with} if several and self.trained_with else set())
        self.sizes = tuple(sorted(sizes))
        for size in self.sizes:
            check_batch_size(size, len(self._train), least=2)
        plan = plan_of(
            replace(DrawSettings.of(run), methods=("mcbn",), batch_size=self.sizes[0]),
            ScoreSettings.of(run),
            prepared.model,
            prepared.example,
            test=prepared.data.test,
            train=self._train,
            trained_with=prepared.loaded.checkpoint.train_batch_size,
            dropout_arguments=prepared.loaded.dropout_arguments,
        )
        if plan.image:
            raise RequestError(
                f"{run.checkpoint.name} classifies pixels; expected a classifier of whole inputs, or a regression. "
                "Instead, run `bnuq evaluate --batch-size B` at a few sizes B, each with another --out, and compare "
                "them with `bnuq report`."
            )
        self._without_slices(plan)
        self.sets, scorer = scored_sets(run, plan, prepared.data)
        self.subject = subject_of(run, prepared, plan, self.sets, scorer, calibrates=False)
        self._odd_outputs = findings_on_outputs(prepared, plan)
        prepared.pipeline.check_arithmetic()
        self.train_size = run.train_size or len(self._train)
        self._training, self._tau, self._why_no_elbo = training_likelihood(
            self.subject, self._validation, points=settings.train_points
        )
        self._grid = Grid.of(run.samples, settings, self.sizes, has_elbo=self._training is not None)
        check_resources_of_sweep(
            self.subject, sizes=len(self.sizes), samples=self._grid.samples, draw_sets=self._grid.draw_sets
        )
        if settings.criterion == "pll" and (self._validation or prepared.data.test).targets is None:
            raise RequestError(
                f"--criterion pll: the test set {prepared.data.test.reference} has no labels; name "
                "--validation REF, or --criterion elbo or auroc."
            )
        if settings.criterion == "pll" and plan.task.is_regression and not (run.scoring.tau or self._validation):
            raise RequestError("--criterion pll: a regression has no PLL without τ; name --validation REF, or --tau.")

    def _without_slices(self, plan: Plan) -> None:
        """Leave out default sizes above the slice of the batch that the network normalises at a time."""
        if self._settings.batch_sizes is not None or self._matched:
            return
        with undisturbed(self.prepared.model):
            largest = largest_batch(self.prepared.model, plan.layers, self.prepared.example, self.sizes[-1])
        if largest < self.sizes[-1]:
            self.sizes = self._swept_sizes = tuple(size for size in self.sizes if size <= largest) or (largest,)

    def points_of(self, name: str) -> Points | None:
        """The points of a set, or of the reference ("train"); None if there is no such set."""
        return self._train if name == "train" else self.sets.get(name)

    def journal(self, work: WorkFolder) -> Journal:
        """The journal of this network's finished parts, keyed by all that determines them except the sizes."""
        prepared, sets = self.prepared, {**self.sets, "train": self._train}
        network, device = behaviour(prepared.model, prepared.example), prepared.pipeline.device
        facts = identity(self.run, [prepared.loaded], network, sets, device, sweep=self._settings)
        return work.journal(facts | surrounding(prepared.pipeline))

    @property
    def _points_of_draw(self) -> int:
        """The number of points that pass with each draw."""
        fitted = len(noise_points(self.subject) or ())
        return sum(map(len, self.sets.values())) + (len(self._training.points) if self._training else 0) + fitted

    @property
    def _validation(self) -> Points | None:
        return self.sets.get(VALIDATION)

    def passed(
        self, executor: UnitExecutor, watch: Stopwatch, progress: Progress, announce: Announce = silence
    ) -> NetworkPasses:
        """The passes of all rounds: those units of them that the executor computes. Their number and time are said."""
        grid, points = self._grid, self._points_of_draw
        first = points * sum(map(len, self._next_round(None)[0].values()))
        counts = sorted({first, max(first, self.most_passes)})
        size = f"{points:,} examples × {grid.draw_sets * grid.samples} draws × {len(grid.sizes)} sizes"
        announce(f"{self.name}: {size}: {' to '.join(f'{count:,}' for count in counts)} passes.")

        def announce_time(seconds: float) -> None:
            announce(f"{self.name}: about {' to '.join(in_words(seconds * count) for count in counts)} of passes.")

        of_rounds = self.subject, self._next_round, self._training, executor
        return network_passes(*of_rounds, samples=grid.samples, watch=watch, progress=forecast(progress, announce_time))

    @property
    def most_passes(self) -> int:
        """The number of passes of all draw sets at every size."""
        return self._points_of_draw * len(self.sizes) * self._grid.samples * self._grid.draw_sets

    @property
    def criterion(self) -> CriterionData:
        """The points that a size is chosen by, if the ELBO does not choose it."""
        name = VALIDATION if VALIDATION in self.sets else "test"
        return CriterionData(name, self.sets[name], self.subject.ood, self.subject.task.spread)

    def _next_round(self, passes: SweepPasses | None) -> tuple[dict[int, range], Stopped]:
        """The draws of the next round, see `Rounds`; all of them in the first one, unless the sweep is adaptive."""
        settings, grid, stopped = self._settings, self._grid, "full-grid"
        sets = {} if passes is None else {size: at_size.draw_sets for size, at_size in passes.at.items()}
        if self._matched or settings.full_grid:
            added = {} if passes else dict.fromkeys(self.sizes, grid.draw_sets)
        elif passes is None:
            added = grid.first
        else:
            chosen = recommend(self._candidates(passes), settings.criterion, "single", self.criterion)
            added, stopped = grid.next(sets, chosen, self._decay(passes.at.values()).get("test"))
        whole = 0 if self.run.augment else len(self._train)  # a size at which all draws are the same
        starts = {size: sets.get(size, 0) for size in added}
        draws = {
            size: range(1)
            if size == whole
            else range(starts[size] * grid.samples, (starts[size] + more) * grid.samples)
            for size, more in added.items()
        }
        done = 0 if passes is None else sum(bank.samples for bank in passes.banks.values())
        needed = self._points_of_draw * (done + sum(map(len, draws.values())))
        return ({}, "budget") if draws and done and needed > (settings.budget or needed) else (draws, stopped)

    def checked(self) -> Checked:
        """SamplingError unless MCBN is exact at the smallest and the largest size."""
        return check_network(self.subject, batch_sizes=sorted({min(self.sizes), max(self.sizes)}))

    def swept(
        self, checked: Checked, executor: UnitExecutor, watch: Stopwatch, progress: Progress, announce: Announce
    ) -> Swept:
        """The network, which was checked, at all its sizes."""
        run, prepared, subject = self.run, self.prepared, self.subject
        passes = self.passed(executor, watch, progress, announce)
        check_network_unchanged(checked, subject)
        at_sizes, check = passes.at_sizes.at, passes.check
        bound = self._bound(passes.at_sizes)
        with stage(progress, "Estimates of each size, and their errors"):
            points_of_sizes = {}
            for size, at_size in at_sizes.items():
                estimates, auroc = set_estimates(at_size, self.sets, subject.ood, subject.task)
                points_of_sizes[size] = SweepPoint(
                    model=self._number,
                    protocol="single",
                    batch_size=size,
                    train_batch_size=self.trained_with,
                    degenerate=at_size.degenerate,
                    estimates=estimates,
                    auroc=auroc,
                    elbo=None if bound is None else bound.at.get(size),
                    compared_with=passes.comparisons.get(size, {}),
                )
        points = tuple(self._points(points_of_sizes))
        return Swept(
            model=SweptModel(
                name=self.name,
                path=str(run.checkpoint),
                sha256=prepared.loaded.checkpoint.sha256,
                train_batch_size=self.trained_with,
                parameters=prepared.loaded.parameters,
                batchnorm_layers=len(subject.sites.batchnorms),
                layers=tuple(site.name for site in subject.layers),
                elbo=None if bound is None else bound.terms,
                decay=self._decay(at_sizes[point.batch_size] for point in points if point.protocol == "single"),
                record=replace(run, batch_size=None, methods=("mcbn",)).record(),
            ),
            points=points,
            candidates=self._candidates(passes.at_sizes),
            stopped=passes.stopped,
            arithmetic=passes.at_sizes.arithmetic,
            findings=(
                *self._odd_outputs,
                *prepared.loaded.findings,
                *prepared.data.findings,
                *findings_on_labels(
                    [*self.sets.values(), *([self._training.points] if self._training else [])],
                    test=self.sets["test"],
                    outputs=subject.outputs,
                ),
                *subject.findings,
                *checked.findings,
                *reference_findings(check, run, self._train, subject.sites.live_batchnorms),
                *passes.at_sizes.findings,
                *passes.findings(subject),
                *self._notes(executor.journal.reused),
                *executor.journal.doubts,
            ),
        )

    def _bound(self, passes: SweepPasses) -> LowerBound | None:
        if self._training is None:
            return None
        points = self._training.points
        return lower_bound(
            passes.at,
            passes.banks,
            self._grid.samples,
            self._settings,
            errors=TrainingErrors(self.train_size, len(points), points.group),
            reference_points=len(self._train),
            augmented=self.run.augment is not None,
            tau=self._tau,
        )

    def _decay(self, at_sizes: Iterable[AtSize]) -> dict[str, Decay]:
        return decays(
            [*at_sizes],
            self.sets,
            spread=self.subject.task.spread,
            reference_points=len(self._train),
            augmented=self.run.augment is not None,
        )

    def _candidates(self, passes: SweepPasses) -> tuple[SizeCandidate, ...]:
        bound = self._bound(passes)
        sizes = (self.trained_with,) if self._matched and self.trained_with else self._swept_sizes
        return tuple(SizeCandidate(self._number, passes.at[size], bound) for size in sizes if size in passes.at)

    def _points(self, points_of_sizes: Mapping[int, SweepPoint]) -> Iterator[SweepPoint]:
        yield from (points_of_sizes[size] for size in self._swept_sizes if size in points_of_sizes)
        if self._matched and self.trained_with is not None:
            yield replace(points_of_sizes[self.trained_with], protocol="matched")

    def _notes(self, reused: int) -> Iterator[Finding]:
        if reused:
            yield note("sweep-continued", network=self.name, parts=reused)
        if self._training is None:
            yield note("no-elbo", reason=self._why_no_elbo)
        elif self.run.train_size is None:
            yield note("elbo-of-reference-size", points=len(self._train))
        if self.run.bank is not None:
            yield note("bank-left-out", bank=self.run.bank)
        others = [name for name in self.run.methods or () if name != "mcbn"]
        if others:
            yield note("methods-left-out", methods=others)
