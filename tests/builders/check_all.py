"""`check` as `bnuq.gate.check`, of every estimate that has a tolerance where the settings do not name others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bnuq import gate
from bnuq.gate import CheckVerdict, GateSettings
from bnuq.gate.settings import family_of
from bnuq.records.addresses import estimates_of
from bnuq.records.evaluation import Result


def check(
    current: Result, baseline: Result | None = None, settings: GateSettings | None = None, **more: Any
) -> CheckVerdict:
    settings = settings or GateSettings()
    parts = {family_of(each) for each in estimates_of(current) if each.endswith(".accuracy")} - {""}
    return gate.check(current, baseline, replace(settings, estimates=settings.estimates or ("*", *parts)), **more)
