"""Chats token by token: the player that self-play trains with. What the model sampled stays as it was sampled, and of every
further message only what the chat template adds is tokenised: a finished chat is one sequence of ids that can be learned from.

A chat is read once. Keys and values of what has been read are kept from turn to turn (every layer must attend to all of it, as
those of Qwen and SmolLM2 do), so that the cost of an episode grows with its length and not with its square.

A chat has luck of its own: what is sampled in it depends neither on the chats beside it nor on torch's generator.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from os.path import commonprefix
from random import Random

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, LogitsProcessor
from trl.trainer.utils import use_adapter

from helpers.presets import Preset
from helpers.rollout import Request

SAMPLE = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
REPLY = " r\n"  # with white space, which some templates strip


@dataclass
class Chat:
    """One seat's chat in one episode. `prompt`: how many ids come before the first reply; `sampled` says of each later id whether
    the model wrote it (1) or not (0); `cut_off` counts the replies that did not end by themselves; `luck` seeds the sampling."""

    ids: list[int]
    prompt: int
    sampled: list[int] = field(default_factory=list)
    cut_off: int = 0
    luck: str = ""
    kept: torch.Tensor | None = None  # of the first ids: (ids, layers, 2, heads, width), keys and values

    def add(self, ids: Sequence[int], sampled: int) -> None:
        self.ids += ids
        self.sampled += [sampled] * len(ids)


def render(tokenizer, messages: Sequence[dict[str, str]]) -> str:
    """The chat as text, up to where the next reply begins."""
    return tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)


def between(tokenizer, content: str) -> str:
    """What the template puts between the end of a reply and the beginning of the next when a message `content` lies between."""
    whole = render(tokenizer, [*SAMPLE, {"role": "assistant", "content": REPLY}, {"role": "user", "content": content}])
    return whole[len(render(tokenizer, SAMPLE) + REPLY + tokenizer.eos_token) :]


def check_template(tokenizer) -> None:
    """Raises ValueError for a chat template that changes what it has shown before when the chat goes on: one would learn from
    another text than evaluation shows."""
    chat, expected = list(SAMPLE), render(tokenizer, SAMPLE)
    for content in ("v", "w"):
        chat += [{"role": "assistant", "content": REPLY}, {"role": "user", "content": content}]
        expected += REPLY + tokenizer.eos_token + between(tokenizer, content)
        if (shown := render(tokenizer, chat)) != expected:
            same = len(commonprefix([shown, expected]))
            raise ValueError(
                f"expected a chat template that only adds to what it has shown, each reply as it was written and closed by "
                f"{tokenizer.eos_token!r}; got {shown[same:][:40]!r} where {expected[same:][:40]!r} should stand: set another "
                "tokenizer.chat_template (trl.chat_template_utils.get_training_chat_template has some)"
            )


def cut(ids: list[int], stop: int, pad: int) -> list[int]:
    """`ids` up to and including the first stop id, or up to a sampled pad id, which must not stand inside a sequence."""
    for at, one in enumerate(ids):
        if one == stop:
            return ids[: at + 1]
        if one == pad:
            return ids[:at]
    return ids


class Luck(LogitsProcessor):
    """Draws each row's next id with that row's own stream, at `temperature`, and leaves generate() no other to choose."""

    def __init__(self, streams: Sequence[Random], temperature: float):
        self.streams, self.temperature = streams, temperature

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        chances = (scores / self.temperature).softmax(-1).double().cumsum(-1)
        drawn = chances.new_tensor([[stream.random()] for stream in self.streams]) * chances[:, -1:]
        return torch.full_like(scores, -torch.inf).scatter(1, torch.searchsorted(chances, drawn, right=True), 0.0)


class ChatPlayer:
    """Answers with `model` and keeps every chat in `chats`, by (episode, seat), until a later call of `play` opens another there.

    adapter: which of the model's adapters speaks; None: the base. group: so many neighbouring episodes have one seed, and luck
    that differs; they share one reading of how their chats begin. keep: whether keys and values are kept; if not, every turn
    reads the whole chat anew.
    """

    def __init__(
        self, name: str, model, tokenizer, preset: Preset, adapter: str | None = "default", group: int = 1, keep: bool = True
    ):
        check_template(tokenizer)
        self.name, self.model, self.tokenizer, self.preset = name, model, tokenizer, preset
        self.adapter, self.group, self.keep = adapter, group, keep
        self.chats: dict[tuple[int, str], Chat] = {}

    def __call__(self, requests: Sequence[Request]) -> list[str]:
        begun: dict[tuple[int, str], list[Chat]] = {}
        chats = []
        for request in requests:
            key = request.episode, request.seat
            if len(request.messages) > 2:  # system, first message, own reply, ...: it goes on
                self.chats[key].add(self.encode(between(self.tokenizer, request.messages[-1]["content"])), 0)
            else:
                ids = self.encode(render(self.tokenizer, request.messages))
                luck = f"{request.rng.random()}/{request.episode % self.group}"  # the rng is the same for all episodes of a seed
                self.chats[key] = Chat(ids, len(ids), luck=luck)
                begun.setdefault((request.episode // self.group, request.seat), []).append(self.chats[key])
            chats.append(self.chats[key])
        size, groups, replies = self.preset.batch, list(begun.values()), []
        with torch.no_grad(), nullcontext() if self.adapter == "default" else use_adapter(self.model, self.adapter):
            if self.keep:
                for start in range(0, len(groups), size):
                    self.read(groups[start : start + size])
            for start in range(0, len(chats), size):
                replies += self.answer(chats[start : start + size])
        return self.tokenizer.batch_decode(replies, skip_special_tokens=True)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def padded(self, sequences: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """(ids, mask), padded on the left."""
        batch = self.tokenizer.pad({"input_ids": sequences}, return_tensors="pt", padding_side="left").to(self.model.device)
        return batch["input_ids"], batch["attention_mask"]

    def read(self, groups: list[list[Chat]]) -> None:
        """Reads what the chats of each group have in common; at least one id of each is left to be read."""
        starts = [commonprefix([chat.ids[:-1] for chat in group]) for group in groups]
        ids, mask = self.padded(starts)
        cache = DynamicCache(config=self.model.config)
        places = (mask.cumsum(-1) - 1).clamp(min=0)
        self.model(
            input_ids=ids, attention_mask=mask, position_ids=places, past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        for group, kept in zip(groups, apart(cache, mask), strict=True):
            for chat in group:
                chat.kept = kept

    def answer(self, chats: list[Chat]) -> list[list[int]]:
        """The next reply of each chat, which is added to it, closed by the stop id."""
        longest = max(len(chat.ids) for chat in chats) + self.preset.max_new_tokens
        if longest > self.model.config.max_position_embeddings:
            raise ValueError(
                f"expected chats of at most {self.model.config.max_position_embeddings} tokens, which the model can read, got "
                f"{longest}: play fewer rounds or shorten replies (max_new_tokens)"
            )
        ids, mask = self.padded([chat.ids[len(chat.kept) :] if self.keep else chat.ids for chat in chats])
        cache = DynamicCache(config=self.model.config) if self.keep else None
        if self.keep:
            read = together([chat.kept for chat in chats], cache)
            ids = torch.cat([torch.full_like(read, self.tokenizer.pad_token_id), ids], 1)
            mask = torch.cat([read, mask], 1)
        stop, pad = self.tokenizer.eos_token_id, self.tokenizer.pad_token_id
        # A stream for each reply: until the longest of a batch has ended, more is drawn from each than its reply needs.
        luck = Luck([Random(f"{chat.luck}/{len(chat.ids)}") for chat in chats], self.preset.temperature)
        out = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            past_key_values=cache,
            pad_token_id=pad,
            logits_processor=[luck],
            **self.preset.sampling,
        )
        replies = [cut(row, stop, pad) for row in out[:, ids.shape[1] :].tolist()]
        if self.keep:
            said = torch.tensor([[1] * len(r) + [0] * (out.shape[1] - ids.shape[1] - len(r)) for r in replies])
            for chat, kept in zip(chats, apart(cache, torch.cat([mask, said.to(mask)], 1)), strict=True):
                chat.kept = kept
        for chat, reply in zip(chats, replies, strict=True):
            chat.add(reply, 1)
            if reply[-1:] != [stop]:
                chat.add([stop], 0)
                chat.cut_off += 1
        return replies


def apart(cache: DynamicCache, mask: torch.Tensor) -> list[torch.Tensor]:
    """What `cache` holds of each sequence, without padding: (ids, layers, 2, heads, width) each."""
    whole = torch.stack([torch.stack((layer.keys, layer.values)) for layer in cache.layers])
    real = mask[:, : whole.shape[4]].bool()
    return [whole[:, :, i][..., real[i], :].movedim(3, 0) for i in range(len(mask))]


def together(kept: list[torch.Tensor], cache: DynamicCache) -> torch.Tensor:
    """Fills `cache` with what is kept of several sequences, padded on the left, and returns its mask."""
    whole = pad_sequence(kept, batch_first=True, padding_side="left")
    for layer in range(whole.shape[2]):
        cache.update(whole[:, :, layer, 0].transpose(1, 2), whole[:, :, layer, 1].transpose(1, 2), layer)
    ones = [torch.ones(len(one), dtype=torch.long, device=one.device) for one in kept]
    return pad_sequence(ones, batch_first=True, padding_side="left")
