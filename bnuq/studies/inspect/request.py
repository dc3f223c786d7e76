"""What an inspection is asked, and what it refuses before anything is read or computed, without torch."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bnuq.config import InspectSection, Named, Run, section_from
from bnuq.config.schema import settings_of
from bnuq.evaluation.completeness import Need
from bnuq.evaluation.request_checks import check_out, check_request
from bnuq.frozen import frozen

_DEFAULTS = InspectSection()


@frozen
class InspectSettings:
    """The settings of an inspection. `points` points of the reference are the population. The noise is measured on
    `draws` mini-batches of `batch_size` (the training batch size, where None), and its slope on `size_draws` (`draws`,
    where None) of each of several sizes, up to `beyond` times `batch_size`.

    `domains` are sets whose statistics are compared, with `samples` draws of MCBN from each; `suggest_pipeline` tries
    the common training pipelines. `noise_only` leaves the running averages out, and no noise to measure is then an
    error. `input_shape` is the shape of a point where none can be read. With `needs_reference`, a reference that cannot
    be read is an error.
    """

    points: int = _DEFAULTS.points
    draws: int = _DEFAULTS.draws
    batch_size: int | None = None
    beyond: int = 1
    size_draws: int | None = None
    domains: tuple[Named, ...] = ()
    samples: int = _DEFAULTS.samples
    suggest_pipeline: bool = False
    noise_only: bool = False
    input_shape: tuple[int, ...] | None = None
    needs_reference: bool = False

    @staticmethod
    def of(section: InspectSection, *, folder: Path, needs_reference: bool) -> InspectSettings:
        """The settings of the options; paths of domains are relative to `folder`."""
        settings = {key: getattr(section, key) for key in settings_of(InspectSection) if key != "domain"}
        domains = tuple(Named(text, folder) for text in section.domain)
        return InspectSettings(**settings, domains=domains, needs_reference=needs_reference)


def check_inspection(run: Run, settings: InspectSettings, *, reading: bool = True) -> None:
    """As `check_evaluation`, of an inspection."""
    on_data = bool(settings.domains) or settings.suggest_pipeline
    needs: tuple[Need, ...] = ("train",) if settings.needs_reference or on_data else ()
    given = {name: getattr(settings, name) for name in ("points", "draws", "samples", "batch_size")}
    others = (partial(check_out, run), partial(section_from, InspectSection, given))
    sets = (*needs, "test") if settings.domains else needs
    check_request(run, *others, needs=needs, sets=sets, reading=reading)
