"""What councils decide about: score tables drawn by a seed, and files of public ones (LLM-Deliberation).

*Ours*: the generator. Every party's scores add up to MOST for its best deal. Issues are of three kinds: distributive (half of
the parties want the first option, half the last, and all care), integrative (the same, but half of them care little: there is
something to trade) and compatible (all want the same). Thresholds are then set so that the share of deals at or above all of
them is one of SHARES, by turns. The seed ranges of helpers.rollout are therefore different tables (a test compares their
fingerprints).
"""

import json
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from random import Random

from helpers.game import Seat
from helpers.games.scenarios import clean

SEATS: tuple[Seat, ...] = ("S1", "S2", "S3", "S4", "S5", "S6")
NAMES = ("North", "South", "East", "West", "Port", "Hill")  # of generated parties
ISSUES = "ABCDEFGH"
KINDS = ("distributive", "integrative", "compatible")
SHARES = (0.16, 0.10, 0.06, 0.03)  # of individually rational deals: the ladder of difficulty
MOST = 100  # score of a party's best deal
MAX_THRESHOLD = 0.9  # of the best score
WORST = MAX_THRESHOLD / (1 - MAX_THRESHOLD) + 1e-9  # what a score of 0 may cost, as a share of the largest surplus
MAX_DEALS = 100_000  # more than that no solver looks at in a moment

Deal = tuple[int, ...]  # of every issue the option, from 0


@dataclass(frozen=True)
class Spec:
    """One council. scores: of each party, of each issue, of each option, whole numbers from 0. thresholds: "at or above". p1, p2:
    parties with a veto, by number. min_accept: how many must support a deal, both vetoes among them; None: all. info: "full" or
    "private". proposer: "rotating", or "p1" opens every round. discount: of scores, for each round after the first.

    Raises ValueError for what does not fit."""

    issues: tuple[str, ...]
    names: tuple[str, ...]
    scores: tuple[tuple[tuple[int, ...], ...], ...]
    thresholds: tuple[int, ...]
    p1: int = 0
    p2: int = 1
    rounds: int = 4
    min_accept: int | None = None
    info: str = "private"
    chat: bool = True
    proposer: str = "rotating"
    discount: float = 1.0

    def __post_init__(self):
        n = len(self.names)
        for name, known in (("info", ("full", "private")), ("proposer", ("rotating", "p1"))):
            if getattr(self, name) not in known:
                raise ValueError(f"expected {name} to be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if self.rounds < 1 or not 0 < self.discount <= 1:
            raise ValueError(f"expected rounds >= 1 and 0 < discount <= 1, got {self.rounds} and {self.discount}")
        if self.min_accept is not None and not 2 <= self.min_accept <= n:
            raise ValueError(f"expected min_accept from 2 to {n} or None, got {self.min_accept}")
        for i, name in enumerate(self.names):
            best = self.best(i)
            if not 0 <= self.thresholds[i] <= MAX_THRESHOLD * best or not best:
                got = f"{self.thresholds[i]} of {best}"
                raise ValueError(f"expected the threshold of {name} from 0 to {MAX_THRESHOLD:g} of its best score, got {got}")

    @property
    def options(self) -> tuple[int, ...]:
        return tuple(len(row) for row in self.scores[0])

    @property
    def vetoes(self) -> tuple[int, ...]:
        return (self.p1, self.p2)

    @property
    def needed(self) -> int:
        return self.min_accept or len(self.names)

    def best(self, party: int) -> int:
        return sum(map(max, self.scores[party]))

    def score(self, party: int, deal: Deal) -> int:
        return sum(row[option] for row, option in zip(self.scores[party], deal, strict=True))

    def surplus(self, party: int, deal: Deal, round: int = 1) -> float:
        """Normalised: (discounted score - threshold) / (best score - threshold)."""
        threshold = self.thresholds[party]
        return (self.discount ** (round - 1) * self.score(party, deal) - threshold) / (self.best(party) - threshold)


def fingerprint(spec: Spec) -> frozenset:
    """Equal for councils that differ only in the order of their parties."""
    return frozenset(Counter(zip(spec.scores, spec.thresholds, strict=True)).items())


def drawn(source: str, seed: int) -> Spec:
    """The council of a seed: "six" or "small" from the generator, or one of a file. Raises ValueError for another source."""
    if source in ("six", "small"):
        return generated(source == "small", seed)
    if not source.endswith(".json"):
        raise ValueError(f"expected specs to be six, small or the path of a .json file, got {source!r}")
    games = list(load(source).values())
    return Random(f"council/{source}/{seed}").choice(games)


@cache
def generated(small: bool, seed: int) -> Spec:
    """Draws again until the share of individually rational deals lies within a fifth of its step on the ladder."""
    rng = Random(f"council/{'small' if small else 'six'}/{seed}")
    target = SHARES[seed % len(SHARES)]
    while True:
        issues = 3 if small else rng.choice((4, 5))
        kinds = [*KINDS, *rng.choices(KINDS, k=issues - len(KINDS))]
        rng.shuffle(kinds)
        options = [rng.choice((3, 4)) for _ in kinds]
        scores = tables(kinds, options, rng)
        found = thresholds(scores, options, target, rng)
        if found:
            p1, p2 = rng.sample(range(len(SEATS)), 2)
            return Spec(tuple(ISSUES[:issues]), NAMES, scores, found, p1, p2)


def tables(kinds: list[str], options: list[int], rng: Random) -> tuple:
    """Scores of each party, of each issue, of each option."""
    n = len(SEATS)
    weights, curves = [[] for _ in SEATS], [[] for _ in SEATS]
    for kind, size in zip(kinds, options, strict=True):
        sides = [i % 2 for i in range(n)] if kind != "compatible" else [rng.randrange(2)] * n
        rng.shuffle(sides)
        keen = rng.randrange(2)  # the side that cares about an integrative issue
        for i, side in enumerate(sides):
            cares = {"distributive": 3.0, "compatible": 2.0, "integrative": 5.0 if side == keen else 1.0}[kind]
            weights[i].append(cares * (0.7 + 0.6 * rng.random()))
            middle = sorted(0.1 + 0.8 * rng.random() for _ in range(size - 2))
            rising = [0.0, *middle, 1.0]
            curves[i].append(rising if side else rising[::-1])
    out = []
    for mine, shapes in zip(weights, curves, strict=True):
        points = [round(MOST * w / sum(mine)) for w in mine]
        points[0] += MOST - sum(points)
        out.append(tuple(tuple(round(p * x) for x in shape) for p, shape in zip(points, shapes, strict=True)))
    return tuple(out)


def thresholds(scores: tuple, options: list[int], target: float, rng: Random) -> tuple[int, ...] | None:
    """One for each party, so that about `target` of all deals reach all of them; None where no such ones are near."""
    shift = [rng.randint(-10, 10) for _ in scores]
    worst = sorted(
        (
            min(sum(row[o] for row, o in zip(mine, deal, strict=True)) - s for mine, s in zip(scores, shift, strict=True))
            for deal in product(*map(range, options))
        ),
        reverse=True,
    )
    level = worst[max(round(target * len(worst)), 1) - 1]
    share = sum(x >= level for x in worst) / len(worst)
    found = tuple(level + s for s in shift)
    good = abs(share - target) <= target / 5 and min(found) >= 5 and max(found) <= MAX_THRESHOLD * MOST
    return found if good else None


@cache
def load(path: str | Path) -> dict[str, Spec]:
    """Councils by name from a file in the public form: {"games": [{name, issues: {letter: options}, parties: [{name, role,
    threshold, scores}]}]}, six parties each, one of them p1 and one p2. Raises ValueError naming the entry and the field."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as reason:
        raise ValueError(f"{path}: expected one JSON object with games, got {reason}") from reason
    games = data.get("games") if isinstance(data, dict) else None
    if not isinstance(games, list) or not games:
        raise ValueError(f"{path}: expected an object with games, a list of at least one, got {str(data)[:60]!r}")
    out = {}
    for at, entry in enumerate(games):
        name, spec = council(entry, f"{path}: games[{at}]")
        if name in out:
            raise ValueError(f"{path}: games[{at}].name: expected another name than {name!r}, which an earlier game has")
        out[name] = spec
    return out


def council(entry, where: str) -> tuple[str, Spec]:
    """(name, Spec) from an entry of the public form. Raises ValueError that begins with `where`."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise ValueError(f"{where}: expected an object with name, issues and parties, got {str(entry)[:60]!r}")
    issues, parties = entry.get("issues"), entry.get("parties")
    letters = (
        isinstance(issues, dict) and 1 <= len(issues) <= len(ISSUES) and all(len(i) == 1 and "A" <= i <= "Z" for i in issues)
    )
    if not letters or not all(type(n) is int and 1 <= n <= 99 for n in issues.values()) or list(issues) != sorted(issues):
        raise ValueError(
            f"{where}.issues: expected capital letters in order, each with its number of options, got {str(issues)[:60]}"
        )
    deals = 1
    for n in issues.values():
        deals *= n
    if deals > MAX_DEALS:
        raise ValueError(f"{where}.issues: expected at most {MAX_DEALS:,} deals, got {deals:,}")
    if not isinstance(parties, list) or len(parties) != len(SEATS) or not all(isinstance(p, dict) for p in parties):
        raise ValueError(f"{where}.parties: expected a list of {len(SEATS)} objects, got {str(parties)[:60]}")
    names, roles, scores, limits = [], [], [], []
    for i, party in enumerate(parties):
        here = f"{where}.parties[{i}]"
        name, role, limit, rows = (party.get(key) for key in ("name", "role", "threshold", "scores"))
        if not isinstance(name, str) or not clean(name, 40):
            raise ValueError(f"{here}.name: expected text, got {str(name)[:60]!r}")
        if type(limit) is not int:
            raise ValueError(f"{here}.threshold: expected a whole number, got {str(limit)[:60]!r}")
        whole = isinstance(rows, list) and all(
            isinstance(r, list) and all(type(x) is int and 0 <= x <= 999 for x in r) for r in rows
        )
        if not whole or [len(row) for row in rows] != list(issues.values()):
            raise ValueError(
                f"{here}.scores: expected lists of {list(issues.values())} whole numbers from 0, got {str(rows)[:60]}"
            )
        names.append(clean(name, 40))
        roles.append(role)
        limits.append(limit)
        scores.append(tuple(map(tuple, rows)))
    if sorted(map(str, roles)) != sorted(["p1", "p2", *["player"] * (len(SEATS) - 2)]):
        raise ValueError(f"{where}.parties: expected one role p1, one p2 and else player, got {', '.join(map(str, roles))}")
    try:
        spec = Spec(tuple(issues), tuple(names), tuple(scores), tuple(limits), roles.index("p1"), roles.index("p2"))
    except ValueError as reason:
        raise ValueError(f"{where}.parties: {reason}") from reason
    return entry["name"], spec
