"""Rows of benchmarks are compared with the newest committed row of the same measurement."""

import json
import sys

import pytest

from tools import compare_rows

ROW = dict.fromkeys(compare_rows.SAME, "same")


@pytest.mark.parametrize("ms, limit, status", [(1.04, [], 0), (1.06, [], 1), (1.06, ["1.1"], 0)])
def test_a_slower_row_is_an_error(ms, limit, status, tmp_path, monkeypatch, capsys):
    def write(folder, *rows):
        (tmp_path / folder).mkdir()
        lines = [json.dumps(ROW | row) for row in rows]
        (tmp_path / folder / "spmm.jsonl").write_text("\n".join(lines))

    write("old", {"ms": 9.0, "date": "2026-01-01"}, {"ms": 1.0, "date": "2026-01-02"})
    write("new", {"ms": ms, "date": "2026-02-01"}, {"ms": 5, "k": 8, "date": "2026-02-01"})
    monkeypatch.setattr(compare_rows, "RESULTS", tmp_path / "old")
    limits = [text for value in limit for text in ("--limit", value)]
    monkeypatch.setattr(sys, "argv", ["compare_rows", str(tmp_path / "new"), *limits])
    assert compare_rows.main() == status
    out = capsys.readouterr().out
    assert f"{ms:5.2f}" in out and "1 of 2 measurements have a committed row" in out
