"""What metadata claims: labels, and what an entry was cut from."""

import logging
from pathlib import Path

import pytest

from ragshield_core.model.claims import lineage_of, tell_lineages
from ragshield_core.model.errors import InvalidBatchError


@pytest.mark.parametrize(
    ("metadata", "lineage", "key"),
    [
        ({"file_path": "a.pdf", "page_label": "3", "source": "3"}, "a.pdf", "file_path"),
        ({"source": Path("notes.md"), "page": 4}, "notes.md", "source"),
        ({"source": "https://example.org/a"}, "https://example.org/a", "source"),
        ({"source": 7, "file_name": "b.pdf"}, "b.pdf", "file_name"),
        ({"source": "12 "}, None, None),
        ({"source": ""}, None, None),
        ({"source": ["x"], "doc_id": "d-1"}, "d-1", "doc_id"),
        ({}, None, None),
    ],
)
def test_the_file_or_document_is_the_lineage_and_no_page_number(metadata, lineage, key):
    assert lineage_of(metadata, "entry") == (lineage, key)


def test_a_key_that_is_named_is_the_only_one():
    metadata = {"file_path": "a.pdf", "chapter": 3}
    assert lineage_of(metadata, "entry", "chapter") == ("3", "chapter")
    assert lineage_of(metadata, "entry", "other") == (None, None)
    with pytest.raises(InvalidBatchError, match=r"metadata\['chapter'\] of entry 'e7' is of type"):
        lineage_of({"chapter": ["x"]}, "e7", "chapter")


def test_the_log_says_which_keys_were_taken(caplog):
    with caplog.at_level(logging.INFO, logger="ragshield"):
        tell_lineages(["source", "file_path", "source", None])
    assert caplog.messages == ["lineages are taken from: source (2), file_path (1), no key (1)"]
