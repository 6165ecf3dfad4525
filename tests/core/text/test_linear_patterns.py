"""Every pattern takes linear time on any text."""

import importlib
import pkgutil
import re
import time
from itertools import count, pairwise
from re import _constants as op
from re import _parser

import pytest
from effort import effort

import ragshield_core
from ragshield_core.detectors.instruction.concepts import model
from ragshield_core.detectors.instruction.matching import suspicion
from ragshield_core.detectors.instruction.rules import rules
from ragshield_core.text.linear import LinearPattern

# Quadratic effort on four times the text is sixteenfold; the rest is a busy machine.
LENGTH, TIMES, TOLERATED = 4_000, 4, 2.5
# Quadratic time shows in every measurement; a busy machine does not.
ATTEMPTS = 3
# A match within so many times the cost of splitting prose of that length into words is not
# quadratic, and is not measured again.
FEW_PASSES = 40
PROSE = ("the mill of Brill stands on a hill " * LENGTH)[: TIMES * LENGTH]


# Read in data files of the package only.
OURS = {"text.lexicon._BETWEEN.0"}


def patterns_of(value, depth=3):
    """Yield the patterns that something holds."""
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(getattr(value, "__self__", None), re.Pattern):
        yield value.__self__
    elif isinstance(value, tuple | list) and depth:
        for each in value:
            yield from patterns_of(each, depth - 1)
    elif isinstance(value, dict) and depth:
        yield from patterns_of(list(value.values()), depth - 1)


def all_patterns():
    """Return the patterns of all modules, by where they stand."""
    found = {}
    for module in pkgutil.walk_packages(ragshield_core.__path__, "ragshield_core."):
        if module.name.endswith("__main__"):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            for number, pattern in enumerate(patterns_of(value)):
                if isinstance(pattern.pattern, str):
                    found.setdefault(pattern, f"{module.name.partition('.')[2]}.{name}.{number}")
    found[model().chinese_token] = "concepts.chinese_token"
    return {name: pattern for pattern, name in found.items() if name not in OURS}


PATTERNS = all_patterns()
RULES = {rule.id: rule.regex for rule in rules()}


def example(item, more, last):
    """Return a text that an item of a pattern matches, as a rule.

    Parameters
    ----------
    item
        Operation and argument, as ``re`` parses them.
    more
        Repetitions beyond the least.
    last
        Whether to take the last alternative instead of the first.
    """
    kind, given = item
    if kind is op.LITERAL:
        return chr(given)
    if kind is op.NOT_LITERAL:
        return "a" if given != ord("a") else "b"
    if kind is op.ANY:
        return "a"
    if kind is op.IN:
        return of_class(given, last=last)
    if kind is op.BRANCH:
        return examples(given[1][-1 if last else 0], more, last)
    if kind in (op.SUBPATTERN, op.ATOMIC_GROUP):
        return examples(given[-1] if kind is op.SUBPATTERN else given, more, last)
    if kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
        low, high, repeated = given
        return examples(repeated, more, last) * min(low + more, high)
    return ""  # places, groups that come again, looks ahead and behind


def of_class(given, *, last):
    """Return a character of a class."""
    negated = given[0][0] is op.NEGATE
    if negated:
        spelled = "".join(chr(value) for kind, value in given if kind is op.LITERAL)
        return next(c for c in "ab-1Z \u4e00\n" if c not in spelled)
    for kind, value in reversed(given) if last else given:
        if kind is op.LITERAL:
            return chr(value)
        if kind is op.RANGE:
            return chr(value[1] if last else value[0])
        if kind is op.CATEGORY:
            return {op.CATEGORY_SPACE: " ", op.CATEGORY_DIGIT: "1"}.get(value, "a")
    return "a"


def examples(items, more, last):
    """Return a text that items one after the other match, as a rule."""
    return "".join(example(item, more, last) for item in items)


def flat(items):
    """Return the items of a pattern, with those of groups in place of the groups."""
    found = []
    for kind, given in items:
        if kind is op.SUBPATTERN:
            found += flat(given[-1])
        else:
            found.append((kind, given))
    return found


def worst_cases(pattern):
    """Return units, made of a pattern's own parts, that are slow to match when repeated."""
    flags = pattern.flags & (re.IGNORECASE | re.MULTILINE) if isinstance(pattern, re.Pattern) else 0
    items = list(_parser.parse(pattern.pattern, flags))
    branches = [list(each) for kind, given in items if kind is op.BRANCH for each in given[1]]
    units = set()
    for sequence in [items, *branches[:1], *branches[-1:]]:
        parts = flat(sequence)
        for more, last in ((0, False), (1, True), (3, False)):
            pieces = [example(item, more, last) for item in parts]
            spoiled = [piece for piece in pieces if piece]
            whole = "".join(pieces)
            # Runs of each part; two that follow each other; the beginning again and again; all but
            # the end, so that every attempted match fails.
            units.update(piece for piece in spoiled)
            units.update(one + other for one, other in pairwise(spoiled))
            units.update("".join(pieces[:n]) for n in range(2, len(pieces) + 1))
            units.update((whole, whole[:-1], whole[:-1] + "\n", " " + whole[:-1]))
    return sorted(units - {""}, key=len)


def chosen(units, n=10):
    """Return some of many, evenly spread."""
    step = max(1, len(units) // n)
    return units[::step]


def assert_linear_at_worst(work, units):
    """Check that no text of repeated units costs more than in proportion to its length."""
    allowed = FEW_PASSES * effort(str.split, PROSE)
    for unit in units:
        long = (unit * (TIMES * LENGTH // len(unit) + 1))[: TIMES * LENGTH]
        work(long[:100])
        start = time.process_time()
        work(long)
        if time.process_time() - start < allowed:
            continue
        for _ in range(ATTEMPTS):
            ratio = effort(work, long) / effort(work, long[:LENGTH])
            if ratio < TIMES * TOLERATED:
                break
        else:
            pytest.fail(f"{TIMES} times {unit[:80]!r} costs {ratio:.0f} times")


def search(pattern):
    """Return a function that goes through a text with a pattern."""
    if isinstance(pattern, LinearPattern):
        return lambda text: list(pattern.spans(text, 0, len(text)))
    return lambda text: [match.span() for match in pattern.finditer(text)]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PATTERNS, *RULES])
def test_no_pattern_costs_more_than_the_length_of_its_worst_text(name):
    pattern = (PATTERNS | RULES)[name]
    assert_linear_at_worst(search(pattern), chosen(worst_cases(pattern)))


def test_every_rule_is_matched_without_backtracking():
    assert all(isinstance(rule, LinearPattern) for rule in RULES.values())


@pytest.mark.parametrize(
    "unit", ["#", "system ", "system ### ", "answer : ", "%41", "x" * 300 + "%"]
)
@pytest.mark.slow
def test_texts_that_caused_backtracking_cost_linear_time(unit):
    # Verdicts of short texts are remembered, those of other texts are not.
    numbers = count()
    assert_linear_at_worst(lambda text: suspicion(f"{next(numbers)} {text}"), [unit])
