"""Ids of the risks, techniques, requirements and weaknesses that findings carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Framework(StrEnum):
    """The framework that defines an id."""

    ATLAS = "MITRE ATLAS"
    OWASP_2025 = "OWASP Top 10 for LLM Applications 2025"
    OWASP_2026 = "OWASP Top 10 for LLM Applications 2026"
    AISVS = "OWASP AISVS"
    CWE = "CWE"


@dataclass(frozen=True, slots=True)
class Term:
    """The meaning of an id."""

    title: str
    framework: Framework


# Risks of the OWASP Top 10 in both editions: the numbers changed, and dashboards use either.
INJECTION = ("LLM01:2025", "LLM01:2026")
POISONING = ("LLM04:2025", "LLM05:2026")
VECTORS = ("LLM08:2025", "LLM09:2026")
MISINFORMATION = ("LLM09:2025", "LLM07:2026")
PAIRS = (INJECTION, POISONING, VECTORS, MISINFORMATION)

# AISVS renumbers its requirements with each version, so an id names the version.
OUTLIERS = "AISVS:v1.0-C8.2.2"
CRAFTED = "AISVS:v1.0-C8.2.4"

_ATLAS = {
    "AML.T0020": "Poison Training Data",
    "AML.T0043.004": "Craft Adversarial Data: Insert Backdoor Trigger",
    "AML.T0051.001": "LLM Prompt Injection: Indirect",
    "AML.T0066": "Retrieval Content Crafting",
    "AML.T0068": "LLM Prompt Obfuscation",
    "AML.T0070": "RAG Poisoning",
}
_OWASP = {
    INJECTION: "Prompt Injection",
    POISONING: "Data and Model Poisoning",
    VECTORS: "Vector and Embedding Weaknesses",
    MISINFORMATION: "Misinformation",
}
# All requirements of chapter C8, in our words; docs/aisvs.md says how far each is met.
_AISVS = {
    "8.1.1": "Identifiers and namespaces are unique to a tenant",
    "8.1.2": "Metadata of a document does not change after the first write",
    "8.1.3": "Retrieval stays within its scope",
    "8.2.1": "Sensitive fields are masked or dropped before embedding",
    "8.2.2": "Vectors unlike their surroundings are held before production",
    "8.2.3": "Outputs of agents and tools enter memory only after a check of their source",
    "8.2.4": "Content that is written to manipulate retrieval is rejected or held",
    "8.2.5": "New content that contradicts stored content raises an alert",
    "8.3.1": "Expired vectors are not retrieved",
    "8.3.2": "Memory can be reset",
    "8.3.3": "Quarantined content is kept, and never retrieved",
}
_CWE = {
    "CWE-345": "Insufficient Verification of Data Authenticity",
    "CWE-349": "Acceptance of Extraneous Untrusted Data With Trusted Data",
    "CWE-451": "User Interface (UI) Misrepresentation of Critical Information",
    "CWE-1427": "Improper Neutralization of Input Used for LLM Prompting",
}

TAXONOMY: Mapping[str, Term] = MappingProxyType(
    {
        **{name: Term(title, Framework.ATLAS) for name, title in _ATLAS.items()},
        **{old: Term(title, Framework.OWASP_2025) for (old, _), title in _OWASP.items()},
        **{new: Term(title, Framework.OWASP_2026) for (_, new), title in _OWASP.items()},
        **{f"AISVS:v1.0-C{n}": Term(title, Framework.AISVS) for n, title in _AISVS.items()},
        **{name: Term(title, Framework.CWE) for name, title in _CWE.items()},
    }
)
