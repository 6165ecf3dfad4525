"""Held entries know their store; those held for no store belong to all of them."""

import pytest
from support import topical
from typer.testing import CliRunner

from ragshield_core import Quarantine
from ragshield_core.cli import app
from ragshield_core.model.errors import QuarantineError

ENTRIES = topical("billing", 2, prefix="q")
FIRST, SECOND = ENTRIES.ids


def test_stores_in_one_namespace_do_not_see_each_other(quarantine):
    news, mail = quarantine.for_store("news"), quarantine.for_store("mail")
    news.hold(ENTRIES)
    mail.hold(ENTRIES.take([1]))
    assert (quarantine.count(), news.count(), mail.count()) == (3, 2, 1)
    assert mail.held_ids(ENTRIES.ids) == {SECOND}
    with pytest.raises(QuarantineError, match=f"{FIRST!r} is not held"):
        mail.release([FIRST])
    assert [held.store for held in mail.release([SECOND])] == ["mail"]
    assert news.held_ids(ENTRIES.ids) == set(ENTRIES.ids)  # the very same text
    news.confirm([FIRST])
    assert mail.confirmed_among(ENTRIES) == {}
    assert set(news.confirmed_among(ENTRIES)) == {FIRST}
    assert mail.purge(ENTRIES.ids) == 1
    assert quarantine.count(None) == 2


def test_quarantine_without_a_store_sees_all_and_never_guesses(quarantine):
    quarantine.for_store("news").hold(ENTRIES)
    quarantine.for_store("mail").hold(ENTRIES.take([1]))
    for decide in (quarantine.release, quarantine.confirm, quarantine.purge):
        with pytest.raises(QuarantineError, match=r"several stores \('mail', 'news'\).*for_store"):
            decide([FIRST, SECOND])
    assert quarantine.count() == 3
    assert [held.store for held in quarantine.release([FIRST])] == ["news"]


def test_entry_held_for_no_store_is_released_by_any_store(quarantine):
    quarantine.hold(ENTRIES)
    news, unnamed = quarantine.for_store("news"), quarantine.for_store("")
    assert [held.store for held in news.list()] == [None, None]
    assert unnamed.held_ids(ENTRIES.ids) == set(ENTRIES.ids)
    news.hold(ENTRIES)  # once more: the same entries
    assert quarantine.count() == 2
    assert [held.id for held in unnamed.release([FIRST])] == [FIRST]


@pytest.mark.parametrize("name", ["*", None, 3])
def test_invalid_store_name_is_refused(quarantine, name):
    with pytest.raises(QuarantineError, match="a store's name is"):
        quarantine.for_store(name)


def test_any_text_can_be_a_name(on_file):
    names = ["a\0b", "half \ud83d", "news' OR 1=1", ""]
    for name in names:
        Quarantine(on_file).for_store(name).hold(ENTRIES)
    assert Quarantine(on_file).count() == len(names) * len(ENTRIES)
    assert all(Quarantine(on_file, store=name).count() == len(ENTRIES) for name in names)


@pytest.mark.slow
def test_the_command_names_stores(on_file):
    quarantine = Quarantine(on_file)
    quarantine.hold(ENTRIES.take([0]))
    quarantine.for_store("news").hold(ENTRIES.take([1]))
    quarantine.for_store("").hold(ENTRIES.take([1]))

    def say(*words):
        told = CliRunner().invoke(
            app, ["quarantine", *words, "--database", on_file], env={"COLUMNS": "200"}
        )
        return told.output if told.exception is None else str(told.exception)

    table = say("list")
    assert all(word in table for word in ("(any)", "news", "(unnamed)"))
    assert "3 entries held" in table
    only = say("list", "--store", "news")
    assert "2 entries held" in only
    assert "(unnamed)" not in only
    assert '"store": "news"' in say("list", "--format", "json", "--store", "news")
    assert "news" in say("show", SECOND, "--store", "news")
    assert "several stores" in say("release", SECOND)
    assert "released 1" in say("release", SECOND, "--store", "")
    assert "confirmed 1" in say("confirm", SECOND, "--store", "news")
    assert "deleted 1" in say("purge", SECOND, "--store", "news")
