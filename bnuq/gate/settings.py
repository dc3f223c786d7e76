"""The settings of a check: how much worse each estimate may be, which minimums are required, and which differences are
allowed."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from bnuq.config import CheckSection, GateSection
from bnuq.errors import RequestError
from bnuq.frozen import frozen
from bnuq.metrics import METRICS
from bnuq.records.evaluation import PARTS

Scale = Literal["absolute", "relative", "errors"]

_FORMS = 'a number ("0.01", in the estimate\'s unit), "2%" (of the baseline), "2se" (standard errors) or "off"'
_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_WAIVED_ENTIRELY = ("samples", "batch-size", "sampling", "data", "scoring")


@frozen
class Tolerance:
    """How much worse an estimate may be: in its unit, relative to the baseline, or in standard errors of the change.

    Infinity is "off": shown, never gated.
    """

    amount: float
    scale: Scale

    @staticmethod
    def of(raw: str | float, *, key: str) -> Tolerance:
        """From "0.01", "2%", "2se" or "off"; RequestError, naming `key`, for anything else."""
        text = str(raw).strip()
        if text == "off":
            return Tolerance(math.inf, "absolute")
        matched = re.fullmatch(rf"({_NUMBER})\s*(%|se)?", text)
        if matched is None or not math.isfinite(float(matched[1])):
            raise RequestError(f"{key} is {text}; expected {_FORMS}.")
        scales: dict[str | None, Scale] = {None: "absolute", "%": "relative", "se": "errors"}
        scale = scales[matched[2]]
        return Tolerance(float(matched[1]) / (100 if scale == "relative" else 1), scale)

    def in_unit(self, *, baseline: float, se: float | None) -> float:
        """The tolerance in the estimate's unit, for this baseline and this error of the change; 0 if the error is
        not known."""
        if self.scale == "absolute":
            return self.amount
        if self.scale == "relative":
            return self.amount * abs(baseline) if math.isfinite(baseline) else 0.0
        return self.amount * (se or 0.0)


@frozen
class Required:
    """A minimum (or maximum) that an estimate must meet, whatever the baseline: an address, >= or <=, and a bound."""

    address: str
    relation: Literal[">=", "<="]
    bound: float

    @staticmethod
    def of(text: str) -> Required:
        """From "mcbn.ood.svhn.mutual_information.auroc>=0.85"; RequestError for anything else."""
        matched = re.fullmatch(rf"\s*([^\s<>=](?:[^<>=]*[^\s<>=])?)\s*(>=|<=)\s*(-?{_NUMBER})\s*", text)
        if matched is None or not math.isfinite(float(matched[3])):
            raise RequestError(
                f"require {text}: expected ADDRESS>=NUMBER or ADDRESS<=NUMBER, where the address is the path in the "
                "JSON under methods, such as mcbn.sets.test.pll>=-0.3 or mcbn.ood.svhn.mutual_information.auroc>=0.85. "
                "In a shell, put it in quotes: > writes a file."
            )
        return Required(matched[1], ">=" if matched[2] == ">=" else "<=", float(matched[3]))


@frozen
class GateSettings:
    """The settings of a check. `estimates` are patterns of what is gated in the place of what the baseline decided by,
    and "by-class" and "by-group"; `tolerances` are by metric or by a pattern of addresses, and the last that matches
    applies; `allow` names what may differ: "samples", "batch-size", "sampling", "scoring", "data" or "data:SET", and
    "missing:ADDRESS". An inconclusive estimate fails the check if `inconclusive_fails`; with a `power`, a comparison
    that could not show a worsening of its tolerance with this probability is refused."""

    estimates: tuple[str, ...] = ()
    tolerances: tuple[tuple[str, Tolerance], ...] = ()
    floors: tuple[Required, ...] = ()
    allow: tuple[str, ...] = ()
    inconclusive_fails: bool = False
    power: float | None = None

    @staticmethod
    def of(
        section: CheckSection | None = None,
        gate: GateSection | None = None,
        *,
        source: Path | None = None,
        estimates: Sequence[str] = (),
        tolerances: Sequence[str] = (),
        floors: Sequence[str] = (),
        allow: Sequence[str] = (),
        inconclusive: str | None = None,
        power: float | None = None,
    ) -> GateSettings:
        """From [check] and [gate] of the run file `source`, overridden by the options; RequestError for invalid
        settings."""
        written = section or CheckSection()
        try:
            first = GateSettings._with_place(written.tolerance.items(), written.require, written.allow)
        except RequestError as error:
            raise RequestError(f"{source}: check.{error}") from error
        pairs = []
        for text in tolerances:
            key, equals, value = text.partition("=")
            if not equals:
                raise RequestError(f"--tolerance {text}: expected METRIC=AMOUNT, where the amount is {_FORMS}.")
            pairs.append((key.strip(), value))
        try:
            then = GateSettings._with_place(pairs, floors, allow)
        except RequestError as error:
            raise RequestError(f"--{error}") from error
        patterns = tuple(estimates) or (GateSection() if gate is None else gate).estimates
        for pattern in patterns:
            _check_key(pattern, "--gate" if estimates else f"{source}: gate.estimates", known=FAMILIES)
        return GateSettings(
            patterns,
            first.tolerances + then.tolerances,
            first.floors + then.floors,
            first.allow + then.allow,
            (inconclusive or written.inconclusive) == "fail",
            written.power if power is None else power,
        )

    @staticmethod
    def _with_place(
        tolerances: Iterable[tuple[str, str | float]], floors: Iterable[str], allow: Iterable[str]
    ) -> GateSettings:
        """Prefixes RequestErrors with their key: tolerance, require or allow."""
        amounts = []
        for key, value in tolerances:
            _check_key(key, "tolerance")
            amounts.append((key, Tolerance.of(value, key=f"tolerance {key}")))
        for name in (allowed := tuple(allow)):
            _check_allowed(name)
        return GateSettings((), tuple(amounts), tuple(map(Required.of, floors)), allowed)

    def tolerance(self, address: str, metric: str, *, directed: bool, decided_by: Collection[str]) -> Tolerance | None:
        """The tolerance of the estimate at `address`: the last that matches, or the metric's default; None for not
        gated. Gated are the addresses that the baseline was `decided_by`, or what `estimates` name in their place; and
        what has no default, or is named by a pattern, where it is given a tolerance.

        An estimate without a direction matches only a key that names its metric, and a bound of a score only its own
        address: `mcbn.*` is about estimates that can get worse, and `pll` about the network's own.
        """
        known = METRICS.get(metric)
        default = Tolerance.of(known.tolerance, key=metric) if known and known.tolerance else None
        matching = [(key, of) for key, of in self.tolerances if _is_meant(key, address, metric, directed=directed)]
        if matching and math.isinf(matching[-1][1].amount):
            return None
        named = any((key != metric or default is None) and math.isfinite(of.amount) for key, of in matching)
        has_default = bool(known and known.direction == "none" and default and ".bounds." not in address)
        if not (named or self._is_gated(address, metric, directed=directed or has_default, decided_by=decided_by)):
            return None
        return matching[-1][1] if matching else default

    def _is_gated(self, address: str, metric: str, *, directed: bool, decided_by: Collection[str]) -> bool:
        if family := family_of(address):  # where the accuracy of all points is gated
            part = family.replace("-", "_")
            whole = f"{address.partition(f'.{part}.')[0]}.{metric}"
            by_name = {"directed": directed, "decided_by": decided_by}
            if metric == "accuracy" and family in self.estimates and self._is_gated(whole, metric, **by_name):
                return True
            named = [pattern for pattern in self.estimates if f".{part}." in pattern]
            return any(_is_meant(pattern, address, metric, directed=directed) for pattern in named)
        if not self.names_estimates:
            return address in decided_by
        return any(_is_meant(pattern, address, metric, directed=directed) for pattern in self.estimates)

    @property
    def names_estimates(self) -> bool:
        """Whether estimates are named in the place of those that the baseline decided by."""
        return not {*self.estimates} <= {*FAMILIES}

    def allows(self, what: str, name: str | None = None) -> bool:
        """Whether `what` may differ: everywhere, or for `name`, an address or a set."""
        if name is None:
            return what in self.allow
        patterns = [text.partition(":")[2] for text in self.allow if text.startswith(f"{what}:")]
        # A pattern matches an address, or a group that contains it.
        return what in self.allow or any(fnmatchcase(name, of) for each in patterns for of in (each, f"{each}.*"))


FAMILIES = tuple(place.replace("_", "-") for place in PARTS.values())  # tested apart from the others: by-class, …


def family_of(address: str) -> str:
    """The family that the estimate is tested with: "by-class" or "by-group" of a part of the points, else ""."""
    return next((name for name in FAMILIES if f".{name.replace('-', '_')}." in address), "")


def _is_meant(key: str, address: str, metric: str, *, directed: bool) -> bool:
    """Whether the settings of `key` apply to the estimate at `address`."""
    bound = ".bounds." in address
    if key == metric:
        return not bound and (metric == "accuracy" or not family_of(address))
    same_metric = key.rpartition(".")[2] == address.rpartition(".")[2]
    if same_metric and ".normalized." in address and ".normalized." not in key:
        return False
    return fnmatchcase(address, key) and (directed or (same_metric and (not bound or ".bounds." in key)))


def _check_key(key: str, setting: str, known: Sequence[str] = ()) -> None:
    if key in METRICS or key in known or "." in key or "*" in key:
        return
    close = difflib.get_close_matches(key, [*METRICS, *known], n=1, cutoff=0.6)
    hint = f"Did you mean {close[0]}?" if close else "`bnuq metrics` lists them."
    raise RequestError(f"{setting} {key}: neither a known metric nor a pattern of addresses. {hint}")


def _check_allowed(name: str) -> None:
    kind, colon, name_part = name.partition(":")
    if name in _WAIVED_ENTIRELY or (colon and name_part and kind in ("data", "missing")):
        return
    raise RequestError(
        f"allow {name}: expected {', '.join(_WAIVED_ENTIRELY)}, data:SET, or missing:ADDRESS "
        "(such as missing:mcdo or missing:mcbn.ood.svhn)."
    )


def idle(settings: GateSettings, gated: Collection[tuple[str, str, bool]]) -> list[str]:
    """The patterns of what is to be gated by which nothing is, of these addresses, metrics, and whether directed."""

    def is_used(pattern: str) -> bool:
        if pattern in FAMILIES:
            return any(family_of(address) == pattern for address, _, _ in gated)
        return any(_is_meant(pattern, address, metric, directed=directed) for address, metric, directed in gated)

    return [pattern for pattern in settings.estimates if not is_used(pattern)]


def unused(settings: GateSettings, estimates: Iterable[tuple[str, str, bool]]) -> tuple[str, ...]:
    """The keys of tolerances that match no estimate; `estimates` are addresses, metrics, and whether directed."""
    candidates = tuple(estimates)
    return tuple(
        key
        for key, _ in settings.tolerances
        if not any(_is_meant(key, address, metric, directed=directed) for address, metric, directed in candidates)
    )
