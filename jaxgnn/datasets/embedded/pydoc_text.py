"""Text that is part of every Python: the help on its keywords and topics."""

import math
from dataclasses import dataclass

import numpy as np

from jaxgnn._fractions import exact_fraction
from jaxgnn.datasets.records.record import Record
from jaxgnn.datasets.records.splits import generator_of


@dataclass(frozen=True, repr=False)
class TextDataset(Record):
    """Text as bytes, in two parts without common paragraphs.

    Attributes:
      name: name of the data set.
      train: [bytes] uint8.
      validation: [bytes] uint8.
    """

    name: str
    train: np.ndarray
    validation: np.ndarray


def pydoc_text(validation: float = 0.1, *, seed: int = 0) -> TextDataset:
    """The language reference that ``help("topics")`` reads, split by topic, without any download.

    About 400 kB of English and code, in UTF-8. Topics quote each other. A paragraph of several
    topics is kept only in the first by name; in both parts it would test memorisation. The text
    differs slightly between versions of Python.

    Args:
      validation: fraction of the topics' bytes for validation, between 0 and 1.
      seed: seed of the choice of topics.

    Returns:
      The text. Each topic begins with its name.

    Raises:
      ValueError: ``validation`` leaves one of the parts without a topic.
    """
    from pydoc_data.topics import topics

    if not 0 < validation < 1:
        raise ValueError(f"datasets.pydoc_text: validation: expected in (0, 1), got {validation}")
    documents = [text.encode() for text in _distinct_paragraphs(topics)]
    room = math.floor(exact_fraction(validation) * sum(map(len, documents)))
    parts: dict[str, list[bytes]] = {"train": [], "validation": []}
    for i in generator_of("datasets.pydoc_text", seed).permutation(len(documents)):
        # Topics differ in size a hundredfold; after one that is too large, smaller ones may still
        # fit.
        fits = len(documents[i]) <= room
        room -= len(documents[i]) if fits else 0
        parts["validation" if fits else "train"].append(documents[i])
    if not all(parts.values()):
        expected = "a fraction that leaves topics to both parts"
        raise ValueError(f"datasets.pydoc_text: validation: expected {expected}, got {validation}")
    arrays = {name: np.frombuffer(b"".join(texts), np.uint8) for name, texts in parts.items()}
    return TextDataset(name="pydoc", **arrays)


def _distinct_paragraphs(topics: dict[str, str]) -> list[str]:
    """The topics by name; each paragraph is kept only at its first place, ignoring spaces."""
    seen: set[str] = set()
    documents = []
    for name, text in sorted(topics.items()):
        fresh = []
        for paragraph in text.split("\n\n"):
            words = " ".join(paragraph.split())
            if words and words not in seen:
                seen.add(words)
                fresh.append(paragraph.strip("\n"))
        if fresh:
            documents.append("\n\n".join([name, *fresh]) + "\n\n\n")
    return documents
