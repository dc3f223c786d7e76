"""An error in the request that can be seen without torch is reported before torch is imported, which takes a second."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

RUN_FILE = """[model]
checkpoint = "model.pt"
arch = "net.py:net"
[data]
train = "points.npz"
test = "points.npz"
[sampling]
samples = 2
"""
NO_TEST = RUN_FILE.replace('test = "points.npz"\n', "")
NO_SET = "there is no such file or folder"
NO_FILE = "there is no such file. Check the path."
NOT_A_RESULT = "is not an HDF5 file (it looks like text)"
REFUSED = {  # the words of a command, and what its message holds
    "evaluate run.toml --samples many": "--samples is many; expected a whole number",
    "evaluate run.toml --samples 0 --method no": "2 settings are wrong",
    "evaluate run.toml --no 1": "No such option: --no",
    "evaluate run.toml --set-coverage 2": "--set-coverage is 2",
    "evaluate none.pt": f"none.pt: {NO_FILE}",
    "evaluate none.toml": "none.toml: there is no such run file",
    "evaluate net.py": "net.py: is a text file",
    "evaluate broken.toml": "broken.toml is not a TOML file",
    "evaluate no-test.toml": "there is no labelled test set to evaluate on",
    "evaluate no-test.toml --samples many": "--samples is many",
    "evaluate run.toml --arch no.py:net": "no.py:net: cannot read",
    "evaluate run.toml --test none.npz": f"none.npz: {NO_SET}",
    "evaluate run.toml --train none": f"none: {NO_SET}",
    "evaluate run.toml --ood none.npz": f"none.npz: {NO_SET}",
    "evaluate run.toml --validation none.npz": f"none.npz: {NO_SET}",
    "evaluate run.toml --test svhn": "svhn:test: not found",
    "evaluate run.toml --test svhn:none": "svhn:none: there is no such split",
    "evaluate run.toml --ood empty.npz": "empty.npz: is empty",
    "evaluate run.toml --predictions none.npz": "No such option: --predictions",
    "evaluate run.toml --out none/r.h5": "the folder {folder}/none does not exist",
    "evaluate run.toml --out net.py": "net.py is not a result of bnuq",
    "evaluate run.toml --bank 1": "--bank is 1",
    "evaluate run.toml --baseline none.h5": "No such option: --baseline",
    "evaluate run.toml --shard 0/2": "No such option: --shard",
    "evaluate --from net.py": NOT_A_RESULT,
    "evaluate model.pt --from none.h5": "leave out the model",
    "sweep-batch-size run.toml --samples 1": "--samples is 1; expected at least 2",
    "sweep-batch-size run.toml --samples auto": 'samples is "auto", which a sweep does not support',
    "sweep-batch-size run.toml --criterion auroc": "no OOD set, which --criterion auroc needs",
    "sweep-batch-size run.toml --prior gaussian": 'the prior "gaussian" needs --prior-mean',
    "sweep-batch-size none.pt": f"none.pt: {NO_FILE}",
    "sweep-batch-size run.toml --test none.npz": f"none.npz: {NO_SET}",
    "inspect none.pt": f"none.pt: {NO_FILE}",
    "inspect run.toml --train none.npz": f"none.npz: {NO_SET}",
    "inspect run.toml --out none/i.h5": "the folder {folder}/none does not exist",
    "inspect run.toml --points 0": "--points is 0",
    "precise-bn run.toml": "Missing option '--out'",
    "precise-bn run.toml --out model.pt": "is a file that this run reads",
    "precise-bn run.toml --out p.safetensors": "the file is written in the format that was read",
    "precise-bn run.toml --out p.pt --train none.npz": f"none.npz: {NO_SET}",
    "export run.toml --out p.txt": "expected a name that ends in .pt2",
    "export run.toml --out p.pt2 --method no": "--method no cannot be exported",
    "export run.toml --out p.pt2 --samples auto": "--samples auto needs labels",
    "export no-test.toml --out p.pt2": "there is no labelled test set",
    "check none.h5 none.h5": f"none.h5: {NO_FILE}",
    "check net.py net.py": NOT_A_RESULT,
    "report none.h5": f"none.h5: {NO_FILE}",
    "report net.py --html none/p.html": "none/p.html: its folder does not exist",
    "init net.py": "net.py: is a text file",
    "merge none": "No such command 'merge'",
}
IN_TURN = """
import contextlib, io, json, sys
from bnuq.cli import main
answers = {}
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            main(words.split())
        except SystemExit as leave:
            answers[words] = leave.code, said.getvalue(), "torch" in sys.modules
    if "torch" in sys.modules:
        break
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, tuple[int, str, bool]]]:
    """The folder, and the exit code and message of each command, and whether torch was imported by then: one process
    for all, which ends with the first that imports it."""
    folder = tmp_path_factory.mktemp("before_torch")
    torch.save(nn.BatchNorm1d(3).state_dict(), folder / "model.pt")
    np.savez(folder / "points.npz", x=np.zeros((4, 3), np.float32), y=np.arange(4))
    files = {"net.py": "from torch import nn\n", "run.toml": RUN_FILE, "no-test.toml": NO_TEST, "broken.toml": "[a"}
    for name, text in (files | {"empty.npz": ""}).items():
        (folder / name).write_text(text)
    environment = {key: value for key, value in os.environ.items() if key != "BNUQ_DATA"}
    environment |= {"XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, "-c", IN_TURN, json.dumps([*REFUSED])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder, env=environment)
    return folder, json.loads(done.stdout)


@pytest.mark.parametrize("words", REFUSED)
def test_an_error_in_the_request_is_reported_without_torch(answers, words):
    folder, given = answers
    code, message, imported = given[words]
    assert REFUSED[words].format(folder=folder) in message
    assert (code, imported) == (2, False)
