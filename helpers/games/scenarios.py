"""What buyer and seller bargain over: the project's own scenarios, and files in the public format of arXiv 2605.31445.

Every item belongs to one of train, valid and test, and the range of a seed decides from which it draws: what is held out are
items, not only prices.
"""

import json
import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ITEMS = Path(__file__).with_name("bargaining_items.json")
SPREADS = (0.15, 0.25, 0.35, 0.45)  # how far limits lie from an item's middle price, as a share of it
SPLITS = ("train", "train", "valid", "test")  # of the items of a tier, in turn
MAX_PRICE = 10_000_000
MAX_TEXT = 400  # characters of a text in a scenario

Range = tuple[float, float]


@dataclass(frozen=True)
class Scenario:
    """One item with its two sides, in the fields of the public format."""

    product_name: str
    product_description: str
    buyer_persona: str
    seller_persona: str
    seller_res_price_range: Range
    buyer_res_price_range: Range


PLAIN = str.maketrans("\u2018\u2019\u2013\u2014\u2212", "''---")
MARKS = re.compile("[\u0300-\u036f]+")
UNKNOWN = re.compile(r"[^A-Za-z0-9 ,.;:!?'$%()+/=*&@_\u00a3\u00a5\u20ac-]+")


def clean(text: str, limit: int) -> str:
    """Text as another seat may see it: one line of plain characters, at most `limit`. Line breaks, quotes, #, <, |, > and braces
    are gone, so that nothing in it can close its quotation or look like an event or a chat frame."""
    plain = MARKS.sub("", unicodedata.normalize("NFKD", text[: 2 * limit].translate(PLAIN)))
    return " ".join(UNKNOWN.sub(" ", plain).split())[:limit].strip()


def split_of(seed: int) -> str:
    """Which items a seed may draw: the ranges of helpers.rollout (a test compares them)."""
    return "valid" if 1_000_000 <= seed < 7_000_000 else "test" if 7_000_000 <= seed < 8_000_000 else "train"


@cache
def own_scenarios() -> dict[str, list[Scenario]]:
    """The project's own, by tier: hand-written items and people, ranges around an item's middle price."""
    bank = json.loads(ITEMS.read_text(encoding="utf-8"))
    buyers, sellers, out, n = bank["buyers"], bank["sellers"], {}, 0
    for tier, items in bank["items"].items():
        out[tier] = []
        for at, (name, description, middle) in enumerate(items):
            down, up = SPREADS[at // 4 % 4], SPREADS[at // 16 % 4]
            ranges = (round(middle * (1 - down), 2), float(middle)), (float(middle), round(middle * (1 + up), 2))
            out[tier].append(Scenario(name, description, buyers[5 * n % 16], sellers[(7 * n + n // 16) % 16], *ranges))
            n += 1
    return out


@cache
def load_scenarios(path: str | Path) -> dict[str, list[Scenario]]:
    """Scenarios by tier from a file in the public format: one JSON object, tier -> list of entries with the fields of Scenario.

    Raises ValueError naming the entry and the field."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as reason:
        raise ValueError(f"{path}: expected one JSON object keyed by tier, got {reason}") from reason
    if isinstance(data, dict):
        data = data.get("scenarios", data)  # a file that also names its source
    if not isinstance(data, dict) or not all(isinstance(entries, list) for entries in data.values()):
        raise ValueError(f"{path}: expected one JSON object, each tier a list of scenarios, got {str(data)[:60]!r}")
    out = {tier: [scenario(entry, f"{path}: {tier}[{at}]") for at, entry in enumerate(entries)] for tier, entries in data.items()}
    if not any(len(entries) >= len(SPLITS) for entries in out.values()):
        raise ValueError(f"{path}: expected a tier of {len(SPLITS)} scenarios or more, so that train, valid and test all get one")
    return out


def scenario(entry, where: str) -> Scenario:
    """A Scenario from an entry of the public format. Raises ValueError that begins with `where`."""
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: expected an object with product_name and so on, got {str(entry)[:60]!r}")
    values = []
    for name, kind in Scenario.__annotations__.items():
        value = entry.get(name)
        if kind is str:
            if not isinstance(value, str) or not clean(value, MAX_TEXT) or len(value) > MAX_TEXT:
                raise ValueError(f"{where}.{name}: expected text of 1 to {MAX_TEXT} characters, got {str(value)[:60]!r}")
            values.append(clean(value, MAX_TEXT))
        else:
            good = isinstance(value, list) and len(value) == 2 and all(type(x) in (int, float) for x in value)
            if not good or not 0 < value[0] <= value[1] <= MAX_PRICE:
                raise ValueError(f"{where}.{name}: expected [low, high] with 0 < low <= high, got {str(value)[:60]}")
            values.append((float(value[0]), float(value[1])))
    (low, middle), (start, high) = values[4:]
    if middle > start or round(high - low, 2) <= 0:
        raise ValueError(f"{where}.buyer_res_price_range: expected it to begin at the seller's top {middle:g}, got {start:g}")
    return Scenario(*values)


def all_scenarios(path: str) -> list[Scenario]:
    return [s for entries in (load_scenarios(path) if path else own_scenarios()).values() for s in entries]


@cache
def split(path: str) -> dict[str, list[Scenario]]:
    """The scenarios of train, valid and test: every item belongs to exactly one of them."""
    out: dict[str, list[Scenario]] = {name: [] for name in SPLITS}
    for entries in (load_scenarios(path) if path else own_scenarios()).values():
        for at, each in enumerate(entries):
            out[SPLITS[at % len(SPLITS)]].append(each)
    return out
