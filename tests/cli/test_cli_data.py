"""`bnuq data get` and `--download`, with a server of this machine in place of the published addresses."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from making_points import idx

from bnuq.config import Options, resolve
from bnuq.data import remote

IMAGES = gzip.compress(idx(np.random.default_rng(0).integers(0, 256, (40, 6, 6), dtype=np.uint8)))
LABELS = gzip.compress(idx(np.arange(40, dtype=np.uint8) % 3))


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        pass


@pytest.fixture
def mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A server of MNIST's test files, tiny, in its folder; those of the training set have another checksum."""
    folder = tmp_path / "served"
    folder.mkdir()
    files = {}
    for prefix, split in (("t10k", "test"), ("train", "train")):
        for kind, data in (("labels-idx1", LABELS), ("images-idx3", IMAGES)):
            (folder / f"{prefix}-{kind}-ubyte.gz").write_bytes(data)
            digest = hashlib.sha256(data if split == "test" else b"").hexdigest()
            files.setdefault(split, {})[kind] = (digest, len(data))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        hosts = (f"http://127.0.0.1:{server.server_address[1]}/",)
        prefixes = {"test": "t10k", "train": "train"}
        monkeypatch.setitem(
            remote._REMOTES,
            "mnist",
            {split: remote._idx("mnist", hosts, prefixes[split], entry) for split, entry in files.items()},
        )
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield folder
        server.shutdown()


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.usefixtures("mnist")
def test_get_announces_and_fetches_into_the_first_searched_folder(cli, tmp_path, monkeypatch):
    root = tmp_path / "root"
    done = cli("data", "get", "mnist:test", "--data-root", root)
    assert done.code == 0, done
    assert (
        done.err == f"bnuq: fetching mnist, 1 MB, to {root}. Terms: LeCun, Cortes and Burges; cite LeCun et al. 1998.\n"
    )
    assert done.out == f"mnist:test  {root / 'mnist' / 't10k-images-idx3-ubyte.gz'}\n"
    assert files_below(root) == ["mnist/t10k-images-idx3-ubyte.gz", "mnist/t10k-labels-idx1-ubyte.gz"]
    assert cli("data", "get", "mnist:test", "--data-root", root).err == ""  # it is there
    monkeypatch.setenv("BNUQ_DATA", str(tmp_path / "variable"))
    assert cli("data", "get", "mnist:test", "--quiet") == type(done)(0, "", "")
    assert len(files_below(tmp_path / "variable")) == 2
    monkeypatch.delenv("BNUQ_DATA")
    assert cli("data", "get", "mnist:test").code == 0
    assert len(files_below(tmp_path / "cache" / "bnuq")) == 2


@pytest.mark.usefixtures("mnist")
def test_a_wrong_checksum_is_exit_code_2_and_leaves_no_file(cli, tmp_path):
    done = cli("data", "get", "mnist:train", "--data-root", tmp_path / "root", "-q")
    assert (done.code, done.out) == (2, "")
    assert "train-labels-idx1-ubyte.gz could not be fetched, and nothing was written" in done.message
    assert "do not have the published checksum (sha256:e3b0c442" in done.message
    assert files_below(tmp_path / "root") == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("fetch", "svhn"), "bnuq data fetch svhn: expected bnuq data, or bnuq data get NAME."),
        (("get",), "expected bnuq data, or bnuq data get NAME"),
        (("get", "cifra10"), "cifra10: no data set is known by that name. Did you mean cifar10?"),
        (("get", "svnh:test"), "svnh:test: no data set is known by that name. Did you mean svhn?"),
        (("get", "openood:cifar10"), "openood:cifar10: no data set is known by that name. Can be fetched: cifar10"),
        (("get", "faces"), "faces: no data set is known by that name. Can be fetched: cifar10, svhn, mnist"),
        (("get", "svhn:validation"), "there is no such split; expected svhn, svhn:train, svhn:test, svhn:extra"),
    ],
)
def test_what_cannot_be_fetched_is_refused(cli, words, message):
    done = cli("data", *words)
    assert done.code == 2
    assert message in done.message


def test_a_set_that_is_nowhere_names_the_command_first_and_then_the_folders(cli, small, tmp_path):
    done = cli("evaluate", small / "run.toml", "--ood", "svhn", "--data-root", tmp_path / "root")
    first, second, *others = done.message.splitlines()
    assert done.code == 2
    assert first == "svhn:test: not found. Fetch it (64 MB): bnuq data get svhn:test"
    assert second == "Looked at:"
    assert f"  {tmp_path / 'root' / 'svhn' / 'test_32x32.mat'}" in others
    done = cli("evaluate", small / "run.toml", "--ood", "svhn:extra")
    assert done.message.splitlines()[0] == "svhn:extra: not found. Fetch it (1.3 GB): bnuq data get svhn:extra"
    done = cli("evaluate", small / "run.toml", "--ood", "uci-boston")
    assert "uci-boston:test: not found. Fetch it (at most 1 MB): bnuq data get uci-boston" in done.message


SWEEP = ("sweep-batch-size", "--batch-sizes", "4,8", "--draw-sets", "2")


@pytest.mark.parametrize("command", [("evaluate",), pytest.param(SWEEP, marks=pytest.mark.nightly)])
def test_download_fetches_what_is_nowhere_and_nothing_else(cli, small, mnist, tmp_path, command):
    arguments = (small / "run.toml", "--ood", "mnist", "--data-root", tmp_path / "root", "-T", "2", "--json")
    done = cli(*command, *arguments)
    assert done.code == 2  # never without the option
    assert "bnuq data get mnist" in done.message and not (tmp_path / "root").exists()
    done = cli(*command, *arguments, "--download")
    assert done.code == 0, done
    assert '"mnist"' in done.out
    assert "bnuq: fetching mnist, 1 MB" in done.err
    assert files_below(tmp_path / "root") == ["mnist/t10k-images-idx3-ubyte.gz", "mnist/t10k-labels-idx1-ubyte.gz"]
    for path in mnist.iterdir():
        path.unlink()
    assert cli(*command, *arguments, "--download").code == 0  # found, so nothing is fetched


@pytest.mark.usefixtures("mnist")
def test_download_reaches_every_command_that_reads_sets(cli, small, tmp_path):
    root = ("--data-root", tmp_path / "root", "--download")
    done = cli("inspect", small / "run.toml", "--domain", "other=mnist", "--points", "32", "--draws", "8", *root)
    assert done.code == 0, done
    assert len(files_below(tmp_path / "root")) == 2
    for path in (tmp_path / "root" / "mnist").iterdir():
        path.unlink()
    done = cli("precise-bn", small / "run.toml", "--test", "mnist", "--points", "32", "-o", "new.pt", *root)
    assert done.code == 0, done
    assert len(files_below(tmp_path / "root")) == 2


@pytest.mark.usefixtures("mnist")
def test_a_request_that_cannot_be_carried_out_fetches_nothing(cli, small, tmp_path):
    done = cli("evaluate", small / "run.toml", "--ood", "mnist", "--data-root", tmp_path / "root", "--download",
               "--out", tmp_path / "nowhere" / "x.h5")  # fmt: skip
    assert done.code == 2
    assert not (tmp_path / "root").exists()


def test_the_option_is_not_recorded(small):
    run = resolve(str(small / "run.toml"), Options(download=True), folder=small)
    assert run.download
    assert "download" not in str(run.record())
