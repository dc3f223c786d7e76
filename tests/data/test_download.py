"""Fetching known sets from a server of this machine: it serves, breaks off, lies, refuses, and is slow."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import subprocess
import sys
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from making_points import png
from uci_tables import text_files

from bnuq.data import KnownSet, download, known_sets, load_points, remote
from bnuq.data.download import fetch
from bnuq.data.known import known_set, places
from bnuq.data.readers.tables import read_csv
from bnuq.data.remote import Remote, default_splits, remotes_of, size_of
from bnuq.errors import BnuqError, DataError, RequestError

CONTENT = bytes(range(256)) * 4000  # 1 MB


class Server(ThreadingHTTPServer):
    """What each path answers: the first part of a path says how. `asked` counts the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.asked: Counter[str] = Counter()

    def url(self, how: str, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{how}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server  # type: ignore

    def do_GET(self) -> None:
        _, how, name = self.path.split("/", 2)
        self.server.asked[self.path] += 1
        data = self.server.files[name]
        if how.isdigit():
            self.send_error(int(how))
            return
        if how == "lies":
            data = bytes(len(data))
        self.send_response(200)
        if how == "short":
            data = data[:1000]
        if how != "hides-length":
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        pieces = [data[: len(data) // 2] if how in ("breaks", "hides-length") else data]
        if how == "stalls":
            pieces = [data[:1000]]
        if how == "trickles":
            pieces = [data[at : at + 100_000] for at in range(0, len(data), 100_000)]
        try:
            for piece in pieces:
                self.wfile.write(piece)
                time.sleep(0.05 if how == "trickles" else 3 if how == "stalls" else 0)
        except ConnectionError:
            pass

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("BNUQ_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def offered(server: Server, monkeypatch: pytest.MonkeyPatch):
    """Makes `name` a set whose file is served in these ways, one address for each."""

    def offer(
        *hows: str, content: bytes = CONTENT, name: str = "svhn", split: str = "test", **changes: object
    ) -> Remote:
        original = remotes_of(name)[split][0]
        served = f"{len(server.files)}-{Path(original.urls[0]).name.partition('?')[0]}"
        server.files[served] = content
        file = Remote(
            original.path,
            tuple(server.url(how, served) for how in hows),
            f"sha256:{hashlib.sha256(content).hexdigest()}",
            len(content),
            member=original.member,
        )
        file = replace(file, **changes)  # type: ignore
        monkeypatch.setitem(remote._REMOTES, name, {split: (file,)})
        return file

    return offer


def the(name: str) -> KnownSet:
    known = known_set(name)
    assert known is not None
    return known


def svhn(root: Path, **more) -> tuple[Path, ...]:
    return fetch(the("svhn"), ("test",), data_root=root, **more)


def refused(root: Path) -> str:
    """The message of a refusal, after which nothing lies below `root` but folders."""
    with pytest.raises(DataError) as error:
        svhn(root)
    assert files_below(root) == []
    return str(error.value)


def test_a_file_is_fetched_whole_and_announced_with_size_and_terms(offered, tmp_path):
    offered("serves")
    announced, counted = [], []

    @contextmanager
    def progress(title, total):
        counted.append((title, total))
        yield lambda steps: counted.append(steps)

    places = svhn(tmp_path / "root", announce=announced.append, progress=progress)
    assert places == (tmp_path / "root" / "svhn" / "test_32x32.mat",)
    assert places[0].read_bytes() == CONTENT
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(places[0].stat().st_mode) == 0o666 & ~umask
    assert announced == [f"fetching svhn, 1 MB, to {tmp_path / 'root'}. Terms: {the('svhn').source}"]
    assert counted[0] == ("test_32x32.mat, kB", 1024)
    assert sum(counted[1:]) == 1024


def test_what_is_there_is_not_fetched_again(offered, server, tmp_path, monkeypatch):
    file = offered("serves")
    svhn(tmp_path / "root")
    before = sum(server.asked.values())
    assert svhn(tmp_path / "root") == ()
    monkeypatch.setenv("BNUQ_DATA", str(tmp_path / "root"))
    assert svhn(tmp_path / "other") == ()  # it is found in the second of the searched folders
    assert sum(server.asked.values()) == before
    (tmp_path / "root" / file.path).unlink()
    assert len(svhn(tmp_path / "other")) == 1


def test_mirrors_are_tried_in_order(offered, server, tmp_path):
    file = offered("404", "lies", "breaks", "serves", "500")
    (place,) = svhn(tmp_path / "root")
    assert place.read_bytes() == CONTENT
    assert [server.asked["/" + url.split("/", 3)[3]] for url in file.urls] == [1, 1, 1, 1, 0]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("404", "the server answered 404"),
        ("500", "the server answered 500"),
        ("lies", "the 1,024,000 bytes do not have the published checksum (sha256:"),
    ],
)
def test_a_file_that_cannot_be_had_is_refused_with_every_reason(offered, tmp_path, how, reason):
    file = offered(how)
    message = refused(tmp_path / "root")
    assert f"  {file.urls[0]}: " in message and reason in message
    assert f"put the file there yourself: {tmp_path / 'root' / file.path}" in message


def test_a_server_that_lies_about_the_length_is_refused(offered, tmp_path):
    offered("short")
    assert "the 1,000 bytes do not have the published checksum" in refused(tmp_path / "root")
    offered("hides-length")
    assert "the 512,000 bytes do not have the published checksum" in refused(tmp_path / "root")
    offered("breaks")
    assert "the connection broke off after 262,144 bytes" in refused(tmp_path / "root")  # whole chunks


def test_an_answer_larger_than_the_file_is_stopped(offered, tmp_path):
    offered("serves", size=500_000)
    assert "it sends more than 500,000 bytes, the size of the file" in refused(tmp_path / "root")


def test_a_server_that_stalls_is_given_up_and_a_slow_one_is_not(offered, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    offered("stalls")
    assert "no answer for 0.2 seconds" in refused(tmp_path / "root")
    offered("trickles")  # 0.5 s, in parts
    assert svhn(tmp_path / "root")[0].read_bytes() == CONTENT


def test_without_a_server_or_pooch_there_is_a_message(offered, tmp_path, monkeypatch):
    offered(urls=("http://127.0.0.1:9/x.mat",))
    assert "http://127.0.0.1:9/x.mat: no connection" in refused(tmp_path / "root")
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(RequestError, match=r'pip install "bnuq\[data\]"'):
        svhn(tmp_path / "root")


def test_a_folder_that_cannot_be_written_is_refused(offered, tmp_path):
    offered("serves")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be made"):
        svhn(tmp_path / "file")
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "svhn").symlink_to(tmp_path / "nowhere")
    with pytest.raises(BnuqError):
        svhn(tmp_path / "r")


def test_an_interrupted_transfer_leaves_nothing(offered, tmp_path):
    offered("trickles")
    counted = []

    @contextmanager
    def progress(*_):
        def advance(steps):
            counted.append(steps)
            if len(counted) > 2:
                raise KeyboardInterrupt

        yield advance

    with pytest.raises(KeyboardInterrupt):
        svhn(tmp_path / "root", progress=progress)
    assert sum(counted) > 0 and files_below(tmp_path / "root") == []


def archive(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("notMNIST_small/A/link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return packed.getvalue()


def test_an_archive_of_pictures_is_unpacked_whole_and_read(offered, tmp_path):
    pictures = {f"notMNIST_small/{c}/x.png": png(np.full((28, 28), ord(c), np.uint8)) for c in "AB"}
    outside = {"notMNIST_small/../../evil.png": b"x", "notMNIST_small.txt": b"x", "/notMNIST_small/C/x.png": b"x"}
    offered("serves", name="notmnist", split="small", content=archive(pictures | outside))
    assert fetch(the("notmnist"), ("small",), data_root=tmp_path / "root") == (tmp_path / "root" / "notMNIST_small",)
    files = sorted(str(path.relative_to(tmp_path)) for path in (tmp_path / "root").rglob("*") if not path.is_dir())
    assert files == ["root/notMNIST_small/A/x.png", "root/notMNIST_small/B/x.png"]
    assert not (tmp_path / "evil.png").exists()
    points = load_points("notmnist", data_root=tmp_path / "root")
    assert points.targets is not None
    assert points.targets.tolist() == [0, 1]


def test_an_archive_that_cannot_be_unpacked_leaves_no_folder(offered, tmp_path):
    for content, message in [(b"no archive", "cannot be read"), (archive({"other/x.png": b""}), "holds no folder")]:
        root = tmp_path / message.split()[0]
        offered("serves", name="notmnist", split="small", content=content)
        with pytest.raises(DataError, match=message):
            fetch(the("notmnist"), ("small",), data_root=root)
        assert [path.suffix for path in root.iterdir()] == [".gz"]


@pytest.fixture
def boston(server, monkeypatch):
    """Makes uci-boston a small table whose text files are served in one way, those of `changed` with other content."""

    def offer(how: str, changed: Mapping[str, str] = MappingProxyType({})) -> Remote:
        rng = np.random.default_rng(0)
        table = (rng.standard_normal((30, 3)), rng.standard_normal(30), [rng.permutation(30)[:4] for _ in range(2)])
        folder = f"{len(server.files)}-boston"
        for name, text in text_files(table).items():
            server.files[f"{folder}/{name}"] = changed.get(Path(name).stem, text).encode()
        digest = f"sha256:{download.digest_of(*table)}"
        file = Remote("uci/boston/data.csv", (server.url(how, f"{folder}/"),), digest, 10_000, at_most=True, splits=2)
        monkeypatch.setitem(remote._REMOTES, "uci-boston", {"train": (file,), "test": (file,)})
        return file

    return offer


def stored(data: Path, splits: int) -> download.Table:
    table, folder = read_csv(data), data.parent / "splits"
    rows = [np.loadtxt(folder / f"test_{split:02d}.txt", np.int64, ndmin=1) for split in range(splits)]
    return np.asarray(table.inputs), np.asarray(table.targets), rows


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_uci_set_is_made_of_its_text_files_whole(boston, tmp_path):
    file = boston("serves")
    root = tmp_path / "root"
    assert fetch(the("uci-boston"), ("test",), data_root=root) == (root / file.path,)
    assert files_below(root) == [
        f"uci/boston/{name}" for name in ("data.csv", "splits/test_00.txt", "splits/test_01.txt")
    ]
    assert f"sha256:{download.digest_of(*stored(root / file.path, 2))}" == file.checksum
    assert len(load_points("uci-boston:test:1", data_root=root)) == 4
    assert load_points("uci-boston:train:1", data_root=root).point_shape == (3,)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"index_test_1": "0\n1\n2\n3\n"}, "do not have the known checksum"),
        ({"index_target": "9\n"}, "data.txt: cannot be read"),
        ({"index_features": "0\n1\n1.5\n"}, "data.txt: cannot be read"),
        ({"data": "<html>"}, "data.txt: cannot be read"),
    ],
)
def test_a_uci_set_whose_numbers_are_others_leaves_nothing(boston, server, tmp_path, changed, message):
    file, root = boston("serves", changed), tmp_path / "root"
    with pytest.raises(DataError, match=message):
        fetch(the("uci-boston"), ("test",), data_root=root)
    assert files_below(root) == [] and list((root / "uci").iterdir()) == []
    asked = {name: server.asked["/" + f"{file.urls[0]}{name}".split("/", 3)[3]] for name in download.published_names(2)}
    assert asked == dict.fromkeys(asked, 1)


def test_a_folder_without_the_table_is_not_replaced(boston, tmp_path):
    file, root = boston("serves"), tmp_path / "root"
    fetch(the("uci-boston"), ("train",), data_root=root)
    (root / file.path).unlink()
    with pytest.raises(DataError, match="Move that folder away"):
        fetch(the("uci-boston"), ("train",), data_root=root)


@pytest.mark.nightly  # real data
@pytest.mark.parametrize("name", ["boston", "concrete", "energy", "kin8nm", "power", "protein", "wine", "yacht"])
def test_the_pinned_digests_are_those_of_the_real_sets(data_pack, server, tmp_path, monkeypatch, name):
    (file,) = remotes_of(f"uci-{name}")["test"]
    table = stored(data_pack / file.path, file.splits)
    assert f"sha256:{download.digest_of(*table)}" == file.checksum
    texts = text_files(table)
    assert max(map(len, texts.values())) <= file.size
    if len(table[0]) > 1600:
        return  # the larger ones are served in the same way
    for text_name, text in texts.items():
        server.files[f"{name}/{text_name}"] = text.encode()
    served = replace(file, urls=(server.url("serves", f"{name}/"),))
    monkeypatch.setitem(remote._REMOTES, f"uci-{name}", {"test": (served,)})
    (place,) = fetch(the(f"uci-{name}"), ("test",), data_root=tmp_path)
    assert f"sha256:{download.digest_of(*stored(place, file.splits))}" == file.checksum


def test_every_file_on_offer_is_found_where_it_is_put_and_has_a_checksum():
    """What is fetched is one of the layouts that are searched, for each split; sizes and digests are plausible."""
    for known in known_sets():
        assert set(default_splits(known.name)) <= set(remotes_of(known.name)) <= set(known.splits)
        for split, files in remotes_of(known.name).items():
            paths = [str(path) for _, path in places(known, split, (Path(),))]
            assert files[-1].path in paths  # so that a set that is found is whole
            for file in files:
                kind, digest = file.checksum.split(":")
                assert len(bytes.fromhex(digest)) == {"md5": 16, "sha256": 32}[kind]
                assert file.size > 4000 and all(url.startswith("http") for url in file.urls)
    assert len([known.name for known in known_sets() if remotes_of(known.name)]) == 26
    assert size_of(remotes_of("svhn")["test"]) == "64 MB"
    assert size_of(remotes_of("cifar10")["train"] + remotes_of("cifar10")["test"]) == "170 MB"
    assert size_of(remotes_of("dermamnist")["test"]) == "at most 24 MB"


def test_the_pinned_checksums_are_those_of_real_files(data_pack):
    """MNIST's test set and Fashion-MNIST, wherever this machine has them as published."""
    checked = 0
    for name in ("mnist", "fashion-mnist"):
        for files in remotes_of(name).values():
            for file in files:
                place = data_pack / name / Path(file.path).name
                if place.exists() and place.stat().st_size == file.size:
                    assert f"sha256:{hashlib.sha256(place.read_bytes()).hexdigest()}" == file.checksum
                    checked += 1
    if not checked:
        pytest.skip("the files there are not those that are published")


def test_the_list_needs_neither_torch_nor_pooch():
    code = "import sys; from bnuq.cli.main import main\ntry: main(['data'])\nexcept SystemExit: pass\n"
    code += "print([name for name in ('torch', 'pooch', 'requests') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "246 MB (bnuq data get svhn), extra 1.3 GB" in done.stdout
