"""The rules of `tools/check_language.py`: an example that each refuses, and one that it accepts."""

import ast

import pytest

from tools import check_language
from tools.check_language import source_findings


@pytest.fixture(autouse=True)
def all_rooms_are_converted(monkeypatch):
    monkeypatch.setattr(check_language, "NAMES_LEFT", frozenset())


def _texts(source, **options):
    return [text for _, text in source_findings(source, **options)]


def _function(docstring, name="rows", header=""):
    return f'{header}def {name}():\n    """{docstring}"""\n'


@pytest.mark.parametrize("word", ["What", "Of", "How", "Which", "That", "Where"])
def test_no_docstring_begins_with_a_question_word(word):
    source = f'"""{word} it is."""\n\n\nclass Rows:\n    """{word} it is."""\n'
    assert _texts(source) == [f"docstring begins with {word!r}: it is."] * 2


@pytest.mark.parametrize("word", ["As", "By", "For", "In", "Its", "Those", "So", "With"])
def test_the_docstring_of_a_private_function_does_not_continue_a_sentence(word):
    (text,) = _texts(_function(f"{word} the rows.", "_rows"))
    assert text.startswith(f"docstring begins with {word!r}; begin with a verb or a noun phrase")
    assert _texts(_function(f"{word} the rows.", "rows")) == []


def test_a_function_returns_whether_but_a_property_may_be_whether():
    (text,) = _texts(_function("Whether rows are sorted."))
    assert text == ("docstring begins with 'Whether'; write 'Returns whether': rows are sorted.")
    assert _texts(_function("Returns whether rows are sorted.", "_rows")) == []
    for decorator in ("@property\n", "@functools.cached_property\n"):
        assert _texts(_function("Whether rows are sorted.", header=decorator)) == []
    field = 'class Rows:\n    are_sorted: bool\n    """Whether rows are sorted."""\n'
    assert _texts(field) == []


@pytest.mark.parametrize("docstring", ["Sums rows.", "Row offsets of the edges.", "``x``, summed."])
def test_verbs_and_noun_phrases_begin_docstrings(docstring):
    assert _texts(_function(docstring, "_rows")) == []


@pytest.mark.parametrize("word", sorted(check_language.CONTINUATIONS))
def test_a_comment_after_code_does_not_end_the_sentence_of_a_name(word):
    comment = f"{word} the search follows"
    (text,) = _texts(f"LIMIT = 3  # {comment}\n")
    assert text == f"comment begins with {word!r}; write a remark that is read alone: {comment}"


@pytest.mark.parametrize(
    "source",
    [
        "LIMIT = 3  # Longest chain that the search follows.\n",
        "LIMIT = 3  # bytes\n",
        "x = 3  # noqa: E501\n",
        "x = 3  # type: ignore\n",
        "# that begins a line of its own\nLIMIT = 3\n",
        'text = "a  # that"\n',
    ],
)
def test_other_comments_are_accepted(source):
    assert _texts(source) == []


@pytest.mark.parametrize("name", ["made", "_found", "own", "known", "given_"])
@pytest.mark.parametrize(
    "source",
    [
        "{} = 3\n",
        "{}: int = 3\n",
        "rows, {} = 3, 4\n",
        "self.{} = 3\n",
        "for {} in rows:\n    pass\n",
        "x = [1 for {} in rows]\n",
        "x = lambda {}: 3\n",
        "def f(*, {}=None):\n    pass\n",
        "def f(*{}):\n    pass\n",
        "def {}():\n    pass\n",
        "if ({} := f()):\n    pass\n",
        "with f() as {}:\n    pass\n",
        "import numpy as {}\n",
        "try:\n    pass\nexcept ValueError as {}:\n    pass\n",
        "match x:\n    case [{}]:\n        pass\n",
    ],
)
def test_vague_names_are_refused_wherever_they_are_bound(name, source):
    source = source.format(name)
    ast.parse(source)
    advice = check_language.VAGUE_NAMES[name.strip("_")]
    assert _texts(source) == [f"`{name}` is vague; {advice}"]


@pytest.mark.parametrize(
    "source",
    [
        "found_rows = own_columns = is_known = 3\n",
        "print(made, other.found, f(given=3))\n",
        'text = "found"  # found\n',
    ],
)
def test_compounds_and_uses_of_names_are_accepted(source):
    assert _texts(source) == []


@pytest.mark.parametrize("name", ["of", "_of_rows", "with_edges", "by_node", "in_order", "as_int"])
def test_no_function_begins_with_a_preposition(name):
    for source in (
        f"def {name}():\n    pass\n",
        f"class A:\n    async def {name}():\n        pass\n",
    ):
        (text,) = _texts(source)
        assert text.startswith(f"function `{name}` begins with a preposition; begin with a verb")


@pytest.mark.parametrize(
    "name",
    ["from_edges", "to_dense", "_to_dense", "in_degrees", "in_place", "format_rows", "offset"],
)
def test_constructors_nouns_and_other_words_are_accepted(name):
    assert _texts(f"def {name}():\n    pass\n") == []


def test_public_names_are_accepted_in_their_class_or_function_alone():
    method = "    def with_self_loops(self):\n        pass\n"
    assert _texts(f"class CSRGraph:\n{method}") == []
    assert len(_texts(f"class Graph:\n{method}")) == 1
    inner = "    def step(own):\n        pass\n"
    assert _texts(f"def fit_many(own):\n{inner}") == []
    assert len(_texts(f"def fit(own):\n{inner}")) == 2
    attribute = "    def __init__(self):\n        self.own = 3\n"
    assert _texts(f"class _GatedMessages:\n{attribute}") == []


def test_phrases_are_refused_in_docstrings_and_comments_across_lines():
    source = _function("Sums\n    so long\n    a row, for so many.") + "# It is worked out.\n"
    assert sorted(source_findings(source)) == [
        (3, "'so long a'; write: the longest time that"),
        (4, "'for so many'; write: name the number"),
        (5, "'worked out'; write: computed"),
    ]
    assert _texts('x = "worked out"\n') == []


def test_folders_that_are_left_are_checked_by_question_words_and_phrases_alone():
    source = "def _of():\n    made = 3  # that is left\n"
    assert _texts(source, all_rules=False) == [] and len(_texts(source)) == 3
    assert len(_texts(_function("What it is."), all_rules=False)) == 1


def test_findings_have_the_path_and_the_line(tmp_path, capsys):
    path = tmp_path / "module.py"
    path.write_text("rows = 3\nmade = 4\n")
    assert check_language.main([str(path)]) == 1
    assert capsys.readouterr().out.startswith(f"{path}:2: `made` is vague; ")
    path.write_text("rows = 3\n")
    assert check_language.main([str(tmp_path)]) == 0 and capsys.readouterr().out == ""
