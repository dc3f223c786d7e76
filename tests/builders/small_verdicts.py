"""Verdicts of a check as small results would give them: every outcome, every edge, and names that nobody wishes for."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from bnuq.findings import note, warning
from bnuq.gate.records import CheckVerdict, Decisive, EstimateComparison, Floor, Pairing, Side
from bnuq.metrics import METRICS
from bnuq.store.table import unit_of

CURRENT = Side(Path("/runs/now.h5"), "/nets/resnet.pt", "ab" * 32, 32, 64, 1, "2026-03-02T10:11:12+00:00")
BASELINE = replace(CURRENT, path=Path("/runs/base.h5"), checkpoint_sha256="cd" * 32, seed=0, time="")
PAIRING = Pairing(("test", "svhn"), ("mcbn",), (("mcdo", "the seed differs"),))
KEPT = Floor("mcbn.sets.test.accuracy", ">=", 0.8, 0.91, 0.01)
BROKEN = Floor("mcbn.ood.svhn.mutual_information.auroc", ">=", 0.85, 0.84999, None)
EVIL = "[bold]x[/bold] | <script>alert(1)</script> `a` @octocat #1\n::error::boo\r\n##[set-env]\x1b[31m\x00\udc80%0A,:"


def compared(metric: str, baseline: float, current: float, outcome: str, **other: Any) -> EstimateComparison:
    """An estimate with an error of 0.004, gated where its outcome says so; `other` replaces what it would be."""
    direction = METRICS[metric].direction
    change = 0.0 if current == baseline else current - baseline
    gated = outcome != "not gated"
    given = {
        "method": "mcbn",
        "set": "test",
        "score": "",
        "metric": metric,
        "unit": unit_of(metric),
        "direction": direction,
        "baseline": baseline,
        "current": current,
        "change": change,
        "degradation": {"higher": -change, "lower": change, "none": abs(change)}[direction],
        "se": 0.004 if math.isfinite(change) else None,
        "se_points": 0.003 if math.isfinite(change) else None,
        "se_draws": None,
        "p_value": (0.0002 if outcome == "worse" else 0.2) if gated else None,
        "p_adjusted": (0.004 if outcome == "worse" else 1.0) if gated else None,
        "tolerance": 0.01 if gated else None,
        "outcome": outcome,
        "detectable": 0.0153 if gated else None,
    }
    return EstimateComparison(**{**given, **other})


def detected(baseline: float, current: float, outcome: str, metric: str = "auroc", **other: Any) -> EstimateComparison:
    """An estimate of svhn by mutual information."""
    return compared(metric, baseline, current, outcome, **{"set": "svhn", "score": "mutual_information", **other})


WORSE = (
    compared("pll", -0.301, -0.342, "worse", se=0.009),
    compared("ece", 0.021, 0.063, "worse"),
    compared("pll", -0.301, -math.inf, "worse", method="mcdo", p_value=0.0, p_adjusted=0.0),
    compared("mutual_information", 0.05, 0.09, "worse", method="mcdo"),
)
SVHN = (
    detected(0.90, 0.80, "worse", "aupr_in", p_value=1e-9, p_adjusted=3e-8),
    detected(0.92, 0.85, "worse"),
    detected(0.30, 0.40, "worse", "fpr95"),
    detected(0.30, 0.39, "worse", "fpr95_id_positive"),
)
REST = (
    compared("accuracy", 0.91, 0.90, "same", p_adjusted=0.003, degradation=0.01),  # real, but tolerated
    compared("brier", 0.120, 0.140, "inconclusive", decisive=Decisive((("test", 3400),), 128)),  # perhaps not real
    detected(0.95, 0.93, "inconclusive", "aupr_out", decisive=Decisive((("test", 3400), ("svhn", 6800)), None)),
    compared("aurc", 0.0100000000001, 0.01, "same"),
    compared("accuracy", 0.91, 0.91, "same", method="deterministic", se=0.0, se_points=0.0),
    compared("brier", 0.1, 0.1, "same", method="deterministic", se=0.003),
    compared("normalized_pll", 12.0, 25.0, "better", set="normalized"),
    compared(
        "pll", math.nan, -0.3, "not gated", set="bounds/constant", direction="none", change=math.nan, degradation=0.0
    ),
    compared("mutual_information", 0.3, 0.2, "not gated", set="svhn"),
    compared("expected_entropy", 0.3, 0.3, "not gated", method="mcbn+mcdo"),
)


def verdict(*comparisons: EstimateComparison, **other: Any) -> CheckVerdict:
    """The verdict on these, with a baseline where there are any."""
    given = {
        "current": CURRENT, "baseline": BASELINE if comparisons else None, "pairing": PAIRING if comparisons else None,
        "comparisons": comparisons, "floors": (), "findings": (), "bnuq": "0.1.0", "seconds": 0.25,
    }  # fmt: skip
    return CheckVerdict(**{**given, **other})


def everything() -> CheckVerdict:
    return verdict(
        *WORSE,
        *SVHN,
        *REST,
        floors=(KEPT, BROKEN),
        findings=(
            warning("older-than-baseline", current="now.h5", baseline="base.h5"),
            note("settings-of-run-file", file="bnuq.toml"),
        ),
    )


def unchanged() -> CheckVerdict:
    return verdict(
        *(replace(one, current=one.baseline, change=0.0, degradation=0.0, outcome="same", se=0.0) for one in SVHN)
    )


def accepted() -> CheckVerdict:
    return verdict(*WORSE, *REST, accepted=BASELINE.path, kept=Path("/runs/base.20260301T000000Z.h5"))


def hostile() -> CheckVerdict:
    """All text that comes out of a file says what it should not; methods are known ones, as files are checked."""
    side = replace(CURRENT, path=Path(f"/runs/{EVIL}.h5".replace("\0", "")), checkpoint=EVIL, time=EVIL)
    return verdict(
        *[replace(one, method="mcbn", set=EVIL) for one in (*WORSE, *SVHN, *REST)],
        current=side,
        baseline=side,
        pairing=Pairing((EVIL,), (), ((EVIL, EVIL),)),
        floors=(replace(BROKEN, address=EVIL), replace(KEPT, address=EVIL)),
        findings=(warning(EVIL, text=EVIL), note(EVIL, text=EVIL)),
    )


def crowded() -> CheckVerdict:
    """Four methods and three sets of long names, all worse: 240 estimates."""
    sets = ("svhn", "pictures_of_something_else_entirely", "even_stranger_things_seen_at_night_from_far_away")
    estimates = [
        detected(0.9, 0.8, "worse", metric, method=method, set=name, score=score)
        for method in ("deterministic", "mcbn", "mcdo", "mcbn+mcdo")
        for name in sets
        for score in ("mutual_information", "predictive_entropy", "expected_entropy", "least_confidence")
        for metric in ("auroc", "aupr_out", "aupr_in", "fpr95", "fpr95_id_positive")
    ]
    return verdict(*estimates)


ALL = {
    "everything": everything(),
    "unchanged": unchanged(),
    "one": verdict(WORSE[0]),
    "rest": verdict(*REST),
    "floors alone": verdict(floors=(KEPT,)),
    "a broken floor alone": verdict(floors=(BROKEN,)),
    "broken beside the same": verdict(*REST, floors=(BROKEN, KEPT)),
    "nothing gated": verdict(*(one for one in REST if one.outcome == "not gated")),
    "accepted": accepted(),
    "accepted without a comparison": verdict(
        accepted=Path("/runs/base.h5"), findings=(note("new-since-baseline", what="set", names=["svhn"]),)
    ),
    "inconclusive fails": verdict(*REST, inconclusive_fails=True),
    "a history": verdict(
        *REST[:3], replace(REST[1], slope=True), history=(replace(BASELINE, path=Path("/runs/a.h5")), BASELINE)
    ),
    "hostile": hostile(),
    "crowded": crowded(),
}
