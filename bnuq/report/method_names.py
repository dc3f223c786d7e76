"""The methods that a report shows, and how it names them: at the head of a column, and within a sentence."""

from __future__ import annotations

from bnuq.methods import DETERMINISTIC, OWN, POPULATION, method_named
from bnuq.records.evaluation import MethodResult, Result

_NETWORKS = {
    DETERMINISTIC: "the deterministic network",
    POPULATION: "the network with population statistics",
    OWN: "the network normalised by each evaluated batch",
}
_RECALIBRATED = {"temperature": "a temperature", "vector": "vector scaling"}


def method_label(method: str, *, roomy: bool = True) -> str:
    """A method's name at the head of a column; ≈ before one that is an approximation, † after one whose predictions
    depend on each other. Unless `roomy`, long names are shorter."""
    short = method if roomy else method.replace("deterministic+", "det.+")
    short = f"{short} †" if method_named(method).normalizes_jointly else short
    return f"≈ {short}" if method_named(method).approximates else short


def network_in_words(method: str) -> str:
    """A method within a sentence."""
    if method_named(method).is_single and (kind := method_named(method).recalibration):
        return f"{_NETWORKS[method_named(method).plain.name]} with {_RECALIBRATED[kind]}"
    return _NETWORKS.get(method) or method_label(method)


def lowered_by(result: Result) -> list[str]:
    """The recalibrated methods whose PLL is lower than without it."""
    plls = {name: method.sets["test"].estimates.get("pll") for name, method in result.methods.items()}
    pairs = ((name, pll, plls.get(method_named(name).plain.name)) for name, pll in plls.items())
    return [name for name, pll, plain in pairs if pll and plain and pll.value < plain.value]


def plain_methods(result: Result) -> dict[str, MethodResult]:
    """The methods whose logits are not recalibrated."""
    return {name: method for name, method in result.methods.items() if method_named(name).recalibration is None}


def plain_sampled(result: Result) -> list[str]:
    """The methods of several samples whose logits are not recalibrated."""
    return [name for name in result.sampled if name in plain_methods(result)]
