"""Tables and JSON of any width and depth: read like cell by cell, or refused with the cause."""

import json

import pytest

from bnuq.data.readers import columns
from bnuq.data.readers.columns import read_columns
from bnuq.errors import DataError


def read(path):
    try:
        return repr({name: (of.dtype, of.tolist()) for name, of in read_columns(path).values.items()})
    except DataError as error:
        return str(error)


def cell_by_cell(path):
    raise DataError(f"{path}")


CELLS = (
    "1,2,x\n 3 ,inf,y", "1,,x\n3,4,", "1,1_000,x\n2,3,y", "1,2,x\n3,4", '1,2,x\n"3"5,4,y', "1,٣,x\n\n2,-1e-3,y",
    "1,2,1\n2,w,0",
)  # fmt: skip


@pytest.mark.parametrize("rows", CELLS)
def test_numbers_that_are_parsed_at_once_are_those_of_the_cells(tmp_path, monkeypatch, rows):
    (path := tmp_path / "a.csv").write_text("a,b,label\n" + rows, encoding="utf-8")
    at_once = read(path)
    monkeypatch.setattr(columns, "_at_once", cell_by_cell)
    assert read(path) == at_once


def test_ten_thousand_columns_are_read_and_more_than_a_hundred_thousand_not_parsed(tmp_path, monkeypatch):
    (path := tmp_path / "a.csv").write_text(
        ",".join(f"probability_{k}" for k in range(10_000)) + "\n" + "0," * 9999 + "0"
    )
    assert len(read_columns(path).values) == 10_000
    path.write_text(json.dumps([{"p0": 0.5, "p1": 0.5, "label": 0}] * 50_000))
    assert len(read_columns(path)["label"]) == 50_000  # in one line
    path.write_text(json.dumps([dict.fromkeys(map(str, range(100_001)), 1)], indent=0))
    assert "element 1 has more than 100,000 names" in read(path)
    for parser in ("delimited", "json"):
        monkeypatch.setattr(columns, parser, None)
    for text, what in (("p," * 100_001, "columns"), ("{" + '"p" :1,' * 100_001, "names")):
        path.write_text(text)
        assert f"its first line has more than 100,000 {what}" in read(path)


def test_a_column_of_lists_and_deep_json_and_utf_16_are_refused_with_the_cause(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"p": [[0.2, 0.8], [1.0]], "label": [0, 0]}), path := tmp_path / "a")
    assert read_columns(path)["label"].tolist() == [0, 0]
    assert "'p' holds structures, or lists of several lengths; expected a number, a text" in read(path)
    for start, end in ("[]", ('{"a":', "}")):
        path.write_text(start * 100_000 + "1" + end * 100_000)
        assert "recursion depth" in read(path)
    path.write_text("p0,p1,label\n0.5,0.5,1\n", encoding="utf-16")
    assert "is a text, and not in UTF-8. Save it as UTF-8: iconv -f LATIN1 (or UTF-16)" in read(path)
    assert "is a folder; expected a file of predictions or labels." in read(tmp_path)
