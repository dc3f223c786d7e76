"""The table of all published items at the head of the page of experiments, from the results that are stored.

`python docs/make_papers.py` writes the table, what the experiments say, and the counts in README.md, from
docs/papers.txt and docs/measured/results/*.json. `python docs/make_papers.py store FILE.h5 …` stores results of
`python -m experiments`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
RESULTS = DOCS / "measured" / "results"
PAGE = next(page for page in (DOCS / "measured" / "experiments.md", DOCS / "experiments.md") if page.is_file())
sys.path.insert(0, str(ROOT))  # where experiments/ lies, which is not installed
SAID = (
    "bn-in-vi",
    "bn-in-dropout",
    "stochastic-normalization",
    "normalization-family",
    "normalization-batch",
    "batch-size-schedule",
    "batch-size-fashion-mnist",
    "batch-size-cifar10",
    "optimum-over-n",
    "bn-noise",
    "divisor-dense",
    "divisor-convolutions",
    "precise-bn",
    "precise-bn-8192",
    "pll-over-samples",
    "resnet32",
    "uci-sizes",
)  # whose sentences stand on the page
LEARNT = 0.9  # of the training images, by every network: else a fall of MI over M is none of M alone
VERDICTS = ("holds", "fails", "open", "shown", "not run", "no data")


def store(file: Path) -> None:
    """Write what `report --json` prints of NAME.h5, and the sentences of its report, to measured/results/NAME.json."""
    from bnuq.store import codec
    from experiments.__main__ import _KINDS, _kind

    kind = _kind(codec.kind_of_result(file, known=tuple(_KINDS)))
    record = kind.read(file)
    about = {key: record.provenance[key] for key in ("bnuq", "torch", "device", "time")}
    values: dict[str, Any] = {**kind.summary(record), "sentences": [*kind.report(record).summary], "provenance": about}
    values.pop("result", None)
    text = json.dumps(values, indent=1, ensure_ascii=False) + "\n"
    if "model" in values:  # where it lies is of this machine alone
        text = text.replace(f"{Path(values['model']['path']).parent}/", "")
    text = re.sub(r"(?<=--data-root )\S+", "DATA", re.sub(r"\S+\.work/files-\w+/", "", text))  # and of this run
    (RESULTS / f"{file.stem}.json").write_text(text, encoding="utf-8")


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class NotStoredError(Exception):
    """A result that an item needs is not stored: the item was not run."""


def results() -> dict[str, Any]:
    """The stored results, by name."""
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(RESULTS.glob("*.json"))}


def value_at(stored: dict[str, Any], path: str) -> Any:
    """RESULT:key/key/…, where an element of a list is named by its number or by its name."""
    name, _, keys = path.partition(":")
    if name not in stored:
        raise NotStoredError(name)
    value = stored[name]
    for key in keys.strip().split("/"):
        if isinstance(value, list):
            value = value[int(key)] if key.isdigit() else next(each for each in value if each["name"] == key)
        else:
            value = value[key]
    return value


def in_words(value: Any, digits: int) -> str:
    """A number, or an estimate with its standard error, and that of Monte Carlo apart."""
    estimate = value if isinstance(value, dict) else {"value": value}
    text, error, drawn = f"{estimate['value']:.{digits}f}", estimate.get("se"), estimate.get("mc_se")
    text += "" if error is None else f" ± {error:.{digits}f}"
    text += "" if drawn is None else f" (Monte Carlo ± {drawn:.{digits}f})"
    return text.replace("-", "−")


def computed(stored: dict[str, Any]) -> dict[str, str]:
    """Values that several stored ones give, by the names that docs/papers.txt has for them."""
    uci = _scores(_uci(stored), "mcbn", "mcdo")
    mnf = _mnf(stored)
    pairs = [of["methods"]["mcbn"]["figures"] for of in _uci(stored)["sets"].values()]
    gains = [100 * (1 - each["rmse"] / each["rmse_deterministic"]) for each in pairs]
    layers = stored["bn-noise"]["noise"]["layers"]
    ratios = [layer["sigma_v"] / layer["sigma_u"] for layer in layers]
    rejected = np.average([layer["rejected"] for layer in layers], weights=[layer["channels"] for layer in layers])
    networks = {each["name"]: each for each in stored["normalization-family"]["networks"]}
    kinds = ("none", "BN", "BN, projected", "WN, projected", "AN, projected")
    learned = networks["AN, projected, Bayesian"]["ratios"]
    values = {
        **{name: in_words(estimate, 4) for name, estimate in compared(stored).items()},
        "uci_signs": f"{sum(_same_sign(score) for score in uci)}",
        "uci_agree": f"{sum(score['verdict'] == 'agrees' for score in uci)}",
        "uci_open": f"{sum(score['verdict'] == 'inconclusive' for score in uci)}",
        "uci_stars": f"{sum('*' in score['stars_naive'] for score in uci)}",
        "uci_corrected": f"{sum('*' in score['stars'] for score in uci)}",
        "mnf_signs": f"{sum(_same_sign(score) for score in mnf)}",
        "mnf_scores": f"{len(mnf)}",
        "mnf_open": f"{sum(score['verdict'] == 'inconclusive' for score in mnf)}",
        "rmse_better": f"{sum(gain > 0 for gain in gains)}",
        "rmse_equal": f"{sum(gain == 0 for gain in gains)}",
        "rmse_best": f"{max(gains):.1f}",
        "rmse_worst": f"{-min(gains):.1f}",
        "rejected": f"{100 * rejected:.0f}",
        "slope_k": _range([layer["slope"]["value"] for layer in layers], 2),
        "slope_z": in_words(stored["bn-noise"]["noise"]["spatial_slope"], 2),
        "sigma_u": _range([layer["sigma_u"] for layer in layers], 3),
        "ratio": _range(ratios, 2),
        "ratio_median": f"{np.median(ratios):.2f}",
        "ratios": _row(learned),
        "accuracies": " ".join(f"{100 * networks[kind]['accuracy']['value']:.1f}" for kind in kinds),
        "divisor": " ".join(
            text for name in ("divisor-dense", "divisor-convolutions") for text in stored[name]["sentences"]
        ),
        **_of_sizes(stored["uci-sizes"]),
        "sgd": _over_epochs(stored["batch-size-schedule"]),
        "ema": _by_kind(stored["precise-bn"]),
        "by_layer": _by_layer(stored["precise-bn"]),
    }
    if "batch-size-cifar10" in stored:
        cifar = stored["batch-size-cifar10"]["networks"]
        values["cifar_accuracies"] = _row([each["matched"]["accuracy"]["test"]["value"] for each in cifar], 3)
    if "normalization-family" in stored:
        values |= _of_family({each["name"]: each for each in stored["normalization-family"]["networks"]})
    return {name: text.replace("-", "−") for name, text in values.items()}


def compared(stored: dict[str, Any]) -> dict[str, Any]:
    """Estimates with a 95 % interval that verdicts are computed from, by the names that docs/papers.txt has for them.
    Where a difference of two stored estimates is not stored itself, their errors are added as if they were independent:
    more than it has, where both are of the same networks."""
    found = dict[str, Any]()
    for name, result in (("vi_mcbn", "bn-in-vi"), ("vd_mcbn", "bn-in-dropout")):
        of = stored[result]["differences"]["fashion-mnist: training − use, eq. 3"]
        found[name] = _minus(of["elbo_training"], of["elbo_one_draw"], seeds=stored[result]["experiment"]["seeds"])
    layers = {each["name"]: each for each in stored["precise-bn"]["networks"] if each["set"] == "b = 32"}
    for size in (2, 4, 8):
        of = layers[f"statistics of b = {size}"]
        first, *_, last = (of[key] for key in of if key.startswith("layer"))
        found[f"deeper_{size}"] = _minus(last, first, seeds=of["seeds"])
    for name, scores in (("uci", _scores(_uci(stored), "mcbn", "mcdo")), ("mnf", _mnf(stored))):
        found[f"{name}_share"] = _share(sum(map(_same_sign, scores)), len(scores))
    for name in ("pll-over-samples", "resnet32"):
        found[f"gain_{name}"] = _minus(stored[name]["rows"][-1]["gain"], {"value": 0.0})
    for name in ("batch-size-schedule", "batch-size-fashion-mnist", "batch-size-cifar10"):
        networks = stored[name]["networks"]
        first, *_, last = (each["matched"]["mutual_information"]["test"] for each in networks)
        found[f"fall_{name}"] = _minus(first, last)
        if min(each["training"]["accuracy"] for each in networks) < LEARNT:
            found[f"fall_{name}"] |= {"low": -np.inf, "high": np.inf}
    return found


def _minus(one: dict[str, Any], other: dict[str, Any], *, seeds: int | None = None) -> dict[str, Any]:
    """The difference with its standard error and 95 % interval: by errors over points and of Monte Carlo, or by
    that over so many networks, whose spread holds both."""
    kinds = ("se", "mc_se") if seeds is None else ("se",)
    se = float(np.hypot.reduce([each.get(kind) or 0.0 for each in (one, other) for kind in kinds]))
    value, half = one["value"] - other["value"], se * (1.96 if seeds is None else float(t.ppf(0.975, seeds - 1)))
    return {"value": value, "se": se, "low": value - half, "high": value + half}


def _share(count: int, n: int) -> dict[str, Any]:
    """A share with its 95 % interval by Wilson."""
    z, share = 1.96, count / n
    middle, width = share + z**2 / (2 * n), z * (share * (1 - share) / n + (z / (2 * n)) ** 2) ** 0.5
    low, high = ((middle + sign * width) / (1 + z**2 / n) for sign in (-1, 1))
    return {"value": share, "low": low, "high": high}


def _uci(stored: dict[str, Any]) -> dict[str, Any]:
    """The run of all sets, which was transcribed from its page, with those sets that were run and stored again."""
    again = (stored[name]["sets"] for name in ("uci-boston-yacht", "uci-energy-concrete") if name in stored)
    return {"sets": reduce(or_, again, stored["uci"]["sets"])}


def _mnf(stored: dict[str, Any]) -> list[dict[str, Any]]:
    return [*_scores(stored["uci-learned"], "mnf"), *_scores(stored["uci-mnf"], "mnf")]


def _of_family(networks: dict[str, Any]) -> dict[str, str]:
    shown = [networks[name] for name in ("none", "BN", "WN, projected, Bayesian", "AN, projected, Bayesian")]
    curves = networks["BN"]["curves"]
    return {
        "growth_u": _range(curves["growth of σ_U"], 2),
        "growth_v": _range(curves["growth of σ_V"], 2),
        "losses": "; ".join(f"{name} {curve[0]:.2f} to {curve[-1]:.2f}" for name, curve in [*curves.items()][:3]),
        "coverage": ", ".join(f"{each['name']} {each['error at 60%']['value']:.3f}" for each in shown),
        "disturbed": ", ".join(
            f"{each['name']} {each['accuracy, noise 0.2']['value']:.2f}, {each['accuracy, FGSM 0.02']['value']:.2f}"
            for each in shown
        ),
    }


def _scores(result: dict[str, Any], *methods: str) -> list[dict[str, Any]]:
    sets = [of["methods"] for of in result["sets"].values()]
    return [of[method][score] for of in sets for method in methods for score in ("crps", "pll")]


def _of_sizes(result: dict[str, Any]) -> dict[str, str]:
    """What the run over b and T has: raw CRPS and PLL at b = 32, PLL by b and by T, set by set."""
    at = {(each["set"], each["name"]): each for each in result["networks"]}
    sets, sizes = result["experiment"]["sets"], result["experiment"]["batch_sizes"]

    def row(of: str, names: list[str], key: str = "pll_mixture") -> str:
        return " ".join(f"{at[of, name][key]['value']:.2f}" for name in names if (of, name) in at)

    swept = [of for of in sets if (of, f"MCBN, b = {sizes[0]}, T = 500") in at]
    by_b = [f"MCBN, b = {size}, T = 500" for size in sizes]
    by_t = [f"MCBN, b = 32, T = {count}" for count in (10, 50, 100, 500)]
    usual = by_t[-1:]
    return {
        "raw": ", ".join(f"{of} {row(of, usual, 'crps')}, {row(of, usual)}" for of in sets),
        "sizes": " ".join(map(str, sizes)),
        "over_b": "; ".join(f"{of} {row(of, by_b)}" for of in swept),
        "over_t": "; ".join(f"{of} {row(of, by_t)}" for of in sets),
    }


def _by_kind(result: dict[str, Any]) -> str:
    """Test errors of the last epoch in percent, by λ and with precise statistics, of the large mini-batch."""
    found = [each for each in result["networks"] if each["set"] == result["experiment"]["batch_sizes"][-1]]
    named = [(each["name"], each["error"]["value"]) for each in found if not each["name"].startswith("statistics")]
    return ", ".join(f"{name.removeprefix('EMA, ')} {100 * error:.1f}" for name, error in named)


def _over_epochs(result: dict[str, Any]) -> str:
    """Accuracies of one pass in percent, of the last epoch and of the best, by M."""
    curves = {each["train_batch_size"]: each["curves"]["test accuracy"] for each in result["networks"]}
    return ", ".join(f"M = {size:,} {100 * of[-1]:.1f} {100 * max(of):.1f}" for size, of in curves.items())


def _by_layer(result: dict[str, Any]) -> str:
    """How far ln σ² is off by layer, by statistics of mini-batches of 2 and of 8, in the networks of the small one."""
    found = {each["name"]: each for each in result["networks"] if each["set"] == result["experiment"]["batch_sizes"][0]}
    rows = []
    for size in (2, 8):
        of = found[f"statistics of b = {size}"]
        layers = " ".join(f"{of[key]['value']:.3f}"[1:] for key in of if key.startswith("layer"))
        rows.append(f"b = {size}: {layers}")
    return "; ".join(rows)


def _same_sign(score: dict[str, Any]) -> bool:
    return score["value"] * score["published"] > 0


def _row(values: list[float], digits: int = 2) -> str:
    return " ".join(f"{value:.{digits}f}"[0 if value >= 1 else 1 :] for value in values)


def _range(values: list[float], digits: int) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


# ── the page ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def blocks(stored: dict[str, Any]) -> dict[str, str]:
    """What stands between the markers of the page, by their names."""
    text, counts = table(stored)
    reachable = 55 - counts["no data"]
    head = (
        f"Of {sum(counts.values())} published tables, figures, numbers and claims, {reachable} can be reached with the "
        f"data at hand. {_counted(counts)}"
    )
    found = {"papers": f"{head}\n\n{text}"}
    for name in SAID:
        if name not in stored:
            found[name] = "Not run yet.\n"
            continue
        sentences, about = (stored[name][key] for key in ("sentences", "provenance"))
        said = "".join(f"- {sentence}\n" for sentence in sentences)
        found[name] = f"{said}\n{about['time'][:10]}, {about['device']}, torch {about['torch']}.\n"
    return found


def _counted(counts: dict[str, int]) -> str:
    return (
        f"{counts['holds']} hold, {counts['fails']} fail, {counts['open']} stay open, {counts['shown']} are methods or "
        f"pictures that are shown, {counts['not run']} were not run."
    )


def table(stored: dict[str, Any]) -> tuple[str, dict[str, int]]:
    """The tables of all papers, and how many items have each verdict."""
    aliases, lines, values = dict[str, str](), list[str](), computed(stored)
    counts = dict.fromkeys(VERDICTS, 0)
    for line in (DOCS / "papers.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("@") and " = " in line:
            name, _, text = line.partition(" = ")
            aliases[name] = text
        elif line.startswith("# "):
            head = "| item | published | measured | verdict | `python -m experiments` |"
            lines += ["", f"**{line[2:]}**", "", head, "| --- | --- | --- | --- | --- |"]
        elif line and not line.startswith(";"):
            for alias, text in aliases.items():
                line = line.replace(alias, text)
            item, published, measured, rule, command = map(str.strip, line.split(" | "))
            try:
                measured = re.sub(r"\{([^}]+)\}", lambda found: _filled(stored, values, found[1]), measured)
                verdict = rule if rule in VERDICTS else _verdict(stored, rule)
            except NotStoredError:
                measured, verdict = "–", rule if rule == "no data" else "not run"
            counts[verdict] += 1
            command = command if command in ("–", "as above") else f"`{command}`"
            lines.append(f"| {item} | {published} | {measured} | {verdict} | {command} |")
    text = "\n".join(lines[1:]) + "\n"
    return text.replace("](measured/", "](" if PAGE.parent.name == "measured" else "](measured/"), counts


def _filled(stored: dict[str, Any], values: dict[str, str], place: str) -> str:
    if place.startswith("#"):
        if place[1:] not in values:
            raise NotStoredError(place)
        return values[place[1:]]
    path, _, digits = place.partition("!")
    return in_words(value_at(stored, path), int(digits or 4))


def _verdict(stored: dict[str, Any], rule: str) -> str:
    """Of `PATH < LIMIT`, `PATH > LIMIT` or `|PATH| < LIMIT`: several paths are separated by `&`, and #NAME is one of
    `compared`. What fails does so in our networks."""
    paths, sign, limit = rule.rpartition(" < ") if " < " in rule else rule.rpartition(" > ")
    parts, estimates, most = map(str.strip, paths.strip("|").split("&")), compared(stored), float(limit)
    found = [estimates[part[1:]] if part.startswith("#") else value_at(stored, part) for part in parts]
    ends = [(each["low"], each["high"]) for each in found]
    if rule.startswith("|"):
        ends = [(0.0 if low < 0 < high else min(abs(low), abs(high)), max(abs(low), abs(high))) for low, high in ends]
    elif sign == " > ":
        ends, most = [(-high, -low) for low, high in ends], -most
    return "holds" if all(end[1] < most for end in ends) else "fails" if all(end[0] > most for end in ends) else "open"


def counted_in(stored: dict[str, Any]) -> tuple[Path, str]:
    """The page of this repository that has the counts between its markers `counted`, and that page as it is to be."""
    _, counts = table(stored)
    text = f"of {55 - counts['no data']} published items that can be run again, {_counted(counts)}"
    pattern = r"(<!-- counted -->).*(<!-- /counted -->)"
    for page in (DOCS / "measured" / "README.md", ROOT / "README.md"):
        if page.is_file() and re.search(pattern, before := page.read_text(encoding="utf-8")):
            return page, re.sub(pattern, lambda markers: f"{markers[1]}{text}{markers[2]}", before)
    raise SystemExit("no page has the markers <!-- counted -->")


def main(put: Callable[[Path, str, str], None]) -> None:
    """Write the page of experiments, and the counts in the page that names it."""
    stored = results()
    for name, text in blocks(stored).items():
        put(PAGE, name, text)
    page, text = counted_in(stored)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["store"]:
        for given in sys.argv[2:]:
            store(Path(given))
    else:
        from make_figures import put as put_between_markers

        main(put_between_markers)
