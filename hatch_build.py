"""Metadata of the built package: README.md with its links absolute, as an index shows it far from this repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = re.compile(r"\]\((?!https?://|#)([^)\s]+)\)")


class ReadmeHook(MetadataHookInterface):
    """Fills in `readme`, which pyproject.toml leaves to it; the address is that of [project.urls]."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        files = f"{metadata['urls']['Source']}/blob/main"
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": _RELATIVE.sub(rf"]({files}/\1)", text),
        }
