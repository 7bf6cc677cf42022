"""Builds the embedded CPU model of a game: `python -m helpers.tiny.build market`. About 25 minutes on two cores; fixed seed. A
build that was killed goes on from its last report when the same command is given again.

It imitates the play that helpers/tiny/lessons.py describes: part of it random and legal, part of it competent. So it knows the
grammar and has watched the game, but nothing tells it which of the two to follow. Many actions are learned at each prompt at
once, as parallel branches behind one shared prompt (a 4-D attention mask, positions restarting after the prompt), because
legality (what is held, which ids exist) is learned last.

It also learns to read: questions about the position, of which only the answer is learned, so that it never asks one itself.
Without them it offers trades for goods that the other seat lacks.
"""

import argparse
import hashlib
import json
import math
import re
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from helpers import game_named
from helpers.models import generator
from helpers.presets import preset
from helpers.rollout import VALID, messages_of, take
from helpers.tiny.lessons import LESSONS

HERE = Path(__file__).parent
UNFINISHED = Path("runs/tiny")  # below the current folder: what builds go on from, one file for each game and its texts
SEED = 7
SEEDS = range(10_000_000, 20_000_000)  # deals the base learns from; disjoint from TRAIN, VALID and TEST
PROMPTS, WARMUP, POOL = 16, 40, 2000
PROMPT_LOSS = 0.3  # weight of the prompts, against 1 for the actions
WORD_LOSS = 8  # weight of an action's word, name or number, against 1 for the signs between them, which are soon known
MATRIX_RATE, RATE = 0.01, 2e-3  # peak learning rates: of matrices (Muon), of the rest (AdamW)
# A good or a seat is the same token in prompt and action. A word takes the space behind it, and a count the signs around it
# (`Iron:2, ` is two tokens): prompts of half the length, read and learned in half the time. A price goes by pairs of digits from
# the point on, and before them stands a sign that tells how many digits precede the point; it vanishes when ids become text
# (`8092.28` is `④`, `80`, `92.`, `28`). Digit by digit, or without the sign, many offers were ten times too high or too low.
# No text begins with a price: there, tokenizers 0.23 would garble the sign.
SIZES = "①②③④⑤⑥"
PRICE = r"[0-9]{1,2}(?=(?:[0-9]{2})+\.[0-9])|[0-9]{1,2}\.(?=[0-9])|(?<=\.)[0-9]{2}"
SIGNS = rf"[^A-Za-z0-9_{SIZES}]"
WORDS = rf"[{SIZES}]|{PRICE}|[A-Za-z_]{{2,}}\s?|[A-Za-z_]|[0-9]|{SIGNS}+(?:[0-9](?![0-9]|\.[0-9]){SIGNS}*)?"
# The system message is cut at its first colon (the game's name): the grammar is learned here, not read.
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{{ m['content'].split(':')[0] if m['role'] == 'system' else m['content'] }}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def positions(game, seeds):
    """(game as it is set, state, what the seat to move is shown, rng) at every turn of watched play."""
    lessons = LESSONS[game.name]
    for seed in seeds:
        rng = Random(f"tiny/{game.name}/{seed}")
        habits = {seat: lessons.habit(rng) for seat in game.seats}
        table = lessons.settings[seed % len(lessons.settings)]
        state, chats = table.deal(seed), {}
        while seat := table.turn(state):
            view = table.view(state, seat)
            messages = messages_of(table, view, *chats.get(seat, ()))
            yield table, state, messages, rng
            action = lessons.move(table, habits[seat], view, rng)
            if game.memory == "chat":
                chats[seat] = ((*messages, {"role": "assistant", "content": str(action)}), len(view.events) + 1)
            state = table.step(state, action)


def fingerprint(game) -> str:
    """Changes whenever the game's texts (instructions, descriptions, actions) change."""
    text = CHAT_TEMPLATE
    for table, state, messages, rng in positions(game, range(20)):
        text += messages[0]["content"] + messages[-1]["content"] + str(table.sample(table.view(state, table.turn(state)), rng))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_tokenizer(game) -> PreTrainedTokenizerFast:
    texts = []
    for table, state, messages, rng in positions(game, SEEDS[:300]):
        view = table.view(state, table.turn(state))
        texts += [messages[0]["content"].split(":")[0], messages[-1]["content"], str(table.sample(view, rng))]
        texts += ["assistant\nuser\nsystem\n"]
        texts += [f"{question}:{answer}" for question, answer in LESSONS[game.name].questions(view, rng)]
    if LESSONS[game.name].prices:
        texts += [f" {number}.00 {100 * number + number}.{number:02}" for number in range(100)] * 100
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(WORDS), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    if LESSONS[game.name].prices:
        signs = {sign: Regex(rf"(?<![0-9.])(?=[0-9]{{{size}}}\.[0-9])") for size, sign in enumerate(SIZES, 1)}
        bpe.normalizer = normalizers.Sequence([normalizers.Replace(place, sign) for sign, place in signs.items()])
        bpe.decoder = decoders.Sequence([bpe.decoder, *[decoders.Replace(sign, "") for sign in signs]])
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


def order_numbers(model, tokenizer) -> None:
    """Numbers begin with embeddings that change smoothly from 0 to 99 (cosines of the number, mixed at random, and otherwise for
    `25` than for `25.`), as large as others: so that they can be compared long before each pair of them has been met."""
    weight = model.get_input_embeddings().weight.data
    waves = {end: torch.randn(8, weight.shape[1]) for end in ("", ".")}
    for i in range(len(tokenizer)):
        text = tokenizer.decode([i])
        if re.fullmatch(r"[0-9]{1,2}\.?", text):
            mixed = waves["." if text.endswith(".") else ""]
            new = torch.cos(math.pi * torch.arange(1, 9) * float(text) / 100) / torch.arange(1, 9) @ mixed
            weight[i] = 0.5 * weight[i] + new / new.norm() * weight.norm(dim=1).mean()


def example(table, state, messages, rng, tokenizer) -> tuple[list[int], list[list[int]], list[list[int]]]:
    """Prompt ids without the last one, and one list of ids a branch. Branches with an action: that last id, the action, the
    stop id. Branches with a question: that last id, the question, the answer in one id."""
    lessons, view = LESSONS[table.name], table.view(state, table.turn(state))
    ids = tokenizer.encode(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))
    replies = tokenizer([str(action) for action in lessons.imitated(table, view, rng)])["input_ids"]
    questions = tokenizer([f"{question}:{answer}" for question, answer in lessons.questions(view, rng)])["input_ids"]
    return (
        ids[:-1],
        [[ids[-1], *reply, tokenizer.eos_token_id] for reply in replies],
        [[ids[-1], *question] for question in questions],
    )


def words_of(tokenizer) -> set[int]:
    """Ids of the tokens that hold a letter or a digit."""
    return {i for i in range(len(tokenizer)) if any(sign.isalnum() for sign in tokenizer.decode([i]))}


def batch(examples, pad: int, words: set[int], reading: float):
    """Tensors ids, positions, 4-D mask (0 or -inf), targets (-100: not learned) and weights, one row a prompt with its branches.

    A token of an action weighs the same in whichever action it stands (a mean over each branch would make short actions
    likelier than they are), WORD_LOSS times as much if it is among `words`. The weights of all action tokens sum to 1, those
    of all answers to `reading`, those of all prompt tokens to PROMPT_LOSS.
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
                weight[row, at + n - 2] = reading / answers
            at += n
    query, key = segment[:, :, None], segment[:, None, :]
    order = torch.arange(length)
    seen = (order[:, None] >= order[None, :]) & ((key == query) | (key == 0)) | torch.eye(length, dtype=torch.bool)
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[:, None]
    return ids, places, mask, targets, weight


def legal_share(model, tokenizer, game, seeds, every: int = 7) -> tuple[float, int]:
    """Share of sampled replies (temperature 1) that are legal at every `every`-th position of watched play; and how many."""
    asked = [place[:3] for place in islice(positions(game, seeds), 0, None, every)]
    generate = generator(model, tokenizer, replace(preset("tiny"), temperature=1.0))
    replies = generate([messages for _, _, messages in asked])
    good = sum(take(table, state, reply)[2] is None for (table, state, _), reply in zip(asked, replies, strict=True))
    return good / len(asked), len(asked)


def shuffled(game, rng: Random, first: int):
    """Positions in random order, drawn from a pool that mixes the turns of many episodes."""
    stream, pool = positions(game, SEEDS[first:]), []
    while True:
        while len(pool) < POOL:
            table, state, messages, luck = next(stream)
            if LESSONS[game.name].told(table.view(state, table.turn(state)), rng):
                pool.append((table, state, messages, luck))
        at = rng.randrange(len(pool))
        pool[at], pool[-1] = pool[-1], pool[at]
        yield pool.pop()


def attention(module, query, key, value, mask, **options):
    """Attention in float32 whatever the autocast: on a CPU its backward pass is slow in bfloat16."""
    with torch.autocast("cpu", enabled=False):
        return sdpa_attention_forward(module, query.float(), key.float(), value.float(), mask, **options)


def train(game, model, tokenizer, checkpoint: Path, report, every: int = 500) -> None:
    """Warm-up, then a cosine down to 0, in bfloat16 (fast on CPUs with AMX). `report(step, loss)` is called every so many steps,
    after what the build goes on from was saved in the file `checkpoint`; a build that ends removes it.

    Muon for the matrices inside the layers: after 900 steps 95 % of the sampled actions were legal, with AdamW alone 70 %.
    """
    lessons, source = LESSONS[game.name], shuffled(game, Random(SEED), first=1000)
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
        torch.optim.lr_scheduler.LambdaLR(
            o, lambda s: min(1, (s + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * s / lessons.steps))
        )
        for o in optimizers
    ]
    compiled, words, done = torch.compile(model, dynamic=True), words_of(tokenizer), 0
    parts = (model, *optimizers, *rates)
    if checkpoint.exists():
        done, states = torch.load(checkpoint)
        for part, state in zip(parts, states, strict=True):
            part.load_state_dict(state)
        print(f"going on from step {done}", flush=True)
    for step in range(1, lessons.steps + 1):
        examples = [example(*next(source), tokenizer) for _ in range(PROMPTS)]
        if step <= done:  # only their luck was needed
            continue
        ids, places, mask, targets, weight = batch(examples, tokenizer.pad_token_id, words, lessons.reading)
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
        if step % every == 0:
            checkpoint.parent.mkdir(parents=True, exist_ok=True)
            whole = checkpoint.with_suffix(".part")
            torch.save((step, [part.state_dict() for part in parts]), whole)
            whole.replace(checkpoint)
            report(step, loss.item())
    checkpoint.unlink(missing_ok=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("game", help=f"one of {', '.join(LESSONS)}")
    parser.add_argument("--out", type=Path, help="folder to write to (default: helpers/tiny/GAME)")
    options = parser.parse_args()
    game, out = game_named(options.game), options.out or HERE / options.game
    torch.manual_seed(SEED)
    tokenizer = make_tokenizer(game)
    model = make_model(tokenizer)
    if LESSONS[game.name].prices:
        order_numbers(model, tokenizer)
    size = sum(p.numel() for p in model.parameters())
    out.mkdir(parents=True, exist_ok=True)
    print(f"{len(tokenizer)} tokens, {size:,} parameters", flush=True)
    start = time.time()

    def report(step, loss):
        share, n = legal_share(model, tokenizer, game, VALID[:100])
        print(
            f"step {step} of {LESSONS[game.name].steps}, loss {loss:.3f}, {time.time() - start:.0f} s, {share:.1%} legal (n={n})",
            flush=True,
        )
        legal = {"share": share, "n": n}
        note = {"fingerprint": fingerprint(game), "steps": step, "seed": SEED, "parameters": size, "legal": legal}
        model.save_pretrained(out)
        tokenizer.save_pretrained(out)
        (out / "made_from.json").write_text(json.dumps(note, indent=1) + "\n")

    train(game, model, tokenizer, UNFINISHED / f"{game.name}-{fingerprint(game)}.pt", report)


if __name__ == "__main__":
    main()
