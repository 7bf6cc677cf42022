"""What the support desk works on: the project's own tickets, and a user's in JSON or CSV, read by the same function.

A ticket is a template: its slots ({app}, {amount}) are filled when it is dealt. Each template belongs to one of train, valid and
test, and the range of a seed decides from which it draws: what is held out are templates, not only fillings. The solution, the
reason to escalate and the domain of every ticket recur in other templates, in other words. All of this is *ours*.
"""

import csv
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from helpers.games.scenarios import SPLITS, clean

BANK = Path(__file__).with_name("support_tickets.json")
DOMAINS = ("technical", "billing", "account")
DIFFICULTIES = ("easy", "hard")  # hard: words of another domain, or two domains that are both plausible
REASONS = ("legal", "breach", "repeated", "sum")  # to escalate: a legal threat, others' data, a third complaint, 1000 or more
MAX_TEXT = 300  # characters of a ticket, filled
MAX_SOLUTIONS = 18  # different ones in a file: every prompt lists them all
FIELDS = ("text", "category", "solutions", "escalate", "difficulty")
SLOT = re.compile(r"\{(\w*)\}")
SOLUTION = re.compile(r"[a-z][a-z0-9_]{0,31}")

Slots = tuple[tuple[str, tuple[str, ...]], ...]  # ((slot, its fillings), ...) of one ticket, in the order of the text


@dataclass(frozen=True)
class Ticket:
    """One template. `id`: its place in the file; `solutions`: all that are right; `escalate`: one of REASONS, or ""."""

    id: int
    text: str
    category: str
    solutions: tuple[str, ...]
    escalate: str
    difficulty: str
    slots: Slots = ()

    def filled(self, rng: Random) -> str:
        """The text as a customer wrote it: one line of plain characters, at most MAX_TEXT."""
        drawn = {name: rng.choice(fillings) for name, fillings in self.slots}
        return clean(SLOT.sub(lambda slot: drawn[slot[1]], self.text), MAX_TEXT)


@cache
def load_tickets(path: str | Path) -> tuple[Ticket, ...]:
    """Tickets of a .csv file with the columns FIELDS (several solutions separated by ;), or of a JSON file: a list of objects
    with those fields, or {"slots": {name: [filling, ...]}, "tickets": [...]}. Raises ValueError naming row (from 1) and field."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
        slots, rows = from_csv(text) if path.suffix.lower() == ".csv" else from_json(json.loads(text))
    except (ValueError, RecursionError, csv.Error) as reason:
        raise ValueError(f"{path}: {reason}") from reason
    tickets = tuple(ticket(row, number, slots, f"{path}: row {number}") for number, row in enumerate(rows, 1))
    known = solutions_of(tickets)
    if len(known) > MAX_SOLUTIONS:
        raise ValueError(f"{path}: expected at most {MAX_SOLUTIONS} different solutions, got {len(known)}; name like ones alike")
    return tickets


def from_csv(text: str) -> tuple[dict, list]:
    rows = list(csv.DictReader(text.splitlines()))
    return {}, [row | {"solutions": [s.strip() for s in (row.get("solutions") or "").split(";")]} for row in rows]


def from_json(data) -> tuple[dict, list]:
    if isinstance(data, list):
        data = {"tickets": data}
    slots = data.get("slots", {}) if isinstance(data, dict) else None
    rows = data.get("tickets") if isinstance(data, dict) else None
    if not isinstance(rows, list) or not isinstance(slots, dict):
        raise ValueError(f'expected a list of tickets, or {{"slots": {{...}}, "tickets": [...]}}, got {str(data)[:60]!r}')
    for name, fillings in slots.items():
        if not isinstance(fillings, list) or not fillings or not all(isinstance(x, str) and clean(x, 40) for x in fillings):
            raise ValueError(f"slots.{name}: expected a list of texts, got {str(fillings)[:60]!r}")
    return slots, rows


def ticket(row, number: int, slots: dict, where: str) -> Ticket:
    """A Ticket from a row. Raises ValueError that begins with `where`."""
    if not isinstance(row, dict):
        raise ValueError(f"{where}: expected an object with {', '.join(FIELDS)}, got {str(row)[:60]!r}")
    if odd := [name for name in (*row, *FIELDS) if name not in FIELDS or name not in row]:
        raise ValueError(f"{where}: expected exactly the fields {', '.join(FIELDS)}; unknown or missing: {str(odd[0])[:40]!r}")
    text, solutions = row["text"], row["solutions"]
    if not isinstance(text, str) or not clean(text, MAX_TEXT) or len(text) > MAX_TEXT:
        raise ValueError(f"{where}, text: expected text of 1 to {MAX_TEXT} characters, got {str(text)[:60]!r}")
    if unknown := [name for name in SLOT.findall(text) if name not in slots]:
        raise ValueError(f"{where}, text: expected slots among {', '.join(slots) or 'none'}, got {unknown[0][:40]!r}")
    if (
        not isinstance(solutions, list)
        or not solutions
        or not all(isinstance(s, str) and SOLUTION.fullmatch(s) for s in solutions)
    ):
        raise ValueError(f"{where}, solutions: expected names like reset_password, got {str(solutions)[:60]!r}")
    for name, known in (("category", DOMAINS), ("escalate", ("", *REASONS)), ("difficulty", DIFFICULTIES)):
        if row[name] not in known:
            raise ValueError(f"{where}, {name}: expected one of {', '.join(map(repr, known))}, got {str(row[name])[:40]!r}")
    used = tuple((name, tuple(slots[name])) for name in dict.fromkeys(SLOT.findall(text)))
    return Ticket(number, text, row["category"], tuple(solutions), row["escalate"], row["difficulty"], used)


def solutions_of(tickets: tuple[Ticket, ...]) -> tuple[str, ...]:
    """The closed list: every solution that is right for some ticket, in order of appearance."""
    return tuple(dict.fromkeys(solution for each in tickets for solution in each.solutions))


@cache
def split(path: str = "") -> dict[str, tuple[Ticket, ...]]:
    """The tickets of train, valid and test ("": the project's own): half, a quarter and a quarter, dealt out in turn after
    sorting by reason to escalate, difficulty and domain, so that each gets its part of every kind. Raises
    ValueError for fewer than four."""
    kinds = sorted(load_tickets(path or BANK), key=lambda each: (each.escalate, each.difficulty, each.category))
    out = {name: tuple(each for at, each in enumerate(kinds) if SPLITS[at % len(SPLITS)] == name) for name in SPLITS}
    if not all(out.values()):
        raise ValueError(f"{path}: expected {len(SPLITS)} tickets or more, so that train, valid and test all get one")
    return out
