"""From a model's raw text to the one action it contains.

The rule: exactly one action. Thinking is removed; if what remains holds one action, that is it; otherwise the last fenced
block, or else the last non-empty line, counts if it is one action and nothing else. Anything else is an error that names
what was found: never a guess. An action is written as a call of one of the game's verbs or, in a game without verbs, as a
JSON object.
"""

import json
import re

from helpers.game import Game, ParseError

MAX_LENGTH = 20_000  # characters; a longer reply is refused before any regular expression sees it
MAX_CALL = 400  # characters within which a call must close
PAREN = re.compile(r"[()]")
OPENING = re.compile(r"\{\s*(?=[\"'}])")  # how an object begins, well-formed or not
JSON = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)  # finds objects; `game.parse` judges their numbers
FENCE = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)


def read(game: Game, reply: str):
    """The action in `reply`. Raises ParseError with the reason; never anything else, whatever the text."""
    if len(reply) > MAX_LENGTH:
        raise ParseError(f"expected at most {MAX_LENGTH:,} characters, got {len(reply):,}; write only the action")
    text = without_thinking(reply)
    found = actions(game, text)
    if len(found) == 1:
        return game.parse(found[0])
    if not found:
        form = f"one of {', '.join(f'{verb}(...)' for verb in game.verbs)}" if game.verbs else "one JSON object {...}"
        raise ParseError(f"no action found in {text.strip()[:60]!r}; write {form}")
    fences = FENCE.findall(text)
    last = fences[-1].strip() if fences else text.strip().splitlines()[-1].strip()
    alone = actions(game, last)
    if len(alone) == 1 and alone[0] == last:
        return game.parse(last)
    raise ParseError(f"ambiguous: found {len(found)} actions ({', '.join(f[:40] for f in found[:4])}); write exactly one")


def actions(game: Game, text: str) -> list[str]:
    """Every piece of `text` that is written as an action of `game`, well-formed inside or not, in order."""
    return calls(text, game.verbs) if game.verbs else objects(text)


def without_thinking(text: str) -> str:
    """`text` without <think>...</think> blocks, an unclosed block, or what precedes a stray </think>."""
    kept, rest = "", text
    while "<think>" in rest:
        before, _, inside = rest.partition("<think>")
        kept += before.rpartition("</think>")[2]
        rest = inside.partition("</think>")[2]
    return kept + rest.rpartition("</think>")[2]


def calls(text: str, verbs: tuple[str, ...]) -> list[str]:
    """Every piece of `text` that is written as a call of one of `verbs`, well-formed inside or not, in order. A call ends
    at its closing parenthesis; without one, at the end of its line."""
    found, start = [], 0
    pattern = re.compile(rf"(?<![A-Za-z0-9_])(?:{'|'.join(verbs)})[ \t]*\(", re.IGNORECASE | re.ASCII)
    while match := pattern.search(text, start):
        depth, end = 1, match.end()
        for paren in PAREN.finditer(text, match.end(), match.start() + MAX_CALL):
            depth += 1 if paren[0] == "(" else -1
            end = paren.end()
            if not depth:
                break
        if depth:
            end = text.find("\n", match.end())
            end = len(text) if end < 0 else end
        found.append(text[match.start() : end])
        start = end
    return found


def objects(text: str) -> list[str]:
    """Every piece of `text` that is written as a JSON object, outermost ones only, in order. One that is not well-formed ends at
    its first closing brace; without one, at the end of the text."""
    found, start = [], 0
    while match := OPENING.search(text, start):
        try:
            _, start = JSON.raw_decode(text, match.start())
        except (json.JSONDecodeError, RecursionError):
            start = text.find("}", match.end()) + 1 or len(text)
        found.append(text[match.start() : start])
    return found
