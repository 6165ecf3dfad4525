"""A folder of Chroma is for one process: in both frameworks, a second one is warned."""

import fcntl
import os
import subprocess
import sys
import warnings

import chromadb
import pytest
from langchain_chroma import Chroma
from llama_index.vector_stores.chroma import ChromaVectorStore
from support import CountingEmbeddings, Scripted

from ragshield_core import Guard, Quarantine
from ragshield_langchain import GuardedVectorStore, SharedFolderWarning
from ragshield_llamaindex import GuardedVectorStore as GuardedNodeStore

OTHER = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("open", flush=True)
sys.stdin.read()
"""


def langchain(client):
    store = Chroma("docs", CountingEmbeddings(), client=client)
    return GuardedVectorStore(store, guard=guard())


def llamaindex(client):
    store = ChromaVectorStore(client.get_or_create_collection("docs"))
    return GuardedNodeStore(store, guard=guard())


def guard():
    return Guard([Scripted()], quarantine=Quarantine("sqlite://"))


@pytest.mark.parametrize("adapter", [langchain, llamaindex])
def test_a_folder_that_another_process_has_open_is_named(adapter, tmp_path):
    client = chromadb.PersistentClient(tmp_path)
    command = [sys.executable, "-c", OTHER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.warns(SharedFolderWarning, match=f"{tmp_path.name}.*chroma run") as seen:
            adapter(client)
        assert [w.filename for w in seen if w.category is SharedFolderWarning] == [__file__]
        other.stdin.close()
        other.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("error", SharedFolderWarning)
        for _ in range(2):  # twice in one process are no two
            adapter(client)
            adapter(chromadb.EphemeralClient())
    with pytest.raises(BlockingIOError):
        fcntl.flock(os.open(tmp_path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)  # is ours now
