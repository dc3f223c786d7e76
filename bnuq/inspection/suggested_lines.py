"""The lines of a run file for the training pipeline that was found, with how sure each is."""

from __future__ import annotations

from collections.abc import Iterator

from bnuq.config import Normalize
from bnuq.config.normalizations import PUBLISHED
from bnuq.config.runfile_writing import Line
from bnuq.data import Points
from bnuq.inspection.pipelines import DATA_OWN, Suggestion
from bnuq.records.evaluation import MEDIAN_LIMIT, WORST_LIMIT

TODO = "TODO: "  # opens the comment of a line that is to be filled in
LIKELY = "likely, not certain: "  # and of one that is to be checked
_TOPICS = {  # what a ranking leaves undetermined, by key
    "normalize": ("normalize",),
    "channel_order": ("channel order",),
    "augment": ("pad and crop", "flip"),
}


def suggested_lines(suggestion: Suggestion, points: Points, *, by_test: bool) -> Iterator[Line]:
    """The lines of [data] for the best pipeline; comments, where no pipeline fits. `by_test` says that it was searched
    on the test set."""
    ranking = suggestion.pipelines
    best, tried = ranking.candidates[0], len(ranking.candidates) + len(ranking.first_round)
    ratios = (
        f"{best.worst:.1f} times batch noise in the worst layer, {best.median:.1f} in the median (limits "
        f"{WORST_LIMIT:g} and {MEDIAN_LIMIT:g})"
    )
    above = f"Of {tried} pipelines, this fits the running statistics best: {ratios}."
    if not best.passed:
        above = f"None of {tried} pipelines fits the running statistics. The closest: {ratios}."
    above += " Searched on the test set, as train is unknown." * by_test
    undetermined = {text.partition(":")[0]: text for text in ranking.undetermined}
    for key, value in suggestion.settings.items():
        unsure, is_default = key in suggestion.undetermined, value in (None, "rgb")
        only_for_pictures = key == "augment" and len(points.point_shape) != 3
        if is_default and (only_for_pictures or (key == "channel_order" and not unsure)):
            continue
        texts = [undetermined[topic] for topic in _TOPICS[key] if topic in undetermined]
        comment = "found: nothing else that was tried fits as well"
        if unsure:
            comment = f"{LIKELY}{'; '.join(texts)}"
        if not best.passed:
            comment = f"{TODO}as in training; this is {'a guess' if unsure else 'the closest'}"
        if key == "normalize" and isinstance(value, Normalize):
            own = best.normalize == DATA_OWN and len(value.mean) > 4 and not by_test
            value = "train" if own else _named(value)
        shown = "none" if value is None else value
        yield Line(key, shown, comment, active=best.passed, above=above if key == "normalize" else "")


def _named(normalize: Normalize) -> Normalize | str:
    """The name of a published normalisation, else the numbers."""
    numbers = (normalize.mean, normalize.std)
    return next((name for name, published in PUBLISHED.items() if published == numbers), normalize)
