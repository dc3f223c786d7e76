"""What a check is asked: how much worse each figure may be, which floors it keeps, and what may differ all the same."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from bnuq.config import CheckSection
from bnuq.errors import RequestError
from bnuq.metrics import METRICS

Scale = Literal["absolute", "relative", "errors"]

_FORMS = 'a number ("0.01", in the figure\'s unit), "2%" (of the baseline), "2se" (standard errors) or "off"'
_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_WAIVED_WHOLE = ("samples", "batch-size", "sampling", "data", "scoring")


@dataclass(frozen=True)
class Tolerance:
    """How much worse a figure may be: in its unit, relative to the baseline, or in standard errors of the change.

    Infinity is "off": shown, never gated.
    """

    amount: float
    scale: Scale

    @staticmethod
    def of(said: str | float, *, key: str) -> Tolerance:
        """From "0.01", "2%", "2se" or "off"; RequestError, naming `key`, for anything else."""
        text = str(said).strip()
        if text == "off":
            return Tolerance(math.inf, "absolute")
        matched = re.fullmatch(rf"({_NUMBER})\s*(%|se)?", text)
        if matched is None or not math.isfinite(float(matched[1])):
            raise RequestError(f"{key} is {text}; expected {_FORMS}.")
        scales: dict[str | None, Scale] = {None: "absolute", "%": "relative", "se": "errors"}
        scale = scales[matched[2]]
        return Tolerance(float(matched[1]) / (100 if scale == "relative" else 1), scale)

    @property
    def is_off(self) -> bool:
        """Whether the figure is not to be gated."""
        return math.isinf(self.amount)

    def in_unit(self, *, baseline: float, se: float | None) -> float:
        """In the figure's unit, for this baseline and this error of the change; 0 where the error is not known."""
        if self.scale == "absolute":
            return self.amount
        if self.scale == "relative":
            return self.amount * abs(baseline) if math.isfinite(baseline) else 0.0
        return self.amount * (se or 0.0)


@dataclass(frozen=True)
class Required:
    """A floor (or a ceiling) that a figure must keep, whatever the baseline: an address, >= or <=, and a bound."""

    address: str
    relation: Literal[">=", "<="]
    bound: float

    @staticmethod
    def of(text: str) -> Required:
        """From "mcbn.ood.svhn.mutual_information.auroc>=0.85"; RequestError for anything else."""
        matched = re.fullmatch(rf"\s*([^\s<>=]+)\s*(>=|<=)\s*(-?{_NUMBER})\s*", text)
        if matched is None or not math.isfinite(float(matched[3])):
            raise RequestError(
                f"require {text}: expected ADDRESS>=NUMBER or ADDRESS<=NUMBER, where the address is the path in the "
                "JSON under methods, such as mcbn.sets.test.pll>=-0.3 or mcbn.ood.svhn.mutual_information.auroc>=0.85. "
                "In a shell, put it in quotes: > writes a file."
            )
        return Required(matched[1], ">=" if matched[2] == ">=" else "<=", float(matched[3]))


@dataclass(frozen=True)
class Settings:
    """How a check goes. `tolerances` are by metric or by a pattern of addresses, the last that fits wins; `allow` names
    what may differ: "samples", "batch-size", "sampling", "scoring", "data" or "data:SET", and "missing:ADDRESS"."""

    tolerances: tuple[tuple[str, Tolerance], ...] = ()
    floors: tuple[Required, ...] = ()
    allow: tuple[str, ...] = ()

    @staticmethod
    def of(
        section: CheckSection | None = None,
        *,
        source: Path | None = None,
        tolerances: Sequence[str] = (),
        floors: Sequence[str] = (),
        allow: Sequence[str] = (),
    ) -> Settings:
        """From [check] of the run file `source`, and what was said beside it, which wins; RequestError for what is
        wrong."""
        written = section or CheckSection()
        try:
            first = Settings._said(written.tolerance.items(), written.require, written.allow)
        except RequestError as error:
            raise RequestError(f"{source}: check.{error}") from error
        pairs = []
        for text in tolerances:
            key, equals, value = text.partition("=")
            if not equals:
                raise RequestError(f"--tolerance {text}: expected METRIC=AMOUNT, where the amount is {_FORMS}.")
            pairs.append((key.strip(), value))
        try:
            then = Settings._said(pairs, floors, allow)
        except RequestError as error:
            raise RequestError(f"--{error}") from error
        return Settings(first.tolerances + then.tolerances, first.floors + then.floors, first.allow + then.allow)

    @staticmethod
    def _said(tolerances: Iterable[tuple[str, str | float]], floors: Iterable[str], allow: Iterable[str]) -> Settings:
        """RequestErrors begin with what they are of: tolerance, require or allow."""
        said = []
        for key, value in tolerances:
            _check_key(key)
            said.append((key, Tolerance.of(value, key=f"tolerance {key}")))
        allowed = tuple(allow)
        for name in allowed:
            _check_allowed(name)
        return Settings(tuple(said), tuple(map(Required.of, floors)), allowed)

    def tolerance(self, address: str, metric: str, *, directed: bool) -> Tolerance | None:
        """That of the figure at `address`: what was said last for it, or the metric's own; None for not gated.

        A figure without a direction is meant only by what names its metric, and a bound of a score only by its address:
        `mcbn.*` is about what can get worse, and `pll` about the network's own.
        """
        said = [amount for key, amount in self.tolerances if _is_meant(key, address, metric, directed=directed)]
        if said:
            return None if said[-1].is_off else said[-1]
        known = METRICS.get(metric)
        return Tolerance.of(known.tolerance, key=metric) if directed and known and known.tolerance else None

    def allows(self, what: str, name: str | None = None) -> bool:
        """Whether `what` may differ: everywhere, or for `name`, an address or a set."""
        if name is None:
            return what in self.allow
        patterns = [text.partition(":")[2] for text in self.allow if text.startswith(f"{what}:")]
        return what in self.allow or any(_covers(pattern, name) for pattern in patterns)


def _is_meant(key: str, address: str, metric: str, *, directed: bool) -> bool:
    """Whether what is said of `key` is said of the figure at `address`."""
    bound = ".bounds." in address
    if key == metric:
        return not bound
    named = key.rpartition(".")[2] == address.rpartition(".")[2]
    if named and ".normalized." in address and ".normalized." not in key:
        return False
    return fnmatchcase(address, key) and (directed or (named and (not bound or ".bounds." in key)))


def _covers(pattern: str, name: str) -> bool:
    """Whether the pattern is of this address, or of a room that it lies in."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def _check_key(key: str) -> None:
    if key in METRICS or "." in key or "*" in key:
        return
    close = difflib.get_close_matches(key, METRICS, n=1, cutoff=0.6)
    hint = f"Did you mean {close[0]}?" if close else "`bnuq metrics` lists them."
    raise RequestError(f"tolerance {key}: neither a known metric nor a pattern of addresses. {hint}")


def _check_allowed(name: str) -> None:
    what, colon, rest = name.partition(":")
    if name in _WAIVED_WHOLE or (colon and rest and what in ("data", "missing")):
        return
    raise RequestError(
        f"allow {name}: expected {', '.join(_WAIVED_WHOLE)}, data:SET, or missing:ADDRESS "
        "(such as missing:mcdo or missing:mcbn.ood.svhn)."
    )


def unused(settings: Settings, figures: Iterable[tuple[str, str, bool]]) -> tuple[str, ...]:
    """The keys of tolerances that no figure is meant by; `figures` are addresses, metrics, and whether directed."""
    known = tuple(figures)
    return tuple(
        key
        for key, _ in settings.tolerances
        if not any(_is_meant(key, address, metric, directed=directed) for address, metric, directed in known)
    )
