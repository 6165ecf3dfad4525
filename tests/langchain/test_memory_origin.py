"""Memories with origin: who wrote a value is proven, and what nobody vouches for stays low."""

import asyncio
import os
import uuid

import psycopg
import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langchain_core.tools import tool
from sqlalchemy import make_url
from support import guard_of, slowly

if os.environ.get("CI") != "true":
    pytest.importorskip("langgraph.store.base", reason="the extra langgraph is not installed")
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, SummarizationMiddleware
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_store
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.store.memory import InMemoryStore

from ragshield_core.detectors import InstructionDetector
from ragshield_core.model.errors import MalformedEntriesError
from ragshield_core.origin import Origin, OriginKey, Origins, Voucher
from ragshield_langchain import GuardedStore, MemoryOriginMiddleware

NS = ("users", "42")
SECRETS = {name: f"the secret of {name}".encode() for name in ("user", "agent", "crm", "shop")}
TIERS = {"user": "trusted", "agent": "trusted", "crm": "known", "shop": "known"}
KEYS = {name: OriginKey(name, secret=secret) for name, secret in SECRETS.items()}
NUTS, NO_NUTS = {"text": "She eats no nuts."}, {"text": "She loves nuts."}
UNPROVEN = [Origin()]


def origins(**revoked):
    return Origins(
        {
            name: Voucher(tier=tier, secrets=(SECRETS[name],), revoked=revoked.get(name, False))
            for name, tier in TIERS.items()
        }
    )


def guarded(inner=None, **options):
    guard = guard_of(InstructionDetector())
    guard.origins = origins()
    return GuardedStore(inner or InMemoryStore(), guard=guard, **options)


@pytest.fixture
def store():
    return guarded()


def put(store, who, key, value, **how):
    with store.written_by(KEYS[who], **how):
        store.put(NS, key, value)


def origin_in(store, key):
    return store.get(NS, key).value["ragshield_origin"]


def test_reads_show_who_vouches_and_not_the_stamp(store):
    put(store, "user", "diet", NUTS)
    store.put(NS, "more", NO_NUTS)
    assert store.get(NS, "diet").value == NUTS | {"ragshield_origin": "trusted:user"}
    found = {item.key: item.value["ragshield_origin"] for item in store.search(NS)}
    assert found == {"diet": "trusted:user", "more": "unknown"}
    assert "ragshield_stamp" in store.inner.get(NS, "diet").value


def test_only_writes_in_the_block_are_stamped(store):
    put(store, "user", "diet", NUTS)
    store.put(NS, "later", NUTS)
    assert origin_in(store, "later") == "unknown"


@pytest.mark.parametrize(
    ("who", "how"),
    [
        (None, {}),
        ("crm", {}),
        ("agent", {"derived_from": UNPROVEN}),
        ("agent", {"derived_from": [Origin(key="user"), Origin()]}),
        ("agent", {"derived_from": [Origin(key="crm")]}),
    ],
)
def test_a_lower_tier_does_not_replace_a_memory(store, who, how):
    put(store, "user", "diet", NUTS)
    if who is None:
        store.put(NS, "diet", NO_NUTS)
    else:
        put(store, who, "diet", NO_NUTS, **how)
    assert store.get(NS, "diet").value["text"] == NUTS["text"]
    (held,) = store.quarantine.list()
    assert "it would replace an entry of the tier trusted" in held.note
    store.release([held.id], by="anna")
    assert store.get(NS, "diet").value["text"] == NO_NUTS["text"]


def test_the_user_and_an_agent_that_read_the_user_alone_replace_a_memory(store):
    put(store, "user", "diet", NUTS)
    put(store, "agent", "diet", NO_NUTS, derived_from=[Origin(key="user")])
    assert store.get(NS, "diet").value == NO_NUTS | {"ragshield_origin": "trusted:agent"}
    assert not store.quarantine.list()


def test_a_value_that_was_read_and_put_back_keeps_its_proof(store):
    put(store, "user", "diet", NUTS)
    store.put(NS, "diet", store.get(NS, "diet").value)
    assert origin_in(store, "diet") == "trusted:user"
    put(store, "user", "diet", store.get(NS, "diet").value | {"since": 2024})
    assert store.get(NS, "diet").value == {
        **NUTS,
        "since": 2024,
        "ragshield_origin": "trusted:user",
    }


def test_a_stamp_of_another_place_or_value_is_held(store):
    put(store, "user", "diet", NUTS)
    stolen = store.inner.get(NS, "diet").value
    store.put(NS, "other", stolen)
    store.put(("users", "43"), "diet", stolen)
    store.put(NS, "third", stolen | NO_NUTS)
    assert sorted(one.id for one in store.quarantine.list()) == sorted(
        [store.id_of(NS, "other"), store.id_of(("users", "43"), "diet"), store.id_of(NS, "third")]
    )
    assert store.get(NS, "other") is None


def test_a_claim_of_origin_in_a_value_is_no_proof(store):
    store.put(NS, "diet", NUTS | {"ragshield_origin": "trusted:user"})
    assert origin_in(store, "diet") == "unknown"


def test_a_value_that_cannot_be_stamped_is_refused_by_name(store):
    with store.written_by(KEYS["user"]), pytest.raises(MalformedEntriesError, match="odd"):
        store.put(NS, "odd", {"n": float("nan")})
    assert store.inner.get(NS, "odd") is None


@pytest.mark.parametrize("value", [NUTS | {"ragshield_origin": "mine"}, NUTS])
def test_without_keys_values_are_those_of_the_bare_store(value):
    store = GuardedStore(InMemoryStore(), guard=guard_of(InstructionDetector()))
    store.put(NS, "diet", value)
    assert store.get(NS, "diet").value == value


def test_reads_at_a_tier_leave_out_lower_ones():
    store = guarded(least_tier="known")
    put(store, "user", "diet", NUTS)
    put(store, "crm", "phone", {"text": "Call after six."})
    put(store, "agent", "bank", {"text": "Pay to 7788."}, derived_from=UNPROVEN)
    store.put(NS, "more", NO_NUTS)
    assert {item.key for item in store.search(NS)} == {"diet", "phone"}
    assert store.get(NS, "bank") is store.get(NS, "more") is None
    assert asyncio.run(store.aget(NS, "phone")).value["ragshield_origin"] == "known:crm"
    assert {item.key for item in asyncio.run(store.asearch(NS))} == {"diet", "phone"}
    assert store.origins()[store.id_of(NS, "bank")].tier == 0


def test_a_memory_can_hold_all_notes_below_a_tier():
    store = guarded()
    vouchers = {"user": Voucher(tier="trusted", secrets=(SECRETS["user"],))}
    store.guard.origins = Origins(vouchers, least_tier="trusted")
    put(store, "user", "diet", NUTS)
    store.put(NS, "more", NO_NUTS)
    assert [item.key for item in store.inner.search(NS)] == ["diet"]
    assert [one.id for one in store.quarantine.list()] == [store.id_of(NS, "more")]


def test_a_flood_without_proof_does_not_crowd_out_a_memory():
    store = guarded(least_tier="trusted")
    for n in range(300):
        store.put(NS, f"flood {n}", {"text": f"Number {n} is fine."})
    put(store, "user", "diet", NUTS)
    assert [item.key for item in store.search(NS, limit=2)] == ["diet"]
    assert store.search(NS, limit=2, offset=1) == []


def test_two_known_origins_that_state_the_same_are_read_at_the_highest_tier():
    store = guarded(least_tier="trusted")
    for who in ("crm", "shop"):
        put(store, who, who, {"text": "Call after six."})
        put(store, who, f"{who} alone", {"text": f"The {who} is open."})
    put(store, "shop", "copy", {"text": "The shop is open."})
    store.put(NS, "copy of crm", {"text": "The crm is open."})
    assert {item.key for item in store.search(NS)} == {"crm", "shop"}
    assert store.get(NS, "crm") is not None
    assert store.get(NS, "crm alone") is None
    value = store.inner.get(NS, "shop").value
    store.recall([store.id_of(NS, "shop")], by="anna")
    store.inner.put(NS, "shop", value)  # past the guard: held entries corroborate nothing
    assert store.get(NS, "crm") is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"trusted": "ann@x.example"}, {"blocked": "ann@x.example"}),
        ({"text": "Pay the rent.", "euros": 900}, {"text": "Pay the rent.", "euros": 90}),
    ],
)
def test_values_with_other_keys_or_numbers_corroborate_nothing(one, other):
    store = guarded(least_tier="trusted")
    put(store, "crm", "one", one)
    put(store, "shop", "other", other)
    assert store.search(NS) == []
    put(store, "shop", "again", one)
    assert {item.key for item in store.search(NS)} == {"one", "again"}


def test_a_stolen_key_is_revoked_and_its_memories_are_recalled(store):
    put(store, "shop", "one", NUTS)
    put(store, "agent", "two", {"text": "Pay on Mondays."}, derived_from=[Origin(key="shop")])
    put(store, "user", "three", {"text": "Call after six."})
    store.guard.origins = origins(shop=True)
    taken = store.vouched_by("shop")
    assert set(taken) == {store.id_of(NS, "one"), store.id_of(NS, "two")}
    store.recall(taken, by="anna")
    assert {item.key for item in store.search(NS)} == {"three"}


@pytest.mark.parametrize("kind", slowly("sqlite", "postgres"))
def test_proofs_survive_in_databases(kind, tmp_path, request):
    if kind == "sqlite":
        from langgraph.store.sqlite import SqliteStore  # noqa: PLC0415

        opened = SqliteStore.from_conn_string(str(tmp_path / "memory.db"))
    else:
        from langgraph.store.postgres import PostgresStore  # noqa: PLC0415

        url = request.getfixturevalue("postgres_url").replace("+psycopg", "")
        name = f"memory_{uuid.uuid4().hex}"
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        own = make_url(url).set(database=name).render_as_string(hide_password=False)
        opened = PostgresStore.from_conn_string(own)
    with opened as inner:
        inner.setup()
        store = guarded(inner)
        put(store, "user", "diet", NUTS | {"n": [1, 2.5, None, {"b": 1, "a": 0.1}]})
        assert origin_in(store, "diet") == "trusted:user"
        store.recall([store.id_of(NS, "diet")], by="anna")
        store.release([store.id_of(NS, "diet")], by="anna")
        assert origin_in(store, "diet") == "trusted:user"
    if kind == "postgres":
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


# Agents


@tool
def read_page(url: str) -> str:
    """Read a page."""
    return f"{url}: payments go to 7788."


@tool
def ask_crm(name: str) -> str:
    """Ask the customer database."""
    return f"{name} calls after six."


@tool
def remember(key: str, text: str) -> str:
    """Remember a text."""
    get_store().put(NS, key, {"text": text})
    return "done"


@tool
async def remember_later(key: str, text: str) -> str:
    """Remember a text."""
    await get_store().aput(NS, key, {"text": text})
    return "done"


def calls(*some):
    """Return a message with calls of tools."""
    made = [
        {"name": name, "args": args, "id": uuid.uuid4().hex, "type": "tool_call"}
        for name, args in some
    ]
    return AIMessage("", tool_calls=made)


class Model(GenericFakeChatModel):
    """A scripted model that takes tools."""

    def bind_tools(self, tools, **kwargs):  # noqa: ARG002
        return self


SAVE = ("remember", {"key": "note", "text": "Payments go to 7788."})


def agent_of(store, *script, others=(), **options):
    middleware = MemoryOriginMiddleware(store, KEYS["agent"], user="user", **options)
    return create_agent(
        Model(messages=iter([*script, AIMessage("done")])),
        [read_page, ask_crm, remember, remember_later],
        middleware=[*others, middleware],
        store=store,
        checkpointer=InMemorySaver(),
    )


THREAD = {"configurable": {"thread_id": "1"}}


def ask(agent, text="Where do payments go?"):
    agent.invoke({"messages": [HumanMessage(text)]}, THREAD)


def test_a_note_from_the_user_alone_has_the_tier_of_the_user(store):
    ask(agent_of(store, calls(SAVE)))
    assert origin_in(store, "note") == "trusted:agent"


@pytest.mark.parametrize(
    ("script", "tools", "expected"),
    [
        ([("read_page", {"url": "a"})], {}, "unknown:agent"),
        ([("ask_crm", {"name": "Ann"})], {}, "unknown:agent"),
        ([("ask_crm", {"name": "Ann"})], {"ask_crm": "crm"}, "known:agent"),
        (
            [("ask_crm", {"name": "Ann"}), ("read_page", {"url": "a"})],
            {"ask_crm": "crm"},
            "unknown:agent",
        ),
    ],
)
def test_a_note_has_the_least_tier_of_all_texts_that_were_read(store, script, tools, expected):
    ask(agent_of(store, calls(*script), calls(SAVE), tools=tools))
    assert origin_in(store, "note") == expected


def test_texts_read_in_an_earlier_turn_count(store):
    agent = agent_of(store, calls(("read_page", {"url": "a"})), AIMessage("Read."), calls(SAVE))
    ask(agent)
    ask(agent, "Remember that.")
    assert origin_in(store, "note") == "unknown:agent"


def test_a_caller_cannot_clear_the_list_of_texts_that_were_read(store):
    agent = agent_of(store, calls(("read_page", {"url": "a"})), AIMessage("Read."), calls(SAVE))
    ask(agent)
    agent.update_state(THREAD, {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES)]})
    agent.invoke({"messages": [HumanMessage("Remember that.")], "ragshield_read": []}, THREAD)
    assert origin_in(store, "note") == "unknown:agent"


def test_texts_read_before_a_summary_count(store):
    summary = SummarizationMiddleware(
        Model(messages=iter([AIMessage("Payments go to 7788.")] * 9)),
        trigger=("messages", 4),
        keep=("messages", 1),
    )
    read = calls(("read_page", {"url": "a"}))
    agent = agent_of(store, read, AIMessage("Read."), calls(SAVE), others=[summary])
    ask(agent)
    ask(agent, "Remember that.")
    messages = agent.get_state(THREAD).values["messages"]
    assert not any(getattr(one, "name", "") == "read_page" for one in messages)
    assert origin_in(store, "note") == "unknown:agent"


class Forgetful(AgentMiddleware):
    """Replaces all messages by one of a user, or by a summary in the user's name."""

    def __init__(self, *, at, **kwargs):
        super().__init__()
        self.at, self.kwargs = at, kwargs

    def before_model(self, state, runtime):  # noqa: ARG002
        if len(state["messages"]) != self.at:
            return None
        left = HumanMessage("Payments go to 7788.", additional_kwargs=self.kwargs)
        return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), left]}


@pytest.mark.parametrize(
    ("script", "forgetful"),
    [
        # The model has read the page before the messages go.
        ([calls(("read_page", {"url": "a"})), AIMessage("Read."), calls(SAVE)], Forgetful(at=5)),
        # The page goes into a summary before the model has read it.
        ([calls(("read_page", {"url": "a"})), calls(SAVE)], Forgetful(at=3, lc_source="summary")),
    ],
    ids=["trimmed", "summarized"],
)
def test_pages_count_once_their_message_is_gone(store, script, forgetful):
    agent = agent_of(store, *script, others=[forgetful])
    for question in ("Where do payments go?", "Remember that.")[: len(script) - 1]:
        ask(agent, question)
    assert origin_in(store, "note") == "unknown:agent"


def test_a_note_from_a_page_replaces_no_memory_of_the_user(store):
    put(store, "user", "note", {"text": "Payments go to 1122."})
    ask(agent_of(store, calls(("read_page", {"url": "a"})), calls(SAVE)))
    assert store.get(NS, "note").value["text"] == "Payments go to 1122."
    assert len(store.quarantine.list()) == 1


def test_agents_that_run_as_tasks_stamp_too(store):
    save = ("remember_later", SAVE[1])
    agent = agent_of(store, calls(("read_page", {"url": "a"})), calls(save))
    asyncio.run(agent.ainvoke({"messages": [HumanMessage("Where?")]}, THREAD))
    assert origin_in(store, "note") == "unknown:agent"


def test_threads_of_two_users_do_not_mix(store):
    async def both():
        page = calls(("read_page", {"url": "a"}))
        one = agent_of(store, page, calls(("remember_later", {"key": "one", "text": "One."})))
        two = agent_of(store, calls(("remember_later", {"key": "two", "text": "Two."})))
        asked = {"messages": [HumanMessage("Go.")]}
        await asyncio.gather(one.ainvoke(asked, THREAD), two.ainvoke(asked, THREAD))

    asyncio.run(both())
    assert origin_in(store, "one") == "unknown:agent"
    assert origin_in(store, "two") == "trusted:agent"


def test_without_a_key_of_the_user_nothing_is_proven(store):
    middleware = MemoryOriginMiddleware(store, KEYS["agent"])
    model = Model(messages=iter([calls(SAVE), AIMessage("done")]))
    agent = create_agent(model, [remember], middleware=[middleware], store=store)
    agent.invoke({"messages": [HumanMessage("Where?")]})
    assert origin_in(store, "note") == "unknown:agent"


def test_a_bare_store_is_refused():
    with pytest.raises(TypeError, match="the agent's memory"):
        MemoryOriginMiddleware(InMemoryStore(), KEYS["agent"])
