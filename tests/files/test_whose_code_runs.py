"""Whose code runs: the user's does, a found file's does not, and what is loaded leaves nothing behind."""

import os
import py_compile
import sys

import pytest

from bnuq.errors import DataError, RequestError, UntrustedCodeError
from bnuq.trust import BY_USER, NamedBy, _TrustFinder, names_a_file, resolve_factory


@pytest.fixture(autouse=True)
def own_config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "my [1] folder"
    path.mkdir()
    return path


@pytest.fixture
def found(folder):
    """A run file that names code which leaves a mark when it runs."""
    (folder / "net.py").write_text(
        "from pathlib import Path\nPath(__file__).with_name('ran').touch()\ndef make(): return 1\n"
    )
    (folder / "model.toml").write_text("arch = 'net.py:make'")
    return NamedBy(folder / "model.toml")


@pytest.mark.usefixtures("found")
def test_what_the_user_names_runs(folder):
    assert resolve_factory("net.py:make", base=folder, named_by=BY_USER)() == 1
    assert (folder / "ran").exists()


def test_what_a_found_file_names_does_not_run(folder, found):
    with pytest.raises(UntrustedCodeError) as error:
        resolve_factory("net.py:make", base=folder, named_by=found)
    assert not (folder / "ran").exists()
    for word in ("make", str(folder / "net.py"), str(folder / "model.toml"), "--trust-code"):
        assert word in str(error.value)


def test_trust_is_remembered_until_either_file_changes(folder, found):
    resolve_factory("net.py:make", base=folder, named_by=found, trust=True)
    resolve_factory("net.py:make", base=folder, named_by=found)
    for name in ("net.py", "model.toml"):
        old = (folder / name).read_text()
        (folder / name).write_text(old + "\n# changed")
        with pytest.raises(UntrustedCodeError):
            resolve_factory("net.py:make", base=folder, named_by=found)
        (folder / name).write_text(old)
    resolve_factory("net.py:make", base=folder, named_by=found)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"trusted": [1]}', '{"trusted": 3}', "\x00", "[" * 100_000, "9" * 5000]
)
def test_a_damaged_list_of_trusted_code_trusts_nothing(folder, found, tmp_path, content):
    (tmp_path / "config" / "bnuq").mkdir(parents=True)
    (tmp_path / "config" / "bnuq" / "trusted.json").write_text(content)
    with pytest.raises(UntrustedCodeError):
        resolve_factory("net.py:make", base=folder, named_by=found)
    resolve_factory("net.py:make", base=folder, named_by=found, trust=True)
    resolve_factory("net.py:make", base=folder, named_by=found)


def test_a_module_named_by_a_found_file_is_not_imported(folder, found):
    package = folder / "evil_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('ran')")
    (package / "inner.py").write_text("def make(): return 2")
    for spec in ("evil_package.inner:make", "os:system"):
        with pytest.raises(UntrustedCodeError, match="--trust-code"):
            resolve_factory(spec, base=folder, named_by=found)
    (package / "__init__.py").write_text("")
    assert resolve_factory("evil_package.inner:make", base=folder, named_by=found, trust=True)() == 2


def test_what_trusted_code_imports_from_its_folder_is_asked_for_too(folder, found):
    (folder / "layers_beside.py").write_text("value = 2\n")
    (folder / "late_beside.py").write_text("value = 3\n")
    (folder / "net.py").write_text(
        "import layers_beside as one\ndef make():\n    import late_beside as two\n    return one.value + two.value\n"
    )
    assert resolve_factory("net.py:make", base=folder, named_by=found, trust=True)() == 5
    assert resolve_factory("net.py:make", base=folder, named_by=found)() == 5
    for name in ("layers_beside.py", "late_beside.py"):
        old = (folder / name).read_text()
        (folder / name).write_text(f"from pathlib import Path\nPath({str(folder / 'ran')!r}).touch()\n{old}")
        with pytest.raises(UntrustedCodeError, match=f"{name}.*--trust-code"):
            resolve_factory("net.py:make", base=folder, named_by=found)()
        assert not (folder / "ran").exists()
        (folder / name).write_text(old)
    assert resolve_factory("net.py:make", base=folder, named_by=found)() == 5
    assert not any(isinstance(finder, _TrustFinder) for finder in sys.meta_path)


@pytest.mark.parametrize("where", ["__init__.py", "inner.py", "beside.py"])
def test_an_old_compiled_module_does_not_run_in_place_of_the_source_that_was_trusted(folder, found, where):
    package = folder / "package_of_two"
    package.mkdir()
    (package / "__init__.py").write_text("one = 1\n")
    (package / "beside.py").write_text("two = 1\n")
    (package / "inner.py").write_text("from . import one\nfrom .beside import two\ndef make(): return one + two + 1\n")
    with_old_compiled(package / where)
    for trust in (True, False):
        assert resolve_factory("package_of_two.inner:make", base=folder, named_by=found, trust=trust)() == 3
    assert not any(name.startswith("package_of_two") for name in sys.modules)


def with_old_compiled(path):
    """Beside the source, bytecode of another source that claims to be of this one."""
    true_source = path.read_text()
    path.write_text(true_source.replace("1", "9"))
    stamp = path.stat()
    py_compile.compile(str(path))
    path.write_text(true_source)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


@pytest.mark.usefixtures("found")
def test_an_old_compiled_file_does_not_run_in_place_of_the_source_that_was_hashed(folder):
    with_old_compiled(folder / "net.py")
    assert resolve_factory("net.py:make", base=folder)() == 1


def test_two_folders_may_each_have_their_own_module_of_one_name(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "layers_beside.py").write_text(f"name = {name!r}")
        (tmp_path / name / "late_beside.py").write_text(f"name = {name!r}")
        (tmp_path / name / "net.py").write_text(
            "import layers_beside\ndef make():\n    import late_beside\n"
            "    return layers_beside.name + late_beside.name\n"
        )
    path = list(sys.path)
    makers = [resolve_factory("net.py:make", base=tmp_path / name) for name in ("a", "b")]
    assert [make() for make in makers] == ["aa", "bb"]
    assert sys.path == path
    assert not {"layers_beside", "late_beside"} & set(sys.modules)


def test_a_file_that_fails_is_one_message_and_leaves_nothing(folder):
    (folder / "helper_beside.py").write_text("")
    (folder / "net.py").write_text("import helper_beside\nvalue = 1\nraise ValueError('no such depth')\n")
    modules, path = set(sys.modules), list(sys.path)
    with pytest.raises(
        RequestError, match=r"net\.py:make: loading it failed with ValueError at .*net\.py, line 3: no such depth\. Fix"
    ):
        resolve_factory("net.py:make", base=folder)
    assert set(sys.modules) == modules
    assert sys.path == path


def test_mistakes_in_the_code_say_where(folder):
    for source, message in [
        ("def make(:\n", r"SyntaxError at .*net\.py, line 1"),
        ("import not_installed_here\n", r"ModuleNotFoundError at .*net\.py, line 1: No module named"),
        ("import sys; sys.exit(3)\n", r"SystemExit at .*net\.py, line 1: 3\."),
    ]:
        (folder / "net.py").write_text(source)
        with pytest.raises(RequestError, match=message):
            resolve_factory("net.py:make", base=folder)


def test_an_exception_in_the_call_is_told_and_errors_of_bnuq_pass_through(folder):
    (folder / "net.py").write_text("def make(depth):\n    return 1 / depth\n")
    make = resolve_factory("net.py:make", base=folder)
    assert make(2) == 0.5
    with pytest.raises(RequestError, match=r"ZeroDivisionError at .*net\.py, line 2"):
        make(0)
    (folder / "net.py").write_text("from bnuq.errors import DataError\ndef make(): raise DataError('as it is')\n")
    with pytest.raises(DataError, match=r"^as it is$"):
        resolve_factory("net.py:make", base=folder)()


def test_what_is_not_there_is_told(folder):
    (folder / "net.py").write_text("from os.path import join\ndef resnet(): ...\ndef vgg(): ...\n_x = print\n")
    for spec, message in [
        ("net.py:renset", "has no function 'renset'; it has resnet, vgg."),
        ("none.py:make", "there is no such file"),
        ("not_a_package.module:make", "there is no module 'not_a_package.module'"),
        ("json.none:make", "there is no module 'json.none'"),
        ("net.py", "expected file.py:function or package.module:function"),
        ("net.py:a b", "expected file.py:function"),
    ]:
        with pytest.raises(RequestError) as error:
            resolve_factory(spec, base=folder)
        assert message in str(error.value)


def test_dataclasses_and_classes_work_as_factories(folder):
    (folder / "net.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Net:\n    depth: int = 3\n"
    )
    assert resolve_factory("net.py:Net", base=folder)(depth=4).depth == 4


def test_a_file_and_a_module_are_told_apart():
    assert names_a_file("a/b.py:make")
    assert names_a_file(r"C:\a b\net.py:make")
    assert not names_a_file("package.module:make")
