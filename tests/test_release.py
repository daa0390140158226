"""Obstacles to a release are named before anything is built."""

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from tools.seeded_faults import record
from tools.seeded_faults.seeding import Fault

SCRIPT = Path(__file__).parent.parent / "tools" / "release.sh"
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [0.3.0] - 2027-01-01\n\n- All.\n"


@pytest.fixture
def checkout(tmp_path):
    """One that could be released, of files that the script reads."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "jaxgnn"\nversion = "0.3.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (tmp_path / ".gitignore").write_text("/dist/\n")
    (tmp_path / "jaxgnn").mkdir()
    (tmp_path / "jaxgnn" / "graph.py").write_text("ROWS = 1\n")
    _git(tmp_path, "init", "--quiet")
    _commit(tmp_path)
    _record(tmp_path)
    return tmp_path


def _git(folder, *arguments):
    # Whose hooks and signatures these are is the machine's affair.
    nobody = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgSign=false")
    command = ["git", *nobody, "-c", "core.hooksPath=/dev/null", *arguments]
    subprocess.run(command, cwd=folder, check=True)


def _commit(folder):
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--message", "State")


def _head(folder):
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def _record(folder, missed=()):
    """Commits a record of the seeded faults of the commit that is checked out."""
    (folder / record.FILE.parent).mkdir(parents=True, exist_ok=True)
    outcomes = [("none", "found"), *((name, "MISSED") for name in missed)]
    verdicts = [
        record.Verdict(Fault(name, "jaxgnn", "1", "2", ("tests/a.py",), "", "ops"), outcome)
        for name, outcome in outcomes
    ]
    record.write(folder, record.recordable_commit(folder), verdicts, "some", 1500)
    _commit(folder)


def _complaint(folder, **environment):
    """Returns the error output of the script; it is empty if nothing is in the way."""
    environment = {**os.environ, "CXX": "true", **environment}
    command = ["sh", str(SCRIPT), "ready"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert (done.returncode == 0) == (not done.stderr), done
    return done.stderr


def test_a_commit_with_its_section_is_ready_whatever_git_ignores(checkout):
    (checkout / "dist").mkdir()
    (checkout / "dist" / "old.whl").touch()
    assert _complaint(checkout) == ""


@pytest.mark.parametrize("name", ["pyproject.toml", "new.py"])
def test_what_is_not_committed_is_refused(checkout, name):
    with open(checkout / name, "a") as file:
        file.write("\n")
    assert f" {name}\n" in _complaint(checkout)


@pytest.mark.parametrize(
    "changelog, complaint",
    [
        (CHANGELOG.replace("[0.3.0]", "[0.30]"), "no section [0.3.0]"),
        (CHANGELOG.replace("- All.\n", "\n## [0.2.0]\n\n- All.\n"), "or an empty one"),
        (CHANGELOG.replace("ed]\n", "ed]\n\n- More.\n"), "entries under [Unreleased]"),
    ],
)
def test_a_changelog_that_does_not_tell_of_the_version_is_refused(checkout, changelog, complaint):
    (checkout / "CHANGELOG.md").write_text(changelog)
    _commit(checkout)
    assert complaint in _complaint(checkout)


def test_the_record_of_seeded_faults_counts_them_by_table(checkout):
    commit = _head(checkout)
    _record(checkout, missed=["a sum of “ends” is\\ dropped"])
    entries = tomllib.loads((checkout / record.FILE).read_text())
    assert entries.pop("date").year > 2025
    assert entries == {
        "commit": commit,
        "cases": "some",
        "minutes": 25,
        "missed": ["a sum of “ends” is\\ dropped"],
        "tables": {"ops": {"found": 1, "missed": 1, "hole": 0}},
    }
    assert 'names faults that no test finds:\n["a sum of' in _complaint(checkout)


@pytest.mark.parametrize(
    "path", ["jaxgnn/graph.py", "jaxgnn/new.py", "tests/test_it.py", "tools/seeded_faults/ops.txt"]
)
def test_a_record_of_other_code_is_refused(checkout, path):
    (checkout / path).parent.mkdir(parents=True, exist_ok=True)
    with open(checkout / path, "a") as file:
        file.write("ROWS = 2\n")
    with pytest.raises(record.NoRecord, match=f"these files differ; commit them:\n.*{path}"):
        record.recordable_commit(checkout)
    _commit(checkout)
    complaint = _complaint(checkout)
    assert f"{path}\n" in complaint and "run `make seeded-faults`" in complaint
    _record(checkout)
    assert _complaint(checkout) == ""


def test_a_record_holds_after_a_change_of_docs_and_of_the_version(checkout):
    (checkout / "README.md").write_text("Read me.\n")
    (checkout / "pyproject.toml").write_text('[project]\nname = "jaxgnn"\nversion = "0.4.0"\n')
    (checkout / "CHANGELOG.md").write_text(CHANGELOG.replace("0.3.0", "0.4.0"))
    _commit(checkout)
    assert _complaint(checkout) == ""


def test_a_record_of_a_commit_on_another_branch_is_refused(checkout):
    _git(checkout, "checkout", "--quiet", "-b", "other")
    (checkout / "jaxgnn" / "graph.py").write_text("ROWS = 3\n")
    _commit(checkout)
    _record(checkout)
    text = (checkout / record.FILE).read_text()
    _git(checkout, "checkout", "--quiet", "-")
    (checkout / record.FILE).write_text(text)
    _commit(checkout)
    assert "which is no ancestor of this commit" in _complaint(checkout)


@pytest.mark.parametrize(
    "text, complaint",
    [
        (None, "record.toml is not there: run `make seeded-faults`"),
        ("missed = []\n", "names no commit"),
        ('commit = "$(touch x)"\nmissed = []\n', "names no commit"),
        (f'commit = "{"0" * 40}"\nmissed = []\n', "no ancestor"),
    ],
)
def test_a_release_without_a_record_is_refused(checkout, text, complaint):
    if text is None:
        (checkout / record.FILE).unlink()
    else:
        (checkout / record.FILE).write_text(text)
    _commit(checkout)
    assert complaint in _complaint(checkout)
    assert not (checkout / "x").exists()


def test_a_record_names_a_commit_or_says_what_is_missing(tmp_path):
    with pytest.raises(record.NoRecord, match=r"^git status: .*not a git repository"):
        record.recordable_commit(tmp_path)


def test_a_machine_without_a_compiler_is_refused(checkout):
    assert "a C++ compiler" in _complaint(checkout, CXX="no-such-compiler")
