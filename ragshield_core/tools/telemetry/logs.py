"""The log of RAGShield as lines of JSON."""

from __future__ import annotations

import datetime as dt
import json
import logging
from typing import Any

from ragshield_core.model.findings import printable

# Characters of one value.
SHOWN = 2_000


class JsonFormatter(logging.Formatter):
    r"""Writes each record as one line of JSON, whatever is in it.

    ``event`` is what is always the same of a message, so that it can be counted, and ``values``
    what differs, in its order: ``"quarantined %d of %d entries"`` and ``[5, 20]``. RAGShield logs
    ids, counts and scores, never texts.

    Examples
    --------
    >>> record = logging.LogRecord("ragshield", 30, "", 0, "held %r of %d", ("a\n", 2), None)
    >>> told = json.loads(JsonFormatter().format(record))
    >>> told["message"], told["event"], told["values"]
    ("held 'a\\n' of 2", 'held %r of %d', ['a\\u{a}', 2])
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        given = record.args if isinstance(record.args, tuple) else (record.args or {},)
        line: dict[str, Any] = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": printable(record.getMessage(), SHOWN),
            "event": printable(str(record.msg), SHOWN),
            "values": [_value(each) for each in given if each != {}],
            "process": record.process,
        }
        if record.exc_info and record.exc_info[0] is not None:
            # Not what it says: messages of databases quote what they were asked.
            line["exception"] = record.exc_info[0].__name__
        return json.dumps(line)


def _value(given: object) -> Any:
    if given is None or isinstance(given, (bool, int, float)):
        return given
    return printable(str(given), SHOWN)
