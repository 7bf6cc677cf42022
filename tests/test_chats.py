"""Chats token by token: what is learned from is what evaluation shows, sampled ids stay as they are, and keys and values that are
kept from turn to turn are those of the whole chat read anew."""

import math
from dataclasses import replace
from random import Random

import pytest
import torch
from toy import Chatter
from transformers import DynamicCache, PreTrainedTokenizerFast
from trl.chat_template_utils import qwen3_chat_template

from helpers.chats import Chat, ChatPlayer, Luck, apart, between, check_template, cut, render
from helpers.games.bargaining import Bargaining
from helpers.models import generator, load
from helpers.players import Model, Scripted, competent
from helpers.presets import preset
from helpers.rollout import messages_of, play

GAME, TINY = Chatter(rounds=3), replace(preset("tiny"), max_new_tokens=24, batch=5)
ALMOST_GREEDY = replace(TINY, temperature=1e-6)
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a "
    "helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + "
    "'\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}"
)
QWEN = (  # Qwen2.5's, without tools
    "{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}{%- else %}"
    "{{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}{%- if message.role == 'user' or (message.role == 'system' and not loop.first) or "
    "message.role == 'assistant' %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}"
    "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
FORGETFUL = QWEN.replace(  # as Qwen3 does: the prompt opens with an empty thought, which vanishes once the chat goes on
    "{{- '<|im_start|>assistant\n' }}", "{{- '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}"
)
TRIMMING = SMOLLM2.replace("message['content']", "message['content'] | trim")
NUMBERED = SMOLLM2.replace("message['content']", "loop.index0 ~ message['content']")
ENDLESS = SMOLLM2.replace("message['content'] + '<|im_end|>'", "message['content']")


@pytest.fixture(scope="module")
def tiny():
    return load(TINY)


@pytest.fixture
def templated(tiny):
    """The embedded model's tokenizer; its template is put back."""
    _, tokenizer = tiny
    template = tokenizer.chat_template
    yield tokenizer
    tokenizer.chat_template = template


def both(player):
    return dict.fromkeys("AB", player)


# templates


def bargained():
    """A seat's chat over four turns of Bargaining, and where its replies stand."""
    game, asked = Bargaining(), []

    def note(requests):
        asked.extend(requests)
        return [f"I ask for less.\n{competent(game)(request.view, request.rng)}" for request in requests]

    note.name = "note"
    play(game, [1], dict.fromkeys(game.seats, note))
    chat = max((request.messages for request in asked), key=len)
    assert len(chat) >= 6
    return chat


@pytest.mark.parametrize("template", [None, SMOLLM2, QWEN], ids=["tiny", "SmolLM2", "Qwen2.5"])
def test_a_chat_built_piece_by_piece_is_the_one_that_its_template_renders(template, templated, tokens):
    templated.chat_template = template or templated.chat_template
    check_template(templated)
    chat = bargained()
    pieces = [render(templated, chat[:2])]
    for reply, message in zip(chat[2::2], chat[3::2], strict=True):
        pieces += [reply["content"], templated.eos_token, between(templated, message["content"])]
    whole = render(templated, chat)
    assert "".join(pieces) == whole
    assert [i for piece in pieces for i in templated.encode(piece)] == templated.encode(whole)
    assert sum(map(tokens, pieces)) == tokens(whole)  # in Qwen's vocabulary, too, no token reaches across two pieces


@pytest.mark.parametrize(
    "template", [FORGETFUL, TRIMMING, NUMBERED, ENDLESS], ids=["forgetful", "trimming", "numbered", "endless"]
)
def test_a_template_that_changes_what_it_has_shown_is_refused(template, tiny, templated):
    templated.chat_template = template
    with pytest.raises(ValueError, match="expected a chat template that only adds.*should stand: set another"):
        ChatPlayer("policy", tiny[0], templated, TINY)


def test_qwen3_is_loaded_with_a_template_that_keeps_what_it_has_shown_and_opens_as_its_own(templated, monkeypatch):
    templated.chat_template = "{% set enable_thinking = false %}" + qwen3_chat_template
    opening = render(templated, bargained()[:2])
    with pytest.raises(ValueError, match="expected a chat template that only adds"):
        check_template(templated)
    templated.chat_template = qwen3_chat_template
    monkeypatch.setattr(PreTrainedTokenizerFast, "from_pretrained", lambda *args, **given: templated)
    _, loaded = load(TINY)
    check_template(loaded)
    assert render(loaded, bargained()[:2]) == opening


# what is sampled


def replies_in(chat: Chat) -> list[list[int]]:
    """The runs of ids that the model wrote; after each a stop id, its own or, where it was cut off, an added one."""
    runs, at = [], chat.prompt
    while at < len(chat.ids):
        start = at
        while at < len(chat.ids) and chat.sampled[at - chat.prompt]:
            at += 1
        runs.append(chat.ids[start:at])
        assert 2 in chat.ids[at - 1 : at + 1]
        while at < len(chat.ids) and not chat.sampled[at - chat.prompt]:
            at += 1
    return runs


def test_chats_hold_sampled_ids_verbatim_and_close_every_reply_with_a_stop_id(tiny, monkeypatch):
    model, tokenizer = tiny
    sampled, generate = [], model.generate

    def spy(input_ids, **options):
        out = generate(input_ids=input_ids, **options)
        sampled.extend(cut(row, 2, 0) for row in out[:, input_ids.shape[1] :].tolist())
        return out

    monkeypatch.setattr(model, "generate", spy)
    player = ChatPlayer("policy", model, tokenizer, replace(TINY, temperature=1.5, max_new_tokens=12))
    play(GAME, range(6), both(player))
    found = [reply for chat in player.chats.values() for reply in replies_in(chat)]
    assert sorted(found) == sorted(sampled)
    cut_off = sum(reply[-1] != 2 for reply in sampled)
    assert 0 < cut_off < len(sampled) and sum(chat.cut_off for chat in player.chats.values()) == cut_off
    assert all(chat.ids[-1] == 2 for chat in player.chats.values())
    # Read as text and tokenised again, some replies would be other ids.
    assert not all(tokenizer.encode(tokenizer.decode(ids)) == ids for ids in found)


def test_ids_are_drawn_as_often_as_the_model_gives_them_chances():
    scores, draws = torch.tensor([1.0, -torch.inf, 0.0, 0.5]), 4000
    left = Luck([Random(i) for i in range(draws)], temperature=0.5)(None, scores.repeat(draws, 1))
    assert (left.isfinite().sum(1) == 1).all()
    found = left.isfinite().float().mean(0)
    expected = torch.tensor([2.0, -torch.inf, 0.0, 1.0]).exp() / (math.e**2 + 1 + math.e)
    assert found[1] == 0
    torch.testing.assert_close(found, expected, rtol=0, atol=0.032)  # four standard errors: 4 * (0.25 / draws) ** 0.5


def test_what_is_sampled_in_a_chat_depends_neither_on_the_chats_beside_it_nor_on_torchs_generator(tiny):
    def played(seeds, batch, keep=True):
        torch.manual_seed(batch)
        policy = ChatPlayer("policy", *tiny, replace(TINY, temperature=1.0, batch=batch), group=2, keep=keep)
        return play(GAME, [seed for seed in seeds for _ in range(2)], both(policy))

    together = played(range(6), batch=64)
    assert together == played(range(3), batch=64) + played(range(3, 6), batch=5) == played(range(6), batch=7, keep=False)
    assert len({episode.turns for episode in together}) == 12


def test_a_reply_ends_at_its_stop_id_or_before_a_pad_id():
    assert cut([5, 6, 2, 0, 0], stop=2, pad=0) == [5, 6, 2]
    assert cut([5, 0, 6, 2], stop=2, pad=0) == [5] and cut([0], stop=2, pad=0) == []
    assert cut([5, 6], stop=2, pad=0) == [5, 6]
    assert cut([5, 2, 2], stop=2, pad=2) == [5, 2]  # SmolLM2 has one id for both


def test_a_chat_that_outgrows_the_model_is_an_error_that_says_what_to_do(tiny):
    model, tokenizer = tiny
    loud = Scripted("loud", lambda view, rng: f"pass({'x' * 900})")
    with pytest.raises(ValueError, match="at most 1024 tokens.*play fewer rounds"):
        play(GAME, [0], {"A": ChatPlayer("policy", model, tokenizer, TINY), "B": loud})


# what is shown


def test_the_player_says_what_evaluation_hears_from_the_same_model(tiny):
    seeds = [seed for seed in range(3) for _ in range(2)]
    episodes = play(GAME, seeds, both(Model("policy", generator(*tiny, ALMOST_GREEDY))))
    assert len({turn.reply for episode in episodes for turn in episode.turns}) > 4
    for options in ({"group": 2}, {"keep": False}):
        player = ChatPlayer("policy", *tiny, ALMOST_GREEDY, **options)
        assert play(GAME, seeds, both(player)) == episodes
    mixed = both(ChatPlayer("policy", *tiny, ALMOST_GREEDY)) | {"B": Scripted("quiet", lambda view, rng: "pass()")}
    plain = both(Model("policy", generator(*tiny, ALMOST_GREEDY))) | {"B": mixed["B"]}
    assert play(GAME, seeds, mixed) == play(GAME, seeds, plain)


@pytest.mark.parametrize("keep", [True, False])
def test_a_second_play_begins_new_chats_and_is_that_of_a_new_player(keep, tiny):
    player = ChatPlayer("policy", *tiny, replace(TINY, temperature=1.0), keep=keep)
    play(GAME, range(4), both(player))
    second = play(GAME, range(4, 7), both(player))
    anew = ChatPlayer("policy", *tiny, replace(TINY, temperature=1.0), keep=keep)
    assert second == play(GAME, range(4, 7), both(anew))
    assert all(player.chats[key].ids == chat.ids for key, chat in anew.chats.items())


def test_a_chats_ids_spell_the_messages_that_evaluation_shows(tiny):
    _, tokenizer = tiny
    player = ChatPlayer("policy", *tiny, replace(TINY, temperature=1.0))
    episodes = play(GAME, range(8), both(player))
    replies = {seat: {i: [t.reply for t in e.turns if t.seat == seat] for i, e in enumerate(episodes)} for seat in "AB"}
    shown = {}

    def again(requests):
        for request in requests:
            shown[request.episode, request.seat] = request.messages
        return [replies[request.seat][request.episode][len(request.messages) // 2 - 1] for request in requests]

    again.name = "policy"
    assert play(GAME, range(8), both(again)) == episodes
    for (episode, seat), chat in player.chats.items():
        last = {"role": "assistant", "content": replies[seat][episode][-1]}
        whole = tokenizer.apply_chat_template([*shown[episode, seat], last], tokenize=False)
        assert tokenizer.decode(chat.ids) == whole.removesuffix("\n")


# what is kept


@pytest.mark.parametrize("group", [1, 3])
def test_what_is_kept_from_turn_to_turn_is_what_the_whole_chat_read_anew_gives(group, tiny):
    model, tokenizer = tiny
    player = ChatPlayer("policy", model, tokenizer, replace(TINY, temperature=1.2), group=group)
    play(GAME, [seed for seed in range(4) for _ in range(3)], both(player))
    assert len({len(chat.ids) for chat in player.chats.values()}) > 6  # padded in several ways
    for chat in player.chats.values():
        anew = DynamicCache(config=model.config)
        read = chat.ids[: len(chat.kept)]
        assert len(chat.ids) - len(read) <= 2
        with torch.no_grad():
            model(input_ids=torch.tensor([read]), past_key_values=anew, use_cache=True)
        [expected] = apart(anew, torch.ones(1, len(read)))
        torch.testing.assert_close(chat.kept, expected, rtol=0, atol=1e-4)


def read_by(tiny, monkeypatch, **options) -> int:
    """Ids, padding included, that go through the model while twelve episodes of four groups are played."""
    model, tokenizer = tiny
    read, forward = [], model.forward

    def count(input_ids=None, **given):
        read.append(input_ids.numel())
        return forward(input_ids=input_ids, **given)

    with monkeypatch.context() as patch:
        patch.setattr(model, "forward", count)
        seeds = [seed for seed in range(4) for _ in range(3)]
        play(GAME, seeds, both(ChatPlayer("policy", model, tokenizer, replace(ALMOST_GREEDY, batch=64), **options)))
    return sum(read)


def test_a_group_shares_the_reading_of_how_its_chats_begin_and_no_chat_is_read_twice(tiny, monkeypatch):
    shared, alone, anew = (read_by(tiny, monkeypatch, **options) for options in ({"group": 3}, {"group": 1}, {"keep": False}))
    prompt = len(tiny[1].encode(render(tiny[1], messages_of(GAME, GAME.view(GAME.deal(0), "A")))))
    assert alone - shared > 4 * 2 * (3 - 1) * 0.6 * prompt  # 4 groups, 2 seats: two of three readings are saved of nearly all
    assert anew > 1.4 * alone


def test_a_chat_counts_the_ids_that_were_added_and_who_wrote_them():
    chat = Chat([7, 8], prompt=2)
    chat.add([5, 2], 1)
    chat.add([9], 0)
    assert chat.ids == [7, 8, 5, 2, 9] and chat.sampled == [1, 1, 0]
