"""Generated councils and files of them, and the scripted parties on generated ones."""

import json
from collections import Counter
from dataclasses import replace
from itertools import product
from random import Random

import pytest

from helpers.game import replay
from helpers.games.council import Action, Council, Event, Offer
from helpers.games.council_specs import MOST, SEATS, SHARES, drawn, fingerprint, generated, load
from helpers.games.delegates import CONTROLS, RATIONAL, Insist, ranked
from helpers.players import Scripted
from helpers.rollout import TEST, TRAIN, VALID, play, take
from helpers.solver import solve

GAME = Council(specs="small")


def rational_share(spec) -> float:
    deals = list(product(*map(range, spec.options)))
    good = sum(all(spec.score(i, deal) >= limit for i, limit in enumerate(spec.thresholds)) for deal in deals)
    return good / len(deals)


# --- the generator


@pytest.mark.parametrize("source", ["six", "small"])
def test_a_seed_draws_a_council_on_its_step_of_the_ladder_with_a_best_score_of_100_for_all(source):
    for seed in range(24):
        spec = drawn(source, seed)
        assert all(spec.best(party) == MOST for party in range(len(SEATS)))
        assert len(spec.issues) in ((3,) if source == "small" else (4, 5)) and set(spec.options) <= {3, 4}
        assert rational_share(spec) == pytest.approx(SHARES[seed % 4], rel=0.2 + 1e-9)
        assert spec.p1 != spec.p2


def test_the_councils_of_the_three_splits_differ_from_each_other():
    prints = [fingerprint(generated(True, seed)) for split in (TRAIN, VALID, TEST) for seed in split[:60]]
    assert max(Counter(prints).values()) == 1 and len(prints) == 180


def test_a_fingerprint_does_not_depend_on_the_order_of_the_parties_but_on_their_thresholds():
    spec = generated(True, 0)
    turned = type(spec)(
        spec.issues, spec.names, spec.scores[1:] + spec.scores[:1], spec.thresholds[1:] + spec.thresholds[:1], p1=5, p2=0
    )
    assert turned != spec and fingerprint(turned) == fingerprint(spec)
    lower = type(spec)(spec.issues, spec.names, spec.scores, (spec.thresholds[0] - 1, *spec.thresholds[1:]))
    assert fingerprint(lower) != fingerprint(spec)


def test_parties_agree_on_compatible_issues_and_split_in_halves_on_the_others():
    """The first option is best for none, half or all of the parties, and each kind occurs in every council."""
    for seed in range(20):
        spec = generated(False, seed)
        first = [sum(rows[issue][0] == max(rows[issue]) for rows in spec.scores) for issue in range(len(spec.issues))]
        assert set(first) <= {0, 3, 6} and first.count(3) >= 2 and len(first) - first.count(3) >= 1


# --- files


def entry(**changes):
    """A game in the public form, with 3 x 2 deals."""
    role = {0: "p1", 1: "p2"}
    parties = [
        {"name": f"Party {i}", "role": role.get(i, "player"), "threshold": 20, "scores": [[0, 10, 60], [40, 0]]} for i in range(6)
    ]
    return {"name": "Harbour", "issues": {"A": 3, "B": 2}, "parties": parties} | changes


def party(**changes):
    return entry(parties=[*entry()["parties"][:5], entry()["parties"][5] | changes])


def written(tmp_path, data):
    path = tmp_path / "games.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


def test_a_file_is_read_and_its_councils_are_played(tmp_path):
    path = written(tmp_path, {"games": [entry(), entry(name="Airport")]})
    found = load(path)
    assert list(found) == ["Harbour", "Airport"]
    spec = found["Harbour"]
    assert (spec.options, spec.best(0), spec.thresholds[0], spec.vetoes) == ((3, 2), 100, 20, (0, 1))
    [episode] = play(Council(specs=str(path)), [0], dict.fromkeys(SEATS, Scripted("linear", RATIONAL["linear"])))
    assert dict(Council(**episode.settings).payoffs(replay(Council(**episode.settings), 0, episode.actions))) == episode.payoffs


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{", "expected one JSON object with games"),
        ({"games": []}, "a list of at least one, got"),
        ({"games": [{"issues": {}}]}, r"games\[0\]: expected an object with name, issues and parties"),
        ({"games": [entry(), entry()]}, r"games\[1\]\.name: expected another name than 'Harbour'"),
        ({"games": [entry(issues={"A": 3, "b": 2})]}, r"games\[0\]\.issues: expected capital letters in order"),
        ({"games": [entry(issues={"A": 99, "B": 99, "C": 99})]}, r"issues: expected at most 100,000 deals, got 970,299"),
        ({"games": [entry(parties=[])]}, r"parties: expected a list of 6 objects"),
        ({"games": [party(name=7)]}, r"parties\[5\]\.name: expected text, got '7'"),
        ({"games": [party(threshold="20")]}, r"parties\[5\]\.threshold: expected a whole number, got '20'"),
        (
            {"games": [party(threshold=91)]},
            r"parties: expected the threshold of Party 5 from 0 to 0.9 of its best score, got 91 of",
        ),
        ({"games": [party(scores=[[0, 10], [40, 0]])]}, r"parties\[5\]\.scores: expected lists of \[3, 2\]"),
        ({"games": [party(role="p1")]}, r"expected one role p1, one p2 and else player"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_naming_entry_and_field(data, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load(written(tmp_path, data))


def test_another_source_than_a_json_file_is_refused():
    with pytest.raises(ValueError, match="six, small or the path of a .json file, got 'seven'"):
        drawn("seven", 0)


# --- the scripted parties


@pytest.mark.parametrize("name", RATIONAL)
def test_no_rational_party_is_ever_paid_less_than_nothing_whoever_sits_with_it(name):
    others = [Scripted(n, c) for n, c in (RATIONAL | CONTROLS).items()]
    for seed in range(6):
        mine = Scripted("mine", RATIONAL[name])
        table = {seat: mine if i % 2 else others[(seed + i) % len(others)] for i, seat in enumerate(SEATS)}
        [episode] = play(GAME, [seed], table)
        assert all(turn.error is None for turn in episode.turns)
        assert min(episode.payoffs[seat] for seat, player in table.items() if player is mine) >= 0


def test_boulware_gives_way_later_than_linear_and_a_conceder_earlier():
    def first_round_below_its_best(name):
        """The first round in which it supports a deal halfway between its threshold and its best, that others propose."""
        for round in range(1, 21):
            view = views[round]
            action = RATIONAL[name](view, Random(0))
            if action.kind == "accept":
                return round
        return 99

    game = Council(specs="small", rounds=20)
    state = game.deal(0)
    me = game.turn(state)
    spec, number = state.spec, SEATS.index(me)
    middle = (100 + spec.thresholds[number]) / 2
    deal = min((d for _, d in ranked(spec.scores[number])), key=lambda d: abs(spec.score(number, d) - middle))
    offer = {issue: option + 1 for issue, option in zip(spec.issues, deal, strict=True)}
    text = json.dumps({"action": "propose", "deal": offer})
    views = {}
    while seat := game.turn(state):
        view = game.view(state, seat)
        if seat == me and view.offers and not view.voting:
            views.setdefault(view.round, view)
        repeat = any(o.deal == deal for o in view.offers)
        state = take(game, state, text if not repeat and seat != me else '{"action": "none"}')[0]
    views = {round: views[min(r for r in views if r >= round)] for round in range(1, 21)}
    rounds = [first_round_below_its_best(name) for name in ("conceder", "linear", "boulware")]
    assert rounds == sorted(rounds) and rounds[0] < rounds[1] < rounds[2] <= 20


def test_tit_for_tat_never_asks_for_less_than_its_threshold_however_much_it_is_given():
    view = GAME.view(GAME.deal(0), GAME.turn(GAME.deal(0)))
    (_, best), (_, worst) = ranked(view.scores)[0], ranked(view.scores)[-1]
    giver = view.parties[0].seat
    events = tuple(Event(giver, Action("propose"), f"P{i}", deal) for i, deal in enumerate((worst, best)))
    on_the_table = replace(view, events=events, offers=(Offer("P1", SEATS.index(giver), worst, (SEATS.index(giver),)),))
    action = RATIONAL["tit-for-tat"](on_the_table, Random(0))
    assert action.kind == "propose" and view.score(tuple(option - 1 for _, option in action.deal)) >= view.threshold


def test_the_oracle_among_parties_that_take_what_pays_closes_on_the_nash_deal():
    for seed in range(8):
        spec = GAME.deal(seed).spec
        nash = solve(spec).deal("Nash")
        table = dict.fromkeys(SEATS, Scripted("passive-gate", CONTROLS["passive-gate"]))
        [episode] = play(GAME, [seed], table | {SEATS[spec.p1]: Scripted("oracle", Insist(tuple(map(int, nash))))})
        state = replay(GAME, seed, episode.actions)
        assert state.deal == tuple(map(int, nash))


def test_a_holdout_supports_nothing_but_nearly_its_best_and_an_anchor_opens_with_it():
    view = GAME.view(GAME.deal(0), GAME.turn(GAME.deal(0)))
    best = ranked(view.scores)[0][1]
    for name in ("greedy-anchor", "greedy-holdout", "declared-holdout"):
        action = CONTROLS[name](view, Random(0))
        assert tuple(option - 1 for _, option in action.deal) == best
    assert CONTROLS["declared-holdout"](view, Random(0)).message and CONTROLS["passive-gate"](view, Random(0)).kind == "none"
