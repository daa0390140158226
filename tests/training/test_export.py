"""Rows for other programs: what is written is read back, and a resumed run has no row twice."""

import csv
import dataclasses
import importlib.util
import json
import math
import struct

import numpy as np
import pytest

from jaxgnn.training import RunFolder, export_csv, export_tensorboard

from .tiny_run import LOOP, Config, train


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    start = {"time": "2026-01-02T03:04:05+00:00", "python": "3.12.1", "packages": {}}
    start |= {"devices": [], "git": None}
    (folder / "versions.json").write_text(json.dumps([start]))
    (folder / "metrics.jsonl").write_text(
        '{"step": 1, "loss": 0.1}\n'
        '{"step": 2, "loss": 1e999, "a, \\"b\\" accuracy": 0.30000000000000004}\n'
        '{"step": 300, "loss": null}\n'
    )
    return folder


def test_csv_holds_every_number_exactly(run, tmp_path):
    path = export_csv(run, tmp_path / "metrics.csv")
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["step", "loss", 'a, "b" accuracy']
    assert rows == [
        ["1", "0.1", ""],
        ["2", "inf", "0.30000000000000004"],
        ["300", "nan", ""],
    ]


# A reader of event files that shares nothing with the writer: records with checksums computed bit
# by bit, and messages by the rules of protobuf's wire format.


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        for bit in range(8):
            low = (crc ^ byte >> bit) & 1
            crc = (crc >> 1) ^ (0x82F63B78 * low)
    return crc ^ 0xFFFFFFFF


def checked(data: bytes, checksum: bytes) -> bytes:
    """The data, if its checksum is right: its CRC, rotated by 15 bits, plus a constant."""
    bits = f"{crc32c(data):032b}"
    rotated = int(bits[-15:] + bits[:-15], 2)
    assert int.from_bytes(checksum, "little") == (rotated + 0xA282EAD8) % (1 << 32)
    return data


def records(data: bytes):
    while data:
        (length,) = struct.unpack("<Q", checked(data[:8], data[8:12]))
        yield checked(data[12 : 12 + length], data[12 + length : 16 + length])
        data = data[16 + length :]


def varint(data: bytes) -> tuple[int, bytes]:
    size = next(place for place, byte in enumerate(data) if byte < 128) + 1
    return sum((byte & 127) << 7 * place for place, byte in enumerate(data[:size])), data[size:]


def fields(data: bytes):
    """Number and value of each field: integers, floats, or bytes."""
    while data:
        key, data = varint(data)
        number, kind = divmod(key, 8)
        if kind == 0:
            value, data = varint(data)
        elif kind == 1:
            value, data = struct.unpack("<d", data[:8])[0], data[8:]
        elif kind == 5:
            value, data = struct.unpack("<f", data[:4])[0], data[4:]
        else:
            assert kind == 2
            length, data = varint(data)
            value, data = data[:length], data[length:]
        yield number, value


def scalars(path) -> dict[tuple[int, str], float]:
    """(step, tag) -> value; asserts that none occurs twice, and that the file begins as it must."""
    first, *events = [dict(fields(record)) for record in records(path.read_bytes())]
    assert first[3] == b"brain.Event:2"
    found = {}
    for event in events:
        for number, value in fields(event[5]):
            assert number == 1
            parts = dict(fields(value))
            place = event[2], parts[1].decode()
            assert place not in found
            found[place] = parts[2]
    return found


def test_the_checksum_is_that_of_the_published_example():
    assert crc32c(b"123456789") == 0xE3069283


def test_numbers_beyond_float32_are_infinite_in_event_files(run, tmp_path):
    values = [1e300, -1e300, 10**400, 3.4028235677973366e38, 3.4e38, -(10**400)]
    rows = "".join(f'{{"step": {n}, "loss": {value}}}\n' for n, value in enumerate(values, 1))
    (run / "metrics.jsonl").write_text(rows)
    found = scalars(export_tensorboard(run, tmp_path / "board"))
    expected = [math.inf, -math.inf, math.inf, math.inf, np.float32(3.4e38), -math.inf]
    assert list(found.values()) == expected


def test_names_that_utf8_can_not_encode_are_escaped(run, tmp_path):
    (run / "metrics.jsonl").write_text(r'{"step": 1, "caf\udce9 loss": 0.5}' + "\n")
    assert list(scalars(export_tensorboard(run, tmp_path))) == [(1, r"loss/caf\xe9")]
    header = export_csv(run, tmp_path / "metrics.csv").read_text(encoding="utf-8").split("\n")[0]
    assert header == r"step,caf\xe9 loss"


def test_event_files_are_read_back(run, tmp_path):
    path = export_tensorboard(run, tmp_path / "board")
    found = scalars(path)
    assert list(found) == [(1, "loss"), (2, "loss"), (2, 'accuracy/a, "b"'), (300, "loss")]
    expected = [np.float32(0.1), math.inf, np.float32(0.3), math.nan]
    np.testing.assert_array_equal(list(found.values()), expected)
    times = {dict(fields(record))[1] for record in records(path.read_bytes())}
    assert times == {1767323045.0}


def test_event_files_are_those_of_tensorboard(run, tmp_path):
    if importlib.util.find_spec("tensorboard") is None:
        pytest.skip("reason: tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    export_tensorboard(run, tmp_path / "board")
    board = EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    assert [(event.step, event.value) for event in board.Scalars("loss")][:1] == [
        (1, float(np.float32(0.1)))
    ]


class Cut(Exception):
    """Ends a run between two checkpoints."""


def test_a_resumed_run_has_no_row_twice(tmp_path):
    config = Config(loop=dataclasses.replace(LOOP, log_every=1))
    run = RunFolder(tmp_path / "run", config)

    def export():
        rows = export_csv(run.path, run.path / "metrics.csv").read_text().splitlines()
        events = scalars(export_tensorboard(run.path, run.path / "tensorboard"))
        assert [step for step, tag in events if tag == "loss"] == list(range(1, len(rows)))
        return [int(row.split(",")[0]) for row in rows[1:]], events

    def cut(step):
        if step == 15:
            raise Cut

    with pytest.raises(Cut):
        train(run, config, before_step=cut)
    steps, before = export()
    assert steps == list(range(1, 15))
    # From step 12 on, whose checkpoint is the last one; steps 13 and 14 come again.
    train(run, config)
    steps, after = export()
    assert steps == list(range(1, 19))
    assert before.items() <= after.items()
    assert len(list((run.path / "tensorboard").iterdir())) == 1


def test_a_folder_without_rows_is_refused(tmp_path):
    for export in (export_csv, export_tensorboard):
        with pytest.raises(ValueError, match=f"{export.__name__}: .* has no rows in metrics.jsonl"):
            export(tmp_path, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
