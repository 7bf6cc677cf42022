"""The rules of Ultimatum and divide-the-dollar. In the latter S1 opens here: S1, S2, S3 propose in turn."""

import json
from dataclasses import replace
from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.game import IllegalAction, ParseError, replay
from helpers.games.classic import PLAYERS, PROPOSER, RESPONDER, Action, DivideDollar, Round, State, Ultimatum
from helpers.games.council import Council
from helpers.players import Scripted, random_player, scripted
from helpers.replies import MAX_LENGTH, read
from helpers.rollout import play, take

ULTIMATUM, ALL, MOST = Ultimatum(), DivideDollar(), DivideDollar(rule="majority")
START = State(0, 0)
YES, NO, NONE = Action("accept"), Action("reject"), Action("none")


def give(*units) -> Action:
    seats = (PROPOSER, RESPONDER) if len(units) == 2 else ("S1", "S2", "S3")
    return Action("propose", tuple(zip(seats, units, strict=True)))


def after(game, *actions) -> State:
    """The state after these actions, which must all be legal."""
    state = START
    for action in actions:
        state = game.step(state, action)
    return state


def refused(game, state, action) -> str:
    with pytest.raises(IllegalAction) as caught:
        game.step(state, action)
    return str(caught.value)


def payoffs(game, *actions) -> tuple[float, ...]:
    """Of a game that these actions end."""
    state = after(game, *actions)
    assert game.turn(state) is None
    return tuple(game.payoffs(state).values())


def order(game, *actions) -> list[str | None]:
    """Who is to move before each action and after the last."""
    return [game.turn(after(game, *actions[:k])) for k in range(len(actions) + 1)]


# --- Ultimatum


@pytest.mark.parametrize("kept", range(11))
def test_an_accepted_split_pays_what_it_says_and_a_rejected_one_nothing(kept):
    assert payoffs(ULTIMATUM, give(kept, 10 - kept), YES) == (kept, 10 - kept)
    assert payoffs(ULTIMATUM, give(kept, 10 - kept), NO) == (0, 0)


def test_ultimatum_is_one_shot_the_proposer_moves_then_the_responder_and_it_is_over():
    assert order(ULTIMATUM, give(7, 3), NO) == [PROPOSER, RESPONDER, None]
    assert order(ULTIMATUM, NONE) == [PROPOSER, None] and payoffs(ULTIMATUM, NONE) == (0, 0)


# --- divide-the-dollar


def test_the_others_answer_in_turn_after_the_proposer_and_the_next_seat_proposes_then():
    actions = [give(4, 4, 4), YES, NO, give(4, 4, 4), YES, NO, give(4, 4, 4), YES, NO]
    assert order(ALL, *actions) == ["S1", "S2", "S3", "S2", "S3", "S1", "S3", "S1", "S2", "S1"]


def test_the_seed_draws_the_opener_and_every_seat_opens():
    openers = [ALL.turn(ALL.deal(seed)) for seed in range(60)]
    assert {openers.count(seat) > 10 for seat in ALL.seats} == {True} and openers == [MOST.turn(MOST.deal(s)) for s in range(60)]


@pytest.mark.parametrize(("game", "needed"), [(ALL, 3), (MOST, 2)])
def test_a_split_closes_as_soon_as_enough_support_it_and_falls_as_soon_as_they_can_not(game, needed):
    for answers in product((True, False), repeat=2):
        state, asked = after(game, give(6, 3, 3)), 0
        while game.turn(state) and len(state.rounds) == 1 and game.view(state, "S2").standing:
            state = game.step(state, YES if answers[asked] else NO)
            asked += 1
        sure = [1 + sum(answers[:k]) >= needed or 3 - answers[:k].count(False) < needed for k in range(3)]
        assert asked == sure.index(True)
        closed = 1 + sum(answers) >= needed
        assert (game.turn(state) is None) == closed
        assert tuple(game.payoffs(state).values()) == ((6, 3, 3) if closed else (0, 0, 0))


def test_under_majority_one_acceptance_is_enough_and_who_gets_nothing_is_not_asked():
    assert payoffs(MOST, give(11, 1, 0), YES) == (11, 1, 0)
    assert payoffs(MOST, give(11, 0, 1), NO, YES) == (11, 0, 1)
    assert order(MOST, give(11, 1, 0), NO, NO)[-1] == order(ALL, give(11, 1, 0), NO)[-1] == "S2"  # proposes next


def test_units_shrink_with_every_round_after_the_first_also_with_one_in_which_nothing_was_proposed():
    for lost, rounds in (([], 0), ([NONE], 1), ([give(12, 0, 0), NO], 1), ([NONE, give(0, 0, 12), NO, NONE], 3)):
        paid = payoffs(ALL, *lost, give(2, 4, 6), YES, YES)
        assert paid == pytest.approx([0.99**rounds * n for n in (2, 4, 6)], abs=1e-12)
    assert payoffs(DivideDollar(discount=0.5), NONE, NONE, give(12, 0, 0), YES, YES) == (3, 0, 0)
    assert payoffs(DivideDollar(discount=1.0), NONE, NONE, give(12, 0, 0), YES, YES) == (12, 0, 0)


def test_without_agreement_in_six_rounds_all_get_nothing():
    state = after(ALL, *[give(4, 4, 4), NO] * 6)
    assert ALL.turn(state) is None and set(ALL.payoffs(state).values()) == {0}
    assert ALL.counts(state) == {"deals": 0, "rounds used": 6} and ALL.turn(after(ALL, *[give(4, 4, 4), NO] * 5)) == "S3"
    assert ALL.counts(after(ALL, NONE, give(4, 4, 4), YES, YES)) == {"deals": 1, "rounds used": 2}
    assert order(DivideDollar(rounds=2), NONE, NONE)[-1] is None


def test_what_is_attainable_is_the_standing_split_or_an_even_one_discounted():
    assert set(ALL.attainable(START).values()) == {4.0}
    assert ALL.attainable(after(ALL, give(8, 3, 1), YES)) == {"S1": 8.0, "S2": 3.0, "S3": 1.0}
    assert set(ALL.attainable(after(ALL, give(8, 3, 1), NO)).values()) == {0.99 * 4}
    assert set(ALL.attainable(after(ALL, *[NONE] * 6)).values()) == {0.0}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"rule": "plurality"}, "rule to be one of unanimity, majority, got 'plurality'"),
        ({"rounds": 0}, "rounds >= 1 and 0 < discount <= 1, got 0 and 0.99"),
        ({"discount": 0.0}, "got 6 and 0.0"),
        ({"discount": 1.01}, "got 6 and 1.01"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, reason):
    with pytest.raises(ValueError, match=reason):
        DivideDollar(**settings)


# --- what the rules refuse

BAD_SPLITS = {  # well-formed, but no split of this pie
    "too much": ({"S1": 4, "S2": 4, "S3": 5}, "add up to 12, got 4 + 4 + 5 = 13"),
    "too little": ({"S1": 4, "S2": 4, "S3": 3}, "add up to 12, got 4 + 4 + 3 = 11"),
    "a missing seat": ({"S1": 6, "S2": 6}, "units for every seat, 0 too; S3 is missing"),
    "an unknown seat": ({"S1": 4, "S2": 4, "S3": 4, "S4": 0}, "expected units for S1, S2, S3, got 'S4'"),
    "a seat in lower case": ({"s1": 4, "S2": 4, "S3": 4}, "expected units for S1, S2, S3, got 's1'"),
    "a seat of the other game": ({PROPOSER: 8, RESPONDER: 4}, "expected units for S1, S2, S3, got 'proposer'"),
    "an endless seat": ({"x" * 1500: 12}, f"expected units for S1, S2, S3, got {'x' * 30!r}"),
}


@pytest.mark.parametrize(("split", "reason"), BAD_SPLITS.values(), ids=BAD_SPLITS)
def test_a_split_that_does_not_add_up_or_names_other_seats_is_illegal_and_nothing_is_offered(split, reason):
    state, action, error = take(ALL, START, json.dumps({"action": "propose", "split": split}))
    assert action == NONE and error.startswith("illegal: ")
    assert reason in refused(ALL, START, ALL.parse(json.dumps({"action": "propose", "split": split})))
    assert state.rounds == (Round(0, ()),) and ALL.turn(state) == "S2"


def test_the_split_of_ultimatum_is_of_ten_units_between_its_two_seats():
    assert "add up to 10, got 7 + 4 = 11" in refused(ULTIMATUM, START, give(7, 4))
    assert "expected units for proposer, responder, got 'S1'" in refused(ULTIMATUM, START, give(4, 4, 2))


@pytest.mark.parametrize("kind", ["accept", "reject"])
def test_nothing_can_be_answered_before_a_split_stands(kind):
    assert f"no split is standing for {kind} to answer; propose one" in refused(ALL, START, Action(kind))
    assert "no split is standing" in refused(ALL, after(ALL, give(4, 4, 4), NO), Action(kind))


@pytest.mark.parametrize("action", [give(4, 4, 4), NONE])
def test_a_standing_split_must_be_answered(action):
    reason = f"expected accept or reject of P2, the standing split, got {action.kind}"
    assert refused(ALL, after(ALL, NONE, give(4, 4, 4)), action) == reason


def test_an_offer_id_may_be_left_out_or_must_be_that_of_the_standing_split():
    state = after(ALL, NONE, give(4, 4, 4))
    for named in ("", "P2"):
        assert ALL.step(state, Action("accept", offer=named)) == ALL.step(state, YES)
        assert ALL.step(state, Action("reject", offer=named)) == ALL.step(state, NO)
    assert "P1 is not the standing split (standing: P2)" in refused(ALL, state, Action("accept", offer="P1"))


# --- replies

SPLIT = '{"action": "propose", "split": {"S1": 6, "S2": 5, "S3": 1}}'
READ = {
    "the bare object": (SPLIT, give(6, 5, 1)),
    "seats in another order": ('{"split": {"S3": 1, "S1": 6, "S2": 5}, "action": "propose"}', give(6, 5, 1)),
    "upper case": ('{"action": " ACCEPT "}', YES),
    "nulls": ('{"message": null, "action": "reject", "split": null, "offer_id": null}', NO),
    "the council's habits": ('{"message": "Fine.", "action": "accept", "offer_id": "p2"}', Action("accept", offer="P2")),
    "a message with a split": (SPLIT.replace("{", '{"message": "Fair?", ', 1), give(6, 5, 1)),
    "nothing offered": ('{"action": "none"}', NONE),
    "thinking with another object": (f"<think>{SPLIT}?</think> Well: " + '{"action": "reject"}', NO),
    "fenced": (f"```json\n{SPLIT}\n```", give(6, 5, 1)),
}
REFUSED = {
    "empty": ("", "no action found"),
    "prose": ("I accept.", "no action found in .* write one JSON object"),
    "two actions": (f'{SPLIT} or {{"action": "accept"}}', "ambiguous: found 2 actions"),
    "an answer with a split": ('{"action": "accept", "split": {"S1": 12}}', "ambiguous: accept with a split; leave that out"),
    "a proposal with an id": (SPLIT.replace("}}", '}, "offer_id": "P1"}'), "ambiguous: propose with an offer_id"),
    "cut by the token limit": ('{"action": "propose", "spl', "one JSON object, got"),
    "a key twice": ('{"action": "accept", "action": "reject"}', "a key is written twice"),
    "a seat twice": ('{"action": "propose", "split": {"S1": 6, "S1": 6}}', "a key is written twice"),
    "the council's deal": ('{"action": "propose", "deal": {"A": 1}}', "message, action, split, offer_id, got 'deal'"),
    "no action": ('{"split": {"S1": 12}}', "action to be propose, accept or reject, got null"),
    "an unknown action": ('{"action": "walk"}', 'propose, accept or reject, got "walk"'),
    "an action that is a list": ('{"action": ["accept"]}', "got a list or object"),
    "a message that is a number": ('{"message": 4, "action": "accept"}', "message to be text in quotes, got 4"),
    "no split": ('{"action": "propose"}', "split to be an object such as .* got null"),
    "an empty split": ('{"action": "propose", "split": {}}', "split to be an object"),
    "a split that is a list": ('{"action": "propose", "split": [6, 5, 1]}', "split to be an object .* got a list or object"),
    "a split that is a number": ('{"action": "propose", "split": 6}', "split to be an object .* got 6"),
    "units as text": (SPLIT.replace("5", '"5"'), "units of 'S2' as a whole number without quotes, got \"5\""),
    "true": (SPLIT.replace("1}", "true}"), "units of 'S3' as a whole number without quotes, got true"),
    "null": (SPLIT.replace("1}", "null}"), "units of 'S3' as a whole number without quotes, got null"),
    "units in a list": (SPLIT.replace("1}", "[1]}"), "units of 'S3' as a whole number .* got a list or object"),
    "a fraction": (SPLIT.replace("5", "5.5"), "whole numbers of units from 0 on, got 5.5"),
    "a whole fraction": (SPLIT.replace("5", "5.0"), "whole numbers of units from 0 on, got 5.0"),
    "an exponent": (SPLIT.replace("5", "5e0"), "whole numbers of units from 0 on, got 5e0"),
    "negative units": ('{"action": "propose", "split": {"S1": 13, "S2": -1, "S3": 0}}', "from 0 on, got -1"),
    "NaN": (SPLIT.replace("5", "NaN"), "from 0 on, got NaN"),
    "infinity": (SPLIT.replace("5", "-Infinity"), "from 0 on, got -Infinity"),
    "huge units": (SPLIT.replace("5", "9" * 1900), "got 9{30}$"),
    "an id that is a number": ('{"action": "accept", "offer_id": 2}', "got 2"),
    "an empty id": ('{"action": "accept", "offer_id": ""}', 'offer_id such as "P2", got ""'),
    "too many characters": ('{"message": "' + "a" * 2000 + '", "action": "accept"}', "at most 2000 characters, got 2"),
    "nested too deep": ('{"action": ' + "[" * 1900, "one JSON object, got"),
    "too long": (SPLIT + " " * MAX_LENGTH, "at most 20,000 characters"),
}  # fmt: skip


@pytest.mark.parametrize(("reply", "action"), READ.values(), ids=READ)
def test_a_reply_with_exactly_one_object_is_that_action(reply, action):
    assert read(ALL, reply) == action


@pytest.mark.parametrize(("reply", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_malformed_reply_is_refused_with_what_was_found_and_offers_nothing_or_rejects(reply, reason):
    with pytest.raises(ParseError, match=reason) as caught:
        read(ALL, reply)
    assert len(str(caught.value)) < 400
    for game, actions, played in ((ALL, [], NONE), (MOST, [give(1, 10, 1)], NO)):
        state, action, error = take(game, after(game, *actions), reply)
        assert error.startswith("parse: ") and action == played and state == after(game, *actions, played)


def test_an_unusable_reply_ends_ultimatum_without_pay_whoever_wrote_it():
    for said in ({PROPOSER: "What?", RESPONDER: str(YES)}, {PROPOSER: str(give(1, 9)), RESPONDER: "Yes, gladly."}):
        [episode] = play(ULTIMATUM, [0], {s: Scripted(s, lambda view, rng, text=text: text) for s, text in said.items()})
        assert set(episode.payoffs.values()) == {0} and sum(turn.error is not None for turn in episode.turns) == 1


def test_a_message_reaches_nobody():
    loud = SPLIT.replace("{", '{"message": "Take it!", ', 1)
    assert take(ALL, START, loud) == take(ALL, START, SPLIT)


PIECES = (
    "{", "}", '"', ":", ",", "[", "]", "\\", "\n", "```", "<think>", "</think>", '"action"', '"propose"', '"accept"', '"split"',
    '"offer_id"', '"S1"', '"S2"', "1", "-", "NaN", "true", "null", SPLIT, '{"action": "none"}', "\u2028", "\ud800",
)  # fmt: skip


@given(st.one_of(st.text(st.characters()), st.lists(st.sampled_from(PIECES), max_size=40).map("".join)))
def test_no_text_raises_anything_but_a_parse_error_and_what_is_read_prints_and_parses_back(reply):
    for reader in (lambda text: read(ALL, text), ALL.parse):
        try:
            action = reader(reply)
        except ParseError as reason:
            assert str(reason)
        else:
            assert ALL.parse(str(action)) == action


@given(st.lists(st.integers(0, 12), min_size=3, max_size=3))
def test_a_split_is_legal_exactly_when_it_adds_up(units):
    if sum(units) == 12:
        assert after(ALL, give(*units)).rounds == (Round(0, tuple(units)),)
    else:
        assert "add up to 12" in refused(ALL, START, give(*units))


# --- what a seat is told


def texts(game, state, seat) -> str:
    view = game.view(state, seat)
    return game.system(view) + "\n" + game.describe(view)


def test_a_seat_is_told_every_round_and_what_the_standing_split_is_worth_to_it_now():
    state = after(ALL, give(10, 1, 1), YES, NO, NONE, give(0, 4, 8), YES)
    told = "# S1: propose 10/1/1; S2: accept; S3: reject\n# S2: none\n# S3: propose 0/4/8; S1: accept\n"
    assert ALL.describe(ALL.view(state, "S2")) == told + "Round 3/6, S2, accept or reject P3 (3.92 for you):"
    state = after(ALL, give(10, 1, 1), NO)
    assert ALL.describe(ALL.view(state, "S2")) == "# S1: propose 10/1/1; S2: reject\nRound 2/6, S2, propose a split:"


def test_the_standing_instructions_say_who_must_agree_for_how_long_and_how_units_shrink():
    assert "You are S2. S1/S2/S3 divide 12 units." in texts(ALL, START, "S2") and "When all support it" in texts(ALL, START, "S2")
    assert "by the factor 0.99 each round" in texts(ALL, START, "S1") and "in 6 rounds, all get 0" in texts(ALL, START, "S1")
    assert "When 2 of 3 support it" in texts(MOST, START, "S1")
    assert "shrink" not in texts(DivideDollar(discount=1.0), START, "S1")


def test_in_ultimatum_each_side_is_shown_how_its_own_reply_is_written_and_no_other():
    ask, answer = (texts(ULTIMATUM, START, seat) for seat in ULTIMATUM.seats)
    assert "You are the proposer. 10 units" in ask and '"propose"' in ask and '"accept"' not in ask
    assert "You are the responder. 10 units" in answer and '"propose"' not in answer and '"accept" or "reject"' in answer


def test_replies_have_the_form_that_the_council_asks_for():
    council = Council(chat=False)
    theirs = council.system(council.view(council.deal(0), "S1"))
    for game in (ULTIMATUM, ALL):
        shown = "".join(texts(game, START, seat) for seat in game.seats)
        for line in (
            "Reply with one JSON object:\n",
            '{"action": "propose", "',
            '{"action": "accept" or "reject"',
            "Think first if",
        ):
            assert line in shown and line in theirs


def test_the_longest_prompt_of_all_has_320_qwen_tokens(prompt_tokens):
    for game in (ALL, MOST):
        refusing = [YES, NO] if game is ALL else [NO, NO]
        actions = [give(10, 1, 1), *refusing] * 6  # two digits once, as many answers as there can be
        sizes = [
            prompt_tokens(game, game.view(state, game.turn(state)))
            for state in (after(game, *actions[:k]) for k in range(len(actions)))
        ]
        assert max(sizes) == sizes[-1] and 300 < sizes[-1] <= 320


def test_a_state_is_rebuilt_from_the_seed_and_the_actions_and_only_the_seed_is_hidden():
    actions = [str(a) for a in (give(4, 4, 4), YES, NO, NONE)]
    state = replay(ALL, 5, actions)
    assert state.seed == 5 and [r.units for r in state.rounds] == [(4, 4, 4), ()]
    assert ALL.view(replace(state, seed=6), "S1") == ALL.view(state, "S1")


# --- scripted players


def choices(name, game, *actions):
    """What a scripted player does in the seat that is to move then."""
    state = after(game, *actions)
    return PLAYERS[name](game.view(state, game.turn(state)), Random(0))


@pytest.mark.parametrize(
    ("name", "two", "three", "majority", "least"),
    [
        ("equal", (5, 5), (4, 4, 4), (4, 4, 4), (5, 4)),
        ("fair-minded", (5, 5), (4, 4, 4), (4, 4, 4), (3, 3)),  # 30 % of 10; 20 % of 12 is 2.4
        ("minimal", (9, 1), (10, 1, 1), (11, 1, 0), (1, 1)),
    ],
)
def test_a_scripted_player_proposes_its_split_and_accepts_from_its_least_share_on(name, two, three, majority, least):
    assert choices(name, ULTIMATUM) == give(*two)
    assert choices(name, ALL) == give(*three)
    assert choices(name, MOST) == give(*majority)
    accepted = [n for n in range(11) if choices(name, ULTIMATUM, give(10 - n, n)) == YES]
    assert accepted == list(range(least[0], 11))
    accepted = [n for n in range(13) if choices(name, ALL, give(12 - n, n, 0)) == YES]
    assert accepted == list(range(least[1], 13))


def test_the_minimal_player_keeps_the_rest_for_itself_in_every_seat_and_buys_the_next_one():
    assert choices("minimal", MOST, NONE) == give(0, 11, 1)
    assert choices("minimal", MOST, NONE, NONE) == give(1, 0, 11)
    assert choices("minimal", ALL, NONE, NONE) == give(1, 1, 10)


def test_scripted_tables_end_as_their_names_say():
    def first(game, *names):
        [episode] = play(game, [0], dict(zip(game.seats, (scripted(game, name) for name in names), strict=True)))
        return tuple(episode.payoffs.values())

    assert first(ULTIMATUM, "minimal", "minimal") == (9, 1)
    assert first(ULTIMATUM, "minimal", "fair-minded") == (0, 0)
    assert first(ULTIMATUM, "fair-minded", "equal") == (5, 5)
    assert first(ALL, *["minimal"] * 3) == {0: (10, 1, 1), 1: (1, 10, 1), 2: (1, 1, 10)}[ALL.deal(0).opener]
    assert first(ALL, *["fair-minded"] * 3) == (4, 4, 4)


def test_random_splits_are_all_equally_likely_and_random_answers_half_and_half():
    rng, view = Random(0), ULTIMATUM.view(START, PROPOSER)
    kept = [dict(ULTIMATUM.sample(view, rng).split)[PROPOSER] for _ in range(4400)]
    assert all(330 <= kept.count(n) <= 470 for n in range(11))  # 400 each, sd 19
    seen = {ALL.sample(ALL.view(START, "S1"), rng) for _ in range(1500)}
    assert len(seen) == 91  # ways to split 12 units among three: 14 x 13 / 2
    state = after(ULTIMATUM, give(9, 1))
    accepts = sum(ULTIMATUM.sample(ULTIMATUM.view(state, RESPONDER), rng) == YES for _ in range(1000))
    assert 430 <= accepts <= 570


@pytest.mark.parametrize("game", [ULTIMATUM, ALL, MOST], ids=["ultimatum", "unanimity", "majority"])
@pytest.mark.parametrize("name", PLAYERS)
def test_a_scripted_player_is_legal_in_every_seat_among_random_ones(name, game):
    for seat in game.seats:
        seated = dict.fromkeys(game.seats, random_player(game)) | {seat: scripted(game, name)}
        episodes = play(game, range(40), seated)
        assert not [turn.error for e in episodes for turn in e.turns if turn.error]
        assert any(turn.seat == seat for e in episodes for turn in e.turns)
