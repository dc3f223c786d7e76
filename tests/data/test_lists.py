"""Pictures with labels beside them, in lists, tars, parquet and saved data sets, are those of the class folders."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from findings_of import noted, values_of
from making_points import png

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
    labels = [CLASSES[label] for label in LABELS] if strings else LABELS
    table = pa.table({"image": image, "label": labels} | extra)
    features = {"image": {"_type": "Image"}, "label": {"names": list(CLASSES), "_type": "ClassLabel"}}
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def save_to_disk(folder: Path, tables: list[pa.Table]) -> Path:
    folder.mkdir(parents=True)
    files = [f"data-{k:05}-of-{len(tables):05}.arrow" for k in range(len(tables))]
    for file, table in zip(files, tables, strict=True):
        with pa.OSFile(str(folder / file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": file} for file in files]}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


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
    members = {f"{k:03}": (data, LABELS[k]) for k, data in enumerate(PICTURES.values())}
    tar(
        tmp_path / "web.tar",
        {f"{k}.{e}": v for k, (d, y) in members.items() for e, v in (("PNG", d), ("cls", b"%d\n" % y))},
    )
    tar(
        tmp_path / "json.tar",
        {f"./a/{k}.{e}": v for k, (d, y) in members.items() for e, v in (("json", b'{"label": "%d"}' % y), ("png", d))},
    )
    tar(
        tmp_path / "words.tar",
        {f"{k}.{e}": v for k, (d, y) in members.items() for e, v in (("png", d), ("cls", CLASSES[y].encode()))},
    )
    pq.write_table(hugging_face(), tmp_path / "hf.parquet", row_group_size=2)
    pq.write_table(hugging_face(strings=True), tmp_path / "words.parquet")
    pq.write_table(hugging_face(other=LABELS[::-1]), tmp_path / "two.parquet")
    pq.write_table(pa.table({"png": list(PICTURES.values()), "target": LABELS}), tmp_path / "binary.parquet")
    save_to_disk(tmp_path / "saved" / "train", [hugging_face().slice(0, 4), hugging_face().slice(4)])
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    return tmp_path


@pytest.mark.parametrize(
    ("reference", "classes"),
    [
        ("words.csv", CLASSES), ("numbers.csv", None), ("bare.csv", None), ("quoted.csv", CLASSES),
        ("chosen.csv:file,kind", CLASSES), ("tabs.tsv", CLASSES), ("absolute.csv", CLASSES), ("list.txt", None),
        ("lists/up.txt", CLASSES), ("web.tar", None), ("json.tar", None), ("words.tar", CLASSES),
        ("hf.parquet", CLASSES), ("words.parquet", CLASSES), ("two.parquet", CLASSES),
        ("two.parquet:image,label", CLASSES),
        ("binary.parquet", None), ("saved/train", CLASSES),
    ],
)  # fmt: skip
def test_every_form_gives_the_same_pictures_and_labels(forms, reference, classes):
    points = load_points(reference, base=forms)
    expected = load_points("list.txt", base=forms)
    assert points.targets is not None
    assert (points.targets.tolist(), points.classes, points.point_shape) == (LABELS, classes, (3, 6, 5))
    np.testing.assert_array_equal(points.raw([4, 1]), expected.raw([4, 1]))
    assert points.sha256 == expected.sha256
    subset = points.subset([5, 2])
    assert fitted(subset, Fit(resize=4)).raw([0]).shape == (1, 3, 4, 4)
    if classes and "parquet" not in reference and "saved" not in reference:
        assert values_of(points, "class-names") == {"names": list(CLASSES)}


def test_a_list_of_names_alone_has_no_labels(forms):
    (forms / "names.txt").write_text("pics/ant 0.png\n\npics/cat 1.png\n")
    assert load_points("names.txt", base=forms).targets is None
    for part in ("words.csv:path", "hf.parquet:image", "binary.parquet:png"):
        assert load_points(part, base=forms).targets is None
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
        ("path,label\npics/gone.png,1\n", "row 0 (counted from 0) names 'pics/gone.png', which is not an image"),
        ("path,label\npics/ant 0.png,\n", "row 0 (counted from 0) has no label"),
        ("path,label\npics/ant 0.png,1,2\n", "row 0 has 3 fields and others have 2"),
        ("path,label\npics/ant 0.png,1\n/etc/passwd,1\n", "names '/etc/passwd', which is not an image file"),
        ("path,label\npics/ant 0.png,1\n../up,1\n", "names '../up'"),
        ("path,label\npics,1\npics/ant 0.png,1\n", "expected a table of numbers"),
        ("path,a,b\npics/ant 0.png,1,2\n", "it is unclear which is the label"),
        ("path,label,target\npics/ant 0.png,1,2\n", "it is unclear which is the label"),
        ("pics/ant 0.png 1\npics/cat 1.png\n", "row 1 has 1 fields and others have 2"),
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
        ({"a.png": PNG, "a.jpg": PNG, "a.cls": b"1"}, "sample 'a' has two of a kind: a.png, a.jpg"),
        ({"a.png": PNG, "b.cls": b"1"}, "sample 'b' has no image"),
        ({"a.png": PNG, "b.png": PNG, "b.cls": b"1"}, "sample 'a' has no label, which others have"),
        ({"a.png": PNG, "a.json": b"{}"}, "a.json has no label"),
        ({"a.png": PNG, "a.json": b"[" * 100_000}, "a.json: cannot be read as a label"),
        ({"a.png": PNG, "a.cls": b"\xff"}, "a.cls: cannot be read as a label"),
        ({"a.png": PNG, "a.cls": bytes(2**20 + 1)}, "a.cls has 1,048,577 bytes; expected a label"),
        ({"a.txt": b"1"}, "contains no images, only a.txt"),
        ({"a.png": b"no image", "a.cls": b"1"}, "a.png: cannot be read as an image"),
    ],
)
def test_hostile_and_incomplete_tars_are_refused(tmp_path, members, message):
    assert message in refusal(tar(tmp_path / "s.tar", members))


def test_a_header_of_a_tar_that_declares_much_is_not_believed(tmp_path):
    tar(tmp_path / "s.tar", {"a.png": info("a.png", type=tarfile.XHDTYPE, size=2**32)})
    assert "a header declares 4294967296 bytes" in refusal(tmp_path / "s.tar")


def test_a_tar_that_was_cut_short_is_refused(forms):
    data = (forms / "web.tar").read_bytes()
    for length in (600, len(PNG) // 2 + 512):
        (forms / "cut.tar").write_bytes(data[:length])
        assert "cut.tar" in refusal("cut.tar", base=forms)


def test_a_tar_of_class_folders_is_read_like_a_zip_of_them(tmp_path):
    tar(tmp_path / "f.tar", {f"top/{name.split()[0]}/{name}.png": data for name, data in PICTURES.items()})
    points = load_points(str(tmp_path / "f.tar"))
    assert points.classes == CLASSES
    assert "class-folders" in noted(points)


# --- parquet and Arrow


def test_tables_of_pictures_that_cannot_be_used_are_refused(forms):
    path_alone = pa.table({"image": [{"bytes": None, "path": "/etc/passwd"}], "label": [1]})
    pq.write_table(
        path_alone.cast(
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
            points = load_points("flip.parquet", base=forms)
            points.raw(slice(None))
        except BnuqError as error:
            assert "flip.parquet" in str(error)


def test_a_saved_data_set_is_one_split_and_its_own_files(forms, tmp_path):
    assert "holds several data sets; name one of them: saved/'train'" in refusal("saved", base=forms)
    state = forms / "saved/train/state.json"
    for name in ("../train/data-00000-of-00002.arrow", "/etc/passwd", "x/y.arrow", ".arrow"):
        state.write_text(json.dumps({"_data_files": [{"filename": name}]}))
        assert f"state.json: lists {name!r}; expected names of .arrow files beside it" in refusal(
            "saved/train", base=forms
        )
    for text in ("[]", "{", '{"_data_files": 3}', "[" * 100_000):
        state.write_text(text)
        assert "state.json" in refusal("saved/train", base=forms)
    save_to_disk(tmp_path / "numbers", [pa.table({"a": [1.0], "label": [1]})])
    assert "has no column of encoded images" in refusal(tmp_path / "numbers")


def test_a_damaged_arrow_file_is_refused_and_crashes_nothing(forms):
    file = forms / "saved/train/data-00000-of-00002.arrow"
    data = file.read_bytes()
    for at in range(0, len(data), 61):
        file.write_bytes(data[:at] + bytes([data[at] ^ 0xA5]) + data[at + 1 :])
        try:
            load_points("saved/train", base=forms).raw(slice(None))
        except BnuqError as error:
            assert "train" in str(error)
    file.write_bytes(data[:300])
    assert "train: cannot be read" in refusal("saved/train", base=forms)


# --- sets in several files


@pytest.fixture
def shards(forms):
    """The pictures of `forms` in three parquet files, in groups of one row, and in three tars."""
    for folder in ("parquet", "tars"):
        (forms / folder).mkdir()
    names = []
    for part in range(3):
        rows = hugging_face().slice(2 * part, 2)
        pq.write_table(rows, forms / f"parquet/train-{part:05}-of-00003.parquet", row_group_size=1)
        members = {}
        for row in (2 * part, 2 * part + 1):
            members |= {f"{row}.png": list(PICTURES.values())[row], f"{row}.cls": CLASSES[LABELS[row]].encode()}
            names.append(f"train-{part:06}.tar/{row}.png")
        tar(forms / f"tars/train-{part:06}.tar", members)
    return forms, names


@pytest.mark.parametrize(
    "reference", ["parquet", "parquet/train-{00000..00002}-of-00003.parquet", "tars", "tars/train-{000000..000002}.tar"]
)
def test_a_set_in_several_files_is_that_in_one(shards, reference):
    forms, names = shards
    points, expected = load_points(reference, base=forms), load_points("list.txt", base=forms)
    assert points.targets is not None and points.names is not None
    assert (points.targets.tolist(), points.classes) == (LABELS, CLASSES)
    np.testing.assert_array_equal(points.raw(slice(None)), expected.raw(slice(None)))
    assert points.sha256 == expected.sha256
    parquet = [f"train-{row // 2:05}-of-00003.parquet: row {row % 2}" for row in range(6)]
    part = points.subset([5, 2])
    assert part.index.tolist() == [5, 2]
    assert points.names.tolist() == (names if "tar" in reference else parquet)
    assert part.names.tolist() == points.names[[5, 2]].tolist()


def test_groups_of_rows_are_read_when_their_pictures_are_needed(shards, monkeypatch):
    forms, _ = shards
    read, ask = [], lists.ask

    def asked(operation, path, *arguments):
        read.append((Path(path).name[6:11], arguments[1])) if operation == "pictures" else None
        return ask(operation, path, *arguments)

    monkeypatch.setattr(lists, "ask", asked)
    points = fitted(load_points("parquet", base=forms, look=False), whole=False)
    assert read == [("00000", 0)]
    points.raw([5, 5, 0])
    assert read == [("00000", 0), ("00002", 1)]
    monkeypatch.setattr(lists, "_KEPT", 0)
    every = load_points("parquet", base=forms).raw(slice(None))
    np.testing.assert_array_equal(every[[5, 5, 0]], points.raw([5, 5, 0]))


def test_files_of_a_set_that_do_not_go_together_are_refused(shards):
    forms, _ = shards
    (first, *_, last), other = sorted((forms / "parquet").iterdir()), hugging_face(strings=True)
    expected = f"{last.name} has columns 'image', 'label', 'x', and {first.name} 'image', 'label'; expected the same"
    pq.write_table(hugging_face(x=LABELS), last)
    assert expected in refusal("parquet", base=forms)
    pq.write_table(other, last)
    assert f"{last.name} has columns of another kind" in refusal("parquet", base=forms)
    last.unlink()
    assert f"{last.name}: there is no such file; expected all 3 of the set" in refusal("parquet", base=forms)
    assert "there is no such file" in refusal("tars/train-{000001..000009}.tar", base=forms)
    assert "stands for 0 files" in refusal("tars/train-{000009..000001}.tar", base=forms)
    (forms / "tars/test-000000.tar").write_bytes((forms / "web.tar").read_bytes())
    expected = "name those of one: tars/test-000000.tar or tars/train-{000000..000002}.tar"
    assert expected in refusal("tars", base=forms)
    tar(forms / "tars/train-000001.tar", {"a/b.png": PNG})
    assert "sample 'train-000001.tar/a/b' has no label, which others have" in refusal(
        "tars/train-{000000..000002}.tar", base=forms
    )
    pq.write_table(other, forms / "tars/train-000001.tar")
    assert "is of another kind than train-000000.tar" in refusal("tars/train-{000000..000002}.tar", base=forms)


def test_tables_in_several_files_are_joined(tmp_path):
    rows = {"a": np.arange(5.0), "group": list("xyxzy"), "target": np.arange(5.0) / 2}
    for name, rows_of in (("one", [slice(0, 5)]), ("several", [slice(0, 2), slice(2, 5)])):
        (tmp_path / name).mkdir()
        for part, at in enumerate(rows_of):
            table = pa.table({column: values[at] for column, values in rows.items()})
            pq.write_table(table, tmp_path / name / f"{part}.parquet")
    one, several = (load_points(name, base=tmp_path) for name in ("one", "several"))
    assert several.sha256 == one.sha256
    assert several.group.tolist() == one.group.tolist() == [0, 1, 0, 2, 1]
