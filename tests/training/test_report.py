"""The page about a run: complete, self-contained, and safe from what strings hold."""

import base64
import dataclasses
import html.parser
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import optax
import pytest
from flax import nnx

from jaxgnn.training import Confusion, RunFolder, Table, read_rows, write_report

from .tiny_run import LOOP, Classifier, Config, loss_fn, make_data

HOSTILE = "<script>alert('x')</script>\"&<b>"


START = {
    "time": "2026-01-03T00:00:00+00:00",
    "python": "3.13.0",
    "packages": {},
    "devices": [],
    "git": None,
}


class Page(html.parser.HTMLParser):
    """The elements and the text of a page."""

    def __init__(self, path):
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data.strip())

    def attributes(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def run(tmp_path):
    """A folder as a resumed run leaves it."""
    files = {
        "config.json": {"dataset": "digits", "k": [16, 8], "loop": {"steps": 4}, "data": None},
        "versions.json": [
            {
                "time": "2026-01-02T03:04:05+00:00",
                "python": "3.12.1",
                "packages": {"jax": "0.11.2", "jaxgnn": None},
                "devices": [{"platform": "gpu", "kind": "GPU"}, {"platform": "gpu", "kind": "GPU"}],
                "git": {"commit": "0123456789abcdef", "dirty": True},
            },
            START,
        ],
        "summary.json": {
            "select": "validation accuracy",
            "best": {"step": 2, "metrics": {}},
            "peak_host_bytes": 3 << 30,
            "peak_device_bytes": None,
        },
    }
    for name, value in files.items():
        (tmp_path / name).write_text(json.dumps(value))
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "loss": 4.0}\n'
        '{"step": 2, "loss": 2.0, "validation accuracy": 0.75}\n'
        '{"step": 3, "loss": 1.5}\n'
        '{"step": 4, "loss": 1.25, "validation accuracy": null}\n'
    )
    (tmp_path / "timing.jsonl").write_text(
        '{"step": 1, "compile_seconds": 1.5}\n'
        '{"step": 2, "ms_per_step": 10.0}\n'
        '{"step": 3, "compile_seconds": 2.5}\n'
        '{"step": 6, "ms_per_step": 20.0}\n'
    )
    return tmp_path


def test_a_page_tells_all_that_the_folder_holds(run):
    page = Page(write_report(run, title="digits, 1 seed", command="python -m x train --k 16 8"))
    assert page.open == []
    assert page.text.count("digits, 1 seed") == 2  # of the window, and of the page
    text = " | ".join(filter(None, page.text))
    for words in (
        "2026-01-02 03:04:05 UTC · 2 × GPU · commit 0123456789, with changes · started 2 times",
        "python -m x train --k 16 8",
        "metric | best, step 2 | last, step 4 | loss | 2 | 1.25 | validation accuracy | 0.75 | –",
        "The best step is that of the best validation accuracy.",
        "first step, with compilation | 1.50 s",
        # Three of four steps took 20 ms.
        "step, median | 20 ms",
        "steps that were timed | 4",
        "peak memory, host | 3,072 MiB",
        "dataset | digits | k | 16 8 | loop.steps | 4 | Without a value: data.",
        "UTC | 2 × GPU | 3.12.1 | 0.11.2 | – | 0123456789, with changes",
        "2026-01-03 00:00:00 UTC | – | 3.13.0 | – | – | –",
    ):
        assert words in text


def test_a_page_needs_no_network_and_runs_nothing(run):
    (run / "plot.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    page = Page(write_report(run, title="t", command="c", pictures=[run / "plot.svg"]))
    assert not {"script", "link", "iframe"} & {name for name, _ in page.elements}
    assert all(image["src"].startswith("data:image/") for image in page.attributes("img"))
    assert not re.search(r"url\(|@import|https?://", (run / "report.html").read_text())


def test_hostile_strings_stay_text_wherever_they_stand(run):
    (run / "config.json").write_text(json.dumps({HOSTILE: HOSTILE}))
    start = START | {"python": HOSTILE, "packages": {HOSTILE: HOSTILE}}
    start["git"] = {"commit": HOSTILE[:10], "dirty": False}
    (run / "versions.json").write_text(json.dumps([start]))
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, HOSTILE: 1.0}) + "\n")
    picture = run / "a<b>&\"'.png"
    picture.write_bytes(b"")
    table = Table(HOSTILE, (HOSTILE,), ((HOSTILE,),), note=HOSTILE)
    confusion = Confusion([0, 1], [1, 0], [HOSTILE, "b"])
    path = write_report(
        run, title=HOSTILE, command=HOSTILE, tables=[table], pictures=[picture], confusion=confusion
    )
    page = Page(path)
    assert not {"script", "b"} & {name for name, _ in page.elements}
    assert page.attributes("img")[0]["alt"] == "a<b>&\"'"
    # Title twice, command, the table's four, the confusion's five, the metric, the option and its
    # value, the package, its version, and that of Python.
    assert page.text.count(HOSTILE) == 18
    assert HOSTILE[:10] in page.text


def test_bytes_that_are_no_utf8_are_escaped_wherever_they_stand(run):
    text = "caf\udce9"
    (run / "config.json").write_text(json.dumps({text: text}))
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, text: 1.0}) + "\n")
    table = Table(text, (text,), ((text,),), note=text)
    assert table.text() == r"caf\xe9|caf\xe9|-------|caf\xe9|caf\xe9".replace("|", "\n")
    page = Page(write_report(run, title=text, command=text, tables=[table]))
    assert page.text.count(r"caf\xe9") == 10


def test_curves_and_pictures_are_inside_once_each(run):
    for name in ("curves.png", "other.png"):
        (run / name).write_bytes(b"picture " + name.encode())
    pictures = [run / "other.png", run / "curves.png"]
    for given in (pictures, [run / "other.png"]):
        page = Page(write_report(run, title="t", command="c", pictures=given))
        inside = [base64.b64decode(i["src"].split(",")[1]) for i in page.attributes("img")]
        assert sorted(inside) == [b"picture curves.png", b"picture other.png"]


def test_a_folder_without_a_run_has_a_page_of_tables(tmp_path):
    page = Page(
        write_report(tmp_path, title="t", command="c", tables=[Table("x", ("a",), ((1,),))])
    )
    assert [text for text in page.text if text][-4:] == ["Results", "x", "a", "1"]


def test_a_matrix_is_shaded_by_the_part_of_each_row(tmp_path):
    confusion = Confusion([0] * 4 + [1], [0, 0, 0, 1, 1], ["a", "b"])
    write_report(tmp_path, title="t", command="c", confusion=confusion)
    cells = re.findall(
        r"<td (?:style=\"background: ([^\"]*)\"|class=\"zero\")>(\d+)</td>",
        (tmp_path / "report.html").read_text(),
    )
    assert cells == [
        ("rgba(var(--shade), 0.476)", "3"),
        ("rgba(var(--wrong), 0.275)", "1"),
        ("", "0"),
        ("rgba(var(--shade), 0.550)", "1"),
    ]


def test_a_matrix_too_large_to_read_is_left_out_and_its_largest_errors_are_told(tmp_path):
    confusion = Confusion([70, 70, 3], [71, 71, 3], [f"class {n}" for n in range(100)])
    page = Page(write_report(tmp_path, title="t", command="c", confusion=confusion))
    text = " | ".join(filter(None, page.text))
    assert "The matrix of 100 classes is too large to be shown." in text
    assert "taken for | examples | % of the class | class 70 | class 71 | 2 | 100.0" in text


BAD_FILES = {
    "config.json": ("[]", r"config\.json: expected an object"),
    "versions.json": (
        '[{"time": "noon"}]',
        r"versions\.json: expected a start of the run, got {'t",
    ),
    "summary.json": ('{"best": {"step": "2"}}', r"summary\.json: expected a best evaluation"),
    "metrics.jsonl": ('{"loss": 1}\n', r"metrics\.jsonl, line 1: expected a 'step'"),
    "timing.jsonl": ("{\n", r"timing\.jsonl, line 1: not JSON"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_damaged_file_is_named(run, name):
    content, message = BAD_FILES[name]
    (run / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        write_report(run, title="t", command="c")
    assert not (run / "report.html").exists()


def test_a_missing_folder_and_what_is_no_picture_are_named(run):
    with pytest.raises(ValueError, match="nowhere: no such folder"):
        write_report(run / "nowhere", title="t", command="c")
    for name, expected in {"a.png": "files that exist", "config.json": "PNG, JPEG"}.items():
        with pytest.raises(ValueError, match=f"write_report: pictures must be {expected}.*{name}"):
            write_report(run, title="t", command="c", pictures=[run / name])


def test_the_callback_for_weights_and_biases_logs_each_step_once(tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs/guides/reports.md"
    (block,) = re.findall(r"^```py\n(.*?)^```", page.read_text(), re.M | re.S)
    logged, finished = [], []

    def log(metrics, *, step):
        logged.append({"step": step, **metrics})

    def init(*, project, id, resume):
        return SimpleNamespace(log=log, finish=lambda: finished.append(id))

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    run, data = RunFolder(tmp_path / "run", Config()), make_data(32, seed=0)
    names = {
        "model": Classifier(16, rngs=nnx.Rngs(0)),
        "optimizer": optax.adamw(3e-3),
        "loss_fn": loss_fn,
        "batches": lambda step: data,
        "loop": dataclasses.replace(LOOP, select=None),
        "run": run,
    }
    exec(compile(block, page.name, "exec"), names)
    assert finished == ["run"] and len(logged) == LOOP.steps
    assert logged == read_rows(run.metrics_path)
