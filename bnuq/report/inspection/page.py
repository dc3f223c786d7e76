"""The page of an inspection: sections for a colleague, each with its pictures and how to read them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from bnuq.records.inspection import Inspection
from bnuq.report.drawing import for_page
from bnuq.report.html import SUB, Picture, picture_at
from bnuq.report.inspection.plots import pictures_of
from bnuq.report.inspection.tables import domain_parts, gap_parts, noise_parts, pipeline_table, site_parts
from bnuq.report.inspection.terminal import DOMAINS, GAP_TITLE, NOISE, PIPELINES, SITES, facts, listing
from bnuq.report.inspection.words import in_words, of_space
from bnuq.report.numbers import count
from bnuq.report.page import OnPage, run_file
from bnuq.report.parts import GAP, Advice, Facts, Items, Listing, Paragraph, PathLine, title
from bnuq.report.plots import draw_all
from bnuq.report.remedies import advised, noted

HOW = {
    "gap": (
        "Layers in execution order. Inside the band, batch noise explains the difference between running "
        "statistics and population; a layer above the dashed line was not trained on this reference and "
        "pipeline. A wrong pipeline shows in the first layers; stale running statistics deviate more towards the "
        "last."
    ),
    "noise_by_layer": (
        "How much the scale and shift of a batch vary, in units of the channel's standard deviation. The dotted "
        "lines show what independent values would give; the gap to the solid lines is the error of that "
        "assumption."
    ),
    "values": (
        "At 1, a channel's b·z values are effectively independent; at 0.01, batch statistics vary like those of "
        "a hundredth as many independent values, because neighbouring positions of an image are correlated."
    ),
    "noise_panels": (
        "First: a layer's batch variances, the χ² distribution of independent Gaussian values, and the "
        "best-fitting scaled χ². Second: how the noise falls with the mini-batch size (dashed line: 1/b). Third: "
        "how it depends on the number of positions of a channel. As in Figure 4 of Shekhovtsov & Flach 2018, for "
        "this network."
    ),
    "spread": "The batch variances of the first layer, one in the middle and the last.",
    "domains": (
        "Inside the band, a domain's statistics match the reference's. Where a line lies above it, a mini-batch "
        "from that domain normalises the layer differently than training did."
    ),
    "pipelines": (
        "Further left is a better fit. Each line runs from the median to the worst layer. A pipeline whose "
        "median lies right of the band, or whose worst layer lies right of the dashed line, is not the training "
        "pipeline."
    ),
}


def page_parts(found: Inspection, folder: Path | None, without: str = "") -> Iterator[OnPage]:
    """What the page is made of, in reading order, its pictures drawn by way of `folder`; `without` says why there are
    none, where that is so."""
    shown: dict[str, Picture] = {}
    if folder is not None:
        with for_page():
            shown = {kind: picture_at(path, HOW[kind]) for (kind,), path in draw_all(pictures_of(found), folder)}
    yield title(f"bnuq {Inspection.COMMAND}: {Path(str(found.model['path'])).name}")
    yield Facts(tuple(facts(found)))
    yield from (title("In short"), Items(tuple(_short(found))))
    if without:
        yield Paragraph(f"Figures are left out: {without}", "dim")
    if found.pipelines is not None:
        yield from (title(PIPELINES), *_of(shown, "pipelines"), *pipeline_table(found.pipelines))
        yield from (part for part in listing(found.pipelines) if part != GAP)
    if found.gap is not None:
        yield from (title(GAP_TITLE), *_of(shown, "gap"), *gap_parts(found.gap))
    if found.noise is not None:
        yield from (title(NOISE), *_of(shown, "noise_by_layer", "values"), *noise_parts(found.noise))
        if law := _of(shown, "noise_panels", "spread"):
            yield from (title("Distribution of the noise", f"bold {SUB}"), *law)
        if text := of_space(found.noise):
            yield Paragraph(text)
    if found.domains is not None:
        yield from (title(DOMAINS), *_of(shown, "domains"))
        yield from (part for part in domain_parts(found.domains) if part != GAP)
    yield from (title(SITES), *site_parts(found))
    if advice := advised(found.findings):
        yield from (title("Warnings", "bold yellow"), Advice(advice))
    if texts := noted(found.findings):
        yield from (title("Notes"), Items(texts))
    yield from _provenance(found)


def _of(shown: dict[str, Picture], *kinds: str) -> list[Picture]:
    return [shown[kind] for kind in kinds if kind in shown]


def _short(found: Inspection) -> Iterator[str]:
    yield from in_words(found)
    if advice := advised(found.findings):
        codes = ", ".join(dict.fromkeys(code for _, code, _ in advice))
        yield f"{count(len(advice), 'warning')} below, with what to do: {codes}."


def _provenance(found: Inspection) -> Iterator[OnPage]:
    """What tells how the estimates came about, and the request itself, to be copied."""
    made = found.provenance
    versions = ", ".join(
        f"{name} {made[name]}" for name in ("bnuq", "python", "torch", "numpy", "h5py") if name in made
    )
    seconds = ", ".join(f"{name} {value:.1f}" for name, value in found.seconds.items() if math.isfinite(value))
    told = {
        "versions": versions,
        "device": ", ".join(str(made[key]) for key in ("device", "platform") if made.get(key)),
        "time": str(made.get("time", "")),
        "command": f"`{made['command']}`" if made.get("command") else "",
        "git revision": f"`{made['git']}`" if made.get("git") else "",
        "checkpoint": f"{found.model['path']}, SHA-256 `{found.model.get('sha256', 'unknown')}`",
        "reference": f"SHA-256 `{made['reference_sha256']}`" if made.get("reference_sha256") else "",
        "seconds": seconds,
    }
    yield title("Provenance")
    yield Facts(tuple((name, text) for name, text in told.items() if text))
    if text := run_file(found.run):
        yield from (title("The run, as resolved", f"bold {SUB}"), Listing("As a run file", text))
    if found.path is not None:
        yield PathLine(found.path)
