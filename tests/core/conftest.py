"""Databases that several processes share."""

import uuid

import pytest
from sqlalchemy import create_engine, make_url, text
from support import CountingEmbeddings, slowly

from ragshield_core.cli import main
from ragshield_core.tools.audit.embedding_cache import CachedEmbedder


@pytest.fixture
def on_postgres(postgres_url):
    """URL of an empty schema."""
    name = f"test_{uuid.uuid4().hex}"
    server = make_url(postgres_url)
    engine = create_engine(server)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))
    url = server.update_query_dict({"options": f"-csearch_path={name}"})
    yield url.render_as_string(hide_password=False)
    with engine.begin() as connection:
        connection.execute(text(f"DROP SCHEMA {name} CASCADE"))
    engine.dispose()


@pytest.fixture(params=["file", *slowly("postgres")])
def any_url(request, tmp_path):
    """URL of an empty database: of a file, and in the whole suite of PostgreSQL as well."""
    if request.param == "postgres":
        return request.getfixturevalue("on_postgres")
    return f"sqlite:///{tmp_path}/shared.db"


@pytest.fixture
def ragshield(tmp_path, monkeypatch, capsys):
    """Return a function that runs the command in a folder of its own, on wide lines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for module in (
        "sharing.command",
        "tools.review.sources_command",
        "tools.review.quarantine_command",
    ):
        monkeypatch.setattr(f"ragshield_core.{module}.console.width", 200)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["ragshield", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        return ended.value.code or 0, shown.out, " ".join(shown.err.split())

    return run


@pytest.fixture
def small_model(monkeypatch):
    """Have scans embed by a model that takes no time."""
    monkeypatch.setattr(
        "ragshield_core.tools.audit.command.cached_embedder",
        lambda name, folder: CachedEmbedder(CountingEmbeddings().embed_documents, name, folder),
    )
