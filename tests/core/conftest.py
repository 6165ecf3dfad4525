"""A PostgreSQL for what several processes share."""

import os
import shutil
import tempfile
import uuid
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text


@pytest.fixture(scope="session")
def postgres_server():
    """URL of a server: ``RAGSHIELD_TEST_POSTGRES``, else one of our own.

    In CI a missing server is a failure.
    """
    if given := os.environ.get("RAGSHIELD_TEST_POSTGRES"):
        yield make_url(given).set(drivername="postgresql+psycopg")
        return
    try:
        import pgserver  # noqa: PLC0415 - an extra of its own
    except ImportError:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip("no PostgreSQL; install pgserver or set RAGSHIELD_TEST_POSTGRES")
    # Not in tmp_path: the path of the server's socket must stay below 108 characters.
    folder = Path(tempfile.mkdtemp(prefix="ragshield"))
    server = pgserver.get_server(folder / "pg", cleanup_mode="stop")
    try:
        yield make_url(server.get_uri()).set(drivername="postgresql+psycopg")
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def on_postgres(postgres_server):
    """URL of an empty schema."""
    name = f"test_{uuid.uuid4().hex}"
    engine = create_engine(postgres_server)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))
    url = postgres_server.update_query_dict({"options": f"-csearch_path={name}"})
    yield url.render_as_string(hide_password=False)
    with engine.begin() as connection:
        connection.execute(text(f"DROP SCHEMA {name} CASCADE"))
    engine.dispose()
