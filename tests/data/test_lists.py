"""Pictures with labels beside them, in lists, tars and parquet, are those of the class folders."""

import io
import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from findings_of import noted, values_of
from making_points import png
from PIL import Image

from bnuq.data import Fit, fitted, load_points
from bnuq.data.readers import lists
from bnuq.errors import BnuqError

RNG = np.random.default_rng(0)
PICTURES = {f"{'cat' if k % 2 else 'ant'} {k}": png(RNG.integers(0, 256, (6, 5, 3), dtype=np.uint8)) for k in range(6)}
LABELS = [0, 1, 0, 1, 0, 1]
CLASSES = ("ant", "cat")


def refusal(reference, **options) -> str:
    with pytest.raises(BnuqError) as error:
        load_points(str(reference), **options)
    return str(error.value)


def tar(path: Path, members: dict[str, bytes | tarfile.TarInfo]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name) if isinstance(data, bytes) else data
            if isinstance(data, bytes):
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data) if isinstance(data, bytes) else None)
    return path


def hugging_face(*, strings: bool = False, **extra) -> pa.Table:
    """A table as `datasets` writes it: an Image column, a ClassLabel and the schema's metadata."""
    image = [{"bytes": data, "path": f"{name}.png"} for name, data in PICTURES.items()]
    table = pa.table({"image": image, "label": [CLASSES[label] for label in LABELS] if strings else LABELS} | extra)
    features = {"image": {"_type": "Image"}, "label": {"names": list(CLASSES), "_type": "ClassLabel"}}
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


@pytest.fixture
def forms(tmp_path):
    """The same six pictures and labels in every form."""
    (tmp_path / "pics").mkdir()
    for name, data in PICTURES.items():
        (tmp_path / "pics" / f"{name}.png").write_bytes(data)
    names = [f"pics/{name}.png" for name in PICTURES]
    words = [CLASSES[label] for label in LABELS]

    def write(file: str, rows, separator: str, header: str = "") -> None:
        (tmp_path / file).write_text(header + "".join(f"{separator.join(row)}\n" for row in rows))

    numbers = list(map(str, LABELS))
    write("words.csv", zip(names, words, strict=True), ",", "path,label\n")
    write("numbers.csv", zip(numbers, names, strict=True), ";", "y;file\n")
    write("bare.csv", zip(names, numbers, strict=True), ",")
    write(
        "quoted.csv", [(f'"{name}"', word, "1.5") for name, word in zip(names, words, strict=True)], ",", "f,class,w\n"
    )
    write("chosen.csv", zip(numbers[::-1], words, names, strict=True), ",", "label,kind,file\n")
    write("tabs.tsv", zip(names, words, strict=True), "\t", "file\tlabel\n")
    write("absolute.csv", [(f"{tmp_path}/{name}", word) for name, word in zip(names, words, strict=True)], ",")
    write("list.txt", zip(names, numbers, strict=True), " ")
    (tmp_path / "lists").mkdir()
    write("lists/up.txt", [(f"../{name}", word) for name, word in zip(names, words, strict=True)], "  ")
    tar(tmp_path / "pics.tar", {f"top/{name.split()[0]}/{name}.png": data for name, data in sorted(PICTURES.items())})
    pq.write_table(hugging_face(), tmp_path / "hf.parquet", row_group_size=2)
    pq.write_table(hugging_face(strings=True), tmp_path / "words.parquet")
    pq.write_table(hugging_face(other=LABELS[::-1]), tmp_path / "two.parquet")
    pq.write_table(pa.table({"png": list(PICTURES.values()), "target": LABELS}), tmp_path / "binary.parquet")
    return tmp_path


@pytest.mark.parametrize(
    ("reference", "classes"),
    [
        ("words.csv", CLASSES), ("numbers.csv", None), ("bare.csv", None), ("quoted.csv", CLASSES),
        ("chosen.csv:file,kind", CLASSES), ("tabs.tsv", CLASSES), ("absolute.csv", CLASSES), ("list.txt", None),
        ("lists/up.txt", CLASSES),
        ("hf.parquet", CLASSES), ("words.parquet", CLASSES), ("two.parquet", CLASSES),
        ("two.parquet:image,label", CLASSES),
        ("binary.parquet", None),
    ],
)  # fmt: skip
def test_every_form_gives_the_same_pictures_and_labels(forms, reference, classes):
    points = load_points(reference, base=forms)
    expected = load_points("list.txt", base=forms)
    assert points.targets is not None
    assert (points.targets.tolist(), points.classes, points.point_shape) == (LABELS, classes, (3, 6, 5))
    np.testing.assert_array_equal(points.raw([4, 1]), expected.raw([4, 1]))
    assert points.sha256 == expected.sha256
    assert fitted(points.subset([5, 2]), Fit(resize=4)).raw([0]).shape == (1, 3, 4, 4)
    if classes and "parquet" not in reference:
        assert values_of(points, "class-names") == {"names": list(CLASSES)}


def test_a_list_of_names_alone_has_no_labels(forms):
    (forms / "names.txt").write_text("pics/ant 0.png\n\npics/cat 1.png\n")
    assert load_points("names.txt", base=forms).targets is None
    for part in ("words.csv:path", "hf.parquet:image", "binary.parquet:png"):
        assert load_points(part, base=forms).targets is None
    (forms / "outside.txt").write_text("pics/ant 0.png -1\npics/cat 1.png -1\n")  # an OOD set of OpenOOD
    assert len(load_points("outside.txt", base=forms, ood=True)) == 2
    (forms / "names.csv").write_text("file,group\npics/ant 0.png,a\npics/cat 1.png,b\n")
    points = load_points("names.csv", base=forms)
    assert points.targets is None
    assert points.group_names == ("a", "b")
    pq.write_table(hugging_face().set_column(1, "label", pa.array([-1] * 6)), forms / "test.parquet")
    assert load_points("test.parquet", base=forms).targets is None


def test_the_target_option_names_the_column_and_numbers_with_fractions_are_a_regression(forms):
    points = load_points("chosen.csv", base=forms, target="kind")
    assert points.classes == CLASSES
    assert load_points("words.csv", base=forms, target="age", ood=True, name="o").targets is None
    (forms / "ages.csv").write_text("pics/ant 0.png,1.5\npics/cat 1.png,-2e1\n")
    points = load_points("ages.csv", base=forms)
    assert points.targets is not None
    assert points.targets.tolist() == [[1.5], [-20.0]]


def test_pictures_of_a_list_are_read_when_they_are_needed(forms):
    points = fitted(load_points("words.csv", base=forms, look=False), Fit(resize=4), whole=False)
    (forms / "pics/cat 3.png").write_bytes(b"no image")
    assert points.raw([0, 1]).shape == (2, 3, 4, 4)
    with pytest.raises(BnuqError, match=r"cat 3\.png"):
        points.raw([3])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\npics/gone.png,1\n", "line 2 names 'pics/gone.png', which is not an image"),
        ("path,label\npics/ant 0.png,\n", "row 0 (counted from 0) has no label"),
        ("path,label\npics/ant 0.png,1,2\n", "line 2 has 3 fields and others have 2"),
        ("path,label\npics/ant 0.png,1\n/etc/passwd,1\n", "names '/etc/passwd', which is not an image file"),
        ("path,label\npics/ant 0.png,1\n../up,1\n", "names '../up'"),
        ("path,label\npics,1\npics/ant 0.png,1\n", "expected a table of numbers"),
        ("path,a,b\npics/ant 0.png,1,2\n", "it is unclear which is the label"),
        ("path,label,target\npics/ant 0.png,1,2\n", "it is unclear which is the label"),
        ("pics/ant 0.png 1\npics/cat 1.png\n", "line 2 has 1 fields and others have 2"),
        ('path,label\n"pics/ant 0.png,1\n', "cannot be read as a list of images"),
    ],
)  # fmt: skip
def test_a_list_with_a_wrong_row_is_refused_by_that_row(forms, text, message):
    (forms / "l.csv").write_text(text)
    if "table of numbers" in message:
        assert "l.csv: " in refusal("l.csv", base=forms)
    else:
        assert message in refusal("l.csv", base=forms)


def test_columns_that_are_not_there_are_told_with_those_that_are(forms):
    expected = "has 0 columns called 'kind'; expected one of 'path', 'label'"
    assert expected in refusal("words.csv:path,kind", base=forms)
    assert expected in refusal("words.csv", base=forms, target="kind")
    assert "has 0 columns called 'img'; expected one of 'image', 'label'" in refusal("hf.parquet:img", base=forms)
    assert "column 'label' holds no encoded images; expected 'image'" in refusal("hf.parquet:label", base=forms)
    (forms / "fine.csv").write_text("path,label\n")
    assert "fine.csv: " in refusal("fine.csv", base=forms)


# --- tars


def info(name: str, **fields) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(member, field, value)
    return member


PNG = next(iter(PICTURES.values()))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a.png": info("a.png", type=tarfile.SYMTYPE, linkname="/etc/passwd")}, "a.png is a link, a device or sparse"),
        ({"a.png": PNG, "b.png": info("b.png", type=tarfile.LNKTYPE, linkname="a.png")}, "b.png is a link"),
        ({"a.png": info("a.png", type=tarfile.CHRTYPE)}, "a.png is a link, a device or sparse"),
        ({"/a.png": PNG}, "/a.png lies outside the archive"),
        ({"../a.png": PNG}, "../a.png lies outside the archive"),
        ({"x/../../a.png": PNG}, "lies outside the archive"),
        (
            {"a.png": PNG, "b.png": info("b.png", size=2**40)},
            "b.png declares 1099511627776 bytes, beyond the file's end",
        ),
        ({"a.png": PNG, "./a.png": PNG}, "lists a.png twice"),
        ({"a.txt": b"1"}, "contains no images, only a.txt"),
        ({"c/a.png": b"no image"}, "a.png: cannot be read as an image"),
    ],
)
def test_hostile_and_incomplete_tars_are_refused(tmp_path, members, message):
    assert message in refusal(tar(tmp_path / "s.tar", members))


def test_a_header_of_a_tar_that_declares_much_is_not_believed(tmp_path):
    tar(tmp_path / "s.tar", {"a.png": info("a.png", type=tarfile.XHDTYPE, size=2**32)})
    assert "a header declares 4294967296 bytes" in refusal(tmp_path / "s.tar")


def test_a_tar_that_was_cut_short_is_refused(forms):
    data = (forms / "pics.tar").read_bytes()
    for length in (600, len(PNG) // 2 + 512):
        (forms / "cut.tar").write_bytes(data[:length])
        assert "cut.tar" in refusal("cut.tar", base=forms)


def test_a_tar_of_class_folders_is_read_like_a_zip_of_them(forms):
    tar(
        forms / "noted.tar",
        {f"{name.split()[0]}/{name}.png": data for name, data in PICTURES.items()} | {"a.json": b""},
    )
    for file in ("pics.tar", "noted.tar"):
        points = load_points(file, base=forms)
        assert points.classes == CLASSES
        assert points.targets.tolist() == sorted(LABELS)
        assert "class-folders" in noted(points)


# --- sets in the files of other libraries


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("web.tar", "holds samples of a WebDataset. Let a function read it, and name that: --test data.py:points"),
        ("tars", 'points(), which returns webdataset.WebDataset(PATHS, shardshuffle=False).decode("torchrgb8")'),
        ("tars/train-{000000..000001}.tar", "several files is read by no reader. Let a function read it, and name"),
        ("saved", "is a folder of Arrow files. Let a function read it, and name that: --test data.py:points"),
        ("saved/train", 'datasets.load_from_disk(PATH).with_format("torch"); docs/run-file.md shows it whole.'),
        ("parquets", 'datasets.load_dataset("parquet", data_files=PATHS, split="train").with_format("torch")'),
        ("parquets/train-{00000..00001}-of-00002.parquet", "load_dataset("),
    ],
)
def test_sets_of_other_libraries_are_refused_with_the_function_that_reads_them(tmp_path, reference, message):
    for folder in ("tars", "saved/train", "parquets"):
        (tmp_path / folder).mkdir(parents=True)
    tar(tmp_path / "web.tar", {"a/000.png": PNG, "a/000.cls": b"1"})
    for number in range(2):
        tar(tmp_path / f"tars/train-00000{number}.tar", {"0.png": PNG, "0.json": b'{"label": 1}'})
        pq.write_table(hugging_face(), tmp_path / f"parquets/train-0000{number}-of-00002.parquet")
    (tmp_path / "saved/dataset_dict.json").write_text('{"splits": ["train"]}')
    (tmp_path / "saved/train/dataset_info.json").write_text("{}")
    assert message in refusal(reference, base=tmp_path)


def test_the_functions_of_the_page_read_such_sets(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("webdataset")
    page = (Path(__file__).parents[2] / "docs/run-file.md").read_text()
    for name, code in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(code)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))})
    rows = {"image": [{"bytes": data, "path": None} for data in PICTURES.values()], "label": LABELS}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "saved/train")
    for part in range(4):
        samples = [(k, data) for k, data in enumerate(PICTURES.values()) if k % 4 == part]
        members = {f"{k}.{e}": v for k, data in samples for e, v in (("png", data), ("cls", b"%d" % LABELS[k]))}
        tar(tmp_path / f"test-{part:06}.tar", members)
    monkeypatch.chdir(tmp_path)
    pixels = np.stack([np.moveaxis(np.asarray(Image.open(io.BytesIO(data))), 2, 0) for data in PICTURES.values()])
    for reference, order in (("saved.py:train", range(6)), ("tars.py:test", [0, 4, 1, 5, 2, 3])):
        points = load_points(reference)
        assert points.targets.tolist() == [LABELS[k] for k in order]
        np.testing.assert_allclose(points.raw(slice(None)), pixels[list(order)] / 255, rtol=1e-6)


# --- parquet


def test_tables_of_pictures_that_cannot_be_used_are_refused(forms):
    pq.write_table(
        pa.table({"image": [{"bytes": None, "path": "/etc/passwd"}], "label": [1]}).cast(
            pa.schema({"image": pa.struct({"bytes": pa.binary(), "path": pa.string()}), "label": pa.int64()})
        ),
        forms / "p.parquet",
    )
    assert "row 0 has no bytes of an image; a path alone is not followed" in refusal("p.parquet", base=forms)
    pq.write_table(hugging_face().slice(0, 0), forms / "none.parquet")
    assert "contains no images" in refusal("none.parquet", base=forms)
    pq.write_table(hugging_face(fine=LABELS).rename_columns(["image", "coarse", "fine"]), forms / "two.parquet")
    assert "it is unclear which is the label" in refusal("two.parquet", base=forms)
    assert load_points("two.parquet:image,fine", base=forms).targets is not None
    pq.write_table(hugging_face().set_column(1, "label", pa.array([0, 1, None, 1, 0, 1])), forms / "gap.parquet")
    assert "y holds NaN" in refusal("gap.parquet", base=forms)
    pq.write_table(pa.table({"image": [PNG, b"x" * 40], "label": [0, 1]}), forms / "bad.parquet")
    assert "bad.parquet/row 1: cannot be read as an image" in refusal("bad.parquet", base=forms)
    data = (forms / "hf.parquet").read_bytes()
    for at in range(4, len(data), 97):  # never a crash, and never other pictures than those
        (forms / "flip.parquet").write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        try:
            load_points("flip.parquet", base=forms).raw(slice(None))
        except BnuqError as error:
            assert "flip.parquet" in str(error)


def test_groups_of_rows_are_read_when_their_pictures_are_needed(forms, monkeypatch):
    read, ask = [], lists.ask

    def asked(operation, path, *arguments):
        read.append(arguments[1]) if operation == "pictures" else None
        return ask(operation, path, *arguments)

    monkeypatch.setattr(lists, "ask", asked)
    points = fitted(load_points("hf.parquet", base=forms, look=False), whole=False)
    assert read == [0]
    points.raw([5, 5, 0])
    assert read == [0, 2]
    monkeypatch.setattr(lists, "_KEPT", 0)
    every = load_points("hf.parquet", base=forms).raw(slice(None))
    np.testing.assert_array_equal(every[[5, 5, 0]], points.raw([5, 5, 0]))
