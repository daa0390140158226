"""Numbers of tables are found in committed rows, and `make lint` says which are not."""

import json

import pytest

from tools import check_numbers

ROWS = [
    {"op": "spmm", "k": None, "implementation": "xla", "ms": 22.243, "device": "H200"},
    {"op": "spmm", "k": None, "implementation": "ffi", "ms": 12.371, "device": "H200"},
    {"op": "maxk", "k": 32, "implementation": "xla", "ms": 2048.5, "device": "H200"},
    {"op": "maxk", "k": 32, "implementation": "ffi", "ms": None, "device": "H200"},
    {"op": "old", "implementation": "xla", "ms": 1.0},
    {"op": "rival", "ms": 16.95, "device": "H200", "source": "once measured"},
    {"op": "dated", "ms": 5.0, "device": "H200", "date": "2026-11-23T10:00:00"},
    {"op": "scores", "test": [0.8, 0.82], "device": "Xeon"},
]
TABLE = """
<!-- measured
rows: rows.jsonl {rows}
column: {column}
line: {line}
-->

| op | {title} |
|---|---:|
| {label} | {cell} |
"""


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    monkeypatch.setattr(check_numbers, "RESULTS", tmp_path)
    check_numbers._read.cache_clear()
    yield path
    check_numbers._read.cache_clear()


def _texts(page, *, strict=True):
    return [text for _, text in check_numbers.findings(page, strict=strict)]


def _table(cell, line, *, rows="", column="implementation=xla", title="ms", label="a"):
    parts = {"cell": cell, "line": line, "rows": rows, "column": column, "title": title}
    return TABLE.format(**parts, label=label)


@pytest.mark.parametrize(
    "cell, line, options",
    [
        ("22.2 ms", "op=spmm", {}),
        ("22.24", "op=spmm", {}),
        ("22", "op=spmm", {}),
        ("12.4 ms", "op=spmm", {"column": "implementation=ffi|pallas"}),
        ("2,048 ms", "op=maxk k=32", {}),
        ("2.0485 s", "op=maxk value=ms/1000", {}),
        ("out of memory", "op=maxk", {}),
        ("1.8", "op=spmm", {"column": "implementation=ffi over.implementation=xla"}),
        ("5.0", "op=dated", {"column": "date=2026-11-23"}),
        ("81.0 ± 1.4", "op=scores", {"column": "value=mean(test)*100,std(test)*100"}),
        ("16.95", "op=rival", {"column": "k=null", "title": "best other, once measured"}),
        ("16.95 `k = 7`", "op=rival", {"column": "k=null", "label": "once measured"}),
        ("7", "op=none", {"column": "-"}),
        ("22.2 / 12.4", "op=spmm", {"column": "value=ms,ms"}),
        ("22.2 / –", "op=spmm", {"column": "value=ms,ms"}),
    ],
)
def test_a_number_of_a_row_rounded_to_its_digits_is_accepted(cell, line, options):
    assert _texts(_table(cell, line, **options)) == []


@pytest.mark.parametrize(
    "cell, line, options, complaint",
    [
        ("22.3 ms", "op=spmm", {}, "22.3 is in no row: ms is 22.243"),
        ("22.25", "op=spmm", {}, "22.25 is in no row"),
        ("12.4", "op=spmm", {}, "12.4 is in no row"),  # The number is in another column.
        ("2.0", "op=maxk", {"column": "implementation=ffi"}, "ms is missing"),
        ("1.0", "op=spmm", {"rows": "device=H100"}, "no row of rows.jsonl has device=H100"),
        ("1.0", "op=old", {}, "rows without a device"),
        ("1.9", "op=spmm", {"column": "implementation=ffi over.implementation=xla"}, "in no row"),
        ("5.0", "op=dated", {"column": "date=2026-11-24"}, "no row"),
        ("16.95", "op=rival", {"column": "k=null"}, "is once measured: the line or the column"),
        ("– / 12.5", "op=spmm", {"column": "value=ms,ms"}, "12.5 is in no row"),
        ("1 and 2", "op=spmm", {}, "expected 1 numbers (ms), got 1 2"),
        ("80.0", "op=scores", {"column": "value=mean(test)*100"}, "80.0 is in no row"),
    ],
)
def test_a_wrong_number_is_named_with_what_was_measured(cell, line, options, complaint):
    (finding,) = _texts(_table(cell, line, **options))
    assert complaint in finding


@pytest.mark.parametrize(
    "page, complaint",
    [
        (_table("1", "op=spmm").replace("line:", "lines:"), "expected rows:, column:, line: or"),
        (_table("1", "op=spmm").replace("line: op=spmm\n", "line:\nline:\n"), "1 lines need as"),
        (_table("1", "op=spmm").replace("column:", "number:"), "1 columns need as many column:"),
        (_table("1", "op=spmm value=f(ms)"), "value: expected field"),
    ],
)
def test_a_comment_that_does_not_fit_its_table_is_named(page, complaint):
    assert any(complaint in text for text in _texts(page))


def test_a_table_of_numbers_needs_a_comment_on_strict_pages_only():
    page = "| op | ms |\n|---|---:|\n| a | 1.5 |\n"
    assert "needs a comment" in _texts(page)[0]
    assert _texts(page, strict=False) == []
    assert _texts(page.replace("1.5", "`1.5`")) == []
    assert _texts(f"```\n{page}```\n") == []


@pytest.mark.parametrize("text, count", [("22.2 ms, and 12.4 ms", 0), ("22.2 ms, and 12.5 ms", 1)])
def test_numbers_of_a_paragraph_are_checked_in_turn(text, count):
    marker = "<!-- measured\nrows: rows.jsonl op=spmm\nnumber: implementation=xla\n"
    marker += "number: implementation=ffi\n-->\n\n"
    assert len(_texts(f"{marker}It takes {text}, of 7 in 2026.\n")) == count
    assert "as many number:" in _texts(f"{marker}It takes 22.2 ms.\n")[0]


def test_new_rows_need_their_origin(tmp_path):
    folder = tmp_path / "experiments" / "benchmarks" / "results"
    folder.mkdir(parents=True)
    whole = dict.fromkeys(check_numbers.ORIGIN, "x") | {"date": "2026-12-01"}
    rows = [whole, {"date": "2026-11-20"}, {**whole, "source": "published"}, {"date": "2026-12-01"}]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (finding,) = check_numbers.origin_findings(tmp_path)
    assert finding.startswith("a.jsonl:4: the row has no device, commit")


def test_a_page_with_a_wrong_number_fails_the_command(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(_table("22.2", "op=spmm"))
    assert check_numbers.main([str(page)]) == 0
    page.write_text(_table("22.1", "op=spmm"))
    assert check_numbers.main([str(page)]) == 1
    assert "page.md:" in capsys.readouterr().out
