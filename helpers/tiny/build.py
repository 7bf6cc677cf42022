"""Builds the embedded CPU model: `python -m helpers.tiny.build`. About 25 minutes on two cores; fixed seed.

It imitates mixed play of every game in GAMES: of the actions it sees about three quarters are random legal ones and one
quarter a competent trader's. So it knows the grammar and has watched a market, but nothing tells it which of the two to
follow. Many actions are learned at each prompt at once, as parallel branches behind one shared prompt (a 4-D attention
mask, positions restarting after the prompt), because legality (what is held, which ids exist) is learned last.

It also learns to read: questions about the position (who holds how many of what, what an offer would bring), of which only
the answer is learned, so that it never asks one itself. Without them it offers trades for goods that the other seat lacks.
Some of the offers it sees went astray, so that it meets those that cannot be paid, as in the games of models in training.
"""

import argparse
import hashlib
import json
import math
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from helpers import GAMES
from helpers.games.market import GOODS, PROJECTS, ProposeTrade, holds, moved, worth
from helpers.models import generator
from helpers.players import competent
from helpers.presets import preset
from helpers.rollout import VALID, messages_of, take

HERE = Path(__file__).parent
SEED = 7
SEEDS = range(10_000_000, 20_000_000)  # deals the base learns from; disjoint from TRAIN, VALID and TEST
BRANCHES, EXPERT = 12, 3  # actions learned at each prompt, and how many of them a competent player's
PROMPTS, WARMUP, POOL = 16, 40, 2000
PROMPT_LOSS, QUESTION_LOSS = 0.3, 0.5  # weights of the prompts and of the answers to reading questions, against 1 for the actions
WORD_LOSS = 8  # weight of an action's word, name or number, against 1 for the signs between them, which are soon known
ASTRAY = 0.25  # share of the offers that are made to a random seat instead
QUIET = 0.5  # share of the turns without a pending offer that are learned; of the others all
STEPS, MATRIX_RATE, RATE = 7000, 0.01, 2e-3  # optimizer steps; peak learning rates: of matrices (Muon), of the rest (AdamW)
# A good or a seat is the same token in prompt and action. A word takes the space behind it, and a count the signs around it
# (`Iron:2, ` is two tokens): prompts of half the length, read and learned in half the time.
WORDS = r"[A-Za-z_]{2,}\s?|[A-Za-z_]|[0-9]|[^A-Za-z0-9_]+(?:[0-9](?![0-9])[^A-Za-z0-9_]*)?"
# The system message is cut at its first colon (the game's name): the grammar is learned here, not read.
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{{ m['content'].split(':')[0] if m['role'] == 'system' else m['content'] }}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def positions(game, seeds):
    """(state, view, rng) at every turn of mixed play: each seat is random, competent or something between, drawn per episode."""
    expert = competent(game)
    for seed in seeds:
        rng = Random(f"tiny/{game.name}/{seed}")
        skill = {seat: rng.choice((0.0, 0.25, 0.5, 0.75, 1.0)) for seat in game.seats}
        state = game.deal(seed)
        while seat := game.turn(state):
            view = game.view(state, seat)
            yield state, view, rng
            action = expert(view, rng) if rng.random() < skill[seat] else game.sample(view, rng)
            if isinstance(action, ProposeTrade) and rng.random() < ASTRAY:
                action = replace(action, to=rng.choice([other for other in game.seats if other != seat]))
            state = game.step(state, action)


def market_questions(view, rng: Random) -> list[tuple[str, str]]:
    """(question, answer in one word) about a view of the market: what a seat holds; what I can spare; the first good that a
    seat holds and I miss; whom to ask, and what to give, when I want one; whose offer to take; whether an offer can be paid by
    both sides, and what it would bring me."""
    me = "ABCD".index(view.seat)
    held, need = view.holdings[me], (0,) * len(GOODS) if view.built[me] else PROJECTS[view.goal]
    out, partners = [], []
    for seat, counts in rng.choices(list(zip("ABCD", view.holdings, strict=True)), k=2):
        at = rng.randrange(len(GOODS))
        out.append((f"has {seat} {GOODS[at]}", str(min(counts[at], 9))))
    at = rng.randrange(len(GOODS))
    out.append((f"spare {GOODS[at]}", str(min(max(held[at] - need[at], 0), 9))))
    for seat, counts in zip("ABCD", view.holdings, strict=True):
        if seat != view.seat:
            wanted = [good for good, h, n, theirs in zip(GOODS, held, need, counts, strict=True) if h < n and theirs]
            out.append((f"find {seat}", wanted[0] if wanted else "none"))
            partners += [seat] * bool(wanted)
    spares = [good for good, h, n in zip(GOODS, held, need, strict=True) if h > n]
    for _ in range(2):
        out.append(("ask", rng.choice(partners or ["none"])))
        out.append(("give", rng.choice(spares or ["none"])))
    best, most = "none", -1
    for offer in view.pending:
        payable = holds(held, offer.get) and holds(view.holdings["ABCD".index(offer.giver)], offer.give)
        change = worth(moved(held, offer.get, offer.give), need) - worth(held, need)
        out.append((f"pays {offer.id}", "yes" if payable else "no"))
        out.append((f"worth {offer.id}", "gain" if change > 0 else "loss" if change < 0 else "even"))
        if payable and change > most:
            best, most = offer.giver, change
    return [*out, ("take", best)]


QUESTIONS = {"market": market_questions}


def fingerprint() -> str:
    """Changes whenever any game's texts (instructions, descriptions, actions) change."""
    text = CHAT_TEMPLATE
    for game in GAMES.values():
        for _, view, rng in positions(game, range(20)):
            text += game.system(view) + game.describe(view) + str(game.sample(view, rng))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_tokenizer() -> PreTrainedTokenizerFast:
    texts = []
    for game in GAMES.values():
        for _, view, rng in positions(game, SEEDS[:300]):
            name = game.system(view).split(":")[0]
            texts += [name, game.describe(view), str(game.sample(view, rng)), "assistant\nuser\nsystem\n"]
            texts += [f"{question}:{answer}" for question, answer in QUESTIONS[game.name](view, rng)]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(WORDS), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=1024, special_tokens=special, initial_alphabet=alphabet))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left", model_max_length=1024
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(tokenizer) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config)


def example(game, view, rng, tokenizer) -> tuple[list[int], list[list[int]], list[list[int]]]:
    """Prompt ids without the last one, and one list of ids a branch. Branches with an action: that last id, the action, the
    stop id. Branches with a question: that last id, the question, the answer in one id."""
    expert = competent(game)
    ids = tokenizer.encode(tokenizer.apply_chat_template(messages_of(game, view), tokenize=False, add_generation_prompt=True))
    actions = [expert(view, rng) for _ in range(EXPERT)] + [game.sample(view, rng) for _ in range(BRANCHES - EXPERT)]
    replies = tokenizer([str(a) for a in actions])["input_ids"]
    asked = QUESTIONS[game.name](view, rng)
    questions = tokenizer([f"{question}:{answer}" for question, answer in asked])["input_ids"]
    return (
        ids[:-1],
        [[ids[-1], *reply, tokenizer.eos_token_id] for reply in replies],
        [[ids[-1], *question] for question in questions],
    )


def words_of(tokenizer) -> set[int]:
    """Ids of the tokens that hold a letter or a digit."""
    return {i for i in range(len(tokenizer)) if any(sign.isalnum() for sign in tokenizer.decode([i]))}


def batch(examples, pad: int, words: set[int]):
    """Tensors ids, positions, 4-D mask (0 or -inf), targets (-100: not learned) and weights, one row a prompt with its branches.

    A token of an action weighs the same in whichever action it stands (a mean over each branch would make short actions
    likelier than they are), WORD_LOSS times as much if it is among `words`. The weights of all action tokens sum to 1, those
    of all answers to QUESTION_LOSS, those of all prompt tokens to PROMPT_LOSS.
    """
    length = max(len(p) + sum(map(len, actions + questions)) for p, actions, questions in examples)
    ids = torch.full((len(examples), length), pad)
    places, segment = torch.zeros_like(ids), torch.full_like(ids, -1)
    targets, weight = torch.full_like(ids, -100), torch.zeros(ids.shape)
    prompt_tokens = sum(len(prompt) - 1 for prompt, _, _ in examples)
    action_losses = sum(WORD_LOSS if i in words else 1 for _, actions, _ in examples for action in actions for i in action[1:])
    answers = sum(len(questions) for _, _, questions in examples)
    for row, (prompt, actions, questions) in enumerate(examples):
        at = len(prompt)
        ids[row, :at], places[row, :at], segment[row, :at] = torch.tensor(prompt), torch.arange(at), 0
        targets[row, : at - 1], weight[row, : at - 1] = torch.tensor(prompt[1:]), PROMPT_LOSS / prompt_tokens
        for k, branch in enumerate(actions + questions, 1):
            n = len(branch)
            ids[row, at : at + n], segment[row, at : at + n] = torch.tensor(branch), k
            places[row, at : at + n] = torch.arange(len(prompt), len(prompt) + n)
            targets[row, at : at + n - 1] = torch.tensor(branch[1:])
            if k <= len(actions):
                losses = torch.tensor([WORD_LOSS if i in words else 1 for i in branch[1:]])
                weight[row, at : at + n - 1] = losses / action_losses
            else:
                weight[row, at + n - 2] = QUESTION_LOSS / answers
            at += n
    query, key = segment[:, :, None], segment[:, None, :]
    order = torch.arange(length)
    seen = (order[:, None] >= order[None, :]) & ((key == query) | (key == 0)) | torch.eye(length, dtype=torch.bool)
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[:, None]
    return ids, places, mask, targets, weight


def legal_share(model, tokenizer, game, seeds, every: int = 7) -> tuple[float, int]:
    """Share of sampled replies (temperature 1) that are legal at every `every`-th position of mixed play; and how many."""
    states = [state for state, _, _ in islice(positions(game, seeds), 0, None, every)]
    generate = generator(model, tokenizer, replace(preset("tiny"), temperature=1.0))
    replies = generate([messages_of(game, game.view(state, game.turn(state))) for state in states])
    good = sum(take(game, state, reply)[2] is None for state, reply in zip(states, replies, strict=True))
    return good / len(states), len(states)


def positions_of_all(rng: Random, first: int):
    """(game, view, rng) from every game in turn, drawn from a pool that mixes the turns of many episodes."""
    streams = {name: positions(game, SEEDS[first:]) for name, game in GAMES.items()}
    pool = []
    while True:
        while len(pool) < POOL:
            name = rng.choice(list(GAMES))
            _, view, luck = next(streams[name])
            if view.pending or rng.random() < QUIET:
                pool.append((GAMES[name], view, luck))
        at = rng.randrange(len(pool))
        pool[at], pool[-1] = pool[-1], pool[at]
        yield pool.pop()


def attention(module, query, key, value, mask, **options):
    """Attention in float32 whatever the autocast: on a CPU its backward pass is slow in bfloat16."""
    with torch.autocast("cpu", enabled=False):
        return sdpa_attention_forward(module, query.float(), key.float(), value.float(), mask, **options)


def train(model, tokenizer, report) -> None:
    """Warm-up, then a cosine down to 0, in bfloat16 (fast on CPUs with AMX). `report(step, loss)` is called now and then.

    Muon for the matrices inside the layers: after 900 steps 95 % of the sampled actions were legal, with AdamW alone 70 %.
    """
    AttentionInterface.register("float32", attention)
    AttentionMaskInterface.register("float32", sdpa_mask)
    model.set_attn_implementation("float32")
    inner = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    outer = [p for name, p in model.named_parameters() if p.ndim == 1 or "embed" in name]
    optimizers = (
        torch.optim.Muon(inner, lr=MATRIX_RATE, weight_decay=0.0),
        torch.optim.AdamW(outer, lr=RATE, betas=(0.9, 0.95), weight_decay=0.01, fused=True),
    )
    rates = [
        torch.optim.lr_scheduler.LambdaLR(o, lambda s: min(1, (s + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * s / STEPS)))
        for o in optimizers
    ]
    source = positions_of_all(Random(SEED), first=1000)
    compiled, words = torch.compile(model, dynamic=True), words_of(tokenizer)
    for step in range(1, STEPS + 1):
        ids, places, mask, targets, weight = batch(
            [example(*next(source), tokenizer) for _ in range(PROMPTS)], tokenizer.pad_token_id, words
        )
        with torch.autocast("cpu", torch.bfloat16):
            logits = compiled(input_ids=ids, position_ids=places, attention_mask=mask, use_cache=False).logits
        losses = torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1), targets.flatten(), reduction="none", ignore_index=-100
        )
        loss = (losses * weight.flatten()).sum()
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for each in (*optimizers, *rates):
            each.step()
        if step % 500 == 0:
            report(step, loss.item())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write to (default: helpers/tiny)")
    options = parser.parse_args()
    torch.manual_seed(SEED)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    size = sum(p.numel() for p in model.parameters())
    options.out.mkdir(parents=True, exist_ok=True)
    print(f"{len(tokenizer)} tokens, {size:,} parameters", flush=True)
    start = time.time()

    def report(step, loss):
        shares = {name: legal_share(model, tokenizer, game, VALID[:100]) for name, game in GAMES.items()}
        text = ", ".join(f"{name} {share:.1%} legal (n={n})" for name, (share, n) in shares.items())
        print(f"step {step} of {STEPS}, loss {loss:.3f}, {time.time() - start:.0f} s, {text}", flush=True)
        legal = {name: {"share": share, "n": n} for name, (share, n) in shares.items()}
        note = {"fingerprint": fingerprint(), "steps": step, "seed": SEED, "parameters": size, "legal": legal}
        model.save_pretrained(options.out)
        tokenizer.save_pretrained(options.out)
        (options.out / "made_from.json").write_text(json.dumps(note, indent=1) + "\n")

    train(model, tokenizer, report)


if __name__ == "__main__":
    main()
