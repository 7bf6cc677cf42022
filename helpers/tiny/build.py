"""Builds the embedded CPU model: `python -m helpers.tiny.build`. About an hour on two cores; fixed seed.

It imitates mixed play of every game in GAMES: of the actions it sees about three quarters are random legal ones and one
quarter a competent trader's. So it knows the grammar and has watched a market, but nothing tells it which of the two to
follow. Many actions are learned at each prompt at once, as parallel branches behind one shared prompt (a 4-D attention
mask, positions restarting after the prompt), because legality (what is held, which ids exist) is learned last.
"""

import argparse
import hashlib
import json
import math
import time
from itertools import islice
from pathlib import Path
from random import Random

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from helpers import GAMES
from helpers.models import generator
from helpers.players import competent
from helpers.presets import preset
from helpers.rollout import VALID, messages_of, take

HERE = Path(__file__).parent
SEED = 7
SEEDS = range(10_000_000, 20_000_000)  # deals the base learns from; disjoint from TRAIN, VALID and TEST
BRANCHES, EXPERT = 12, 3  # actions learned at each prompt, and how many of them a competent player's
PROMPTS, WARMUP, PROMPT_LOSS, POOL = 16, 40, 0.5, 2000
SCHEDULE = (4200, 4e-3), (3200, 3e-3), (2600, 2e-3)  # (optimizer steps, peak learning rate) of each cycle
WORDS = r"[A-Za-z_]+|[0-9]|[^A-Za-z0-9_]+"  # a good, a seat or an id is the same token in prompt and action
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
            state = game.step(state, expert(view, rng) if rng.random() < skill[seat] else game.sample(view, rng))


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


def example(game, view, rng, tokenizer) -> tuple[list[int], list[list[int]]]:
    """Prompt ids without the last one, and one list of ids a branch: that last id, an action, the stop id."""
    expert = competent(game)
    ids = tokenizer.encode(tokenizer.apply_chat_template(messages_of(game, view), tokenize=False, add_generation_prompt=True))
    actions = [expert(view, rng) for _ in range(EXPERT)] + [game.sample(view, rng) for _ in range(BRANCHES - EXPERT)]
    replies = tokenizer([str(a) for a in actions])["input_ids"]
    return ids[:-1], [[ids[-1], *reply, tokenizer.eos_token_id] for reply in replies]


def batch(examples, pad: int):
    """Tensors ids, positions, 4-D mask (0 or -inf), targets (-100: not learned) and weights, one row a prompt with its branches.

    Every token of a branch weighs the same (a mean over each branch would make short actions likelier than they are); the
    weights of all branch tokens sum to 1, those of all prompt tokens to PROMPT_LOSS.
    """
    length = max(len(p) + sum(map(len, branches)) for p, branches in examples)
    ids = torch.full((len(examples), length), pad)
    places, segment = torch.zeros_like(ids), torch.full_like(ids, -1)
    targets, weight = torch.full_like(ids, -100), torch.zeros(ids.shape)
    prompt_tokens = sum(len(prompt) - 1 for prompt, _ in examples)
    branch_tokens = sum(len(branch) - 1 for _, branches in examples for branch in branches)
    for row, (prompt, branches) in enumerate(examples):
        at = len(prompt)
        ids[row, :at], places[row, :at], segment[row, :at] = torch.tensor(prompt), torch.arange(at), 0
        targets[row, : at - 1], weight[row, : at - 1] = torch.tensor(prompt[1:]), PROMPT_LOSS / prompt_tokens
        for k, branch in enumerate(branches, 1):
            n = len(branch)
            ids[row, at : at + n], segment[row, at : at + n] = torch.tensor(branch), k
            places[row, at : at + n] = torch.arange(len(prompt), len(prompt) + n)
            targets[row, at : at + n - 1], weight[row, at : at + n - 1] = torch.tensor(branch[1:]), 1 / branch_tokens
            at += n
    query, key = segment[:, :, None], segment[:, None, :]
    order = torch.arange(length)
    seen = (order[:, None] >= order[None, :]) & ((key == query) | (key == 0)) | torch.eye(length, dtype=torch.bool)
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[:, None]
    return ids, places, mask, targets, weight


def legal_share(model, tokenizer, game, seeds, every: int = 7) -> tuple[float, int]:
    """Share of sampled replies (temperature 1) that are legal at every `every`-th position of mixed play; and how many."""
    states = [state for state, _, _ in islice(positions(game, seeds), 0, None, every)]
    generate = generator(model, tokenizer, preset("tiny"))
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
            pool.append((GAMES[name], *next(streams[name])[1:]))
        at = rng.randrange(len(pool))
        pool[at], pool[-1] = pool[-1], pool[at]
        yield pool.pop()


def train(model, tokenizer, cycle: int, report) -> None:
    """One cycle of the schedule: warm-up, then a cosine down to 0. `report(step, loss)` is called now and then."""
    steps, peak = SCHEDULE[cycle]
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1, (s + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * min(1, s / steps)))
    )
    source = positions_of_all(Random(SEED + cycle), first=1000 + cycle * 1_000_000)
    compiled = torch.compile(model, dynamic=True)
    for step in range(1, steps + 1):
        ids, places, mask, targets, weight = batch(
            [example(*next(source), tokenizer) for _ in range(PROMPTS)], tokenizer.pad_token_id
        )
        logits = compiled(input_ids=ids, position_ids=places, attention_mask=mask, use_cache=False).logits
        each = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=-100)
        loss = (each * weight.flatten()).sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        if step % 500 == 0 or step == steps:
            report(step, loss.item())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--cycle", type=int, default=0, help="start at this cycle, from the weights in the folder (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write to (default: helpers/tiny)")
    options = parser.parse_args()
    torch.manual_seed(SEED)
    tokenizer = make_tokenizer()
    model = Qwen2ForCausalLM.from_pretrained(options.out, dtype=torch.float32) if options.cycle else make_model(tokenizer)
    size = sum(p.numel() for p in model.parameters())
    options.out.mkdir(parents=True, exist_ok=True)
    print(f"{len(tokenizer)} tokens, {size:,} parameters", flush=True)
    start = time.time()
    for cycle in range(options.cycle, len(SCHEDULE)):

        def report(step, loss, cycle=cycle):
            shares = {name: legal_share(model, tokenizer, game, VALID[:100]) for name, game in GAMES.items()}
            text = ", ".join(f"{name} {share:.1%} legal (n={n})" for name, (share, n) in shares.items())
            print(f"cycle {cycle} step {step} loss {loss:.3f} {time.time() - start:.0f}s {text}", flush=True)
            legal = {name: {"share": share, "n": n} for name, (share, n) in shares.items()}
            note = {"fingerprint": fingerprint(), "schedule": SCHEDULE, "seed": SEED, "parameters": size, "legal": legal}
            model.save_pretrained(options.out)
            tokenizer.save_pretrained(options.out)
            (options.out / "made_from.json").write_text(json.dumps(note, indent=1) + "\n")

        train(model, tokenizer, cycle, report)


if __name__ == "__main__":
    main()
