"""Where a result comes from."""

from __future__ import annotations

from pathlib import Path

from bnuq.files.content import sha256_of_file
from bnuq.trust import code_of


def test_code_is_the_named_file_and_all_that_it_imports_from_its_folder(tmp_path: Path):
    package = tmp_path / "parts"
    package.mkdir()
    (tmp_path / "net.py").write_text("def net():\n    from parts.acts import act\n    return act\n")
    (package / "__init__.py").write_text("")
    (package / "acts.py").write_text("import numpy\nfrom . import scale\nact = scale.SCALE\n")
    (package / "scale.py").write_text("SCALE = 1.0\n")
    (tmp_path / "other.py").write_text("unused = 1\n")
    (tmp_path / "broken.py").write_text("import other\ndef net(:\n")
    imported = [package / name for name in ("__init__.py", "acts.py", "scale.py")]

    def code(arch: str) -> list[str]:
        return code_of(arch, tmp_path)

    assert code("net.py:net") == sorted(map(sha256_of_file, [tmp_path / "net.py", *imported]))
    assert code("parts.acts:act") == sorted(map(sha256_of_file, imported))
    assert code("torchvision:resnet18") == code("absent.py:net") == []
    assert code("broken.py:net") == [sha256_of_file(tmp_path / "broken.py")]
