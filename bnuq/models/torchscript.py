"""TorchScript archives: loaded only if all that they name are computations.

torch reads them without Python's pickle, but what they hold is a program, parts of which run while it is loaded. So its
text is inspected first: it may use torch's own operations, but none that touch files, the terminal or other libraries.
"""

from __future__ import annotations

import io
import re
import warnings
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import torch
from torch import nn

from bnuq.errors import ModelError, UntrustedCodeError
from bnuq.models.archives import Archive, check_storages
from bnuq.models.pickles import survey_pickle

_FILES = re.compile(r"(?<!\w)(?:save|from_file)(?!\w)")
_TERMINAL = re.compile(r"(?<![\w.])print(?=\s*\()|ops\.prim\.Print")
_TEXT = re.compile(r'"[^"\n]*"')
_LIBRARY = re.compile(r"(?<![\w.])ops(?!\.(?:aten|prim|torchvision|quantized)\.)[\s.\w]{0,40}")
_OBJECTS = re.compile(r"torch\.classes\.(?!quantized\.)[\w.]{0,40}")
_QUANTIZED = re.compile(r"ops\.quantized\.|torch\.classes\.quantized\.")
_ARGUMENTS = r"\((?:[^()\n]|\([^()\n]*\))*"
_IN_TRAINING_MODE = re.compile(  # as a trace has it: a script asks the module for its mode
    rf"torch\.\w*dropout_?{_ARGUMENTS}, (?!0\.?,)[\d.e-]+, True\)"
    rf"|torch\.batch_norm{_ARGUMENTS}, (?!None, )\w+, \w+, True, [\d.e-]+, [\d.e-]+, \w+\)"
)
_KEPT = re.compile(r"code/.*\.py|(?:data|constants|tensors)/\d+|data\.pkl|constants\.pkl|(?:\.data/)?version|byteorder")
_OPERATOR = re.compile(r"[-+*/%@|&^~<>=]|\b(?:not|and|or|if|elif)\b")
_DEEPEST = 200  # brackets within each other, and levels of indentation
_LONGEST = 2000  # operators in a statement: torch's parser recurses, and a crash has no message


def read_torchscript(archive: Archive, *, trust: bool) -> nn.Module:
    """The scripted or traced network in an archive, on the CPU.

    What is loaded is another archive, made of the members that were looked at. Raises ModelError for a quantized
    network, for one that was traced in training mode and for a damaged archive, UntrustedCodeError for one that names
    more than computations, unless `trust`.
    """
    path, root = archive.path, archive.root
    members = {name: data for name, data in archive.members().items() if _KEPT.fullmatch(name.removeprefix(f"{root}/"))}
    texts = {name: data.decode() for name, data in members.items() if name.endswith(".py")}
    for name, text in texts.items():
        if _QUANTIZED.search(text):
            raise ModelError(
                f"{path}: is a quantized network: its layers compute with whole numbers, and BatchNorm is folded into "
                "them. Give the network from before the conversion."
            )
        if _IN_TRAINING_MODE.search(text):
            raise ModelError(
                f"{path}: was traced in training mode: its BatchNorms take the statistics of every batch, and its "
                "dropouts draw, in evaluation mode too. Trace the network after .eval()."
            )
        if too_deep(text):
            raise ModelError(f"{path}: {name} nests too deep for torch's parser; it is damaged or hostile.")
    named = sorted({*_named_by_code(texts.values()), *_named_by_pickles(path, members, root)})
    if named and not trust:
        raise UntrustedCodeError(
            f"{path}: is TorchScript that names more than computations: {', '.join(named[:5])}. Nothing was run. If "
            "you trust whoever made the file, add --trust-pickle (in Python: trust_pickle=True)."
        )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as copy:
        for name, data in members.items():
            copy.writestr(name, data)
    buffer.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torch.jit is deprecated
        return torch.jit.load(buffer, map_location="cpu")


def _named_by_code(texts: Collection[str]) -> Iterator[str]:
    for text in texts:
        for pattern in (_FILES, _TERMINAL, _LIBRARY, _OBJECTS):
            yield from (" ".join(match.split()) for match in pattern.findall(text))
        if "getattr" in text and _hides_names(text):
            yield "getattr of a name that is not written out"


def _hides_names(text: str) -> bool:
    """Whether a text in the code may be another than it looks: with escapes, or in several pieces."""
    rest = _TEXT.sub("\0", text)
    return "\\" in text or any(quote in rest for quote in "\"'") or re.search(r"\0\s*\0", rest) is not None


def _named_by_pickles(path: Path, members: Mapping[str, bytes], root: str) -> Iterator[str]:
    """What the pickles of attributes and constants name beyond tensors and the classes of the archive's own code."""
    for name in ("data", "constants"):
        survey = survey_pickle(members[f"{root}/{name}.pkl"])
        check_storages(path, survey, {key: len(members.get(f"{root}/{name}/{key}", b"")) for key in survey.storages})
        yield from (code for code in survey.code if not re.fullmatch(_OWN, code))


_OWN = r"__torch__\.(?!torch\.classes\.)[\w.]+|torch\.jit\._pickle\.\w+"


def too_deep(text: str) -> bool:
    """Whether brackets, blocks or operators nest deeper than torch's parser could follow without a crash."""
    depth = operators = 0
    if "\\\n" in text or text.count("elif") > _LONGEST:
        return True
    for line in text.splitlines():
        indented = len(line) - len(line.lstrip())
        if depth == 0:
            operators = 0
        operators += sum(1 for _ in _OPERATOR.finditer(line))
        opened = 0
        for bracket in re.findall(r"[()\[\]{}]", line):
            opened += 1 if bracket in "([{" else -1
            if depth + opened > _DEEPEST:
                return True
        depth = max(0, depth + opened)
        if operators > _LONGEST or (depth == 0 and indented > 2 * _DEEPEST):
            return True
    return False
