"""The model card, Markdown for the Hugging Face Hub, and the parts of README.md that a run fills. Every number comes from
summary.json, saved episodes, the training history or the preset, and what is said about success depends on the intervals.

`python -m helpers.card RUN README.md` rewrites README.md between its pairs of HTML comments.
"""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from pprint import pformat

import pandas as pd

from helpers import game_named
from helpers.evaluate import table
from helpers.players import competent_player
from helpers.presets import Preset
from helpers.rollout import Episode, load, messages_of
from helpers.tiny.lessons import LESSONS

PROJECT = "https://github.com/parley-authors/parley"
WATCHED = (
    " It knows the grammar of the game and has watched competent play before GRPO starts; the row *untrained base* shows what "
    "that alone is worth."
)

CHAT = (
    "The game is a chat: a later prompt is the whole chat so far, the adapter's own replies included, and one message more, as "
    "`helpers.rollout.messages_of` makes it.\n"
)


def model_card(summary: Mapping, history: Sequence[Mapping], preset: Preset) -> str:
    """The card of the adapter that a run trained. `summary` as `evaluate.summary` makes it, `history` TRL's log_history."""
    base = preset.base
    front = preset.model.replace("tiny/", "parley-tiny-") if preset.embedded else preset.model
    tokenizers = "PreTrainedTokenizerFast" if preset.embedded else "AutoTokenizer"  # see models.load
    watched = LESSONS[summary["game"]].watched + WATCHED if preset.embedded else "It had not seen the game before."
    watched += imitated(preset, summary["game"]) if preset.warmup_steps else ""
    embedded = ", a folder of this project's repository and not a model of the Hub" if preset.embedded else ""
    game = game_named(summary["game"])
    start = game.deal(summary["seeds"][0])
    view = game.view(start, game.turn(start))
    steps = max((entry["step"] for entry in history if "reward" in entry), default=0)
    return f"""---
base_model: {front}
library_name: peft
pipeline_tag: text-generation
language: en
license: mit
tags: [grpo, trl, lora, peft, negotiation, multi-agent, reinforcement-learning]
---

# Parley: {preset.name} plays {summary["game"]}

A LoRA adapter that learned to play the game `{summary["game"]}` of [Parley]({PROJECT}) with GRPO, from rewards that are
computed by the rules. The base is `{base}`{embedded}. {watched}

## Results

{results(summary)}
{one_seat(summary)}
## Intended use

Teaching and research: to show, on hardware that anyone has, what turn-level GRPO does to a small model in a game whose
optimum is known. The adapter answers the prompts of `{summary["game"]}` with one action.

## Limits

- It knows one game, in the exact wording of this project's prompts. It is not a negotiator for people, money or contracts.
- One training run with one seed: the intervals cover the luck of the deals, not the luck of training.
- It was measured against copies of itself and scripted partners; other partners may exploit it.
- An invalid reply is replaced by a legal default and counted; whoever uses the adapter elsewhere must check replies too.

## Training

- Data: no human data. Rows are decision points (a seed and the actions so far) of mixed and own play, on seeds apart from the
  held-out ones. Each reply is replayed and played on with the same luck within its group; partners are scripted.
- Procedure: GRPO (TRL, turn level), {steps} of {preset.steps} steps of {preset.prompts} prompts x {preset.generations}
  replies, learning rate {preset.learning_rate:g}, LoRA rank {preset.lora_rank} (alpha {preset.lora_alpha}) on every linear
  layer, sampling temperature {preset.temperature:g} in training and evaluation, at most {preset.max_new_tokens} new tokens.
- {curve(history)}

## How to load

`ADAPTER` is the folder that holds this card's `adapter_config.json`{", run from the repository's root" if embedded else ""}.

With PEFT:

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM, {tokenizers}

tokenizer = {tokenizers}.from_pretrained("{base}")
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("{base}"), "ADAPTER").eval()
```

With Unsloth (imported before transformers and peft):

```python
from unsloth import FastLanguageModel
from peft import PeftModel

model, _ = FastLanguageModel.from_pretrained("{base}", max_seq_length=1024, load_in_4bit=False)  # tokenizer: as above
model = PeftModel.from_pretrained(model, "ADAPTER")
FastLanguageModel.for_inference(model)
```

Then, that prompt in, one action out, sampled as in training and evaluation:

```python
import torch

messages = {pformat(list(messages_of(game, view)), width=120, sort_dicts=False)}
# enable_thinking: some models would think first; the others do not look at it.
text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)
inputs = tokenizer(text, return_tensors="pt", add_special_tokens=False).to(model.device)
settings = {preset.sampling}
with torch.inference_mode():
    out = model.generate(**inputs, **settings, pad_token_id=tokenizer.pad_token_id)
print(reply := tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
```

Read a reply with `helpers.replies.read(game, reply)`, which gives its one action or an error that says what is wrong.
{CHAT if game.memory == "chat" else ""}
## Citation

```bibtex
@article{{shao2024deepseekmath,
  title   = {{DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models}},
  author  = {{Zhihong Shao and others}},
  year    = {{2024}},
  journal = {{arXiv:2402.03300}}
}}

@software{{parley,
  title  = {{Parley: small language models learn to negotiate}},
  author = {{{{The Parley authors}}}},
  url    = {{{PROJECT}}}
}}
```
"""


def imitated(preset: Preset, game: str) -> str:
    """What the adapter had seen when GRPO began (helpers/warmup.py)."""
    return (
        f" Before GRPO the adapter imitated scripted play for {preset.warmup_steps} supervised steps: **three of four of these "
        f"actions were a competent player's ({expert(game)})**, the others random legal ones; the row *warm start* shows what "
        "that alone is worth."
    )


def expert(game: str) -> str:
    """The name of the game's competent player."""
    return competent_player(game_named(game)).name


def results(summary: Mapping) -> str:
    """The table of the players that hold all seats, what it was made from, and the comparisons in words."""
    first, last = summary["seeds"]
    n = summary["rows"]["trained"]["table payoff"]["n"]
    warm = summary["comparisons"].get("trained_vs_warm")
    against_warm = f"\n- Against the warm start: {verdict(warm)}" if warm else ""
    return f"""{markdown(table(summary["rows"], summary["optimum"]))}

The player holds all seats. {n} held-out seeds ({first} to {last}), the same for every player; mean of an episode with its
95 % interval (percentile bootstrap over seeds). Training seed {summary["seed"]}, commit `{summary["commit"]}`,
{summary["hardware"]}.

- Against random play: {verdict(summary["comparisons"]["trained_vs_random"])}
- Against the untrained base: {verdict(summary["comparisons"]["trained_vs_base"])}{against_warm}
- Share of the attainable, (trained - random) / (optimum - random): {between(summary["share_of_attainable"])}.
- Invalid replies of the trained model: {100 * summary["invalid_reply_rate"]:.1f} % of its turns."""


def markdown(frame: pd.DataFrame) -> str:
    """A frame of text as a Markdown table, its index first."""
    lines = [["player", *frame.columns], ["---"] * (len(frame.columns) + 1), *([name, *row] for name, *row in frame.itertuples())]
    return _lines(lines)


def _lines(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def between(x: Mapping[str, float], unit: str = "") -> str:
    return f"{x['value']:z.2f}{unit} [{x['low']:z.2f}, {x['high']:z.2f}]"


def verdict(comparison: Mapping) -> str:
    """A comparison in words; what it says depends on where its interval lies."""
    if comparison["low"] > 0:
        says = "better, the interval lies above 0."
    elif comparison["high"] < 0:
        says = "**worse**, the interval lies below 0."
    else:
        says = "**no difference shown**, the interval includes 0."
    percent = f" ({between(comparison['percent'], ' %')})" if comparison["percent"] else ""
    return f"{between(comparison)} in mean table payoff{percent}: {says}"


def one_seat(summary: Mapping) -> str:
    """The second table, where a player holds one seat and competent partners the others; empty when it was not measured."""
    if "one_seat" not in summary:
        return ""
    name = expert(summary["game"])
    return f"\nIn one seat, with {name} partners in the others:\n\n{markdown(table(summary['one_seat']))}\n"


def training_seeds(summaries: Sequence[Mapping]) -> str:
    """A table of the trained models of several runs, one a training seed: how far the luck of training carries."""
    columns = [
        "training seed",
        "table payoff",
        "minus random",
        "minus untrained base",
        "share of the attainable",
        "invalid replies",
    ]
    rows = [
        [
            str(summary["seed"]),
            between(summary["rows"]["trained"]["table payoff"]),
            *(between(summary["comparisons"][f"trained_vs_{other}"]) for other in ("random", "base")),
            between(summary["share_of_attainable"]),
            f"{100 * summary['invalid_reply_rate']:.1f} %",
        ]
        for summary in summaries
    ]
    lines = [columns, ["---"] * len(columns), *rows]
    return "\nThe same with other training seeds, on the same deals:\n\n" + _lines(lines) + "\n"


def curve(history: Sequence[Mapping]) -> str:
    """How the training reward moved, said so that nobody takes it for the result."""
    rewards = [entry["reward"] for entry in history if "reward" in entry]
    if not rewards:
        return "No training step was logged."
    tenth = max(len(rewards) // 10, 1)
    start, end = (sum(part) / tenth for part in (rewards[:tenth], rewards[-tenth:]))
    return f"Mean training reward went from {start:z.2f} (first tenth) to {end:z.2f} (last tenth): a signal, not a result."


def transcript(episode: Episode, start: int = 1, stop: int | None = None) -> str:
    """Turns `start` to `stop` (from 1, both included) and the payoffs, one line each; a reply that was not usable is quoted."""
    lines = []
    for number, turn in list(enumerate(episode.turns, 1))[start - 1 : stop]:
        lines.append(f"{number:2} {turn.seat}: {turn.action}")
        if turn.error:
            lines.append(f"      instead of {turn.reply[:80]!r} ({turn.error[:120]})")
    payoffs = ", ".join(f"{seat} {payoff:g}" for seat, payoff in episode.payoffs.items())
    return "\n".join([*lines, f"payoffs at the end: {payoffs}; table {sum(episode.payoffs.values()):g}"])


def middle(episodes: Sequence[Episode]) -> Episode:
    """The episode whose table payoff is the median (the upper one of two): typical, neither lucky nor unlucky."""
    return sorted(episodes, key=lambda episode: sum(episode.payoffs.values()))[len(episodes) // 2]


def excerpt(episodes: Sequence[Episode], length: int = 16) -> str:
    """What a reader of README.md sees of `episodes`: the last `length` turns up to the first build of the middle one (where
    nothing is built, its first `length` turns), and the prompt of the first of them."""
    episode = middle(episodes)
    builds = [i for i, turn in enumerate(episode.turns, 1) if turn.action.startswith("build")]
    stop = min(max(builds[0] if builds else length, length), len(episode.turns))
    start = max(stop - length, 0) + 1
    turn = episode.turns[start - 1]
    return (
        f"Seed {episode.seed}, the episode with the median table payoff; turns {start} to {stop} of {len(episode.turns)}. "
        f"Seat {turn.seat} reads this and answers:\n\n```\n{turn.prompt}\n```\n\n```\n{transcript(episode, start, stop)}\n```"
    )


def filled(text: str, section: str, body: str) -> str:
    """`text` with `body` between the comments `<!-- section: ... -->` and `<!-- end of section -->`. Raises ValueError when
    there is not exactly one such pair."""
    pair = re.compile(rf"(<!-- {section}: [^\n]*-->\n).*?(<!-- end of {section} -->)", re.DOTALL)
    done, found = pair.subn(lambda match: f"{match[1]}{body}\n{match[2]}", text)
    if found != 1:
        raise ValueError(f"expected one `<!-- {section}: ... -->` with its `<!-- end of {section} -->`, found {found}")
    return done


def write_readme(run: Path, readme: Path, others: Sequence[Path] = ()) -> None:
    """Fills the sections `results` and `transcript` of `readme` from a run's summary.json and the trained model's episodes;
    `others` are runs with other training seeds. Raises ValueError when one of them was measured on other deals."""
    summary, *more = [json.loads((each / "summary.json").read_text(encoding="utf-8")) for each in (run, *others)]
    for other, path in zip(more, others, strict=True):
        if (other["game"], other["preset"], other["seeds"]) != (summary["game"], summary["preset"], summary["seeds"]):
            raise ValueError(f"expected game, preset and held-out seeds of {run} in {path}, got others; run it again with them")
    body = results(summary) + "\n" + one_seat(summary) + (training_seeds([summary, *more]) if more else "")
    text = filled(readme.read_text(encoding="utf-8"), "results", body)
    text = filled(text, "transcript", excerpt(load(run / "episodes" / "trained.jsonl")))
    part = readme.with_name(readme.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, readme)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python -m helpers.card RUN README.md [RUN WITH ANOTHER TRAINING SEED ...]")
    write_readme(Path(sys.argv[1]), Path(sys.argv[2]), [Path(each) for each in sys.argv[3:]])
