"""The eleven training signals of the support desk, per (episode, seat), and what its measures count.

Every signal is read off a replay of what was played, so it depends on the replies and not on the ticket alone. Incomes look at
the last round, penalties at all of them. A perfect winner's episode earns exactly 1. Where the card gives no figure it is *ours*:
appropriate_confidence is 1 - (bid - truth)^2, truth being 1 for the specialist of the ticket's category and else 0, which is
highest on average for a bid that is the probability (Brier 1950).
"""

from dataclasses import dataclass
from functools import lru_cache

from helpers.game import ParseError, Seat, replay
from helpers.games.support import (
    MANAGER,
    REBID,
    TURNS,
    Award,
    Bid,
    State,
    Support,
    awards_of,
    right_decision,
    solved,
    success,
    timed_out,
)
from helpers.games.tickets import DOMAINS
from helpers.replies import read
from helpers.rollout import Episode, Turn

HIGH = 0.8  # a bid above this is overconfident if it proves wrong


@dataclass(frozen=True)
class Part:
    """A seat's part in a finished episode. awards: of every round."""

    game: Support
    state: State
    turns: tuple[Turn, ...]
    awards: tuple[Award, ...]
    seat: Seat

    @property
    def expert(self) -> bool:
        return self.seat == self.state.ticket.category

    def bid(self, rounds: int) -> Turn:
        return self.turns[rounds * TURNS + DOMAINS.index(self.seat)]

    def won(self, rounds: int) -> bool:
        return self.awards[rounds].winner == self.seat


def part(episode: Episode, seat: Seat) -> Part:
    game = Support(**episode.settings)
    state = replayed(game, episode.seed, tuple(episode.actions))
    return Part(game, state, episode.turns, tuple(awards_of(state)), seat)


@lru_cache(maxsize=1024)
def replayed(game: Support, seed: int, actions: tuple[str, ...]) -> State:
    """Shared by all signals and seats of an episode."""
    return replay(game, seed, actions)


def correct_specialist_bid(p: Part) -> float:
    return float(p.expert and p.won(-1))


def correct_solution(p: Part) -> float:
    return float(p.won(-1) and solved(p.state, len(p.awards) - 1))


def appropriate_confidence(p: Part) -> float:
    if p.seat == MANAGER or (turn := p.bid(len(p.awards) - 1)).error:
        return 0.0
    return 1 - (p.game.parse(turn.action).confidence - p.expert) ** 2


def solution_format(p: Part) -> float:
    return float(p.won(-1) and p.turns[-2].error is None)


def team_success_bonus(p: Part) -> float:
    return float(success(p.state))


def wrong_specialist(p: Part) -> float:
    return -float(not p.expert and any(map(p.won, range(len(p.awards)))))


def wrong_solution(p: Part) -> float:
    return -float(any(p.won(at) and not solved(p.state, at) for at in range(len(p.awards))))


def overconfident(p: Part) -> float:
    if p.seat == MANAGER:
        return 0.0
    place = DOMAINS.index(p.seat)
    high = [at for at, award in enumerate(p.awards) if award.bids[place] > HIGH]
    return -float(any(not p.expert or (p.won(at) and not solved(p.state, at)) for at in high))


def team_failure_penalty(p: Part) -> float:
    return -float(not success(p.state))


def invalid_bid(p: Part) -> float:
    return -float(p.seat != MANAGER and any(out_of_range(p.game, p.bid(at).reply) for at in range(len(p.awards))))


def out_of_range(game: Support, reply: str) -> bool:
    try:
        action = read(game, reply)
    except ParseError:
        return False
    return isinstance(action, Bid) and not 0 <= action.confidence <= 1


def timeout(p: Part) -> float:
    return -float(timed_out(p.state))


WEIGHTS = {
    correct_specialist_bid: (0.30, "1 if the ticket's specialist won the last round with its bid"),
    correct_solution: (0.30, "1 if the seat won the last round and solved the ticket"),
    appropriate_confidence: (0.15, "1 - (bid - truth)^2 of the last round's bid; 0 for an unusable one and for the manager"),
    solution_format: (0.05, "1 if the seat won the last round and its solution was usable"),
    team_success_bonus: (0.20, "1 if the team succeeded"),
    wrong_specialist: (0.20, "-1 if the seat won a round and is not the ticket's specialist"),
    wrong_solution: (0.20, "-1 if the seat won a round and did not solve the ticket"),
    overconfident: (0.10, "-1 if the seat bid more than 0.8 and is not the specialist, or won and did not solve the ticket"),
    team_failure_penalty: (0.10, "-1 if the team did not succeed"),
    invalid_bid: (0.05, "-1 if the seat replied with a confidence outside [0, 1]"),
    timeout: (0.15, "-1 if the episode timed out"),
}
INCOMES = tuple(WEIGHTS)[:5]


def reward(episode: Episode, seat: Seat) -> float:
    """The weighted sum of all signals, -0.8 to 1.0."""
    mine = part(episode, seat)
    return sum(weight * each(mine) for each, (weight, _) in WEIGHTS.items())


def tallies(episode: Episode) -> dict[str, tuple[float, float]]:
    """{metric: (over, under)} of one episode: what to sum over episodes and divide, as helpers.desk.metrics does."""
    state = part(episode, MANAGER).state
    awards, expert = awards_of(state), DOMAINS.index(state.ticket.category)
    said = [action.decision for action in state.actions[TURNS - 1 :: TURNS]]
    won, escalated, must = success(state), said[-1] == "escalate", bool(state.ticket.escalate)
    errors = [(bid - (at == expert)) ** 2 for each in awards for at, bid in enumerate(each.bids)]
    return {
        "team success": (won, 1),
        **{f"success {domain}": (won and at == expert, at == expert) for at, domain in enumerate(DOMAINS)},
        "routed right": (awards[-1].winner == state.ticket.category, 1),
        "manager right": (sum(word == right_decision(state, at) for at, word in enumerate(said)), len(said)),
        "escalation precision": (escalated and must, escalated),
        "escalation recall": (escalated and must, must),
        "Brier score": (sum(errors), len(errors)),
        "awards by lot": (sum(each.tied for each in awards), len(awards)),
        "rebids": (said.count(REBID), len(said)),
        "time-outs": (timed_out(state), 1),
    }
