"""Held entries are grouped in cases: each group, flood or set of copies is one decision."""

import pytest
from held import found, hold
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event, select, text

from ragshield_core import Quarantine
from ragshield_core.database.tables import CaseRow, MemberRow
from ragshield_core.model.errors import QuarantineError
from ragshield_core.model.findings import Decision, Verdict
from ragshield_core.model.severity import MOST, Severity, severity_by
from ragshield_core.quarantine import Status
from ragshield_core.quarantine.grouping import RANKS, rank_of
from ragshield_core.tools.review.cases import CaseOrder, Cases
from ragshield_core.tools.review.desk import KEEP, WOULD_RELEASE, note_in_log, proposed


@pytest.fixture
def quarantine(any_url):
    return Quarantine(any_url)


def grouped(quarantine):
    """Return the ids of each case, decided ones included."""
    cases = Cases(quarantine).page(waiting=None, order="age", limit=1000).cases
    return sorted(
        tuple(sorted(h.id for h in Cases(quarantine).members(c.number, limit=1000))) for c in cases
    )


def tables(quarantine):
    with quarantine.database.read() as session:
        rows = (session.execute(select(table.__table__)).all() for table in (CaseRow, MemberRow))
        return [sorted(map(tuple, found)) for found in rows]


def test_a_group_is_one_case_whether_it_comes_together_or_one_by_one(quarantine):
    names = ("a", "b", "c")
    hold(quarantine, *(found(i, [j for j in names if j != i]) for i in names), found("lone"))
    hold(quarantine, found("later", ["a", "no longer here"]))
    assert grouped(quarantine) == [("a", "b", "c", "later"), ("lone",)]
    (case, lone) = Cases(quarantine).page().cases
    assert (case.n_waiting, case.n_members, case.detectors) == (4, 4, ("clique",))
    assert (lone.n_waiting, lone.rarity) == (1, 3.0)


def test_entry_that_links_two_cases_merges_them(quarantine):
    hold(quarantine, found("a", p_value=0.01), found("b", p_value=0.0001))
    first, second = sorted(case.number for case in Cases(quarantine).page().cases)
    hold(quarantine, found("c", ["a", "b"]))
    (case,) = Cases(quarantine).page().cases
    assert (case.number, case.n_waiting, case.rarity) == (first, 3, 4.0)
    assert Cases(quarantine).show(second) == case  # the old number still finds it


def test_entries_named_by_other_detectors_do_not_join_cases(quarantine):
    hold(quarantine, found("near", detector="leading_question"), found("good"))
    quarantine.release(["good"], by="anna")
    hold(quarantine, found("new", ["near", "good", "in the store"], "label_neighbors"))
    assert grouped(quarantine) == [("good",), ("near",), ("new",)]


def test_planted_and_genuine_entries_around_a_page_stay_separate(quarantine):
    planted = [f"planted {n}" for n in "abcd"]
    genuine = [f"genuine {n}" for n in "abcdefghij"]
    hold(
        quarantine,
        *(found(i, ["manual", *(j for j in planted if j != i)]) for i in planted),
        *(found(i, ["manual", f"like {i}"]) for i in genuine),
    )
    expected = sorted([tuple(planted), *((i,) for i in genuine)])
    assert grouped(quarantine) == expected
    Cases(quarantine).regroup()
    assert grouped(quarantine) == expected


def test_entry_held_for_another_reason_joins_its_group(quarantine):
    hold(quarantine, found("first", detector="leading_question"), found("other", detector="hidden"))
    hold(quarantine, found("third", ["second", "first"]))
    assert grouped(quarantine) == [("first", "third"), ("other",)]


def test_shared_phrase_does_not_merge_groups(quarantine):
    every = ("a", "b", "x", "y", "clean")
    phrase = {i: found(i, [j for j in every if j != i], "trigger_phrase", 1e-4) for i in every}
    groups = {i: found(i, [j]) for i, j in (("a", "b"), ("b", "a"), ("x", "y"), ("y", "x"))}
    both = (
        Decision(
            entry_id=i,
            verdict=Verdict.QUARANTINE,
            findings=(*phrase[i].findings, *(groups[i].findings if i in groups else ())),
        )
        for i in every
    )
    hold(quarantine, *both)
    hold(quarantine, found("later", ["a", "x", "clean"], "trigger_phrase"))
    expected = [("a", "b"), ("clean", "later"), ("x", "y")]
    assert grouped(quarantine) == expected
    Cases(quarantine).regroup()
    assert grouped(quarantine) == expected


def test_new_member_reopens_a_confirmed_case(quarantine):
    hold(quarantine, found("a", ["b"]), found("b", ["a"]))
    quarantine.confirm(["a", "b"], by="anna")
    assert Cases(quarantine).page().cases == ()
    (closed,) = Cases(quarantine).page(waiting=False).cases
    hold(quarantine, found("c", ["a"]))
    (case,) = Cases(quarantine).page().cases
    assert (case.number, case.n_waiting, case.n_confirmed) == (closed.number, 1, 2)


def test_copies_with_different_numbers_are_one_case(quarantine):
    texts = ["Call 0800 1 now", "call  0800 27 NOW", "Call the bank now", "7", "8"]
    hold(quarantine, *(found(str(n)) for n in range(5)), texts=texts)
    assert grouped(quarantine) == [("0", "1"), ("2",), ("3",), ("4",)]


@pytest.mark.slow
def test_new_copy_joins_a_flood_with_released_members(quarantine):
    copies = [str(n) for n in range(30)]
    for store in ("news", "mail"):
        seen = quarantine.for_store(store)
        hold(seen, *map(found, copies), texts=[f"Call 0800 {n} now" for n in copies])
        seen.release(copies[:20], by="anna")
    news, mail = sorted(case.number for case in Cases(quarantine).page().cases)
    hold(
        quarantine.for_store("mail"), found("one more"), found("x"), texts=["Call 0800 7 now", "x"]
    )
    hold(quarantine.for_store("else"), found("another"), texts=["Call 0800 7 now"])
    sizes = {case.number: case.n_members for case in Cases(quarantine).page().cases}
    assert (sizes.pop(news), sizes.pop(mail)) == (30, 31)
    assert list(sizes.values()) == [1, 1]
    mail_store = quarantine.for_store("mail")
    mail_store.release([*copies[20:], "one more"], by="anna")  # nobody of it tells any more
    hold(mail_store, found("later"), texts=["Call 0800 8 now"])
    (case,) = Cases(quarantine).of(["later"])
    assert case.n_members == 1


@pytest.mark.parametrize("n", [4, 10, 30])
@pytest.mark.slow
def test_reopened_entries_join_copies_that_came_meanwhile(quarantine, n):
    floods = [[f"{flood}{k}" for k in range(n)] for flood in "abc"]
    for copies in floods:
        hold(quarantine, *map(found, copies), texts=[f"Call 0800 {k} now" for k in range(n)])
        quarantine.release(copies if copies is not floods[-1] else [], by="anna")
    assert Cases(quarantine).page(waiting=None).n_cases == 3
    quarantine.reopen(floods[1][:2], by="anna")
    quarantine.release([*floods[1][:2], *floods[2]], by="anna")
    decided = Cases(quarantine).page(waiting=False, order="age").cases
    assert [case.n_members for case in decided] == [n, 2 * n]
    quarantine.reopen([floods[0][0], floods[1][0]], by="anna")  # one of each case, at once
    (case,) = Cases(quarantine).page(waiting=None).cases
    assert (case.n_waiting, case.n_released, case.n_members) == (2, 3 * n - 2, 3 * n)
    quarantine.reopen([*floods[0][1:], *floods[1][1:], *floods[2]], by="anna")
    before = tables(quarantine)
    assert Cases(quarantine).regroup() == 1
    assert tables(quarantine) == before


def test_tenants_and_stores_have_cases_of_their_own(any_url):
    quarantine = Quarantine(any_url)
    other = Quarantine(any_url, namespace="other")
    for one in (quarantine.for_store("news"), quarantine.for_store("mail"), other):
        hold(one, found("a", ["b"]), found("b", ["a"]))
    assert [case.store for case in Cases(quarantine).page().cases] == ["news", "mail"]
    assert [case.n_waiting for case in Cases(quarantine.for_store("mail")).page().cases] == [2]
    assert [case.n_waiting for case in Cases(other).page().cases] == [2]
    number = Cases(other).page().cases[0].number
    with pytest.raises(QuarantineError, match=f"no case {number} "):
        Cases(quarantine).show(number)
    assert Cases(quarantine).entries([number]) == {}
    assert Cases(quarantine).firsts(Cases(other).page().cases) == {}


def test_the_queue_is_ordered_narrowed_and_paged(quarantine):
    hold(
        quarantine,
        found("mild", p_value=0.05),
        found("grave", p_value=1e-6, detector="instruction"),
        found("pair1", ["pair2"], p_value=0.01),
        found("pair2", ["pair1"], p_value=0.01),
        lineages=["z.example", "a.example", "m.example", "a.example"],
        texts=["Straße 100%", "Grüße", "one_1", "another text"],
    )
    cases = Cases(quarantine)

    def first_ids(**how):
        return [cases.members(case.number)[0].id for case in cases.page(**how).cases]

    assert first_ids() == ["grave", "pair1", "mild"]
    assert first_ids(order=CaseOrder.AGE) == ["mild", "grave", "pair1"]
    assert first_ids(order="size") == ["pair1", "mild", "grave"]
    assert first_ids(limit=1, offset=1) == ["pair1"]
    assert first_ids(detector="instruction") == ["grave"]
    assert first_ids(detector="cliqu_") == []
    assert first_ids(source="a.example", order="age") == ["grave", "pair1"]
    assert first_ids(search="STRASSE 100%") == ["mild"]
    assert first_ids(search="one%1") == first_ids(search="on__1") == []
    assert first_ids(search="Pair2") == ["pair1"]
    assert cases.page().n_cases == 3
    assert cases.page(search="grüsse").n_cases == 1
    assert cases.detectors() == ("clique", "instruction")
    with pytest.raises(ValueError, match="'loudness'"):
        cases.page(order="loudness")


def test_severity_follows_the_effect_or_is_unknown(quarantine):
    group = [found(i, [j for j in ("g1", "g2", "g3") if j != i]) for i in ("g1", "g2", "g3")]
    hold(
        quarantine,
        found("rare", p_value=1e-9, detector="disfluency"),
        found("unknown", p_value=None, detector="meta_claim"),
        found("unknown order", p_value=None, detector="instruction"),
        found("order", p_value=0.01, detector="instruction"),
        found("rarer order", p_value=0.001, detector="instruction"),
        found("pair1", ["pair2"], "trigger_phrase", 0.01),
        found("pair2", ["pair1"], "trigger_phrase", 0.01),
        *group,
    )
    cases = Cases(quarantine)
    told = [(cases.members(c.number)[0].id, str(c.severity)) for c in cases.page().cases]
    assert told == [
        ("g1", "critical"),
        ("rarer order", "high"),
        ("order", "high"),
        ("unknown order", "unknown"),
        ("pair1", "medium"),
        ("rare", "low"),
        ("unknown", "unknown"),
    ]
    quarantine.release(["g2"], by="anna")  # the rest is only a part of the retrieved set
    assert str(cases.show(cases.of(["g1"])[0].number).severity) == "medium"


@given(st.lists(st.sampled_from(["clique", "instruction", "disfluency"]), min_size=1), st.data())
def test_queue_and_scan_give_the_same_severity(detectors, data):
    n = data.draw(st.integers(1, 9))
    case = {"detectors": " ".join(detectors), "n_waiting": n, "n_confirmed": 0, "rarity": 2.0}
    assert RANKS[rank_of(case)] is severity_by(detectors, n)
    group_alone = {*detectors} == {"clique"}
    assert (severity_by(detectors, n) is Severity.CRITICAL) == ("clique" in detectors and n >= MOST)
    if group_alone:
        assert severity_by(detectors, n, places=MOST - 1) is not Severity.CRITICAL


def test_page_lists_and_counts_the_matching_cases(quarantine):
    names = [f"entry-{i:03}" for i in range(120)]
    hold(quarantine, *map(found, names), texts=["x" * (i + 1) for i in range(120)])  # no copies
    for search, n_cases in ((None, 120), ("ENTRY-0", 100), ("entry-007", 1), ("nowhere", 0)):
        for asked in (1, 2, 3, 9):
            page = Cases(quarantine).page(search=search, order="age", offset=50 * (asked - 1))
            number = min(asked, max(1, -(-n_cases // 50)))
            there = [n for n, i in enumerate(names, start=1) if (search or "").lower() in i]
            assert (page.n_cases, page.offset) == (n_cases, 50 * (number - 1))
            assert [case.number for case in page.cases] == there[page.offset :][:50]


def test_a_source_of_any_length_or_kind_is_kept_and_found(quarantine):
    names = ["x" * 10_000, "a\nb", "100%"]
    hold(quarantine, *(found(str(n)) for n in range(3)), lineages=names)
    for name in names:
        assert Cases(quarantine).page(source=name).n_cases == 1


def test_counts_follow_every_decision(quarantine):
    names = ("a", "b", "c", "d")
    hold(quarantine, *(found(i, names) for i in names))

    def counts():
        (case,) = Cases(quarantine).page(waiting=None).cases
        return case.n_waiting, case.n_released, case.n_confirmed, case.n_members

    quarantine.release(["a"], by="anna")
    quarantine.confirm(["b"], by="anna")
    assert counts() == (2, 1, 1, 4)
    quarantine.reopen(["a", "b"], by="anna")
    assert counts() == (4, 0, 0, 4)
    hold(quarantine, found("c"), texts=["a later revision"])  # supersedes; a case of its own
    assert [case.n_waiting for case in Cases(quarantine).page(order="age").cases] == [3, 1]
    quarantine.purge(["c", "d"])
    assert counts() == (2, 0, 0, 2)
    quarantine.purge(["a", "b"])
    assert tables(quarantine) == [[], []]
    quarantine.log.verify()


def test_reheld_entries_of_merged_cases_count_once(quarantine):
    for ids in ("a", "b", "abc"):
        hold(quarantine, *(found(i, [j for j in ids if j != i]) for i in ids))
    (case,) = Cases(quarantine).page().cases
    assert (case.n_waiting, case.n_members) == (3, 3)


@pytest.mark.slow
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["hold", "hold", "release", "confirm", "reopen", "purge"]),
            st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=4, unique=True),
        ),
        max_size=12,
    )
)
def test_case_counts_stay_correct_after_any_actions(steps):
    quarantine = Quarantine("sqlite://")
    for action, ids in steps:
        try:
            if action == "hold":
                hold(quarantine, *(found(i, [j for j in ids if j != i]) for i in ids))
            else:
                getattr(quarantine, action)(ids)
        except QuarantineError:
            continue
    assert Cases(quarantine).whole()
    numbers = {held.number: held for held in quarantine.list(None)}
    for case in Cases(quarantine).page(waiting=None, limit=1000).cases:
        members = Cases(quarantine).members(case.number, limit=1000)
        tally = [sum(one.status is status for one in members) for status in Status][:3]
        assert tally == [case.n_waiting, case.n_released, case.n_confirmed]
        assert case.n_members == len(members)
        for one in members:
            assert numbers.pop(one.number).id == one.id
    assert not numbers
    Cases(quarantine).regroup()
    assert Cases(quarantine).whole()


@pytest.mark.slow
def test_regrouping_gives_the_same_cases(quarantine):
    for start in range(0, 60, 4):
        ids = [str(n) for n in range(start, start + 4)]
        others = [f"none {start}", *(str((7 * start + k) % 60) for k in range(2))]
        hold(quarantine, *(found(i, others) for i in ids))
    before = tables(quarantine)
    assert Cases(quarantine).regroup() == len(before[0])
    after = tables(quarantine)
    assert [row[2:] for row in after[1]] == [row[2:] for row in before[1]]
    assert {row[0] for row in after[0]} <= {row[0] for row in before[0]}


@pytest.mark.parametrize("damage", ["DELETE FROM ragshield_case", "DROP TABLE ragshield_case"])
def test_damaged_case_tables_are_repaired_or_reported(on_file, damage, caplog):
    quarantine = Quarantine(on_file)
    hold(quarantine, found("a", ["b"]), found("b", ["a"]))
    with quarantine.database.engine() as engine, engine.begin() as connection:
        connection.execute(text(damage))
    if damage.startswith("DROP"):
        with pytest.raises(QuarantineError, match="none was"):  # said, and nothing is half held
            hold(quarantine, found("c", ["a"]))
        assert quarantine.count() == 2
        return
    assert not Cases(quarantine).whole()
    hold(quarantine, found("c", ["a"]))
    assert Cases(quarantine).whole()
    assert grouped(quarantine) == [("a", "b", "c")]
    assert "told anew" in caplog.text


def test_reopened_entry_waits_with_its_findings(quarantine):
    batch = hold(quarantine, found("a"))
    quarantine.release(["a"], by="anna")
    assert quarantine.released_among(batch)
    (again,) = quarantine.reopen(["a"], by="anna", note="too quick")
    assert (again.status, again.reviewed_by) == (Status.HELD, None)
    assert [finding.detector for finding in again.findings] == ["clique"]
    assert not quarantine.released_among(batch)
    assert [(line.action, line.note) for line in quarantine.log.lines()][-1] == (
        "reopen",
        "too quick",
    )
    with pytest.raises(QuarantineError, match="is held, expected one that was released"):
        quarantine.reopen(["a"])
    quarantine.log.verify()


def test_proposal_stays_in_the_log_until_a_decision(quarantine):
    hold(quarantine, found("a"), found("b"))
    note_in_log(quarantine, ["a"], WOULD_RELEASE, by="anna", why="a manual of ours")
    (line,) = proposed(quarantine, ["a", "b", "c"]).values()
    assert (line.entry_id, line.actor, line.action) == ("a", "anna", "would release")
    note_in_log(quarantine, ["a"], KEEP, by="bert")
    assert proposed(quarantine, ["a"]) == {}
    assert quarantine.count() == 2
    with pytest.raises(QuarantineError, match="'c' is not held"):
        note_in_log(quarantine, ["c"], WOULD_RELEASE, by="anna")
    with pytest.raises(QuarantineError, match="'c' is not held"):
        note_in_log(quarantine, ["a", "c"], KEEP, by="anna")
    quarantine.log.verify()


def test_proposal_without_a_valid_log_line_is_ignored(on_file):
    quarantine = Quarantine(on_file, audit_key="k" * 32)
    hold(quarantine, found("a"))
    with quarantine.database.engine() as engine, engine.begin() as connection:
        connection.execute(
            text("UPDATE ragshield_audit_log SET action = 'would release', actor = 'anna'")
        )
    assert proposed(quarantine, ["a"]) == {}


def test_search_is_literal_and_reads_each_text_once(any_url):
    """In PostgreSQL, texts are not read once per case."""
    quarantine = Quarantine(any_url)
    no_copies = ["x" * (n + 1) for n in range(30)]
    hold(quarantine, *(found(f"e{n}") for n in range(30)), texts=no_copies)
    with quarantine.database.engine() as engine:
        sought: list[str] = []
        event.listen(engine, "before_cursor_execute", lambda *given: sought.append(given[2]))
    assert Cases(quarantine).page(search="E7").n_cases == 1
    (query,) = (one for one in sought if "searched" in one)
    counts = {"e29": 1, "e30": 0, "e2": 11, "E2_": 0, "/": 0}
    for part, count in counts.items():  # statements are kept, values are not
        assert Cases(quarantine).page(search=part).n_cases == count
    assert ("AS MATERIALIZED" in query) is ("postgresql" in any_url)


def test_entries_of_a_case_are_paged_by_arrival(quarantine):
    hold(quarantine, *(found(f"m{n}", ["m0"]) for n in range(7)))
    (case,) = Cases(quarantine).page().cases
    quarantine.confirm(["m1", "m4"])
    last = Cases(quarantine).newest(case.number)
    seen, at = [], 0
    while places := Cases(quarantine).places(case.number, after=at, until=last, limit=3):
        assert len(places) <= 3
        seen += [(one.id, one.status) for one in places]
        at = places[-1].number
    assert seen == [(f"m{n}", "confirmed" if n in (1, 4) else "held") for n in range(7)]
    hold(quarantine, found("m7", ["m0"]), found("m8", ["m0"]))
    quarantine.release(["m8"])
    assert Cases(quarantine).n_later(case.number, last) == 2
    assert not Cases(quarantine).places(case.number, after=last, until=last)
    members = Cases(quarantine).members(case.number, limit=20)
    assert [one.id for one in members] == ["m0", "m2", "m3", "m5", "m6", "m7", "m1", "m4", "m8"]
    assert Cases(quarantine).newest(99) == 0


def test_concurrent_views_read_members_on_one_connection_each(any_url):
    """Otherwise views that hold one connection and ask for another would deadlock."""
    quarantine = Quarantine(any_url)
    hold(quarantine, *(found(f"m{n}", ["m0"]) for n in range(4)), found("other"))
    quarantine.confirm(["m1"])
    (case, _) = Cases(quarantine).page().cases
    taken, most = 0, []

    def take(*_):
        nonlocal taken
        taken += 1
        most.append(taken)

    def give(*_):
        nonlocal taken
        taken -= 1

    with quarantine.database.engine() as engine:
        event.listen(engine, "checkout", take)
        event.listen(engine, "checkin", give)
    members = Cases(quarantine).members(case.number)
    assert [one.id for one in members] == ["m0", "m2", "m3", "m1"]
    assert max(most) == 1
