"""The page of proofs has every rule, and names tests that exist."""

import ast
import re
from pathlib import Path

from jaxgnn.fusion.rules.table import RULES

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs/internals/proofs.md"


def _sections():
    """The text about each rule, by the rule's name."""
    _, *parts = re.split(r"^### `(\w+)`$", PAGE.read_text(), flags=re.M)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _named(text):
    return re.findall(r"`(test_\w+\.py)::(test_\w+)`", text)


def test_every_rule_has_a_proof():
    missing = {rule.name for rule in RULES} - set(_sections())
    assert not missing


def test_every_rule_says_where_it_is_sound_and_which_test_checks_it():
    for name, text in _sections().items():
        assert text.strip().startswith("Sound where "), name
        assert _named(text), name


def test_every_test_that_the_page_names_exists():
    for file, test in _named(PAGE.read_text()):
        functions = [
            n.name for n in ast.parse((HERE / file).read_text()).body if hasattr(n, "name")
        ]
        assert test in functions, f"{file}::{test}"


def test_the_page_names_every_proof_by_induction():
    named = set(_named(PAGE.read_text()))
    for path in HERE.glob("test_*.py"):
        if re.search(r"^from tests\.fusion\.proofs\._induction", path.read_text(), re.M):
            tree = ast.parse(path.read_text())
            tests = {n.name for n in tree.body if getattr(n, "name", "").startswith("test_")}
            missing = {t for t in tests if (path.name, t) not in named}
            assert not missing, f"{path.name}: {missing}"
