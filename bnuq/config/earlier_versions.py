"""Names in results of earlier versions: what they are now, and what is no longer there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RENAMED_FINDINGS = {  # codes
    "law-understates": "noise-model-understates",
    "law-overstates": "noise-model-overstates",
    "law-unchecked": "noise-model-unchecked",
}
_RENAMED_SETTINGS = {"law_draws": "noise_model_draws"}  # of [sampling], as are those that were removed
_REMOVED_SWITCHES = ("per_query", "query_in_batch")
INSTEAD = {  # of settings that are no longer there: what to do
    "sampling.predictions": "It is gone: score the file with bnuq score, and compare the two with bnuq report.",
}


def in_current_settings(record: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded run with the names of today, and without switches that are no longer there and were off."""
    sampling = record.get("sampling")
    if not isinstance(sampling, Mapping):
        return dict(record)
    current = {
        _RENAMED_SETTINGS.get(key, key): value
        for key, value in sampling.items()
        if key not in _REMOVED_SWITCHES or value
    }
    return {**record, "sampling": current}


def removed_settings(record: Mapping[str, Any]) -> list[str]:
    """The switches of a recorded run that are no longer there, and were on."""
    sampling = record.get("sampling")
    return [key for key in _REMOVED_SWITCHES if isinstance(sampling, Mapping) and sampling.get(key)]
