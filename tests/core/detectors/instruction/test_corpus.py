"""The corpus of orders and near misses: valid rows, no near duplicates, only reserved hosts."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer

import ragshield_core.detectors.instruction as package

FOLDER = Path(package.__file__).parent / "corpus"
FILES = sorted(FOLDER.glob("*.jsonl"))

ORDERS = "account memory steering authority condition split markup answer ignore"
NEAR_MISSES = (
    "howto manual policy prompt_engineering security_writing mail ticket code recipe legal "
    "faq faq_tool memory_note narrative ads"
)
LANGUAGES = "ar de en es fr hi it ja ko nl pl pt ru tr uk zh"

HOST = re.compile(
    r"(?:https?://|www\.)([a-z0-9.-]+)|[\w.+-]@([a-z0-9-]+(?:\.[a-z0-9-]+)+)",
    re.IGNORECASE | re.ASCII,
)
RESERVED = re.compile(r"(?:.*\.)?example(?:\.com)?", re.IGNORECASE)
LIKENESS = 0.7


def rows_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def grams(text):
    words = " ".join(text.lower().split())
    return {words[start : start + 5] for start in range(max(1, len(words) - 4))}


def test_every_language_has_its_file():
    assert [path.stem for path in FILES] == LANGUAGES.split()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_rows_are_valid_many_and_sorted_by_family(path):
    rows = rows_of(path)
    orders = ORDERS.split()
    families = orders + NEAR_MISSES.split()
    for number, row in enumerate(rows, 1):
        where = f"{path.name}, line {number}"
        assert list(row) == ["text", "order", "family"], where
        assert isinstance(row["text"], str), where
        assert row["text"] == row["text"].strip() != "", where
        assert row["family"] in families, where
        assert row["order"] is (row["family"] in orders), where
    places = [families.index(row["family"]) for row in rows]
    assert places == sorted(places)
    assert set(places) == set(range(len(families)))
    counts = Counter(row["order"] for row in rows)
    least_orders, least_near = (560, 1080) if path.stem == "en" else (85, 145)
    assert counts[True] >= least_orders
    assert counts[False] >= least_near


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.slow
def test_no_two_rows_are_near_duplicates(path):
    texts = [row["text"] for row in rows_of(path)]
    held = CountVectorizer(analyzer=grams).fit_transform(texts)
    shared = (held @ held.T).toarray()
    sizes = shared.diagonal()
    repeats = np.argwhere(np.triu(shared > LIKENESS * (sizes[:, None] + sizes - shared), 1))
    assert [(texts[one], texts[other]) for one, other in repeats.tolist()] == []


def test_addresses_use_reserved_hosts():
    for path in FILES:
        for row in rows_of(path):
            for web, mail in HOST.findall(row["text"]):
                host = (web or mail).rstrip(".-")
                assert host == "localhost" or RESERVED.fullmatch(host), f"{host!r} in {path.name}"
