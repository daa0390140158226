"""What is in the way of a release is named before anything is built."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "tools" / "release.sh"
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [0.3.0] - 2027-01-01\n\n- All.\n"


@pytest.fixture
def checkout(tmp_path):
    """One that could be released, of files that the script reads."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "jaxgnn"\nversion = "0.3.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (tmp_path / ".gitignore").write_text("/dist/\n")
    _git(tmp_path, "init", "--quiet")
    _commit(tmp_path)
    return tmp_path


def _git(folder, *arguments):
    # Whose hooks and signatures these are is the machine's affair.
    nobody = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgSign=false")
    command = ["git", *nobody, "-c", "core.hooksPath=/dev/null", *arguments]
    subprocess.run(command, cwd=folder, check=True)


def _commit(folder):
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--message", "State")


def _complaint(folder, **environment):
    """What the script says on its error stream; none if it finds nothing in the way."""
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


def test_a_machine_without_a_compiler_is_refused(checkout):
    assert "a C++ compiler" in _complaint(checkout, CXX="no-such-compiler")
