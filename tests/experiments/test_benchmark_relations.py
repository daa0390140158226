"""The benchmark of relations runs from its options to its rows."""

import pytest

from experiments.benchmarks.relations import Options, main


def test_both_ways_compute_the_same_and_have_their_rows(tmp_path, capsys):
    main(Options(nodes=20, edges=60, relations=(3,), dim=4, repeats=1, out=tmp_path))
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("20 nodes, 60 edges, 4 wide")
    assert [line.split()[:3] for line in printed[1:3]] == [
        ["3", "relations", "forward"],
        ["3", "relations", "forward+backward"],
    ]
    assert (tmp_path / "relations.jsonl").read_text().count("apart_ms") == 2


@pytest.mark.parametrize("field, value", [("nodes", 0), ("relations", ()), ("relations", (2, 0))])
def test_sizes_that_do_not_exist_are_named(field, value, tmp_path):
    with pytest.raises(ValueError, match=f"relations: --{field} must be at least one"):
        main(Options(**{field: value}, out=tmp_path))
