"""The embedded model: its size, its texts, how legally it plays, and the builder's parallel branches."""

import json
from itertools import islice
from random import Random

import pytest
import torch
from tokenizers import Tokenizer

from helpers import GAMES
from helpers.games.market import GOODS, Market, Offer, State
from helpers.models import generator, load
from helpers.players import Model, competent
from helpers.presets import preset
from helpers.rollout import TEST, TRAIN, VALID, messages_of, play
from helpers.tiny import build

GAME, TINY = Market(), preset("tiny")
REBUILD = "rebuild it with `python -m helpers.tiny.build`"


@pytest.fixture(scope="module")
def tiny():
    return load(TINY)


@pytest.fixture(scope="module")
def made_from():
    return json.loads((build.HERE / "made_from.json").read_text())


def positions(n: int, every: int):
    """n views of mixed play, `every` turns apart, each with its luck."""
    return [(view, rng) for _, view, rng in islice(build.positions(GAME, TEST), 0, n * every, every)]


def test_the_model_has_one_to_four_million_parameters_in_at_most_8_mb_of_safetensors(tiny, made_from):
    model, _ = tiny
    size = sum(parameter.numel() for parameter in model.parameters())
    assert 1_000_000 <= size <= 4_000_000 and size == made_from["parameters"]
    files = {path.name: path.stat().st_size for path in build.HERE.iterdir() if path.is_file()}
    assert files["model.safetensors"] <= 8_000_000
    assert sum(files.values()) <= 8_500_000 and not any(name.endswith((".bin", ".pt", ".pkl")) for name in files)


def test_the_model_was_built_from_the_games_texts_as_they_are(made_from):
    assert made_from["fingerprint"] == build.fingerprint(), f"the games' texts have changed since the model was built: {REBUILD}"


def test_the_fingerprint_changes_with_a_games_text(monkeypatch):
    before = build.fingerprint()
    monkeypatch.setattr(Market, "system", lambda self, view: "Coalition Market: trade.")
    assert build.fingerprint() != before


def test_the_build_learned_from_no_deal_that_training_or_evaluation_uses():
    for seeds in (TRAIN, VALID, TEST):
        assert seeds.stop <= build.SEEDS.start or build.SEEDS.stop <= seeds.start


def test_the_chat_template_frames_the_messages_and_cuts_the_instructions_at_their_first_colon(tiny):
    _, tokenizer = tiny
    [(view, _)] = positions(1, 1)
    text = tokenizer.apply_chat_template(messages_of(GAME, view), tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nCoalition Market<|im_end|>\n"
        f"<|im_start|>user\n{GAME.describe(view)}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (tokenizer.eos_token, tokenizer.pad_token, tokenizer.padding_side) == ("<|im_end|>", "<|endoftext|>", "left")
    assert [tokenizer.decode([i]) for i in tokenizer.encode("<|im_start|><|im_end|>")] == ["<|im_start|>", "<|im_end|>"]


def test_the_loaded_tokenizer_splits_text_exactly_as_the_saved_file_says(tiny):
    # transformers' AutoTokenizer would put Qwen's own splitting of words in its place, without a warning.
    saved = Tokenizer.from_file(str(build.HERE / "tokenizer.json"))
    for view, rng in positions(20, 7):
        for text in (GAME.describe(view), str(GAME.sample(view, rng)), str(competent(GAME)(view, rng))):
            assert tiny[1].encode(text, add_special_tokens=False) == saved.encode(text, add_special_tokens=False).ids


def test_prompts_and_actions_of_every_game_survive_the_tokenizer_and_fit_the_preset(tiny):
    _, tokenizer = tiny
    for game in GAMES.values():
        for _, view, rng in islice(build.positions(game, TEST), 80):
            prompt, action = game.describe(view), str(game.sample(view, rng))
            assert tokenizer.decode(tokenizer.encode(prompt)) == prompt and tokenizer.decode(tokenizer.encode(action)) == action
            ids = tokenizer.apply_chat_template(messages_of(game, view), add_generation_prompt=True)["input_ids"]
            assert len(ids) <= TINY.max_prompt_tokens and len(tokenizer.encode(action)) < TINY.max_new_tokens


@pytest.mark.parametrize(
    ("words", "prompt", "action"),
    [([good], f"Inventory: {good}:2, {good}:1\n {good}:3", f"propose_trade(B, {{{good}: 1}}, {{{good}: 2}})") for good in GOODS]
    + [([seat], f"| Agent {seat}\n {seat}: none\n #t7: {seat} offers", f"propose_trade({seat}, {{") for seat in GAME.seats]
    + [(["t", *number], f" #t{number}: A offers", f"accept_trade(t{number})") for number in ("7", "12")],
)
def test_a_good_a_seat_and_an_id_are_the_same_tokens_in_prompt_and_action(tiny, words, prompt, action):
    _, tokenizer = tiny
    for text in (prompt, action):
        tokens = [tokenizer.decode([i]) for i in tokenizer.encode(text)]
        assert any(tokens[at : at + len(words)] == words for at in range(len(tokens))), tokens


def test_it_plays_legally_on_held_out_states(tiny, made_from):
    # Target 0.98 (issue 2), which the build measured; a sample of 400 from 0.98 has a standard error of 0.007: three below it.
    assert made_from["legal"]["market"]["share"] >= 0.98
    share, n = build.legal_share(*tiny, GAME, TEST[:70])
    assert n >= 300 and share >= 0.96, f"{share:.1%} of {n} replies are legal"


def test_it_plays_legally_in_its_own_games(tiny):
    # Target 0.95 (issue 2); 400 turns from 0.95 have a standard error of 0.011: two below it.
    episodes = play(GAME, TEST[70:80], dict.fromkeys(GAME.seats, Model("base", generator(*tiny, TINY))))
    errors = [turn.error for episode in episodes for turn in episode.turns]
    legal = errors.count(None) / len(errors)
    assert len(errors) >= 300 and legal >= 0.93, f"{legal:.1%} of {len(errors)}; first errors: {[e for e in errors if e][:5]}"


def test_an_example_holds_the_prompt_once_with_legal_actions_and_questions_whose_answer_is_one_token(tiny):
    _, tokenizer = tiny
    for view, rng in positions(4, 9):
        prompt, actions, questions = build.example(GAME, view, rng, tokenizer)
        text = tokenizer.apply_chat_template(messages_of(GAME, view), tokenize=False, add_generation_prompt=True)
        assert len(actions) == build.BRANCHES
        for first, *question in questions:
            asked, _, answer = tokenizer.decode(question).partition(":")
            assert tokenizer.decode([*prompt, first]) == text
            assert asked.split()[0] in ("has", "spare", "find", "ask", "give", "take", "pays", "worth")
            assert tokenizer.decode(question[-1:]).lstrip(":") == answer
        for first, *reply, stop in actions:
            assert tokenizer.decode([*prompt, first]) == text and stop == tokenizer.eos_token_id
            assert str(GAME.parse(tokenizer.decode(reply))) == tokenizer.decode(reply)


def test_parallel_branches_give_the_same_logits_as_separate_sequences(tiny):
    model, tokenizer = tiny
    examples = [build.example(GAME, view, rng, tokenizer) for view, rng in positions(3, 9)]
    ids, places, mask, *_ = build.batch(examples, tokenizer.pad_token_id, set())
    with torch.inference_mode():
        together = model(input_ids=ids, position_ids=places, attention_mask=mask, use_cache=False).logits
        for row, (prompt, actions, questions) in enumerate(examples):
            at = len(prompt)
            for branch in actions + questions:
                alone = model(input_ids=torch.tensor([prompt + branch]), use_cache=False).logits[0]
                torch.testing.assert_close(together[row, : len(prompt)], alone[: len(prompt)], rtol=0, atol=1e-3)
                torch.testing.assert_close(together[row, at : at + len(branch)], alone[len(prompt) :], rtol=0, atol=1e-3)
                at += len(branch)


def test_targets_and_weights_of_a_batch_are_those_worked_out_by_hand():
    pad, none = 1, -100
    examples = [([5, 6, 7], [[8, 9, 2], [8, 2]], []), ([5, 6, 7], [[8, 2]], [])]
    ids, places, mask, targets, weight = build.batch(examples, pad, words={9})
    assert ids.tolist() == [[5, 6, 7, 8, 9, 2, 8, 2], [5, 6, 7, 8, 2, pad, pad, pad]]
    assert places[:, :5].tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]] and places[0, 5:].tolist() == [5, 3, 4]
    # The prompt predicts itself, a branch what follows its first token; nothing predicts across a border or from padding.
    assert targets.tolist() == [[6, 7, none, 9, 2, none, 2, none], [6, 7, none, 2, none, none, none, none]]
    # The prompts predict 2 + 2 tokens, which share PROMPT_LOSS; the branches 2 + 1 + 1, which share 1; the word 9 weighs more.
    p, b, w = build.PROMPT_LOSS / 4, 1 / (3 + build.WORD_LOSS), build.WORD_LOSS / (3 + build.WORD_LOSS)
    expected = torch.tensor([[p, p, 0, w, b, 0, b, 0], [p, p, 0, b, 0, 0, 0, 0]])
    torch.testing.assert_close(weight, expected)
    # A token sees the prompt and its own branch up to itself: here the second branch's last token, and its first row's others.
    seen = (mask[0, 0] == 0).int().tolist()
    assert seen == [
        [1, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 0, 0],
        [1, 1, 1, 0, 0, 0, 1, 0],
        [1, 1, 1, 0, 0, 0, 1, 1],
    ]


def test_of_a_question_only_the_answer_is_learned():
    examples = [([5, 6], [[7, 2]], [[7, 8, 9, 4], [7, 8, 3]]), ([5, 6], [[7, 2]], [[7, 8, 3]])]
    *_, weight = build.batch(examples, 1, set())
    p, q = build.PROMPT_LOSS / 2, build.QUESTION_LOSS / 3
    expected = torch.tensor([[p, 0, 0.5, 0, 0, 0, q, 0, 0, q, 0], [p, 0, 0.5, 0, 0, q, 0, 0, 0, 0, 0]])
    torch.testing.assert_close(weight, expected)


def test_questions_about_a_position_are_answered_as_worked_out_by_hand():
    """A holds Iron 3 and Coal 1 of the Steel Mill's Iron 3, Coal 2, Stone 1."""
    state = State(
        goals=("Steel Mill", "Bridge", "Mint", "Bakery"),
        holdings=((4, 1, 0, 0, 0, 1), (0, 2, 1, 0, 0, 0), (0, 0, 0, 2, 0, 0), (0, 0, 0, 0, 3, 12)),
        built=(False,) * 4,
        offers=(
            Offer("t1", "B", "A", (("Coal", 1),), (("Gold", 1),)),  # a missing unit for a spare one
            Offer("t2", "C", "A", (("Wood", 1),), (("Iron", 2),)),  # costs one of the three Iron that are needed
            Offer("t3", "D", "A", (("Grain", 1),), (("Iron", 1),)),  # a useless unit for a spare one
            Offer("t4", "C", "A", (("Stone", 1),), (("Iron", 1),)),  # C holds no Stone
        ),
    )
    rights = {
        "has A Iron": "4", "has B Stone": "1", "has C Coal": "0", "has D Gold": "9",  # one digit: more than 9 counts as 9
        "spare Iron": "1", "spare Coal": "0", "spare Gold": "1", "spare Stone": "0",
        "find B": "Coal", "find C": "none", "find D": "none",  # of what A misses, B holds both and Coal comes first
        "ask": "B", "take": "B",  # t1
        "pays t1": "yes", "pays t2": "yes", "pays t4": "no",
        "worth t1": "gain", "worth t2": "loss", "worth t3": "even", "worth t4": "gain",
    }  # fmt: skip
    found = {pair for k in range(300) for pair in build.market_questions(GAME.view(state, "A"), Random(k))}
    assert set(rights.items()) < found
    assert {answer for question, answer in found if question == "give"} == {"Iron", "Gold"}
    # Each seat and good, each own good, each other seat, ask, two answers to give, take, each offer twice: one answer each.
    assert len(found) == 4 * 6 + 6 + 3 + 1 + 2 + 1 + 2 * 4
