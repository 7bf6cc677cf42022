"""Preflight refuses, with the reason, a run that cannot learn; and lets the embedded base through. The base, its tokenizer
and its replies are fakes but in the last test."""

from dataclasses import replace
from itertools import cycle
from random import Random
from statistics import mean

import pytest
import torch

from helpers.game import replay
from helpers.games.market import Market
from helpers.grpo import rows_of
from helpers.models import add_adapter, generator, load
from helpers.players import competent, mixed_player
from helpers.preflight import GROUPS, PreflightError, preflight
from helpers.presets import preset
from helpers.rewards import RUBRICS, TERMS, Rubric, Term, judge
from helpers.rollout import TRAIN, kind, play

GAME, RUBRIC = Market(), RUBRICS["default"]
PRESET = replace(preset("tiny"), prompts=4, generations=4)
MODEL = torch.nn.Linear(1, 1)
BAD = "accept_trade(t99)"


class Words:
    """A tokenizer: one token a word."""

    def apply_chat_template(self, chats, **kwargs):
        return {"input_ids": [" ".join(message["content"] for message in chat).split() for chat in chats]}


@pytest.fixture(scope="module")
def rows():
    return rows_of(GAME, RUBRIC, play(GAME, TRAIN[:2], dict.fromkeys(GAME.seats, mixed_player(GAME))))


def saying(*replies):
    """A fake base that says these replies in turn, to whatever it is asked."""
    turns = cycle(replies)
    return lambda chats: [next(turns) for _ in chats]


def check(rows, generate, preset=PRESET, rubric=RUBRIC, model=MODEL):
    return preflight(GAME, preset, rubric, rows, model, Words(), generate)


def action(row):
    """A competent action at a row's decision point."""
    state = replay(GAME, row["seed"], row["actions"])
    return str(competent(GAME)(GAME.view(state, row["seat"]), Random(0)))


def test_a_base_that_sometimes_trades_well_passes_with_mean_reward_and_count_by_kind_of_reply(rows):
    rows = rows[:8]
    said = [reply for row in rows for reply in (action(row), "pass()", "pass()", BAD)]
    report = check(rows, saying(*said))
    rewards = {}
    for row in rows:
        for judgement in judge(GAME, row["seed"], row["actions"], [action(row), "pass()", BAD]):
            rewards.setdefault(kind(str(judgement.action), judgement.error), []).append(RUBRIC.reward(judgement))
    assert {name: value for name, (value, _) in report.items()} == pytest.approx({n: mean(v) for n, v in rewards.items()})
    assert report["pass"] == (0.0, 16) and report["invalid reply"][1] == 8 and sum(n for _, n in report.values()) == 32


def test_fewer_rows_than_one_generation_batch_are_refused(rows):
    with pytest.raises(PreflightError, match="at least 4 rows.*got 3"):
        check(rows[:3], saying("pass()"))


def test_a_model_with_nothing_to_train_is_refused(rows):
    with pytest.raises(PreflightError, match="no parameter is trainable"):
        check(rows, saying("pass()"), model=torch.nn.Linear(1, 1).requires_grad_(False))


def test_a_prompt_beyond_the_budget_is_refused_with_its_length(rows):
    longest = max(len(" ".join(m["content"] for m in row["prompt"]).split()) for row in rows)
    with pytest.raises(PreflightError, match=f"{longest} tokens.*allows {longest - 1}"):
        check(rows, saying("pass()"), preset=replace(PRESET, max_prompt_tokens=longest - 1))


def test_a_reward_that_ignores_the_reply_is_refused(rows, monkeypatch):
    monkeypatch.setitem(TERMS, "own", Term("own", -1, 1, "the same for every reply", lambda judgement: 0.25))
    with pytest.raises(PreflightError, match="rubric constant.*does not depend on the reply"):
        check(rows, saying("pass()", BAD, "build_project()", "nonsense"), rubric=Rubric("constant", {"own": 1.0}))


def test_rows_whose_groups_nearly_all_tie_are_refused(rows):
    one_group_differs = ["pass()", "pass()", BAD, BAD] + ["pass()"] * 19 * 4
    with pytest.raises(PreflightError, match="95% of the groups tie"):
        check(rows[:20], saying(*one_group_differs))


def test_a_base_whose_best_kind_of_reply_is_idling_is_refused_with_the_figures(rows):
    with pytest.raises(
        PreflightError, match=r"trivial 'pass' \(invalid reply -0.500 \(n=\d+\), pass \+0.000 \(n=\d+\)\).*collapse"
    ):
        check(rows, saying("pass()", BAD))


def test_a_rubric_under_which_bad_replies_pay_best_is_refused(rows, monkeypatch):
    monkeypatch.setitem(
        TERMS, "form", Term("form", 0, 1, "1 for a reply that is no legal action", lambda j: float(bool(j.error)))
    )
    said = [reply for row in rows for reply in (action(row), "pass()", "pass()", BAD)]
    with pytest.raises(PreflightError, match="trivial 'invalid reply'"):
        check(rows, saying(*said), rubric=Rubric("upside down", {"form": 1.0}))


def test_the_embedded_base_passes_under_the_default_rubric():
    preset = replace(PRESET, generations=8)
    base, tokenizer = load(preset)
    model = add_adapter(base, preset, 0)
    rows = rows_of(GAME, RUBRIC, play(GAME, TRAIN[:8], dict.fromkeys(GAME.seats, mixed_player(GAME))))
    Random(0).shuffle(rows)
    report = preflight(GAME, preset, RUBRIC, rows, model, tokenizer, generator(model, tokenizer, preset))
    assert report["pass"][0] == 0.0 < max(value for value, _ in report.values())
    assert sum(n for _, n in report.values()) == GROUPS * 8
