"""How far a policy drifted from its base: none with a fresh adapter, and what a slow reading of one reply after another gives."""

import math
from dataclasses import replace

import pytest
import torch
from test_models import TINY, with_adapter
from toy import Chatter

from helpers.chats import render
from helpers.drift import drift, log_ratios
from helpers.evaluate import ratio
from helpers.games.market import Market
from helpers.models import add_adapter, generator, load
from helpers.players import Model, random_player
from helpers.rollout import TEST, messages_of, play, prompts_of

GAME, CHATTER, SHORT = Market(), Chatter(), replace(TINY, max_new_tokens=12)


@pytest.fixture(scope="module")
def adapted():
    model, tokenizer = with_adapter()
    return model.eval(), tokenizer


@pytest.fixture(scope="module")
def base():
    """The base as it is loaded, without any adapter."""
    return load(TINY)[0]


@pytest.fixture(scope="module")
def turns():
    """The first turns of two random games; their prompts and replies differ in length."""
    return [replace(e, turns=e.turns[:5]) for e in play(GAME, TEST[:2], dict.fromkeys(GAME.seats, random_player(GAME)))]


def sampled(model, tokenizer, adapter: bool):
    """Three short chats with what the policy, or its base, says in both seats."""
    speaker = Model("speaker", generator(model, tokenizer, SHORT, adapter=adapter))
    return play(CHATTER, TEST[:3], dict.fromkeys(CHATTER.seats, speaker))


def slowly(model, tokenizer, messages, reply) -> float:
    """Log-probability of one reply, alone, id by id."""
    asked = tokenizer.encode(render(tokenizer, messages), add_special_tokens=False)
    said = [*tokenizer.encode(reply, add_special_tokens=False), tokenizer.eos_token_id]
    with torch.no_grad():
        scores = model(input_ids=torch.tensor([asked + said])).logits[0].double().log_softmax(-1)
    return sum(scores[len(asked) - 1 + at, one].item() for at, one in enumerate(said))


def both(game, episodes):
    """(prompts, replies) of all turns."""
    prompts = [messages for episode in episodes for messages in prompts_of(game, episode)]
    return prompts, [turn.reply for episode in episodes for turn in episode.turns]


def test_a_fresh_adapter_has_not_drifted_at_all(turns):
    model, tokenizer = load(TINY)
    found = drift(GAME, turns, "random", add_adapter(model, TINY, 0), tokenizer, 4)
    assert (found.value, found.low, found.high, found.n) == (0, 0, 0, 2)


@pytest.mark.parametrize("memory", ["none", "chat"])
def test_the_drift_is_what_a_slow_reading_of_one_reply_after_another_by_two_models_gives(adapted, base, turns, memory):
    model, tokenizer = adapted
    game, episodes = (GAME, turns) if memory == "none" else (CHATTER, sampled(*adapted, True))
    prompts, replies = both(game, episodes)
    assert len({len(reply) for reply in replies}) > 3
    assert max(map(len, prompts)) == (2 if memory == "none" else 4)  # in a chat the own earlier replies stand in the prompt
    expected = [slowly(model, tokenizer, m, r) - slowly(base, tokenizer, m, r) for m, r in zip(prompts, replies, strict=True)]
    assert min(map(abs, expected)) > 0.01
    nats, tokens = log_ratios(model, tokenizer, prompts, replies, 4)
    assert nats == pytest.approx(expected, abs=1e-3)
    assert tokens == [len(tokenizer.encode(reply, add_special_tokens=False)) + 1 for reply in replies]
    seeds = [episode.seed for episode in episodes for _ in episode.turns]
    found = drift(game, episodes, episodes[0].players["A"], model, tokenizer, 4)
    assert found == ratio(nats, tokens, seeds)
    assert found.value == pytest.approx(sum(expected) / sum(tokens), abs=1e-4) and found.n == len(episodes)


def test_neither_padding_nor_the_batch_matters(adapted, turns):
    model, tokenizer = adapted
    prompts, replies = both(GAME, turns)
    alone, _ = log_ratios(model, tokenizer, prompts, replies, 1)
    for batch in (3, 100):
        assert log_ratios(model, tokenizer, prompts, replies, batch)[0] == pytest.approx(alone, abs=1e-3)
    prompts.append(({"role": "user", "content": "Iron:3 " * 150},))  # makes all others pad a lot
    assert log_ratios(model, tokenizer, prompts, [*replies, "pass()"], 100)[0][:-1] == pytest.approx(alone, abs=1e-3)


def test_replies_come_back_in_their_order(adapted, turns):
    model, tokenizer = adapted
    prompts, replies = both(GAME, turns)
    nats, tokens = log_ratios(model, tokenizer, prompts, replies, 4)
    back = log_ratios(model, tokenizer, prompts[::-1], replies[::-1], 4)
    assert back[0][::-1] == pytest.approx(nats, abs=1e-3) and back[1][::-1] == tokens


def test_a_policy_finds_its_own_replies_likelier_than_its_base_does_and_the_bases_less_likely(adapted):
    own, bases = (drift(CHATTER, sampled(*adapted, adapter), "speaker", *adapted, 8) for adapter in (True, False))
    assert own.low > 0 > bases.high
    assert math.isfinite(own.value)


def test_only_the_replies_of_the_named_player_count(adapted, turns):
    model, tokenizer = adapted
    mixed = [replace(e, players={**e.players, "B": "other"}) for e in turns]
    only = [(m, t.reply, e.seed) for e in turns for m, t in zip(prompts_of(GAME, e), e.turns, strict=True) if t.seat == "B"]
    assert {seed for *_, seed in only} == {e.seed for e in turns}
    prompts, replies, seeds = zip(*only, strict=True)
    expected = ratio(*log_ratios(model, tokenizer, prompts, replies, 4), seeds)
    found = drift(GAME, mixed, "other", model, tokenizer, 4)
    assert found == expected and found != drift(GAME, turns, "random", model, tokenizer, 4)
    with pytest.raises(ValueError, match="expected at least 2 clusters"):
        drift(GAME, turns, "nobody", model, tokenizer, 4)


def test_the_model_is_left_as_it_was(adapted):
    model, tokenizer = adapted
    chat = messages_of(GAME, GAME.view(GAME.deal(0), "A"))
    before = slowly(model, tokenizer, chat, "pass()")
    for training in (True, False):
        model.train(training)
        log_ratios(model, tokenizer, [chat], ["pass()"], 4)
        assert model.training is training
    assert slowly(model, tokenizer, chat, "pass()") == before
    assert all(not module.disable_adapters for module in model.modules() if hasattr(module, "lora_A"))
