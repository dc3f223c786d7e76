"""The check: every estimate that two results share is compared with its tolerance and its error, all together."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

import bnuq
from bnuq import metrics
from bnuq.catalogue import text_of
from bnuq.errors import ResultError
from bnuq.findings import Finding, about, note, warning, warnings
from bnuq.gate.change_errors import Errors
from bnuq.gate.comparing import (
    Measured,
    at_thresholds,
    is_lost_promise,
    judged,
    measured,
    promises_lost_of_parts,
    ranked,
    shares_of,
    sight_of,
)
from bnuq.gate.compatibility import check_comparable, similar_addresses
from bnuq.gate.pairing import under_one_name
from bnuq.gate.records import CheckVerdict, EstimateComparison, Floor, Pairing, Side
from bnuq.gate.settings import GateSettings, Required, idle, unused
from bnuq.methods import method_named
from bnuq.metrics.registry import metric_of
from bnuq.records.addresses import AT_THRESHOLD, estimates_of
from bnuq.records.calibrated import calibration_of
from bnuq.records.certificate import Certification, certified
from bnuq.records.contributions import PointContributions
from bnuq.records.evaluation import OWN, Result, Scored
from bnuq.records.gated import gated
from bnuq.records.history import made_at
from bnuq.records.identity import compared, words_of
from bnuq.store.table import Row

_SURE = 3.0  # standard errors that no chance over points explains
_MOST_BLIND = 8  # estimates that a message names
_GROWN = 3  # factor by which a Monte Carlo error may grow without a warning
_NO_SETTINGS = GateSettings()


def check(
    current: Result,
    baseline: Result | None = None,
    settings: GateSettings = _NO_SETTINGS,
    *,
    history: Sequence[Result] = (),
) -> CheckVerdict:
    """Whether `current` is worse than `baseline`, or breaks a minimum required by `settings`.

    In the place of a baseline, a `history` of results on the same points, oldest first: `current` is compared with the
    mean of them, and the line through all of them is tested for a decline, together with the rest.

    An estimate is worse where its degradation exceeds its tolerance and "there is no degradation" is rejected at the 5
    % level for all gated estimates together (one-sided, by swaps or Student's t, adjusted by Holm's method with shares
    of the level; classes and groups have their own level). Gated is what `settings` name, else what the baseline
    was decided by, see `gated`.

    Raises ResultError if the two cannot be compared (another task, T, b, scoring or data, or an estimate that only the
    baseline has, unless `settings` allow it by name), where a change above its tolerance has no error, where nothing
    was compared, and where `settings` ask for a power that a comparison does not have.

    Source: Holm 1979, A Simple Sequentially Rejective Multiple Test Procedure.
    """
    start = time.perf_counter()
    if baseline is None and not history:
        if not settings.floors:
            raise ResultError(
                f"{current.path}: nothing to check it against. Name a baseline, or a minimum by --require."
            )
        return uncompared(current, settings)
    given = tuple(history) if baseline is None else (baseline,)
    baselines = tuple(under_one_name(current, other) for other in given)
    last, told = baselines[-1], baselines[-1].path if baseline is not None else f"{len(history)} results"
    # A damaged file comes before what it is compared with, and an address that --require misspells before that, too.
    points = [recomputed(current)]
    floors = tuple(_floor(current, required) for required in settings.floors)
    for other in baselines:
        check_comparable(current, other, settings)
    errors = Errors((current, *baselines), [*points, *map(recomputed, baselines)])
    given_by = current, baselines, errors, settings, gated(last)
    rows = (*measured(*given_by), *at_thresholds(*given_by))
    of_estimates = [*judged(rows, current, told)]
    comparisons = tuple(ranked([*promises_lost_of_parts(current, last, of_estimates), *of_estimates]))
    gated_now = [each for each in comparisons if each.is_gated]
    if not gated_now:
        raise ResultError(
            f"{current.path} and {told} have no gated estimate in common: each is in one alone, or has a "
            "tolerance that is off or above any possible change. See --tolerance, --allow."
        )
    if unmet := idle(settings, [(each.address, each.metric, _is_directed(each)) for each in gated_now]):
        raise ResultError(
            f"--gate {unmet[0]} gates no estimate of {current.path} and {told}: it names none, or none that has "
            "a tolerance. `bnuq evaluate --json` has their addresses; --tolerance ADDRESS=AMOUNT gives one."
        )
    verdict = CheckVerdict(
        current=_side(current),
        baseline=_side(last),
        pairing=errors.pairing,
        comparisons=comparisons,
        floors=floors,
        findings=(
            *_findings(current, last, comparisons, settings),
            *_new(current, baselines),
            *_of_files(current, given, errors.pairing),
            *(finding for result in (current, *baselines) for finding in _left_out(result)),
        ),
        bnuq=bnuq.__version__,
        seconds=time.perf_counter() - start,
        history=() if baseline is not None else tuple(map(_side, baselines)),
        inconclusive_fails=settings.inconclusive_fails,
    )
    if settings.power is not None and not verdict.failed:  # a regression is one whatever else could not be seen
        _check_power(rows, settings.power, verdict)
    return verdict


def _check_power(rows: Sequence[Measured], power: float, verdict: CheckVerdict) -> None:
    """Raise ResultError, naming estimates, where a worsening of its tolerance would not be significant with this
    probability."""
    blind, shares = [], shares_of(rows)
    for row in rows:
        comparison = row.comparison
        if not comparison.is_gated:
            continue
        limit, sight = comparison.tolerance, sight_of(row, shares[row.family])
        assert limit is not None
        visible = math.inf if sight is None or sight.is_blank else sight.distinguishable(power)
        if visible > limit:
            shows = "its error is not known" if math.isinf(visible) else f"it would show {visible:.3g}"
            blind.append(f"{comparison.address}: its tolerance is {limit:.3g}, {shows}")
    if blind:
        more = f"\n  - and {len(blind) - _MOST_BLIND} more" if len(blind) > _MOST_BLIND else ""
        listed = "".join(f"\n  - {text}" for text in blind[:_MOST_BLIND])
        raise ResultError(
            f"{verdict.current.path}: {len(blind)} of {verdict.gated} gated estimates would not show a worsening of "
            f"their tolerance with probability {power:g}:{listed}{more}\nEvaluate on more examples, with more samples, "
            "or with the seed of the baseline; gate fewer estimates; or set tolerances that can be seen, by "
            "--tolerance ADDRESS=AMOUNT."
        )


def uncompared(current: Result, settings: GateSettings, *, why: str = "") -> CheckVerdict:
    """The verdict on required minimums alone; with a warning if there was a baseline, and `why` it was not compared.

    Raises ResultError for a damaged result.
    """
    recomputed(current)
    floors = tuple(_floor(current, item) for item in settings.floors)
    findings = (warning("not-compared", reason=" ".join(why.split())),) if why else ()
    return CheckVerdict(_side(current), None, None, (), floors, (*findings, *_left_out(current)), bnuq.__version__, 0.0)


def _side(result: Result) -> Side:
    return Side(
        path=result.path,
        checkpoint=str(result.model["path"]),
        checkpoint_sha256=str(result.model.get("sha256", "")),
        samples=int(result.sampling["samples"]),
        batch_size=result.sampling["batch_size"],
        seed=int(result.sampling["seed"]),
        time=str(result.provenance.get("time", "")),
    )


def _floor(current: Result, required: Required) -> Floor:
    """The named estimate compared with its bound; ResultError if there is no such estimate."""
    known = estimates_of(current)
    if required.address not in known:
        near = similar_addresses(required.address, known)
        separates = required.address.rpartition(".")[2].startswith(("auroc", "aupr", "fpr95"))
        if separates and not any(".ood." in address for address in known):
            near = " It was evaluated without an OOD set: --ood REF."
        raise ResultError(f"{current.path} has no estimate {required.address}, which --require names.{near}")
    estimate = known[required.address].estimate
    se = None if estimate.se is None else math.hypot(estimate.se, estimate.mc_se or 0.0) or None  # 0 says nothing
    return Floor(required.address, required.relation, required.bound, estimate.value, se)


def _of_files(current: Result, baselines: Sequence[Result], pairing: Pairing) -> Iterator[Finding]:
    """Files of predictions under one name, and points that nothing but their position identifies."""
    if not isinstance(current, Scored):
        return
    names = [name for other in baselines for name in other.methods if name not in current.methods]
    plain = [name for name in dict.fromkeys(names) if method_named(name).recalibration is None]
    if plain and len(current.model["files"]) == 1:
        yield note("compared-as-one-method", current=current.first, baselines=plain)
    if by_position := [name for name in pairing.points if current.sets[name].names is None]:
        yield note("paired-by-position", sets=by_position)


def _new(current: Result, baselines: Sequence[Result]) -> Iterator[Finding]:
    """Methods and sets that the current result has, and not every baseline."""
    for kind in ("method", "set"):
        new, *old = (getattr(result, f"{kind}s") for result in (current, *baselines))
        if added := [name for name in new if not all(name in names for names in old)]:
            yield note("new-since-baseline", what=kind, names=added)


def _left_out(result: Result) -> Iterator[Finding]:
    """What the file of a result has, and this version does not know."""
    yield from about(str(result.path), (item for item in result.findings if item.code == "made-by-another-version"))


def _findings(
    current: Result, baseline: Result, comparisons: Sequence[EstimateComparison], settings: GateSettings
) -> Iterator[Finding]:
    yield from _of_requests(current, baseline)
    estimates = estimates_of(current), estimates_of(baseline)
    if unclear := [item for item in comparisons if item.outcome == "inconclusive"]:
        gated = sum(item.is_gated for item in comparisons)
        names = [f"{item.address}{' (slope)' * item.slope}" for item in unclear]
        yield warning("inconclusive", estimates=names, gated=gated)
    if hidden := [item.address for item in comparisons if _is_hidden(item, *estimates)]:
        yield warning("hidden-by-draws", estimates=hidden, growth=_GROWN)
    codes = {finding.code for finding in warnings(baseline.findings)}
    if fresh := [finding for finding in warnings(current.findings) if finding.code not in codes]:
        yield warning("new-warnings", warnings=[[finding.code, text_of(finding)] for finding in fresh])
    gated_ece = [each for each in comparisons if each.metric == "ece" and each.is_gated and each.family == "main"]
    found = {each.method: calibration_of(current, each.method) for each in gated_ece if not each.label}
    if calibrated := [[name, *of["ece"]] for name, of in found.items() if of.get("calibrated") == "indistinguishable"]:
        yield note("calibrated-as-by-chance", methods=calibrated)
    yield from _of_what_is_not_gated(comparisons, settings)


def _of_requests(current: Result, baseline: Result) -> Iterator[Finding]:
    """Files that are swapped or the same, and samples that differ in what does not forbid a comparison."""
    made, made_before = made_at(current), made_at(baseline)
    if made is not None and made_before is not None and made < made_before:
        yield warning("older-than-baseline", current=str(current.path), baseline=str(baseline.path))
    if current.path is not None and baseline.path is not None and current.path.resolve() == baseline.path.resolve():
        yield warning("same-file")
    new, old = (str(item.run.get("sampling", {}).get("layers", "all")) for item in (current, baseline))
    if new != old:
        yield warning("other-layers", current=new, baseline=old)
    new, old = (str(item.sampling.get("bank") or "none") for item in (current, baseline))
    if new != old:
        yield warning("other-bank", current=new, baseline=old)
    new, old = (str(item.sampling["precision"]) for item in (current, baseline))
    if new != old:
        yield note("other-arithmetic", current=new, baseline=old)
    others = ((name, *words_of(values)) for name, values in compared((current, baseline)).items())
    if settings := [f"{name} {new} now, {old} in the baseline" for name, new, old in others]:
        yield note("other-settings", settings=settings)


def _of_what_is_not_gated(comparisons: Sequence[EstimateComparison], settings: GateSettings) -> Iterator[Finding]:
    """Tolerances without effect, and estimates whose change cannot be seen."""
    if drawn := {each.method: None for each in comparisons if each.score == AT_THRESHOLD and not each.is_gated}:
        yield note("thresholds-not-gated", methods=[*drawn])
    if unmatched := unused(settings, ((item.address, item.metric, _is_directed(item)) for item in comparisons)):
        yield warning("unused-tolerance", tolerances=list(unmatched))
    if lost := [_holder(item) for item in comparisons if is_lost_promise(item)]:
        yield warning("promise-lost", methods=lost)
    if unlimited := [item.address for item in comparisons if not item.is_gated and item.tolerance is not None]:
        yield warning("tolerance-of-any-change", estimates=unlimited)
    if undefined := [item.address for item in comparisons if math.isnan(item.baseline) and _is_directed(item)]:
        yield warning("not-a-number", estimates=undefined)
    if infinite := [item.address for item in comparisons if math.isinf(item.current) and item.current == item.baseline]:
        yield warning("infinite", estimates=infinite)


def _holder(comparison: EstimateComparison) -> str:
    """The method of a promise, and the class or group that it is about."""
    part = comparison.of_class or comparison.group
    return f"{comparison.method} ({part})" if part else comparison.method


def _is_hidden(comparison: EstimateComparison, current: Mapping[str, Row], baseline: Mapping[str, Row]) -> bool:
    """Whether a change is not worse only because of a Monte Carlo error that the baseline did not have."""
    if (
        comparison.outcome != "inconclusive"
        or comparison.slope
        or comparison.score == AT_THRESHOLD
        or comparison.of_class != ""
        or comparison.se_points is None
    ):
        return False
    now, before = (side[comparison.address].estimate.mc_se or 0.0 for side in (current, baseline))
    return comparison.degradation > _SURE * comparison.se_points and now > _GROWN * before


def _is_directed(comparison: EstimateComparison) -> bool:
    return comparison.direction != "none"


_SHOWN = 8  # contradictions that a message names
_ROUNDING = 1e-6
_SIZES = {"fraction": 1.0, "1": 1.0, "nats": 1.0, "percent": 100.0}  # by unit: what rounding is relative to, at least


def recomputed(result: Result) -> PointContributions:
    """The points of `result`; ResultError, naming estimates, where the file contradicts its own points. One that was
    neither damaged nor changed since bnuq wrote it here does not."""
    points = PointContributions(result)
    if result.computed.get(OWN):
        return points
    with np.errstate(all="ignore"):  # a damaged number may be of any size
        problems = [*_contradictions(points)]
    if problems:
        more = f"\n  - and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        shown = "\n".join(f"  - damaged: {problem}" for problem in problems[:_SHOWN])
        raise ResultError(
            f"{result.path} contradicts itself: it was damaged, or changed after bnuq wrote it. Evaluate again.\n"
            f"{shown}{more}"
        )
    return points


def _contradictions(points: PointContributions) -> Iterator[str]:
    if points.result.certification is not None:
        yield from _of_certificates(points.result.certification)
    for address, row in estimates_of(points.result).items():
        if metric_of(row["metric"]).is_fitted:
            continue  # to validation points, which are not in the file
        stated, value = row.estimate.value, points.value(row)
        if value is None:
            yield f"{address} is {stated:.6g}, and the scores of examples that it is computed from are missing."
        elif not _agree(stated, value, row["metric"]):
            yield f"{address} is {stated:.6g}; recomputed from its examples it is {value:.6g}."


def _of_certificates(certification: Certification) -> Iterator[str]:
    """Certificates whose thresholds do not follow from their validation points."""
    for method, certificate in certification.methods.items():
        asked = certification.risk, certification.confidence, certification.each
        again, of_before = (certified(certificate, *asked, apart=apart) for apart in (False, True))
        if not any(np.array_equal(made.thresholds, certificate.thresholds) for made in (again, of_before)):
            stated, value = (", ".join(f"{each:.6g}" for each in made.thresholds) for made in (certificate, again))
            yield f"the thresholds certified of {method} are {stated}; by its validation examples they are {value}."


def _agree(stated: float, value: float, metric: str) -> bool:
    """Whether two values of a metric are equal up to rounding; NaN equals NaN."""
    if not (math.isfinite(stated) and math.isfinite(value)):
        return stated == value or (math.isnan(stated) and math.isnan(value))
    unit = metrics.METRICS[metric].unit if metric in metrics.METRICS else "percent"
    return abs(stated - value) <= _ROUNDING * max(abs(value), _SIZES.get(unit, 0.0))
