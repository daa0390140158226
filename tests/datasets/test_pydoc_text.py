import numpy as np
import pytest

from jaxgnn.datasets import pydoc_text


@pytest.fixture(scope="module")
def data():
    return pydoc_text()


def paragraphs(text):
    return {" ".join(p.split()) for p in bytes(text).decode().split("\n\n")} - {""}


def test_the_text_is_utf8_and_a_tenth_is_for_validation(data):
    total = data.train.size + data.validation.size
    assert data.train.dtype == data.validation.dtype == np.uint8
    assert total > 300_000
    assert 0.08 < data.validation.size / total <= 0.1
    assert "expression" in bytes(data.train).decode()


def test_no_paragraph_is_in_both_parts(data):
    assert paragraphs(data.train).isdisjoint(paragraphs(data.validation))


def test_no_paragraph_is_there_twice(data):
    every = [" ".join(p.split()) for p in bytes(data.train).decode().split("\n\n")]
    every = [p for p in every if p]
    assert len(every) == len(set(every))


def test_nothing_is_lost_but_repeats(data):
    from pydoc_data.topics import topics

    expected = set().union(*(paragraphs(text.encode()) for text in topics.values()))
    assert expected <= paragraphs(data.train) | paragraphs(data.validation)


def test_same_seed_same_split_and_other_seed_other_split(data):
    np.testing.assert_array_equal(pydoc_text().validation, data.validation)
    assert not np.array_equal(pydoc_text(seed=1).validation, data.validation)


@pytest.mark.parametrize("validation", [0.0, 1.0, 1e-9])
def test_an_impossible_split_is_refused(validation):
    with pytest.raises(ValueError, match=r"datasets\.pydoc_text: validation: expected"):
        pydoc_text(validation)
