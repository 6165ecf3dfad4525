"""Claims of metadata: labels and lineages."""

from pathlib import Path

import pytest

from ragshield_core.model.claims import lineage_of
from ragshield_core.model.errors import InvalidBatchError


@pytest.mark.parametrize(
    ("metadata", "lineage"),
    [
        ({"file_path": "a.pdf", "page_label": "3", "source": "3"}, "a.pdf"),
        ({"source": Path("notes.md"), "page": 4}, "notes.md"),
        ({"source": "https://example.org/a"}, "https://example.org/a"),
        ({"source": 7, "file_name": "b.pdf"}, "b.pdf"),
        ({"source": "12 "}, None),
        ({"source": ""}, None),
        ({"source": ["x"], "doc_id": "d-1"}, "d-1"),
        ({}, None),
    ],
)
def test_lineage_is_the_file_or_document_without_page_number(metadata, lineage):
    assert lineage_of(metadata, "entry") == lineage


def test_named_key_is_the_only_source_of_the_lineage():
    metadata = {"file_path": "a.pdf", "chapter": 3}
    assert lineage_of(metadata, "entry", "chapter") == "3"
    assert lineage_of(metadata, "entry", "other") is None
    with pytest.raises(InvalidBatchError, match=r"metadata\['chapter'\] of entry 'e7' is of type"):
        lineage_of({"chapter": ["x"]}, "e7", "chapter")
