"""The zip archives that torch writes: what they hold, found out and checked before anything in them is read."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal

from bnuq.errors import ModelError
from bnuq.frozen import frozen
from bnuq.models.pickles import PickleSurvey, survey_pickle

_MOST_TEXT = 2**26  # bytes of the code of a TorchScript archive, its only compressed members
_PROGRAMS = re.compile(r"(?:.+/)?(?:models/[^/]+\.json|serialized_exported_program\.json|serialized_state_dict\.pt)")
_MARKED = re.compile(r"(?:.+/)?(?:archive_format|data/aotinductor/.+)")


@frozen
class Archive:
    """A zip archive whose members are within bounds and match their checksums. `root` is the folder of the first."""

    path: Path
    root: str
    content: zipfile.ZipFile
    sizes: Mapping[str, int]

    @cached_property
    def form(self) -> Literal["TorchScript", "exported program", "checkpoint"]:
        """What torch wrote, by the names of the members."""
        if any(_PROGRAMS.fullmatch(name) or _MARKED.fullmatch(name) for name in self.sizes):
            return "exported program"
        return "TorchScript" if is_torchscript(self.sizes, self.root) else "checkpoint"

    def survey(self) -> PickleSurvey:
        """What the pickle of a checkpoint requests; ModelError for storages that are shorter than it says."""
        survey = survey_pickle(self.content.read(f"{self.root}/data.pkl"))
        check_storages(
            self.path, survey, {key: self.sizes.get(f"{self.root}/data/{key}", 0) for key in survey.storages}
        )
        return survey


def is_torchscript(names: Collection[str], root: str) -> bool:
    """Whether an archive with members of these names is TorchScript, saved by `torch.jit.save`."""
    return f"{root}/constants.pkl" in names or any(name.startswith(f"{root}/code/") for name in names)


def check_storages(path: Path, survey: PickleSurvey, available: Mapping[str, int]) -> None:
    """Raise ModelError where a storage has fewer bytes `available` than it needs."""
    for key, needed in survey.storages.items():
        if needed > available[key]:
            raise ModelError(
                f"{path}: storage {key} needs {needed} bytes and has {available[key]}: the file is damaged or forged. "
                f"Fetch or write it again."
            )


def opened(path: Path, data: bytes) -> Archive:
    """The archive in `data`; ModelError where it unpacks to more than torch writes, lists a member twice, names a place
    outside of it, or is damaged."""
    content = zipfile.ZipFile(io.BytesIO(data))
    members = content.infolist()
    root = members[0].filename.partition("/")[0] if members else ""
    archive = Archive(path, root, content, {member.filename: member.file_size for member in members})
    outside = [name for name in archive.sizes if ".." in name.split("/") or name.startswith("/") or "\\" in name]
    if outside:
        raise ModelError(f"{path}: lists the member {outside[0]!r}, which lies outside of it: it is hostile.")
    code = f"{root}/code/" if archive.form == "TorchScript" else None
    text = sum(member.file_size for member in members if code and member.filename.startswith(code))
    declared = sum(member.file_size for member in members) - text
    if declared > len(data) or text > _MOST_TEXT:
        raise ModelError(
            f"{path}: its members unpack to {declared + text} bytes, the file has {len(data)}. torch stores weights "
            f"uncompressed, so this file was changed or made to exhaust memory. Save it again with torch."
        )
    if len({name if code else name.casefold() for name in archive.sizes}) < len(members):
        raise ModelError(f"{path}: lists a member twice, as torch never does. Save it again with torch.")
    broken = content.testzip()
    if broken is not None:
        raise ModelError(
            f"{path}: {broken} does not match its checksum (CRC-32): the file is damaged. Fetch or write it again."
        )
    return archive
