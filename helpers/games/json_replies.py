"""What games share whose actions are JSON objects: reading one strictly. A key that is written twice is an error, no guess."""

import json
from collections.abc import Callable

from helpers.game import ParseError

MAX_REPLY = 2000  # characters of an object


def json_object(text: str, keys: tuple[str, ...], number: Callable) -> dict:
    """The JSON object that `text` is, with none but these keys. `number` reads every number, NaN and infinities too, from its
    text. Raises ParseError."""
    if len(text) > MAX_REPLY:
        raise ParseError(f"expected a JSON object of at most {MAX_REPLY} characters, got {len(text)}; shorten the message")
    try:
        data = json.loads(text, object_pairs_hook=unique, parse_int=number, parse_float=number, parse_constant=number)
    except (json.JSONDecodeError, RecursionError) as reason:
        raise ParseError(f"expected one JSON object, got {text[:60]!r} ({str(reason)[:60]})") from None
    if not isinstance(data, dict):
        raise ParseError(f"expected one JSON object with {', '.join(keys)}, got {text[:60]!r}")
    if unknown := [key for key in data if key not in keys]:
        raise ParseError(f"expected only the keys {', '.join(keys)}, got {unknown[0][:40]!r}")
    return data


def unique(pairs: list[tuple]) -> dict:
    """A JSON object whose keys all differ. Raises ParseError."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ParseError(f"ambiguous: a key is written twice ({', '.join(key[:20] for key, _ in pairs[:4])})")
    return found


def shown(value) -> str:
    """A JSON value for an error message; lists and objects may be nested too deep to print."""
    return "a list or object" if isinstance(value, list | dict) else json.dumps(value)[:40]
