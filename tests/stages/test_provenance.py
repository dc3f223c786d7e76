"""Where a result comes from."""

from __future__ import annotations

import torch

from bnuq.stages import provenance


def test_versions_of_cuda_that_are_known_are_recorded(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 13000, raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    assert provenance._cuda_versions() == {"cuda": "12.8", "cuda_driver": "13000", "cudnn": "91002"}
