import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import torch
import yaml
from accelerate import Accelerator
from datasets import Dataset
from transformers import GenerationConfig, GenerationMixin

from helpers import GAMES, grpo, models, rollout
from helpers.card import curve, excerpt, filled, markdown, middle, model_card, one_seat, transcript, verdict, write_readme
from helpers.evaluate import table
from helpers.players import Model
from helpers.presets import preset
from helpers.replies import read
from helpers.rewards import RUBRICS
from helpers.rollout import TEST, Episode, Turn, append, messages_of, play, take
from helpers.saving import save_adapter
from helpers.warmup import EXPERT


def figure(value):
    return {"value": value, "low": value - 0.5, "high": value + 0.5, "n": 200}


def row(payoff, invalid):
    return {"table payoff": figure(payoff), "invalid replies": {"value": invalid, "low": invalid, "high": invalid, "n": 200}}


SUMMARY = {
    "game": "market",
    "preset": "tiny",
    "seed": 5,
    "commit": "c0ffee",
    "hardware": "a laptop",
    "seconds": 600.0,
    "seeds": [2_000_000, 2_000_199],
    "optimum": 24.0,
    "rows": {"random": row(3.25, 0.0), "untrained base": row(4.25, 0.07), "trained": row(9.75, 0.03)},
    "comparisons": {
        "trained_vs_random": {"value": 6.5, "low": 6.0, "high": 7.0, "percent": {"value": 200.0, "low": 150.0, "high": 250.0}},
        "trained_vs_base": {"value": 5.5, "low": -0.1, "high": 6.0, "percent": None},
    },
    "share_of_attainable": {"value": 0.31, "low": 0.28, "high": 0.34},
    "invalid_reply_rate": 0.03,
}
HISTORY = [{"step": i, "reward": i / 10} for i in range(1, 21)] + [{"step": 20, "train_runtime": 9.0}]


@pytest.fixture(scope="module")
def card():
    return model_card(SUMMARY, HISTORY, preset("tiny"))


def test_the_front_matter_is_yaml_with_what_the_hub_reads(card):
    front = yaml.safe_load(card.split("---")[1])
    assert (front["library_name"], front["license"], front["base_model"]) == ("peft", "mit", "parley-tiny-market")
    assert "grpo" in front["tags"]


def test_the_table_holds_every_row_of_the_summary_and_the_optimum(card):
    assert "| random | 3.25 [2.75, 3.75] | 0.0 % [0.0, 0.0] | 200 |" in card
    assert "| trained | 9.75 [9.25, 10.25] | 3.0 % [3.0, 3.0] | 200 |" in card
    assert "| optimum | 24.00 |  |  |" in card


def test_results_carry_n_seeds_training_seed_commit_and_hardware(card):
    for said in (
        "200 held-out seeds (2000000 to 2000199)",
        "Training seed 5",
        "`c0ffee`",
        "a laptop",
        "0.31 [0.28, 0.34]",
        "3.0 % of its",
    ):
        assert said in card


def test_other_figures_make_another_card_and_no_result_of_the_old_one_stays(card):
    rows = {**SUMMARY["rows"], "trained": row(1.5, 0.5)}
    other = model_card({**SUMMARY, "rows": rows, "invalid_reply_rate": 0.5}, HISTORY, preset("tiny"))
    assert "9.75" in card and "9.75" not in other
    assert "1.50 [1.00, 2.00]" in other and "50.0 % of its" in other


def test_a_verdict_follows_the_interval_and_not_the_value():
    assert "better" in verdict({"value": 1, "low": 0.5, "high": 2, "percent": None})
    assert "no difference shown" in verdict({"value": 1, "low": -0.1, "high": 2, "percent": None})
    assert "worse" in verdict({"value": -1, "low": -2, "high": -0.1, "percent": None})


def test_percentages_are_shown_where_there_are_any(card):
    assert "6.50 [6.00, 7.00] in mean table payoff (200.00 % [150.00, 250.00]): better" in card
    assert "5.50 [-0.10, 6.00] in mean table payoff: **no difference shown**" in card


def test_the_card_says_what_the_embedded_base_has_watched(card):
    assert "a quarter were a competent (greedy) trader's" in card
    from_hub = model_card(SUMMARY, HISTORY, replace(preset("tiny"), model="someone/model"))
    assert "base_model: someone/model" in from_hub
    assert "competent (greedy)" not in from_hub


def test_the_card_says_what_a_warm_start_has_watched_and_compares_with_it(card):
    assert "warm start" not in card and EXPERT == 3 / 4
    versus = {"value": 1.25, "low": 0.25, "high": 2.25, "percent": None}
    summary = {**SUMMARY, "comparisons": {**SUMMARY["comparisons"], "trained_vs_warm": versus}}
    warm = model_card(summary, HISTORY, replace(preset("tiny"), warmup_steps=60))
    assert "imitated scripted play for 60 supervised steps: **three of four of these actions were a competent" in warm
    assert "- Against the warm start: 1.25 [0.25, 2.25] in mean table payoff: better, the interval lies above 0.\n" in warm


def test_training_is_described_by_the_preset_and_the_history(card):
    settings = preset("tiny")
    assert f"20 of {settings.steps} steps of {settings.prompts} prompts x {settings.generations}" in card
    # Tenths of 20 steps are two each: (0.1 + 0.2) / 2 = 0.15 and (1.9 + 2.0) / 2 = 1.95.
    assert curve([{"reward": x["reward"]} for x in HISTORY[:20]]).startswith(
        "Mean training reward went from 0.15 (first tenth) to 1.95"
    )
    assert curve([]) == "No training step was logged."


def test_the_cards_example_asks_and_samples_as_training_and_evaluation_do_and_gets_one_action(
    card, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(Path(__file__).parent.parent)
    tiny, game = preset("tiny"), GAMES["market"]
    save_adapter(models.add_adapter(models.load(tiny)[0], tiny, 0), tiny, tmp_path)
    load_with_peft, _, example = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    names = {}
    exec(load_with_peft.replace("ADAPTER", str(tmp_path)), names)
    with torch.random.fork_rng():
        torch.manual_seed(1)  # what models.generator takes for its first call with seed 0
        exec(example, names)
    said = capsys.readouterr().out.strip()
    assert str(read(game, said)) == said

    start = game.deal(SUMMARY["seeds"][0])
    chat = list(messages_of(game, game.view(start, game.turn(start))))
    assert models.generator(*models.load(tiny, tmp_path), tiny)([chat]) == [said]
    trainer = SimpleNamespace(
        model=names["model"],
        model_wrapped=names["model"],
        processing_class=names["tokenizer"],
        num_generations=2,
        eos_token_ids=[2],
        accelerator=Accelerator(cpu=True),
        generation_config=GenerationConfig(max_new_tokens=2, eos_token_id=2, pad_token_id=0),
    )
    assert grpo.sample_groups([chat, chat], trainer, 2)["prompt_ids"][0] == names["inputs"]["input_ids"][0].tolist()
    training, sampling = grpo.settings(game, tiny, RUBRICS["default"], tmp_path, 0, 1, 1), dict(names["settings"])
    assert sampling.pop("do_sample") is True and sampling.pop("max_new_tokens") == training["max_completion_length"]
    assert sampling == {name: training[name] for name in ("temperature", "top_k", "top_p", "repetition_penalty")}


EVALUATION = Path(__file__).parent.parent / "notebooks" / "05_evaluation.ipynb"
DECIDES = ("do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "max_new_tokens")


def test_training_evaluation_the_card_and_the_notebooks_example_ask_sample_and_read_in_the_same_way(tmp_path, monkeypatch):
    """At the first position of a held-out deal: what reaches the model's sampling loop, and what text reaches the parser."""
    game, tiny = GAMES["market"], replace(preset("tiny"), prompts=1, generations=2)
    model, tokenizer = models.load(tiny)
    model, state = models.add_adapter(model, tiny, 0), game.deal(TEST[0])
    seat, chat = game.turn(state), list(messages_of(game, game.view(state, game.turn(state))))
    reply = "  Accept_Trade( t99 ) "
    answer = torch.tensor([*tokenizer(reply, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id])
    sampled, parsed = [], []

    def sample(self, input_ids, logits_processor, stopping_criteria, generation_config, **given):
        settings = {name: getattr(generation_config, name) for name in DECIDES}
        sampled.append((input_ids[0].tolist(), settings, [type(each).__name__ for each in logits_processor]))
        return torch.cat([input_ids, answer.expand(len(input_ids), -1)], 1)

    def reading(game, text):
        parsed.append(text)
        return read(game, text)

    def seen():
        """(what was sampled first, whether the reply reached the parser as it was written)"""
        found = sampled[0], reply in parsed
        sampled.clear()
        parsed.clear()
        return found

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.setattr(GenerationMixin, "_sample", sample)
    monkeypatch.setattr(rollout, "read", reading)

    play(game, TEST[:1], dict.fromkeys(game.seats, Model("trained", models.generator(model, tokenizer, tiny))))
    evaluation = seen()

    [example] = [cell.source for cell in nbformat.read(EVALUATION, 4).cells if "model.generate(" in cell.source]
    names = {"game": game, "preset": tiny, "model": model, "tokenizer": tokenizer, "SEED": 0, "TEST": TEST}
    exec(example, names)
    notebook = seen()

    card = model_card(SUMMARY | {"seeds": [TEST[0], TEST[-1]]}, HISTORY, tiny)
    shown = re.findall(r"```python\n(.*?)```", card, re.DOTALL)[-1]
    exec(shown, names)
    take(game, state, names["reply"])
    from_card = seen()
    same = shown[shown.index("# enable_thinking") :].replace(f"settings = {tiny.sampling}", "settings = preset.sampling")
    assert names["messages"] == chat and same in example + "\n"

    rows = Dataset.from_list([{"prompt": chat, "seed": TEST[0], "actions": [], "seat": seat}])
    rows = rows.with_transform(lambda batch: batch)  # as Rows.dataset: columns as they are
    args = grpo.config(grpo.settings(game, tiny, RUBRICS["default"], tmp_path, 0, 1, 1))
    rewards = grpo.reward_functions(game, RUBRICS["default"])
    grpo.make_trainer(model, tokenizer, tiny, args, rewards, rows, []).train()
    training = seen()

    assert training == evaluation == notebook == from_card
    (ids, settings, processors), was_read = training
    assert was_read and tokenizer.decode(ids).count(chat[-1]["content"]) == 1
    assert settings["temperature"] == tiny.temperature and "TemperatureLogitsWarper" in processors


def test_the_table_of_one_seat_is_there_when_it_was_measured():
    measured = {**SUMMARY, "one_seat": {"trained": {"own payoff": figure(2.0)}}}
    assert "| trained | 2.00 [1.50, 2.50] | 200 |" in one_seat(measured)
    assert one_seat(SUMMARY) == ""


def test_a_markdown_table_has_as_many_cells_in_every_line():
    lines = markdown(table(SUMMARY["rows"], 24)).splitlines()
    assert len(lines) == 2 + 4
    assert {line.count("|") for line in lines} == {5}


def test_code_blocks_are_python_that_compiles_and_unsloth_comes_first(card):
    peft, unsloth, example = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    for block in (peft, unsloth, example):
        compile(block, "card", "exec")
    assert '"helpers/tiny/market"' in peft and '"helpers/tiny/market"' in unsloth
    assert unsloth.startswith("from unsloth")


def test_the_card_cites_grpo_and_this_project(card):
    assert "arXiv:2402.03300" in card and "@software{parley," in card
    assert card.count("```") % 2 == 0


def episode(seed=7, turns=20, builds_at=18, payoff=1.0):
    actions = ["build_project()" if i == builds_at else "pass()" for i in range(1, turns + 1)]
    said = tuple(Turn("ABCD"[i % 4], f"prompt {i + 1}", action, action) for i, action in enumerate(actions))
    return Episode("market", {}, seed, {}, {}, said, dict.fromkeys("ABCD", payoff))


def test_a_transcript_shows_the_turns_asked_for_and_quotes_an_unusable_reply():
    bad = Turn("A", "prompt", "hello", "pass()", "parse: no action found")
    shown = transcript(replace(episode(turns=2, payoff=0.25), turns=(bad, *episode().turns[1:3])), 1, 2)
    assert shown.splitlines() == [
        " 1 A: pass()",
        "      instead of 'hello' (parse: no action found)",
        " 2 B: pass()",
        "payoffs at the end: A 0.25, B 0.25, C 0.25, D 0.25; table 1",
    ]


def test_the_excerpt_is_the_median_episode_and_ends_with_its_first_build():
    episodes = [episode(seed, payoff=payoff) for seed, payoff in ((1, 5.0), (2, 0.0), (3, 1.0))]
    assert middle(episodes).seed == 3
    shown = excerpt(episodes)
    # 16 turns that end at turn 18 begin at turn 3, whose seat is C: A moves first.
    assert "Seed 3" in shown and "turns 3 to 18 of 20" in shown and "Seat C" in shown
    assert shown.splitlines()[-3:-1] == ["18 B: build_project()", "payoffs at the end: A 1, B 1, C 1, D 1; table 4"]
    assert "prompt 3\n" in shown and "turns 1 to 16" in excerpt([episode(builds_at=None)])
    assert "turns 1 to 5 of 5" in excerpt([episode(turns=5, builds_at=None)])  # shorter than what is shown


README = """top
<!-- results: made by a command -->
earlier text
<!-- end of results -->
middle
<!-- transcript: made by a command -->
<!-- end of transcript -->
end
"""


def test_a_section_is_replaced_between_its_comments_and_nothing_else_is_touched():
    done = filled(README, "results", r"new \1")
    assert done == README.replace("earlier text", r"new \1")
    assert filled(done, "results", "earlier text") == README
    with pytest.raises(ValueError, match="expected one `<!-- other: ... -->`.*found 0"):
        filled(README, "other", "")


def test_the_readme_is_filled_from_a_run_and_filling_it_twice_changes_nothing(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))
    append(tmp_path / "episodes" / "trained.jsonl", [episode()])
    readme = tmp_path / "README.md"
    readme.write_text(README)
    write_readme(tmp_path, readme)
    once = readme.read_text()
    assert "| trained | 9.75 [9.25, 10.25]" in once and "18 B: build_project()" in once and "earlier text" not in once
    write_readme(tmp_path, readme)
    assert readme.read_text() == once


def test_the_readme_of_this_repository_has_the_sections_that_a_run_fills():
    text = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    for section in ("results", "transcript"):
        assert "filled in" in filled(text, section, "filled in")


def test_runs_with_other_training_seeds_stand_in_a_table_and_must_have_played_the_same_deals(tmp_path):
    run, other, elsewhere = (tmp_path / name for name in ("run", "other", "elsewhere"))
    append(run / "episodes" / "trained.jsonl", [episode()])
    for folder, change in ((run, {}), (other, {"seed": 6, "invalid_reply_rate": 0.125}), (elsewhere, {"seeds": [0, 199]})):
        folder.mkdir(exist_ok=True)
        (folder / "summary.json").write_text(json.dumps(SUMMARY | change))
    readme = tmp_path / "README.md"
    readme.write_text(README)
    write_readme(run, readme, [other])
    for seed, invalid in ((5, "3.0 %"), (6, "12.5 %")):
        line = f"| {seed} | 9.75 [9.25, 10.25] | 6.50 [6.00, 7.00] | 5.50 [-0.10, 6.00] | 0.31 [0.28, 0.34] | {invalid} |"
        assert line in readme.read_text()
    with pytest.raises(ValueError, match="elsewhere"):
        write_readme(run, readme, [elsewhere])
