"""Compares new rows of benchmarks with committed ones: ``python tools/compare_rows.py FOLDER``.

Prints, for each measurement of the files of FOLDER, its milliseconds, those of the newest committed
row of the same measurement and device, and their ratio; the largest ratio first. The exit status is
1 if one exceeds the limit, by default 1.05::

    python -m experiments.benchmarks.spmm --out runs/new
    python tools/compare_rows.py runs/new --limit 1.03
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "experiments" / "benchmarks" / "results"
# Fields that name a measurement.
SAME = ("op", "device", "workload", "nodes", "edges", "dim", "dtype", "direction", "k")
SAME += ("implementation",)


def newest(files: list[Path]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The newest row of each measurement in these files."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for file in files:
        for line in file.read_text().splitlines():
            row = json.loads(line)
            name = tuple(row.get(field) for field in SAME)
            if row.get("ms") is not None and row["date"] >= rows.get(name, row)["date"]:
                rows[name] = row
    return rows


def main() -> int:
    """Prints the comparison and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=float, default=1.05)
    options = parser.parse_args()
    files = sorted(options.folder.glob("*.jsonl"))
    new = newest(files)
    old = newest([RESULTS / file.name for file in files if (RESULTS / file.name).exists()])
    ratios = [(row["ms"] / old[name]["ms"], name) for name, row in new.items() if name in old]
    for ratio, name in sorted(ratios, key=lambda pair: -pair[0]):
        what = " ".join(str(part) for part in name if part is not None)
        print(f"{ratio:5.2f}  {new[name]['ms']:9.4f} {old[name]['ms']:9.4f} ms  {what}")
    print(f"{len(ratios)} of {len(new)} measurements have a committed row")
    return int(any(ratio > options.limit for ratio, _ in ratios))


if __name__ == "__main__":
    sys.exit(main())
