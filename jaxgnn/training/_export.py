"""Exports rows of a run for other programs: as CSV, and as event files of TensorBoard.

The event format is written here, because the lightest maintained writer, tensorboardX, changes
names of metrics and names its files by time, so that an export could not replace an earlier one.
"""

import csv
import functools
import io
import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from .files import printable, write_bytes, write_text
from .run import Record, read_record

# A fixed name, so that a later export replaces an earlier one; TensorBoard would show the rows of
# both files.
_EVENT_FILE = "events.out.tfevents.0.jaxgnn"


def export_csv(run: str | os.PathLike[str], path: str | os.PathLike[str]) -> Path:
    """Writes the metrics of a run as comma-separated values, and replaces an earlier export.

    Args:
      run: The folder of the run. Another process may be training in it.
      path: The file to write.

    Returns:
      The path. Its first line names the columns: ``step``, and every metric of any row. A cell is
      empty if the row lacks the metric, and ``nan`` or ``inf`` if that is the value.

    Raises:
      ValueError: There is no such folder, it has no rows, or a file in it is damaged.
    """
    rows = _record_with_rows("export_csv", run).rows
    names = list({"step": None} | {name: None for row in rows for name in row})
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path = Path(path)
    write_text(path, text.getvalue())
    return path


def export_tensorboard(run: str | os.PathLike[str], folder: str | os.PathLike[str]) -> Path:
    """Writes the metrics of a run as scalars for ``tensorboard --logdir``.

    The last word of a metric's name becomes its group: ``validation accuracy`` is shown as
    ``accuracy/validation``. All events have the time of the run's first start. Values are float32:
    a metric beyond its range, such as 1e300, is infinite.

    Args:
      run: The folder of the run. Another process may be training in it.
      folder: The folder to write to, created if missing. An earlier export there is replaced.

    Returns:
      The path of the event file.

    Raises:
      ValueError: There is no such folder, it has no rows, or a file in it is damaged.
    """
    record = _record_with_rows("export_tensorboard", run)
    path = Path(folder) / _EVENT_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, b"".join(map(_framed, _events(record))))
    return path


def _record_with_rows(where: str, run: str | os.PathLike[str]) -> Record:
    record = read_record(run)
    if not record.rows:
        raise ValueError(f"{where}: {record.folder} has no rows in metrics.jsonl")
    return record


def _events(record: Record) -> Iterator[bytes]:
    """The messages of the file: its version, then one for each row.

    They are Event and Summary of TensorFlow's event.proto and summary.proto, in the wire format of
    protobuf: each field is a key, made of its number and its wire type, and then its value.
    """
    # Field 1 of Event is its time as a double, in seconds since 1970; field 2 is the step.
    time = record.starts[0].time.timestamp() if record.starts else 0.0
    start = b"\x09" + struct.pack("<d", time) + b"\x10"
    yield start + _varint(0) + _bytes_field(3, b"brain.Event:2")
    for row in record.rows:
        values = [
            # A Value has a tag, field 1, and a number, field 2 as a float.
            _bytes_field(1, printable(_tag(name)).encode()) + b"\x15" + _float32(value)
            for name, value in row.items()
            if name != "step"
        ]
        summary = b"".join(_bytes_field(1, value) for value in values)
        yield start + _varint(int(row["step"])) + _bytes_field(5, summary)


def _float32(value: float) -> bytes:
    """The nearest float32, which is infinite beyond the largest one."""
    try:
        return struct.pack("<f", float(value))
    except OverflowError:  # an integer may be beyond float64, too
        return struct.pack("<f", math.copysign(math.inf, value > 0 or -1))


def _tag(name: str) -> str:
    first, _, last = name.rpartition(" ")
    return f"{last}/{first}" if first else last


def _bytes_field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the high bit says that more follow."""
    groups = []
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def _framed(message: bytes) -> bytes:
    """A record of a TFRecord file: length and message, each followed by its checksum."""
    length = struct.pack("<Q", len(message))
    return length + _checksum(length) + message + _checksum(message)


def _checksum(data: bytes) -> bytes:
    """CRC-32C, rotated and shifted by a constant, as TFRecord files require."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _effect_on_crc((crc ^ byte) & 0xFF) ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)


@functools.cache
def _effect_on_crc(byte: int) -> int:
    """Effect of a byte on a CRC of the Castagnoli polynomial, lowest bit first."""
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte
