"""The embedded models: their size, their texts, how legally they play, what they are shown, and the builder's branches."""

import json
from dataclasses import replace
from itertools import islice
from random import Random

import pytest
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from helpers import GAMES
from helpers.games.bargaining import Action, Bargaining
from helpers.games.bargaining import State as BargainingState
from helpers.games.market import GOODS, Market, Offer, State
from helpers.games.scenarios import Scenario
from helpers.models import generator, load
from helpers.players import Model, competent
from helpers.presets import preset
from helpers.rollout import TEST, TRAIN, VALID, messages_of, play
from helpers.tiny import build
from helpers.tiny.lessons import LESSONS, bargaining_questions, haggle, market_questions

GAME = Market()


@pytest.fixture(scope="module", params=GAMES)
def game(request):
    return GAMES[request.param]


@pytest.fixture(scope="module")
def settings(game):
    return preset("tiny", "", game.name)


@pytest.fixture(scope="module")
def tiny(settings):
    return load(settings)


@pytest.fixture(scope="module")
def made_from(settings):
    return json.loads((settings.embedded / "made_from.json").read_text())


def positions(game, n: int, every: int):
    """n positions of watched play, `every` turns apart."""
    return list(islice(build.positions(game, TEST), 0, n * every, every))


def test_a_model_has_one_to_four_million_parameters_in_at_most_8_mb_of_safetensors(tiny, settings, made_from):
    model, _ = tiny
    size = sum(parameter.numel() for parameter in model.parameters())
    assert 1_000_000 <= size <= 4_000_000 and size == made_from["parameters"]
    files = {path.name: path.stat().st_size for path in settings.embedded.iterdir() if path.is_file()}
    assert files["model.safetensors"] <= 8_000_000
    assert sum(files.values()) <= 8_500_000 and not any(name.endswith((".bin", ".pt", ".pkl")) for name in files)


def test_a_model_was_built_from_its_games_texts_as_they_are(game, made_from):
    rebuild = f"rebuild it with `python -m helpers.tiny.build {game.name}`"
    assert made_from["fingerprint"] == build.fingerprint(game), f"the texts have changed since the model was built: {rebuild}"


def test_the_fingerprint_changes_with_a_games_text(game, monkeypatch):
    before = build.fingerprint(game)
    monkeypatch.setattr(type(game), "system", lambda self, view: "Negotiation: trade.")
    assert build.fingerprint(game) != before


def test_the_build_learned_from_no_deal_that_training_or_evaluation_uses():
    for seeds in (TRAIN, VALID, TEST):
        assert seeds.stop <= build.SEEDS.start or build.SEEDS.stop <= seeds.start


def test_the_chat_template_frames_the_messages_and_cuts_the_instructions_at_their_first_colon(tiny, game):
    _, tokenizer = tiny
    [(table, state, messages, _)] = positions(game, 1, 1)
    view = table.view(state, table.turn(state))
    assert messages == messages_of(table, view)
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        f"<|im_start|>system\n{game.system(view).partition(':')[0]}<|im_end|>\n"
        f"<|im_start|>user\n{table.describe(view)}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (tokenizer.eos_token, tokenizer.pad_token, tokenizer.padding_side) == ("<|im_end|>", "<|endoftext|>", "left")
    assert [tokenizer.decode([i]) for i in tokenizer.encode("<|im_start|><|im_end|>")] == ["<|im_start|>", "<|im_end|>"]


def test_the_loaded_tokenizer_splits_text_exactly_as_the_saved_file_says(tiny, game, settings):
    # transformers' AutoTokenizer would put Qwen's own splitting of words in its place, without a warning.
    saved = Tokenizer.from_file(str(settings.embedded / "tokenizer.json"))
    for table, state, messages, rng in positions(game, 20, 7):
        view = table.view(state, table.turn(state))
        for text in (messages[-1]["content"], str(game.sample(view, rng)), str(competent(game)(view, rng))):
            assert tiny[1].encode(text, add_special_tokens=False) == saved.encode(text, add_special_tokens=False).ids


def test_prompts_and_actions_survive_the_tokenizer_and_fit_the_preset(tiny, game, settings):
    _, tokenizer = tiny
    for table, state, messages, rng in positions(game, 200, 1):
        prompt, action = messages[-1]["content"], str(game.sample(table.view(state, table.turn(state)), rng))
        assert tokenizer.decode(tokenizer.encode(prompt)) == prompt and tokenizer.decode(tokenizer.encode(action)) == action
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        assert len(ids) <= settings.max_prompt_tokens and len(tokenizer.encode(action)) < settings.max_new_tokens


@pytest.mark.parametrize(
    ("words", "prompt", "action"),
    [([good], f"Inventory: {good}:2, {good}:1\n {good}:3", f"propose_trade(B, {{{good}: 1}}, {{{good}: 2}})") for good in GOODS]
    + [([seat], f"| Agent {seat}\n {seat}: none\n #t7: {seat} offers", f"propose_trade({seat}, {{") for seat in GAME.seats]
    + [(["t", *number], f" #t{number}: A offers", f"accept_trade(t{number})") for number in ("7", "12")],
)
def test_a_good_a_seat_and_an_id_are_the_same_tokens_in_prompt_and_action(words, prompt, action):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(preset("tiny").embedded)
    for text in (prompt, action):
        tokens = [tokenizer.decode([i]) for i in tokenizer.encode(text)]
        assert any(tokens[at : at + len(words)] == words for at in range(len(tokens))), tokens


def test_it_plays_legally_on_held_out_states(tiny, game, made_from):
    # Target 0.98 (issue 2), which the build measured; a sample of 300 from 0.98 has a standard error of 0.008: two below it.
    assert made_from["legal"]["share"] >= 0.98
    share, n = build.legal_share(*tiny, game, TEST[:200], every=max(1, game.max_turns // 9))
    assert n >= 300 and share >= 0.96, f"{share:.1%} of {n} replies are legal"


def test_it_plays_legally_in_its_own_games(tiny, game, settings):
    # Target 0.95 (issue 2); 400 turns from 0.95 have a standard error of 0.011: two below it.
    seeds = TEST[200 : 200 + 600 // game.max_turns]
    episodes = play(game, seeds, dict.fromkeys(game.seats, Model("base", generator(*tiny, settings))))
    errors = [turn.error for episode in episodes for turn in episode.turns]
    legal = errors.count(None) / len(errors)
    assert len(errors) >= 300 and legal >= 0.93, f"{legal:.1%} of {len(errors)}; first errors: {[e for e in errors if e][:5]}"


def test_an_example_holds_the_prompt_once_with_legal_actions_and_questions_whose_answer_is_one_token(tiny, game):
    _, tokenizer = tiny
    for table, state, messages, rng in positions(game, 4, 9):
        prompt, actions, questions = build.example(table, state, messages, rng, tokenizer)
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert (
            len(actions) == len(LESSONS[game.name].imitated(table, table.view(state, table.turn(state)), rng)) >= 6 and questions
        )
        for first, *question in questions:
            _, _, answer = tokenizer.decode(question).partition(":")
            assert tokenizer.decode([*prompt, first]) == text
            assert tokenizer.decode(question[-1:]).lstrip(":") == answer != ""
        for first, *reply, stop in actions:
            assert tokenizer.decode([*prompt, first]) == text and stop == tokenizer.eos_token_id
            table.step(state, table.parse(tokenizer.decode(reply)))
            assert str(game.parse(tokenizer.decode(reply))) == tokenizer.decode(reply)


def test_a_position_of_a_chat_shows_what_evaluation_would_show_after_the_same_actions():
    game = Bargaining(transparency="buyer_unaware")
    at = list(LESSONS["bargaining"].settings).index(game)
    seed = next(seed for seed in TEST if seed % len(LESSONS["bargaining"].settings) == at)
    places = list(build.positions(game, [seed]))
    said = [str(action) for action in places[-1][1].actions]
    asked = []

    def answer(requests):
        asked.extend(request.messages for request in requests)
        return [said[len(asked) - 1] if len(asked) <= len(said) else '{"action": "NO_DEAL"}']

    answer.name = "echo"
    play(game, [seed], dict.fromkeys(game.seats, answer))
    assert [messages for _, _, messages, _ in places] == asked and len(asked) > 2


def test_parallel_branches_give_the_same_logits_as_separate_sequences(tiny, game):
    model, tokenizer = tiny
    examples = [build.example(*place, tokenizer) for place in positions(game, 3, 9)]
    ids, places, mask, *_ = build.batch(examples, tokenizer.pad_token_id, set(), 0.5)
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
    ids, places, mask, targets, weight = build.batch(examples, pad, {9}, 0.5)
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
    *_, weight = build.batch(examples, 1, set(), 0.6)
    p, q = build.PROMPT_LOSS / 2, 0.6 / 3
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
    found = {pair for k in range(300) for pair in market_questions(GAME.view(state, "A"), Random(k))}
    assert set(rights.items()) < found
    assert {answer for question, answer in found if question == "give"} == {"Iron", "Gold"}
    # Each seat and good, each own good, each other seat, ask, two answers to give, take, each offer twice: one answer each.
    assert len(found) == 4 * 6 + 6 + 3 + 1 + 2 + 1 + 2 * 4


def test_questions_about_a_price_are_answered_as_worked_out_by_hand():
    """The buyer's limit is 8.50 and 6.25 is on offer; prices from 4 to 9 are surely legal."""
    game = Bargaining(transparency="both_unaware")
    scenario = Scenario("kettle", "Blue.", "You wait.", "You move.", (4.0, 7.0), (7.0, 9.0))
    state = BargainingState(scenario, (8.5, 5.0), 1, (Action("OFFER", 6.25),))
    view = replace(game.view(state, "buyer"), bounds=(4.0, 9.0))
    found = {pair for k in range(300) for pair in bargaining_questions(view, Random(k))}
    rights = {"above": "no", "offer": "gain", "good": "yes"}  # 6.25 is no dearer than the middle of 4 and 8.50
    assert set(rights.items()) < found
    for question, answer in found - rights.items():
        word, price = question.split()
        over = float(price) > 8.5
        assert (word, answer) in {("above", "yes" if over else "no"), ("worth", "loss" if over else "gain")}
    dearer = replace(view, standing=8.51)
    assert {("above", "yes"), ("offer", "loss"), ("good", "no")} < set(bargaining_questions(dearer, Random(0)))
    assert ("offer", "none") in bargaining_questions(replace(view, standing=None), Random(0))


def test_what_the_base_of_bargaining_imitates_never_costs_it_anything():
    kinds = set()
    for table, state, _, rng in islice(build.positions(Bargaining(), TEST), 400):
        view = table.view(state, table.turn(state))
        for action in (*LESSONS["bargaining"].imitated(table, view, rng), haggle(view, rng)):
            price = {"OFFER": action.price, "DEAL": view.standing, "NO_DEAL": view.limit}[action.kind]
            assert price <= view.limit if view.seat == "buyer" else price >= view.limit
            kinds.add(action.kind)
    assert kinds == {"OFFER", "DEAL", "NO_DEAL"}


def test_a_price_is_the_sign_of_its_size_and_pairs_of_digits_wherever_it_stands_and_neighbours_begin_alike():
    torch.manual_seed(0)
    tokenizer = build.make_tokenizer(Bargaining())
    for price, parts in (("8092.28", ["80", "92.", "28"]), ("7.05", ["7.", "05"]), ("16456.90", ["1", "64", "56.", "90"])):
        sign = tokenizer.encode(f" {price}")[1]
        assert tokenizer.decode([sign]) == ""
        for text in (f" {price},", f'"offer_price": {price}}}', f"above {price}:"):
            ids = tokenizer.encode(text)
            at = ids.index(sign)
            assert [tokenizer.decode([i]) for i in ids[at + 1 : at + 1 + len(parts)]] == parts
            assert tokenizer.decode(ids) == text
    assert len({tokenizer.encode(f" 1{'0' * zeros}.00")[1] for zeros in range(5)}) == 5
    model = build.make_model(tokenizer)
    build.order_numbers(model, tokenizer)
    weight = model.get_input_embeddings().weight
    near, far = (torch.cosine_similarity(weight[tokenizer.encode(" 40.00")[2]], weight[tokenizer.encode(f" {other}")[2]], 0)
                 for other in ("42.00", "90.00"))  # fmt: skip
    assert near > 0.5 > far


def test_a_build_that_was_killed_goes_on_to_the_same_weights(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(LESSONS, "market", replace(LESSONS["market"], steps=4))
    monkeypatch.setattr(build, "POOL", 50)
    monkeypatch.setattr(torch, "compile", lambda model, dynamic: model)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(preset("tiny").embedded)

    class KilledError(Exception):
        pass

    def kill(step, loss):
        raise KilledError

    def built(name, report, seed):
        torch.manual_seed(seed)
        model = build.make_model(tokenizer)
        build.train(GAME, model, tokenizer, tmp_path / name / "market.pt", report, every=2)
        return model.state_dict()

    through, told = built("through", lambda *_: None, seed=0), []
    with pytest.raises(KilledError):
        built("killed", kill, seed=0)
    resumed = built("killed", lambda step, loss: told.append(step), seed=1)  # what was drawn anew is not taken
    assert told == [4] and "going on from step 2" in capsys.readouterr().out
    assert all(torch.equal(through[name], resumed[name]) for name in through)
    assert not list(tmp_path.glob("*/*"))  # a build that ended leaves nothing to go on from
