"""Sources of documents: a column of each batch, taken from lineages unless they are given."""

from dataclasses import replace

import numpy as np
import pytest
from effort import assert_linear
from hypothesis import given
from hypothesis import strategies as st
from support import entries, through_files

from ragshield_core.learning.events import Change, Event
from ragshield_core.model.claims import MAX_SOURCE, source_of
from ragshield_core.model.entries import concatenate
from ragshield_core.model.errors import InvalidBatchError

HOSTILE = "evil\x1b[31m\u202e<b>[red]"


def three(**columns):
    return entries([f"text {i}" for i in range(3)], **columns)


@pytest.mark.parametrize(
    ("document", "source"),
    [
        ("https://docs.example.org/guide/start.html", "docs.example.org"),
        ("https://DOCS.Example.org", "docs.example.org"),
        ("https://anna:secret@docs.example.org:8443/a?b=c#d", "docs.example.org:8443"),
        ("https://docs.example.org?page=1", "docs.example.org"),
        ("http://[2001:db8::1]/a", "[2001:db8::1]"),
        ("s3://handbook/2024/leave.pdf", "handbook"),
        ("gs://handbook", "handbook"),
        ("file:///srv/wiki/a.md", "/srv/wiki"),
        ("handbook/leave/parents.md", "handbook"),
        ("./handbook/leave.md", "handbook"),
        ("../handbook/leave.md", "handbook"),
        ("handbook\\leave\\parents.md", "handbook"),
        ("/srv/wiki/a.md", "/srv/wiki"),
        ("/srv/a.md", "/srv"),
        ("/a.md", None),
        ("C:\\wiki\\team\\a.md", "C:/wiki"),
        ("C:/wiki/a.md", "C:/wiki"),
        ("a.md", None),
        ("./a.md", None),
        ("../../a.md", None),
        ("Chicago", None),
        ("", None),
        ("/", None),
        ("////", None),
        ("https://", None),
        ("https://anna@/a", None),
        (None, None),
    ],
)
def test_a_source_is_the_host_the_bucket_or_the_top_folder(document, source):
    assert source_of(document) == source


@given(st.text(max_size=400))
@pytest.mark.slow
def test_any_name_has_a_source_of_bounded_length_or_none(document):
    source = source_of(document)
    assert source is None or 0 < len(source) <= MAX_SOURCE
    assert source_of(document) == source


@pytest.mark.parametrize(
    "piece", ["/", "a/", "//", "a" * 50, "a:", "\\", "https://", "@", "../", "a@", "-", "\u202e"]
)
@pytest.mark.slow
def test_effort_is_linear_however_long_a_name_is(piece):
    assert_linear(lambda name: (source_of(name), source_of(f"https://{name}")), piece, 100_000)
    for name in (piece * 200_000, "https://" + piece * 200_000, "a" + piece * 200_000):
        assert len(source_of(name) or "") <= MAX_SOURCE


def test_sources_are_taken_from_lineages_unless_they_are_given():
    lineages = ["https://a.example/1", "b/2.md", "3"]
    assert three(lineages=lineages).sources == ("a.example", "b", None)
    assert three().sources == (None, None, None)
    given_ones = three(lineages=lineages, sources=["feed", None, HOSTILE])
    assert given_ones.sources == ("feed", None, HOSTILE)
    assert [entry.source for entry in given_ones] == ["feed", None, HOSTILE]


def test_a_source_is_no_part_of_the_revision():
    one, other = three(sources=["a", "b", "c"]), three()
    assert one.fingerprints() == other.fingerprints()
    assert one[0].fingerprint == other[0].fingerprint


@pytest.mark.parametrize("sources", [["a", "b"], ["a", "b", 7], ["a", "b", "nul\0"]])
def test_invalid_source_column_is_refused(sources):
    with pytest.raises(InvalidBatchError, match="sources"):
        three(sources=sources)


def test_rows_keep_their_sources():
    batch = three(sources=["a", "b", None])
    assert batch.take([2, 0]).sources == (None, "a")
    assert batch.take(np.array([False, True, False])).sources == ("b",)
    other = replace(batch, ids=("x", "y", "z"), sources=(None, "d", "a"))
    assert concatenate([batch, other]).sources == ("a", "b", None, None, "d", "a")
    assert concatenate([batch.take([]), other]).sources == other.sources


def test_events_keep_sources():
    event = Event(change=Change.LEARNED, entries=three(sources=["a", None, HOSTILE]))
    again = Event.from_parts(*through_files(*event.to_parts()))
    assert again.entries.sources == ("a", None, HOSTILE)
