"""Runs one method over every set, unit by unit, and scores its samples: as they are, and with recalibrated logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from bnuq import devices
from bnuq.data import Points
from bnuq.errors import SamplingError
from bnuq.evaluation import perturbations
from bnuq.evaluation.augmentation import Augmented
from bnuq.evaluation.estimates import SetScores
from bnuq.evaluation.executors import UnitExecutor
from bnuq.evaluation.methods import sampler_of
from bnuq.evaluation.passes import ChunkedPasses, stochastic_of
from bnuq.evaluation.scoring import KeptOutputs, UnitScoring, add_block, engine_of_set
from bnuq.evaluation.subject import VALIDATION, Subject
from bnuq.evaluation.tasks import pixels
from bnuq.evaluation.units import Gathered, StoredMaps, StoredSamples, WorkUnit, tiles
from bnuq.evaluation.views import Halves, MethodScoring, ScoredMethod, SetScoring, View, saves_maps
from bnuq.files.journal import SECONDS
from bnuq.files.places import Folder
from bnuq.methods import Method
from bnuq.progress import Advance
from bnuq.records.evaluation import MethodResult, MethodWork, Samples
from bnuq.sampling.gradients import Differentiable
from bnuq.sampling.plain_loop import Engine, Ensemble, Evaluation

_MAPS_AT_ONCE = 2**24  # bytes of a unit's maps


class MethodRun(MethodScoring[Subject]):
    """What a run has done of one method: its latest engine, the draws of every round, its units and their work.

    Draws come in `rounds`; units of all rounds are of the same points. `address` are the draws that name the units of
    the latest round: a single pass has those whose pooled statistics it uses.
    """

    def __init__(
        self,
        method: Method,
        engine: Engine,
        subject: Subject,
        executor: UnitExecutor,
        passes: ChunkedPasses,
        second: Halves,
    ) -> None:
        self.method, self.engine, self.sampler = method, engine, sampler_of(method)
        self._subject, self._executor, self._passes, self._second = subject, executor, passes, second
        self._journal = executor.journal
        self._units: dict[str, list[WorkUnit]] = {}  # of each set, in the first round
        self.rounds: list[range] = []
        self.maps: dict[tuple[Method, str], StoredMaps] = {}
        self.seconds, self.passes = 0.0, 0
        self.attack: Differentiable | None = None  # what points are attacked through
        self.is_attacked = False
        self._kept: KeptOutputs | None = None  # of images that a temperature is fitted to, which pass again

    def run(self, engine: Engine, draws: range, advance: Advance, *, address: range) -> dict[Method, ScoredMethod]:
        """The scores of all draws so far, of which these are the latest: of the method, and where recalibrations are
        fitted those of the method with each."""
        self.engine, self._address, self._advance = engine, address, advance
        self.rounds.append(draws)
        self._weights = self._subject.weights(self.method, draws.stop)
        place, on_host = self._journal.place, devices.is_host(self._subject.pipeline.device)
        is_cross_fitted = self._subject.image and self._subject.fitted_to == "test"
        if is_cross_fitted and on_host and isinstance(place, Folder):
            with suppress(OSError):  # without a file nothing is kept
                self._kept = KeptOutputs(place.path, engine.samples)
        return self.scored(self._subject.fitted_to)

    def release(self) -> None:
        """Give back the room that outputs take."""
        if self._kept is not None:
            self._kept.close()

    def _samples(self, name: str) -> Iterator[Tensor]:
        device = self._subject.pipeline.device
        for _, block in self._stored(name).blocks():
            yield torch.from_numpy(block).to(device)

    def _scores(self, name: str, views: Sequence[View]) -> dict[Method, SetScores]:
        """The scores of one set under all draws so far, by each view; of none where nothing depends on them."""
        points, subject = self._points(name), self._subject
        again = subject.settings.save_samples or subject.draws.samples == "auto"
        scores_again = (not self.method.is_single and again) or name == subject.fitted_to
        scores_again = scores_again and not subject.image
        size = self._passes.tile(self.engine, points, keeps_samples=scores_again)
        if keeps_maps := saves_maps(subject, name):
            size = min(size, max(1, _MAPS_AT_ONCE // pixels.bytes_of_maps(subject.image)))
        if name not in self._units:
            self._units[name] = tiles(name, points, size, method=self.method.name, draws=self._address)
        units = [replace(unit, draws=self._address) for unit in self._units[name]]  # the same tiles in every round
        earlier = () if self.method.is_single else self.rounds[:-1]
        of_views = self._scores_of_units(
            units,
            SetScoring(self._subject, name, points, self._weights, views, self._second.get(name)),
            earlier=earlier if scores_again else None,
            needed=scores_again or keeps_maps,
        )
        scores = {view.method: each for view, each in zip(views, of_views, strict=False)}  # none of those not needed
        test = scores.get(self.method) if name == "test" and self._weights.samples > 1 else None
        if test is not None and not test.samples_differ:
            why = self.sampler.why_agree(self._subject)
            raise SamplingError(f"the samples of {self.method} are identical, so there is no uncertainty: {why}")
        return scores

    def _scored_again(self, name: str, views: Sequence[View]) -> list[SetScores]:
        """The scores of a labelled set by each of other views of its samples, which are kept; those of images, whose
        outputs are too large to be all kept, are in part computed again. None where nothing depends on them."""
        points = self._subject.sets[name]
        scoring = SetScoring(self._subject, name, points, self._weights, views, self._second.get(name))
        if self._subject.image:
            units = [replace(unit, method=views[0].method.name) for unit in self._units[name]]
            return self._scores_of_units(units, scoring, needed=saves_maps(self._subject, name))
        if not self._matters(name):
            return []
        reductions = [scoring.reduction(view) for view in views]
        for first, block in self._stored(name).blocks():
            samples = torch.from_numpy(block).to(self._subject.pipeline.device)
            for reduction in reductions:
                add_block(reduction, samples, first, self.engine)
        return [*map(scoring.scores, views, reductions)]

    def _scores_of_units(
        self, units: Sequence[WorkUnit], scoring: SetScoring, *, earlier: Sequence[range] | None = None, needed: bool
    ) -> list[SetScores]:
        """The scores of all units of a set by each view, of none where nothing depends on them; their arrays stay in
        the journal where they are `needed` again."""
        name, points, views = scoring.set, scoring.points, scoring.views
        kept = {(view.method, name): view.prefix for view in views if not view.ranks}
        self.maps |= {key: StoredMaps(self._journal, units, prefix) for key, prefix in kept.items()}
        gathered = [Gathered() for _ in views]
        with self._passes.feeding(points, self.engine) as feed:
            engine = engine_of_set(self.engine, name, points)
            of_units = UnitScoring(scoring, self._journal, engine, self._passes, feed, earlier, self._kept_of(name))
            if not self._matters(name):
                self._executor.finish(zip(units), of_units.run)
                return []
            for unit, (arrays,) in zip(units, self._executor.run(zip(units), of_units.run, needed=needed), strict=True):
                for view, of_view in zip(views, gathered, strict=True):
                    of_view.add(view.arrays(arrays))
                if unit.method == self.method.name:
                    self.seconds += float(arrays[SECONDS])
                    self.passes += self.engine.samples * len(unit.points)
                    self._advance(self.engine.samples * len(unit.points))
        return [
            scoring.scores(view, scoring.reduction(view), of_view)
            for view, of_view in zip(views, gathered, strict=True)
        ]

    def _kept_of(self, name: str) -> KeptOutputs | None:
        return self._kept if name == "test" else None

    def _points(self, name: str) -> Points:
        """The points of a set; if they are to raise the loss, attacked through the first draws."""
        points, subject = self._subject.sets[name], self._subject
        if name not in subject.attacked:
            return points
        if not self.is_attacked:
            example = subject.pipeline.evaluated(subject.sets["test"], slice(0, 2))
            self.attack, self.is_attacked = perturbations.attack_of(self.engine, example), True
        return perturbations.attacked(points, self.attack)

    def _stored(self, name: str) -> StoredSamples:
        """The raw samples of a set under all draws so far."""
        rounds = [self._address] if self.method.is_single else self.rounds
        return StoredSamples.of(self._journal, self._units[name], rounds)

    def _matters(self, name: str) -> bool:
        """Whether anything depends on the scores of a set: the result, what is fitted to it, or the number of draws."""
        is_fitted_to = name in (VALIDATION, self._subject.fitted_to)
        return self._executor.makes_result or is_fitted_to or self._subject.draws.samples == "auto"

    def raw_samples(self) -> dict[str, Samples]:
        """The raw samples of each set, where they are saved."""
        if not self._subject.settings.save_samples or self.method.is_single:
            return {}
        return {name: self._stored(name) for name in self._units}

    def result(self, scored: ScoredMethod, recalibrated: ScoredMethod | None = None) -> MethodResult:
        """The result of the method, or of a recalibration of it, with the maps of its images; also by the scores of the
        method with a fitted temperature, where these are given."""
        method, scorer, subject = scored.view.method, scored.view.scorer, self._subject
        result = scorer.result(scored.sets, self._weights, scored.ranked)
        if recalibrated is not None:
            result = scorer.compared(result, scored.sets, recalibrated.sets, self._weights)
        for each in scored.sets.values():
            each.unload()
        sets = {**result.sets, **{name: each.result for name, each in scored.changed.items()}}
        if method == self.method:
            raw = {name: scorer.in_target_units(samples) for name, samples in self.raw_samples().items()}
            sets = {name: replace(each, samples=raw.get(name)) for name, each in sets.items()}
        separations = {name: each.separation for name, each in scored.changed.items()}
        result = replace(result, sets=sets, ood={**result.ood, **separations})
        if subject.settings.save_maps:
            sets = {name: replace(each, maps=self.maps[method, name]) for name, each in result.sets.items()}
            result = replace(result, sets=sets)
        return result

    def maps_of_images(self, name: str, rows: Sequence[int]) -> Iterator[dict[str, np.ndarray]]:
        """The maps of these images of a set, which pass again, by their names."""
        points, view = self._subject.sets[name], View(self.method, self._subject.scorer)
        scoring = SetScoring(self._subject, name, points, self._weights, [view])
        with self._passes.feeding(points, self.engine) as feed:
            engine = engine_of_set(self.engine, name, points)
            of_units = UnitScoring(scoring, self._journal, engine, self._passes, feed, None, self._kept_of(name))
            for row in rows:
                reduction = scoring.reduction(view, row)
                assert isinstance(reduction, pixels.PixelReduction)  # which alone has maps
                reduction.maps = []
                for block in of_units.blocks(range(row, row + 1)):
                    reduction.add(block)
                yield from reduction.maps


def relative_work(method_run: MethodRun, deterministic: MethodRun, chunk: int) -> MethodWork:
    engine, stochastic = method_run.engine, stochastic_of(method_run.engine)
    comparable = engine.samples > 1 and deterministic.seconds > 0 and isinstance(deterministic.engine, Evaluation)
    together = None if stochastic is None else stochastic.together
    given_by = None if stochastic is None or together is None else together.given_by(stochastic)
    ratio = None
    if comparable and given_by is None and not isinstance(engine, Ensemble):  # whose networks may be of other sizes
        seconds_of_pass, one_pass = (timed_run.seconds / timed_run.passes for timed_run in (method_run, deterministic))
        ratio = seconds_of_pass / one_pass
    work = MethodWork(seconds=method_run.seconds, passes=method_run.passes, ratio=ratio, given_by=given_by)
    if stochastic is None or isinstance(engine, Augmented):  # which shares nothing between samples
        return work
    share = stochastic.work(chunk)
    if share is None:
        return replace(work, why_plain=stochastic.why_plain)
    stacked = min(share.stacked, engine.samples)
    return replace(work, once=share.once, each=share.per_draw, folded=share.folded, stacked=stacked)
