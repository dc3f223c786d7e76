"""What every family of methods provides: why a network does not allow it, and the engine of its draws."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from torch import Tensor, nn

from bnuq.config import Augment, DrawSettings
from bnuq.data import Points
from bnuq.evaluation.executors import UnitExecutor
from bnuq.evaluation.subject import Subject
from bnuq.findings import Finding
from bnuq.frozen import frozen
from bnuq.methods import Method
from bnuq.progress import Progress
from bnuq.sampling.batch_statistics import BatchStatistics
from bnuq.sampling.plain_loop import Engine
from bnuq.sampling.sites import Sites
from bnuq.tasks import Task

Fit = tuple[Any, tuple[Finding, ...]]  # what a sampler makes of the reference, and notes on it


@frozen
class Network:
    """What decides whether a method can be drawn. `augment` is that of evaluated points, and `example` are a few of
    them, ready for the model; `unsampled` says what a network without BatchNorm has in its place."""

    draws: DrawSettings
    augment: Augment | None
    has_members: bool
    model: nn.Module
    example: Tensor
    sites: Sites
    train: Points | None
    task: Task
    unsampled: str = ""

    @property
    def untracked(self) -> str:
        """That a BatchNorm keeps no running statistics; empty where all do."""
        site = next((site for site in self.sites.live_batchnorms if not site.tracked), None)
        return "" if site is None else f"BatchNorm {site.name} keeps no running statistics"

    def why_not_alone(self, method: Method) -> str:
        """Why a method that leaves BatchNorm alone cannot be drawn."""
        return self.untracked and f"{self.untracked}, so its own must be drawn too (mcbn+{method})"


@frozen
class SamplerInputs:
    """What an engine needs: ω by `Method.omega_key`, and what its sampler has `fitted`."""

    omegas: Mapping[str, BatchStatistics] = field(default_factory=dict)
    fitted: Any = None


@frozen
class MethodSampler(ABC):
    """How a method makes samples: a class for each family of methods."""

    method: Method

    @abstractmethod
    def why_not(self, network: Network) -> str:
        """Why it cannot be drawn; empty where it can."""

    @abstractmethod
    def engine(self, subject: Subject, draws: range, inputs: SamplerInputs) -> Engine:
        """The engine of these draws."""

    @abstractmethod
    def why_agree(self, subject: Subject) -> str:
        """Why samples do not differ, where they do not."""

    def fitted(self, subject: Subject, progress: Progress, executor: UnitExecutor | None) -> Fit:
        """What is fitted to the reference before any draw, in units of the executor, and notes on it."""
        return None, ()
