"""``ragshield review``: for this machine only, by a token that is shown once."""

import re
import socket
import sys

import pytest
from reviewers import held
from starlette.testclient import TestClient

from ragshield_core import Quarantine
from ragshield_core.cli import main

ANNA, BERT = ("--reviewer", "anna"), ("--reviewer", "bert")


@pytest.fixture
def served(monkeypatch):
    """The app and options that a server would be given."""
    pytest.importorskip("uvicorn")
    given = []

    def run(server, sockets):
        assert sockets
        given.append((server.config.app, vars(server.config)))

    monkeypatch.setattr("uvicorn.Server.run", run)
    return given


@pytest.fixture
def review(tmp_path, monkeypatch, capsys):
    """Return a function that runs the command in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["ragshield", "review", "--port", "0", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        return ended.value.code or 0, shown.out, " ".join(shown.err.split())

    return run


@pytest.mark.slow
def test_it_is_served_to_this_machine_and_opened_by_the_token(quarantine, review, served):
    held(quarantine, ["a text"])
    code, out, _ = review("--database", quarantine.database.url)
    ((app, how),) = served
    assert (code, how["host"], how["access_log"]) == (0, "127.0.0.1", False)
    (token,) = re.findall(r"^token of reviewer: (\S{30,})$", out, re.MULTILINE)
    assert token not in " ".join(sys.argv)
    client = TestClient(app, base_url="http://127.0.0.1:8642")
    assert client.post("/login", data={"token": token[:-1]}).status_code == 401
    assert client.post("/login", data={"token": token}).status_code == 200
    assert TestClient(app, base_url="http://evil.example").get("/").status_code == 400
    _, again, _ = review("--database", quarantine.database.url)
    assert token not in again  # another one each time


@pytest.mark.slow
def test_other_machines_are_served_over_tls_only(quarantine, review, served):
    held(quarantine, ["a text"])
    given = ("--database", quarantine.database.url, "--host", "0.0.0.0")  # noqa: S104 - is refused
    for more in ((), ("--tls-cert", "cert.pem")):
        code, _, error = review(*given, *more)
        assert (code, "can be reached from other machines" in error, served) == (2, True, [])
    code, out, _ = review(*given, "--tls-cert", "cert.pem", "--tls-key", "key.pem")
    ((app, how),) = served
    assert code == 0
    assert (how["ssl_certfile"], how["ssl_keyfile"]) == ("cert.pem", "key.pem")
    client = TestClient(app, base_url="https://ragshield.example")
    form = {"token": re.findall(r"token of reviewer: (\S+)", out)[0]}
    answer = client.post("/login", data=form).history[0]
    assert "; secure" in answer.headers["set-cookie"].lower()


def test_missing_database_or_wrong_store_is_an_error(review, served, tmp_path):
    code, _, error = review("--database", f"sqlite:///{tmp_path}/gone.db")
    assert (code, "does not exist" in error, served) == (2, True, [])
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine.py").write_text("store = 'no store'")
    code, _, error = review("--into", "mine:store")
    assert (code, "expected a guarded store" in error, served) == (2, True, [])


def test_into_option_serves_the_named_store(review, served, tmp_path):
    (tmp_path / "shop.py").write_text(
        "from langchain_core.embeddings import DeterministicFakeEmbedding\n"
        "from langchain_core.vectorstores import InMemoryVectorStore\n"
        "from ragshield_core import Guard, Quarantine\n"
        "from ragshield_core.detectors import CliqueDetector\n"
        "from ragshield_langchain import GuardedVectorStore\n"
        "quarantine = Quarantine('sqlite:///shop.db')\n"
        "guard = Guard([CliqueDetector()], quarantine=quarantine)\n"
        "inner = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))\n"
        "store = GuardedVectorStore(inner, guard=guard)\n"
    )
    code, out, error = review("--into", "shop:store", "--two-persons", *ANNA, *BERT)
    assert (code, error) == (0, "")
    ((app, _),) = served
    token = re.findall(r"token of anna: (\S+)", out)[0]
    client = TestClient(app, base_url="http://localhost")
    client.post("/login", data={"token": token})
    assert "Known entries" in client.get("/health").text  # of the store's guard


@pytest.mark.slow
def test_command_reads_database_and_namespace_from_settings(review, served, tmp_path):
    quarantine = Quarantine(f"sqlite:///{tmp_path}/held.db", namespace="shop")
    held(quarantine, ["a text of the shop"])
    (tmp_path / "ragshield.toml").write_text("database = 'sqlite:///held.db'\nnamespace = 'shop'")
    for given, there in ((), True), (("--namespace", "other"), False):
        code, out, _ = review(*given)
        assert code == 0
        client = TestClient(served[-1][0], base_url="http://localhost")
        form = {"token": re.findall(r"token of reviewer: (\S+)", out)[0]}
        queue = client.post("/login", data=form)
        assert (queue.url.path, "a text of the shop" in queue.text) == ("/", there)


def test_no_token_is_shown_where_the_port_is_taken(quarantine, review, served):
    held(quarantine, ["a text"])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, out, error = review("--database", quarantine.database.url, "--port", port)
    assert (code, out, served) == (2, "", [])
    assert f"cannot listen on 127.0.0.1, port {port}" in error


@pytest.mark.slow
def test_each_reviewer_has_a_token(quarantine, review, served):
    held(quarantine, ["a text"])
    given = ("--database", quarantine.database.url)
    code, out, _ = review(*given, *ANNA, *BERT)
    tokens = dict(re.findall(r"^token of (\w+): (\S{30,})$", out, re.MULTILINE))
    assert (code, set(tokens), len(set(tokens.values()))) == (0, {"anna", "bert"}, 2)
    client = TestClient(served[0][0], base_url="http://127.0.0.1")
    assert "anna" in client.post("/login", data={"token": tokens["anna"]}).text
    code, out, error = review(*given, *ANNA, "--two-persons")
    assert (code, out) == (2, "")
    assert "--reviewer NAME for each person" in error
