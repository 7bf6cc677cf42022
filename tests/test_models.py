"""The embedded model answers chats in batches: reproducibly, each as if it were alone, and with or without its adapter."""

from dataclasses import replace

import pytest
import torch
from mixed import walk

from helpers.games.market import Market
from helpers.models import add_adapter, generator, load
from helpers.presets import preset
from helpers.rollout import TEST, messages_of

GAME = Market()
TINY = replace(preset("tiny"), max_new_tokens=24)
ALMOST_GREEDY = replace(TINY, temperature=1e-4)


def chats(seed: int, every: int):
    """Chats at every `every`-th decision point of a mixed episode; their lengths differ."""
    points = list(walk(GAME, seed))[:-1][::every]
    return [messages_of(GAME, GAME.view(state, GAME.turn(state))) for _, state in points]


def with_adapter(seed: int = 0, scale: float = 0.3):
    """The embedded model with an adapter that changes its answers (a fresh one changes nothing: its B matrices are 0)."""
    base, tokenizer = load(TINY)
    model = add_adapter(base, TINY, seed)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=scale)
    return model, tokenizer


@pytest.fixture(scope="module")
def tiny():
    return load(TINY)


@pytest.fixture(scope="module")
def adapted():
    return with_adapter()


def test_the_same_seed_and_the_same_calls_give_the_same_replies(tiny):
    asked = [chats(TEST[0], 8), chats(TEST[1], 8)]
    first, again, other = (generator(*tiny, TINY, seed) for seed in (3, 3, 4))
    said = [first(batch) for batch in asked]
    assert said == [again(batch) for batch in asked]
    assert said != [other(batch) for batch in asked]


def test_the_same_chats_asked_again_get_new_luck(tiny):
    generate = generator(*tiny, TINY)
    assert generate(chats(TEST[0], 4)) != generate(chats(TEST[0], 4))


def test_answering_leaves_torchs_global_generator_and_the_models_mode_as_they_were(tiny):
    model, tokenizer = tiny
    before = torch.get_rng_state()
    for training in (True, False):
        model.train(training)
        generator(model, tokenizer, TINY)(chats(TEST[0], 20))
        assert model.training is training
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("batch", [5, 100])
def test_many_chats_are_answered_in_their_order_each_as_if_it_were_alone(tiny, batch):
    asked = chats(TEST[2], 3) + chats(TEST[3], 3)
    assert 5 < len({len(chat[-1]["content"]) for chat in asked}) and len(asked) < 100
    together = generator(*tiny, replace(ALMOST_GREEDY, batch=batch))(asked)
    assert together == [generator(*tiny, ALMOST_GREEDY)([chat])[0] for chat in asked]
    assert len(set(together)) > 1


def test_a_reply_is_only_what_the_model_wrote(tiny):
    for reply in generator(*tiny, TINY)(chats(TEST[3], 5)):
        assert reply and "<|" not in reply and "Action:" not in reply and "assistant" not in reply


def test_without_its_adapter_the_model_answers_as_the_base(tiny, adapted):
    asked = chats(TEST[4], 4)
    base = generator(*tiny, TINY)(asked)
    assert generator(*adapted, TINY, adapter=False)(asked) == base
    assert generator(*adapted, TINY)(asked) != base


def test_a_fresh_adapter_is_drawn_from_its_seed_alone_and_answers_as_the_base(tiny):
    before = torch.get_rng_state()
    models = [add_adapter(load(TINY)[0], TINY, seed) for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), before)
    same, again, other = (torch.cat([p.flatten() for name, p in m.named_parameters() if "lora_A" in name]) for m in models)
    assert torch.equal(same, again) and not torch.equal(same, other)
    asked = chats(TEST[5], 8)
    assert generator(models[0].eval(), tiny[1], TINY)(asked) == generator(*tiny, TINY)(asked)


def test_a_saved_adapter_gives_the_same_logits_when_it_is_loaded(adapted, tmp_path):
    model, tokenizer = adapted
    model.eval().save_pretrained(tmp_path)
    loaded, _ = load(TINY, adapter=tmp_path)
    assert not loaded.training
    inputs = tokenizer(["propose_trade(B, {Iron: 1}, {Coal: 2})"], return_tensors="pt")
    with torch.inference_mode():
        expected, base = model(**inputs).logits, load(TINY)[0](**inputs).logits
        assert torch.equal(loaded(**inputs).logits, expected)
    assert not torch.allclose(expected, base, atol=1e-3)
