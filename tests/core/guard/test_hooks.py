"""Tools are found by entry points; a setting that needs a missing tool is an error."""

import pluggy
import pytest
from langchain_core.vectorstores import InMemoryVectorStore
from support import CountingEmbeddings, Scripted, guard_of, scored

from ragshield_core import Guard, hooks
from ragshield_core.model.errors import ConfigurationError
from ragshield_langchain import GuardedVectorStore


@pytest.fixture
def no_tools(monkeypatch):
    """Replace all tools by none; return the manager, to register some."""
    manager = pluggy.PluginManager("ragshield")
    manager.add_hookspecs(hooks.Hooks)
    for module in ("hooks", "guard", "store.recalling"):
        monkeypatch.setattr(f"ragshield_core.{module}.tools", lambda: manager.hook)
    return manager


def test_each_hook_has_a_tool_of_our_own():
    found = hooks.tools()
    names = [name for name in vars(hooks.Hooks) if not name.startswith("_")]
    assert len(names) == 8
    assert all(getattr(found, name).get_hookimpls() for name in names)


def test_a_tool_of_another_package_hears_of_every_screening(no_tools):
    heard = []

    class Tool:
        @hooks.hookimpl
        def decided(self, stage, report):
            heard.append((stage, len(report.decisions)))

    no_tools.register(Tool())
    guard = guard_of(Scripted())
    guard.fit(scored([0.0] * 5))
    guard.hold(guard.screen(scored([0.0] * 3, "new")))
    assert heard == [("ingestion", 3)]


def test_webhook_without_a_tool_is_an_error(no_tools, tmp_path):  # noqa: ARG001
    file = tmp_path / "ragshield.toml"
    file.write_text('database = "sqlite://"\nwebhook = "https://hooks.example/x"\n')
    with pytest.raises(ConfigurationError, match=r"no tool answers webhook.*pip install"):
        Guard.from_config(file)


def test_scan_without_a_tool_is_an_error(no_tools):  # noqa: ARG001
    guard = guard_of(Scripted())
    store = GuardedVectorStore(InMemoryVectorStore(CountingEmbeddings()), guard=guard)
    store.add_texts(["billing 1"])
    with pytest.raises(ConfigurationError, match="no tool answers scan"):
        store.scan()
