"""Defaults that options of commands and functions share: a help imports none of the functions."""

# Entries of a partition: 15 MB of 384 dimensions.
PARTITION_ROWS = 10_000
# Rows of one write: detectors compare its entries with each other, and a write takes a turn.
BATCH_ROWS = 500

# Of an evaluation: targets of an attack, numbers of texts of a target that arrive together, for
# attacks that have several, and entries that a question retrieves.
N_TARGETS = 10
SIZES = (1, 2, 3, 5)
TOP_K = 5
# Number of clean entries of a stream, and number of streams of an attack. Most of the time goes
# into new thresholds, once for every fifth by which a knowledge base grows: four streams of five
# hundred take longer than one of a thousand, and have twice as many targets.
STREAM, STREAMS = 500, 4
# Names of attacks, as the catalogue has them.
ATTACK_NAMES = (
    "PoisonedRAG, question in front",
    "PoisonedRAG, question at the end",
    "PoisonedRAG, question in the middle",
    "PoisonedRAG, without the question",
    "CorruptRAG",
    "AuthChain",
    "blockers",
    "instructions",
    "instructions in clean texts",
    "hidden instructions",
    "clones",
    "planted phrase",
    "gibberish",
    "opinions",
    "label flips",
)
