"""How far a trained model has drifted from its frozen base, in nats per token of what it wrote itself.

The estimator: log p_policy - log p_base of every token of the policy's own replies, summed, over their number ("k1" in Schulman's
"Approximating KL Divergence"). It estimates KL(policy || base) per token, at the positions that the policy comes to; a
small sample may show less than 0.

Log-probabilities are the model's own, at temperature 1. Of replies that were sampled at another temperature, or by another
player, it is a mean log ratio and no KL. Episodes hold text: replies are tokenised again and closed by the stop token, so ids
may differ from those that were sampled, and a reply that was cut off counts a stop token that it never wrote.
"""

from collections.abc import Sequence

import torch
from trl.trainer.utils import selective_log_softmax

from helpers.chats import render
from helpers.evaluate import Interval, ratio
from helpers.game import Game
from helpers.rollout import Episode, prompts_of


def drift(game: Game, episodes: Sequence[Episode], player: str, model, tokenizer, batch: int) -> Interval:
    """Nats per token, over all replies of the player of that name, with its interval over seeds. `model`: with the adapter
    that the player had; `batch`: replies read at once. Raises ValueError when the player wrote in fewer than two seeds."""
    seeds, prompts, replies = [], [], []
    for episode in episodes:
        for turn, messages in zip(episode.turns, prompts_of(game, episode), strict=True):
            if episode.players[turn.seat] == player:
                seeds.append(episode.seed)
                prompts.append(messages)
                replies.append(turn.reply)
    nats, tokens = log_ratios(model, tokenizer, prompts, replies, batch)
    return ratio(nats, tokens, seeds)


def log_ratios(
    model, tokenizer, prompts: Sequence[Sequence[dict[str, str]]], replies: Sequence[str], batch: int
) -> tuple[list[float], list[int]]:
    """(log p_policy - log p_base, number of tokens) of each reply to its prompt, the stop token included. The shortest are read
    first, so that little is padded; model and adapter are left as they were."""
    asked = [tokenizer(render(tokenizer, messages), add_special_tokens=False)["input_ids"] for messages in prompts]
    said = [tokenizer(reply, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id] for reply in replies]
    order = sorted(range(len(said)), key=lambda i: len(asked[i]) + len(said[i]))
    nats, was_training = [0.0] * len(said), model.training
    model.eval()
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        sequences = {"input_ids": [asked[i] + said[i] for i in rows]}
        inputs = tokenizer.pad(sequences, return_tensors="pt", padding_side="left").to(model.device)
        longest = max(len(said[i]) for i in rows)
        policy = log_probabilities(model, inputs, longest)
        with model.disable_adapter():
            apart = policy - log_probabilities(model, inputs, longest)
        for i, row in zip(rows, apart, strict=True):
            nats[i] = row[-len(said[i]) :].double().sum().item()
    model.train(was_training)
    return nats, [len(ids) for ids in said]


@torch.no_grad()
def log_probabilities(model, inputs, longest: int) -> torch.Tensor:
    """Of the last `longest` ids of each sequence, padded on the left: (sequences, longest), float32."""
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = model(
        input_ids=ids, attention_mask=mask, position_ids=places, logits_to_keep=longest + 1, use_cache=False
    ).logits  # the last foretells what is not there
    return selective_log_softmax(logits[:, :-1].float(), ids[:, -longest:])
