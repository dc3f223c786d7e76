"""Validates what a command printed as JSON against its published schema, also against unknown keys."""

from __future__ import annotations

from typing import Any

import jsonschema

from bnuq.report.json_schema import schema


def closed(part: Any) -> Any:
    """The schema with no further keys where it names some: what it does not describe is an error."""
    if isinstance(part, list):
        return [closed(each) for each in part]
    if not isinstance(part, dict):
        return part
    inside = {key: closed(value) for key, value in part.items()}
    return {"additionalProperties": False} | inside if isinstance(part.get("properties"), dict) else inside


def errors(value: Any, name: str) -> list[str]:
    """What is wrong with a value by this schema, as published and closed."""
    published = schema(name)
    jsonschema.Draft202012Validator.check_schema(published)
    assert [*jsonschema.Draft202012Validator(published).iter_errors(value)] == []
    found = jsonschema.Draft202012Validator(closed(published)).iter_errors(value)
    return [f"{error.json_path}: {error.message[:200]}" for error in found]
