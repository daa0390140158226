"""The JSONL log: rows survive a kill, and go back to a step."""

import json
import math

import pytest

from jaxgnn.training import read_rows
from jaxgnn.training.files import RowLog, read_steps


def test_rows_come_back_exactly(tmp_path):
    rows = [{"step": 1, "loss": 0.1 + 0.2}, {"step": 2, "loss": 1e-30, "validation accuracy": 1.0}]
    path = tmp_path / "log.jsonl"
    log = RowLog(path)
    log.append(rows[:1])
    log.append(rows[1:])
    assert read_rows(path) == rows == RowLog(path).rows == log.rows


def test_every_line_is_strict_json_and_what_is_not_finite_comes_back(tmp_path):
    path = tmp_path / "log.jsonl"
    log = RowLog(path)
    log.append([{"step": 1, "auc": math.nan, 'a "loss"': math.inf, "gain": -math.inf}])
    row = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert row == {"step": 1, "auc": None, 'a "loss"': math.inf, "gain": -math.inf}
    log.truncate(1)
    (read,) = read_rows(path)
    assert math.isnan(read.pop("auc"))
    assert read == {"step": 1, 'a "loss"': math.inf, "gain": -math.inf}


def test_a_log_cut_at_any_byte_reads_its_whole_rows(tmp_path):
    path = tmp_path / "log.jsonl"
    log = RowLog(path)
    log.append({"step": step, "loss": step / 3} for step in range(1, 4))
    data = path.read_bytes()
    cut = tmp_path / "cut.jsonl"
    for length in range(len(data) + 1):
        cut.write_bytes(data[:length])
        assert read_rows(cut) == log.rows[: data[:length].count(b"\n")]


def test_truncate_drops_later_rows_and_a_half_written_one(tmp_path):
    path = tmp_path / "log.jsonl"
    log = RowLog(path)
    log.append({"step": step} for step in range(1, 7))
    with path.open("a") as file:
        file.write('{"step": 7, "l')
    log = RowLog(path)
    log.truncate(4)
    log.append([{"step": 5}])
    assert read_rows(path) == [{"step": step} for step in range(1, 6)]
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_file_has_no_rows(tmp_path):
    assert read_rows(tmp_path / "log.jsonl") == []


BAD_ROWS = {
    '{"loss": 1.0}': "a 'step' of at least 1, got None",
    '{"step": "2"}': "a number for 'step', got '2'",
    '{"step": null}': "a 'step' of at least 1, got nan",
    '{"step": 0}': "a 'step' of at least 1, got 0",
    '{"step": 2, "loss": [1.0]}': r"a number for 'loss', got \[1.0\]",
}


@pytest.mark.parametrize("line", BAD_ROWS)
def test_a_row_without_a_step_or_with_something_else_than_numbers_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n')
    for read in (RowLog, read_steps):
        with pytest.raises(ValueError, match=rf"metrics\.jsonl, line 2: expected {BAD_ROWS[line]}"):
            read(path)


@pytest.mark.parametrize("line", ["not json", "[1, 2]", "[" * 100_000, "1" * 5000])
def test_a_broken_line_in_the_middle_is_named(tmp_path, line):
    path = tmp_path / "log.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
    with pytest.raises(ValueError, match=r"log\.jsonl, line 2: "):
        read_rows(path)
