"""Prints the lowest version of every direct dependency as constraints of pip, for `make test-floor`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_LOWEST = re.compile(r"([A-Za-z0-9_-]+)>=([0-9.]+)")


def constraints() -> list[str]:
    """NAME==LOWEST of each dependency; torch as in constraints.txt, the one CPU build that is installed."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    lowest = [match for text in dependencies if (match := _LOWEST.fullmatch(text))]
    assert len(lowest) == len(dependencies), "a dependency without a lowest version"
    pinned = re.findall(r"^(torch)==(.*)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    return [f"{name}=={version}" for name, version in (dict(match.groups() for match in lowest) | dict(pinned)).items()]


if __name__ == "__main__":
    print("\n".join(constraints()))
