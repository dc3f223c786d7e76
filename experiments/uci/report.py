"""The table of a reproduced experiment beside the published one, on a terminal and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from bnuq.catalogue import texts
from bnuq.report.document import BulletList, Cell, Paragraph, Report, ReportSection, Table, explanations
from bnuq.report.render import markdown as as_markdown
from experiments.summary import report_of
from experiments.uci.record import METHODS, METRICS, VERDICTS, MethodOutcome, Reproduction, SetOutcome

_WIDE = 100  # columns beyond which the 95 % intervals are shown
_SHORT = {"crps": "CRPS", "pll": "PLL"}
_VERDICT_STYLES = {"agrees": "green", "differs": "yellow"}


def report(result: Reproduction, *, columns: int = 100) -> Report:
    """The report: the scores beside the published ones, and what explains them; intervals where there is room."""
    return report_of(
        result,
        subject=result.source,
        facts=_facts(result),
        summary=_summary(result),
        sections=_sections(result, wide=columns > _WIDE),
        notes=_notes(result),
    )


def markdown(result: Reproduction) -> str:
    """The report as a page of its own: headed by the paper, with the 95 % intervals, without where the result lies."""
    paper = replace(report(result, columns=_WIDE + 1), command=result.source, version="", path=None)
    methods = list(next(iter(result.sets.values())).methods)
    option = "" if methods == ["mcbn", "mcdo"] else f" --method {','.join(m for m in methods if m != 'vi-bn')}"
    made = [result.provenance.get(key, "") for key in ("time", "device", "torch")]
    on = f" Made {made[0][:10]} on {made[1]}, torch {made[2]}." if all(made) else ""
    instructions = ReportSection("", (Paragraph(f"Run again by `python -m experiments uci{option}`.{on}"),))
    return as_markdown(replace(paper, sections=(instructions, *paper.sections)), level=1)


def _sections(result: Reproduction, *, wide: bool) -> Iterator[ReportSection]:
    for heading, table in _tables(result, wide=wide):
        yield ReportSection(heading, (table,))
    yield ReportSection("", tuple(explanations(_legend())))
    verdicts = "Verdicts, by the 95 % interval of the mean with the same correction"
    yield ReportSection(verdicts, (BulletList(tuple(_verdicts(result))),))


# ── sentences ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _facts(result: Reproduction) -> Iterator[tuple[str, str]]:
    p = result.protocol
    yield "paper", result.source
    outcome = next(iter(result.sets.values()))
    drawn = [method for method in outcome.methods if method not in outcome.learned]
    texts = [f"{p['name']}: T = {p['samples']}"]
    if drawn:
        sizes = f"{p['splits']} splits × {p['seeds']} seeds"
        texts = [f"{p['name']}: {sizes}, T = {p['samples']}, {p['folds']}-fold cross-validation"]
    if p["name"] == "smoke":
        texts.append("a small run that shows that it works, not what the paper did")
    if drawn and p["race"] is not None:
        texts.append(f"settings more than {100 * p['race']:g} % behind are given up from epoch {p['race_from']} on")
    if p["selection_samples"] < p["samples"]:
        texts.append(f"T = {p['selection_samples']} to choose among settings, corrected")
    yield "protocol", "; ".join(texts)
    decays = ", ".join(f"{value:g}" for value in p["weight_decays"])
    sizes, rates = (", ".join(f"{value:g}" for value in p[key]) for key in ("batch_sizes", "dropouts"))
    parts = {"mcbn": f"b {sizes} (MCBN)", "mcdo": f"dropout {rates} (MCDO)"}
    if drawn:
        yield "grid", f"λ {decays}; {'; '.join(parts[method] for method in drawn)}"
    if outcome.learned:
        yield from _of_learned(outcome.learned, p["learned"])
    yield "sets", ", ".join(result.sets)
    seconds = result.seconds
    earlier = f", {_time(seconds['cpu_before'])} of that in an earlier run" if seconds["cpu_before"] > 0 else ""
    processes = "1 process" if result.workers == 1 else f"{result.workers} processes"
    on = f"{processes} of one thread on {result.device}"
    yield "took", f"{_time(seconds['wall'])}, {_time(seconds['cpu'])} of CPU time{earlier}; {on}; seed {result.seed}"


def _of_learned(methods: Sequence[str], p: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    names = ", ".join(METHODS[method] for method in methods)
    decays = ", ".join(f"{value:g}" for value in p["weight_decays"])
    yield (
        names,
        f"{p['splits']} splits × {p['seeds']} {'seed' if p['seeds'] == 1 else 'seeds'}; λ {decays}, the prior of a "
        f"weight being N(0, 1/(λN)) over N rows; mini-batches of {p['batch']}, at most {p['max_epochs']} epochs. λ, "
        f"epochs, τ and σ by one fold of {p['folds']}, as the authors hold out one part for MNF",
    )


def _time(seconds: float) -> str:
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {left:02d} s" if minutes else f"{seconds:.1f} s"


def _summary(result: Reproduction) -> Iterator[str]:
    cells = [cell for *_, cell in result.cells() if cell.published is not None]
    if not cells:
        yield "Nothing was published of these methods."
    same = sum(cell.value * cell.published.value > 0 for cell in cells if cell.published is not None)
    counts = {name: sum(cell.verdict == name for cell in cells) for name in VERDICTS}
    if cells:
        yield f"{same} of {len(cells)} scores have the published sign."
        yield "Verdicts: " + ", ".join(f"{count} {name}" for name, count in counts.items() if count) + "."
    everything = [cell for *_, cell in result.cells()]
    naive, corrected = (
        sum(getattr(cell, key).startswith("*") for cell in everything) for key in ("stars_naive", "stars")
    )
    yield (
        f"{naive} scores have a star if all runs are taken as independent, as published; {corrected} if it is "
        "allowed for that splits share rows."
    )
    for name, method, outcome in _methods(result):
        spread, error = outcome.mean("mc_sd"), outcome.mean("rmse")
        if spread > error:
            yield (
                f"{name}, {METHODS[method]}: passes spread by {spread:.3g}, more than the error of their mean "
                f"({error:.3g}); τ can only add to that, so the prediction stays too wide."
            )


def _methods(result: Reproduction) -> Iterator[tuple[str, str, MethodOutcome]]:
    for name, outcome in result.sets.items():
        for method, runs in outcome.methods.items():
            yield name, method, runs


def _tables(result: Reproduction, *, wide: bool) -> Iterator[tuple[str, Table]]:
    def table(header: tuple[str, ...], cells_of: Callable[[SetOutcome, str], Iterable[Cell]]) -> Table:
        methods = [(name, method) for name, method, _ in _methods(result)]
        rows = ((f"{name} {METHODS[method]}", tuple(cells_of(result.sets[name], method))) for name, method in methods)
        return Table(header, tuple(rows))

    for metric in METRICS:
        header = ["ours", *(["95 % interval"] if wide else []), "stars", "published", "verdict"]
        header += ["Gaussian"] if metric == "pll" else []
        yield f"Normalised {_SHORT[metric]}, %", table(tuple(header), partial(_score, metric=metric, wide=wide))
    heads = ("MC sd", "τ^-1/2", "σ constant", "Spearman", "τ at end", "PLL mixture", "PLL Gaussian", "PLL constant")
    yield "What explains it", table(heads, _explained)
    yield "RMSE, target units", table(("MC mean", "deterministic", "validation", "Gal's MCDO"), _errors)
    heads = ("λ", "b", "dropout", "epochs")
    yield "What cross-validation chose, split by split", table(heads, _chosen)


def _score(outcome: SetOutcome, method: str, *, metric: str, wide: bool) -> Iterator[Cell]:
    score = outcome.cell(method, metric)
    yield _with_error(score.value, score.se)
    if wide:
        ends = (score.low, score.high)
        yield Cell("–" if None in ends else " to ".join(_number(end) for end in ends if end is not None))
    yield Cell(f"{score.stars_naive}/{score.stars}")
    yield Cell("–" if score.published is None else f"{_number(score.published.value)} {score.published.stars}")
    yield Cell(score.verdict, style=_VERDICT_STYLES.get(score.verdict, ""))
    if metric == "pll":
        gaussian = outcome.cell(method, "pll_gaussian")
        yield _with_error(gaussian.value, gaussian.se)


def _explained(outcome: SetOutcome, method: str) -> Iterator[Cell]:
    runs = outcome.methods[method]
    for estimate in ("mc_sd", "noise_sd", "sigma"):
        yield Cell(_three(runs.mean(estimate)))
    yield Cell(_number(runs.rank_correlation()))
    yield Cell(f"{100 * runs.at_end:.0f} %")
    for estimate in ("pll_mixture", "pll_gaussian", "pll_constant"):
        yield Cell(_number(runs.mean(estimate), 3))


def _errors(outcome: SetOutcome, method: str) -> Iterator[Cell]:
    runs = outcome.methods[method]
    yield Cell(_three(runs.mean("rmse")))
    yield Cell(_three(runs.mean("rmse_deterministic")))
    yield Cell(_three(float(runs.choices.rmse.mean())))
    yield Cell(", ".join(f"{value:.2f}" for value in outcome.gal_rmse) if method == "mcdo" else "")


def _chosen(outcome: SetOutcome, method: str) -> Iterator[Cell]:
    for key in ("weight_decay", "batch_size", "dropout", "final_epochs"):
        yield Cell(" ".join(f"{value:g}" for value in getattr(outcome.methods[method].choices, key)))


def _legend() -> Iterator[str]:
    yield (
        "Normalised: 0 is the best constant uncertainty around the same mean, 100 the best one for each point. CRPS is "
        "that of the Gaussian with the variance of the passes and 1/τ; PLL that of their mixture, as published, with "
        "that of the Gaussian beside it."
    )
    yield (
        "± standard error over splits, corrected for the rows that they share. Stars, by a two-sided test against 0 "
        "(* .05, ** .01, *** .001, **** .0001; ns none): as published, all runs taken as independent / ours, Nadeau "
        "and Bengio's correction for splits that share rows. A score may be significantly worse than 0."
    )
    yield (
        "MC sd: root mean square of the passes' standard deviation on test rows; τ^-1/2: the noise added to it; σ "
        "constant: the baseline's; all in target units, like RMSE. Spearman: rank correlation of predicted sd and "
        "absolute error. τ at end: share of splits whose τ lies at an end of the authors' range. Gal's MCDO: other "
        "splits, in the paper and rerun."
    )


def _verdicts(result: Reproduction) -> Iterator[str]:
    """Those that were given, in words."""
    shown = {cell.verdict for *_, cell in result.cells()}
    yield from (f"{name}: {words}." for name, words in VERDICTS.items() if name in shown)


def _notes(result: Reproduction) -> Iterator[str]:
    grid = result.protocol
    if learned := next(iter(result.sets.values())).learned:
        yield from _learned_notes(learned)
    for name, outcome in result.sets.items():
        chosen = outcome.protocol
        differences = [
            f"{word} {', '.join(f'{value:g}' for value in chosen[key])}"
            for key, word in (("weight_decays", "λ"), ("batch_sizes", "b"), ("dropouts", "dropout"))
            if tuple(chosen[key]) != tuple(grid[key])
        ]
        if chosen["max_epochs"] != grid["max_epochs"]:
            differences.append(f"at most {chosen['max_epochs']} epochs, racing at {100 * (chosen['race'] or 0):g} %")
        if differences and len(outcome.learned) < len(outcome.methods):
            yield f"{name}: its own grid: {'; '.join(differences)}."
        if outcome.learned and (less := chosen["learned"])["max_epochs"] != grid["learned"]["max_epochs"]:
            yield (
                f"{name}, learned noise: at most {less['max_epochs']} epochs, mini-batches of {less['batch']}, T = "
                f"{less['samples']}."
            )
        if chosen["most_rows"] is not None:
            yield (
                f"{name}: cross-validation saw {chosen['most_rows']} of {outcome.train} training rows; the final "
                "networks are trained on all of them, for as many steps as were chosen. So τ and the σ of the constant "
                "baseline are those of networks that know less: the baseline is too wide for the final ones."
            )
        if "mcbn" in outcome.methods:
            yield from _batch_warning(name, outcome)
        for method, scored in outcome.methods.items():
            if unfinished := int(scored.choices.unfinished.sum()):
                yield (
                    f"{name}, {METHODS[method]}: {unfinished} of {len(scored.choices.unfinished)} splits were still "
                    "within their patience when the epochs ran out."
                )
            if hits := int(scored.runs.exact_hits.sum()):
                yield f"{name}, {METHODS[method]}: {hits} points that the mean hits exactly are left out of PLL."
    yield from texts(result.findings)


def _learned_notes(methods: Sequence[str]) -> Iterator[str]:
    yield (
        f"{', '.join(METHODS[method] for method in methods)}: trained with the ELBO, all weights Bayesian; the "
        "standard deviation of the likelihood is learned too and serves training alone, τ is fitted as for the other "
        "methods. Epochs are chosen by RMSE, which may end training long before the ELBO has converged."
    )
    if "mnf" in methods:
        yield "MNF: the two hidden layers have flows; the linear output is mean-field."
    if "vi-bn" in methods:
        yield "VI with BN: BatchNorm has population statistics when weights are sampled; no mini-batches are drawn."


def _batch_warning(name: str, outcome: SetOutcome) -> Iterator[str]:
    if left_out := [b for b in outcome.protocol["batch_sizes"] if b not in outcome.batch_sizes]:
        yield (
            f"{name}: b {', '.join(map(str, left_out))} left out, being more than half of a fold's "
            f"{outcome.fold_rows} training rows (--paper-batches tries them)."
        )
    chosen = outcome.methods["mcbn"].choices.batch_size
    full, large = int((chosen >= outcome.fold_rows).sum()), int((2 * chosen > outcome.fold_rows).sum())
    if full:
        yield (
            f"Careful, {name}: in {full} of {len(chosen)} splits the chosen b is no less than a fold's "
            f"{outcome.fold_rows} training rows, as with the paper's own batch sizes. Its passes are then all but "
            "the same: MC variance is next to zero in cross-validation, and τ is fitted as if there were none; the "
            "passes on test rows do differ. Without such b: --no-paper-batches."
        )
    elif large:
        yield f"{name}: in {large} of {len(chosen)} splits the chosen b is more than half a fold."


def _with_error(value: float, error: float | None) -> Cell:
    return Cell(_number(value), "" if error is None else f"±{_number(error)}")


def _number(value: float, digits: int = 2) -> str:
    return (f"{value:.{digits}f}" if math.isfinite(value) else str(value)).replace("-", "−")


def _three(value: float) -> str:
    """Three digits, as of an estimate in a target's own unit."""
    return f"{value:#.3g}".rstrip(".").replace("-", "−")
