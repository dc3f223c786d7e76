"""What a run measures at its reference: ω, the reference check, noise models, and the curvature of the last layer.

Each is made when it is first needed, of units that the processes of a run share.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from bnuq.evaluation.draws import (
    check_reference,
    draw_omega,
    draws_from_reference,
    needs_omega,
    part_drawn,
    passes_of_samples,
)
from bnuq.evaluation.executors import UnitExecutor
from bnuq.evaluation.methods import Fit, sampler_of
from bnuq.evaluation.noise_models import NoiseModels, fit_noise_models
from bnuq.evaluation.provenance import Stopwatch
from bnuq.evaluation.subject import Subject
from bnuq.methods import Method
from bnuq.progress import Progress
from bnuq.records.evaluation import ReferenceCheck
from bnuq.sampling.batch_statistics import BatchStatistics
from bnuq.sampling.statistics import Plans

Omegas = Mapping[str, BatchStatistics]  # ω by `Method.omega_key`


class Measurements:
    """What is measured at the reference of the subject, by units of the executor; the `watch` counts it as drawing."""

    def __init__(self, subject: Subject, executor: UnitExecutor, watch: Stopwatch, progress: Progress) -> None:
        self._subject, self._executor, self._watch, self._progress = subject, executor, watch, progress
        self._fitted: dict[Method, Fit] = {}
        self._plans: Plans = {}  # that measure mini-batches

    @cached_property
    def check(self) -> ReferenceCheck | None:
        """The reference compared with the running statistics; None where that cannot be done, or no method draws
        mini-batches of it."""
        subject = self._subject
        if not draws_from_reference(subject) or (part := part_drawn(subject)) is None:
            return None
        self._watch.lap("evaluate")
        of_network = subject.model, subject.pipeline, part, subject.sites.live_batchnorms, self._progress
        known = {"trained_with": subject.trained_with, "train_size": subject.draws.train_size}
        check = check_reference(
            *of_network, **known, passes=passes_of_samples(subject), executor=self._executor, plans=self._plans
        )
        self._watch.lap("draw")
        return check

    @property
    def stale(self) -> bool:
        """Whether the running statistics may not be those of the reference that mini-batches are drawn from."""
        has_averages = any(site.tracked for site in self._subject.layers)
        return draws_from_reference(self._subject) and has_averages and (self.check is None or not self.check.passed)

    @cached_property
    def noise_models(self) -> NoiseModels | None:
        """The fitted noise models; None where no method draws from them."""
        return fit_noise_models(self._subject, self._progress, self._executor)

    def fitted(self, method: Method) -> Fit:
        """What the method's sampler fits to the reference, and notes on it."""
        if method not in self._fitted:
            self._fitted[method] = sampler_of(method).fitted(self._subject, self._progress, self._executor)
        return self._fitted[method]

    def omegas(self, draws: range) -> Omegas:
        """ω of the draws with these numbers, by the method that it is drawn for."""
        subject, methods = self._subject, self._subject.methods
        self._watch.lap("evaluate")
        omegas: dict[str, BatchStatistics] = {}
        if self.noise_models is not None:
            omegas = {m.name: self.noise_models.draw(m, draws) for m in methods if m.approximates}
        if needs_omega(subject):
            omegas["mcbn"] = draw_omega(subject, draws, self._progress, self._executor, plans=self._plans)
        noisy = {method.omega_key for method in methods if method.draws_mini_batches} - {"mcbn"}
        omegas |= {key: draw_omega(subject, draws, self._progress, self._executor, noisy=True) for key in noisy}
        self._watch.lap("draw")
        return omegas
