"""Each word of docs/reference/glossary.md is defined once, in one or two sentences, and named as the code names it."""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = re.findall(
    r"^\| \*\*(.+?)\*\* \| (.+?) \| (.+) \|$", (ROOT / "docs/reference/glossary.md").read_text(), re.MULTILINE
)
FILES = [path for ending in ("py", "sql") for path in (ROOT / "src").rglob(f"*.{ending}")]
SOURCE = "\n".join(path.read_text() for path in FILES)
IDENTIFIERS = frozenset(re.findall(r"\w+", SOURCE))


def test_about_eighty_words_are_each_defined_once():
    counts = Counter(word for word, _, _ in ROWS)

    assert 70 <= len(counts) <= 90
    assert max(counts.values()) == 1


@pytest.mark.parametrize(("word", "names", "meaning"), ROWS, ids=[word for word, _, _ in ROWS])
def test_a_word_and_its_names_occur_in_the_source(word, names, meaning):
    """A plural will do. ``ctx.set`` and ``resurgam worker`` count as two names each."""
    spelling = re.sub(r"[ -]", "[ _-]?", word.removesuffix("y"))
    quoted = re.findall(r"`(.+?)`", names)

    assert re.search(rf"\b{spelling}", SOURCE, re.IGNORECASE)
    assert quoted
    assert {name for part in quoted for name in re.findall(r"\w+", part)} - IDENTIFIERS == set()
    assert len(re.findall(r"\.(?: |$)", meaning)) in {1, 2}
