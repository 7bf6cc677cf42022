"""Turn-level GRPO: rows where the reply matters, one judgement for all terms, a short training that moves the adapter only,
and runs that were killed or ran out of time and still end where an undisturbed one does."""

import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from transformers import GenerationConfig, GenerationMixin

from helpers import checkpoints, grpo
from helpers.game import replay
from helpers.games.bargaining import Bargaining
from helpers.games.market import AcceptTrade, BuildProject, Market
from helpers.models import add_adapter, generator, load
from helpers.players import Model, competent, mixed_player
from helpers.preflight import PreflightError
from helpers.presets import PRESETS, preset
from helpers.rewards import RUBRICS, TERMS, Rubric, Term, judge
from helpers.rollout import TEST, TRAIN, messages_of, play, prompts_of

GAME, RUBRIC = Market(), RUBRICS["default"]
SHORT = Market(rounds=3)
TINY = replace(preset("tiny"), prompts=2, generations=4, refresh=1, learning_rate=1e-3, max_new_tokens=24)
STEPS = 4


def trained(run: Path, game=SHORT, preset=TINY, rubric=RUBRIC, steps=STEPS, **settings):
    """A short training without preflight, whose verdict on so few replies would be a matter of luck."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grpo, "preflight", lambda *args: None)
        return grpo.train(game, preset, rubric, run, steps=steps, save_steps=2, **settings)


def mixed_games(seeds):
    return play(GAME, seeds, dict.fromkeys(GAME.seats, mixed_player(GAME)))


def random_play(step: int):
    """In place of the policy: answers every chat at `step` with some action, good or bad."""
    rng = Random(step)
    return lambda chats: [rng.choice(("pass()", "accept_trade(t1)", "propose_trade(B, {Iron: 1}, {Coal: 1})")) for _ in chats]


def rows_in(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "rows.jsonl").read_text().splitlines()]


def assert_same_end(run: Path, other: Path):
    """Both runs ended at the same adapter, from the same rows."""
    first, second = (load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (run, other))
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], rtol=0, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
    assert rows_in(run) == rows_in(other)


# rows


def test_rows_are_exactly_the_points_where_a_competent_action_earns_more_than_idling():
    # Under this rubric only a trade or a build earns anything at once, so these are the points where greedy accepts or builds.
    rubric = Rubric("deals", {"card_environment": 1.0})
    episodes = mixed_games(TRAIN[:4])
    expected = []
    for episode in episodes:
        for at in range(len(episode.turns)):
            state = replay(GAME, episode.seed, episode.actions[:at])
            action = competent(GAME)(GAME.view(state, GAME.turn(state)), Random(0))
            if isinstance(action, AcceptTrade | BuildProject):
                expected.append((episode.seed, episode.actions[:at]))
    found = [(row["seed"], row["actions"]) for row in grpo.rows_of(GAME, rubric, episodes)]
    assert found == expected and 0 < len(found) < sum(len(episode.turns) for episode in episodes) / 2


def test_a_move_that_costs_something_makes_its_position_a_row_where_a_competent_action_would_have_cost_nothing():
    rubric = Rubric("own", {"own": 1.0})
    harmful, only_so = 0, 0
    for episode in mixed_games(TRAIN[:8]):
        rows = [row["actions"] for row in grpo.rows_of(GAME, rubric, [episode])]
        for at, turn in enumerate(episode.turns):
            before = episode.actions[:at]
            state = replay(GAME, episode.seed, before)
            right = str(competent(GAME)(GAME.view(state, turn.seat), Random(f"{GAME.name}/{episode.seed}/{at}")))
            cost, gain = (rubric.reward(j) for j in judge(GAME, episode.seed, before, [turn.action, right]))
            if turn.kind == "accept_trade" and cost < min(0, gain):
                assert before in rows
                idled = replace(episode, turns=(*episode.turns[:at], replace(turn, reply="pass()", action="pass()")))
                harmful += 1
                only_so += before not in [row["actions"] for row in grpo.rows_of(GAME, rubric, [idled])]
    assert harmful > only_so > 0


def test_where_only_the_form_is_paid_for_the_rows_are_exactly_the_points_where_the_reply_was_no_legal_action():
    episodes = play(GAME, TRAIN[:4], dict.fromkeys(GAME.seats, Model("random", random_play(0))))
    found = [(row["seed"], row["actions"]) for row in grpo.rows_of(GAME, Rubric("form only", {"form": 1.0}), episodes)]
    expected = [(e.seed, e.actions[:at]) for e in episodes for at, turn in enumerate(e.turns) if turn.error]
    assert found == expected and 0 < len(found) < sum(len(episode.turns) for episode in episodes)


def test_for_each_row_that_matters_a_share_of_the_other_points_is_drawn_and_none_where_nothing_matters():
    episodes = mixed_games(TRAIN[:4])
    points = [(episode.seed, episode.actions[:at]) for episode in episodes for at in range(len(episode.turns))]
    rows, more = ([(row["seed"], row["actions"]) for row in grpo.rows_of(GAME, RUBRIC, episodes, share)] for share in (0, 0.25))
    others = more[len(rows) :]
    assert more[: len(rows)] == rows and len(others) == round(len(rows) / 4)
    assert all(point in points and point not in rows for point in others) and len(set(map(str, others))) == len(others)
    assert sorted(map(str, points)) == sorted(str((r["seed"], r["actions"])) for r in grpo.rows_of(GAME, RUBRIC, episodes, 99))
    assert grpo.rows_of(GAME, Rubric("nothing", {"form": 0.0}), episodes, 1.0) == []


def test_a_rows_prompt_is_what_evaluation_shows_at_that_decision_point():
    episodes = mixed_games(TRAIN[:2])
    rows = grpo.rows_of(GAME, RUBRIC, episodes)
    assert len(rows) > 20
    prompts = {(e.seed, at): (e.system[t.seat], t.prompt) for e in episodes for at, t in enumerate(e.turns)}
    for row in rows:
        state = replay(GAME, row["seed"], row["actions"])
        assert GAME.turn(state) == row["seat"]
        assert row["prompt"] == list(messages_of(GAME, GAME.view(state, row["seat"])))
        assert tuple(message["content"] for message in row["prompt"]) == prompts[row["seed"], len(row["actions"])]


def test_rows_are_filled_for_every_batch_that_the_trainer_fetches_before_the_next_refresh(tmp_path):
    preset = replace(TINY, refresh=3)
    rows = grpo.Rows(GAME, RUBRIC, preset, 0, random_play, tmp_path / "rows.jsonl", None)
    for step in (0, 3, 6):
        if step:
            rows.fill(step)
        # After step s the next refresh is at s + 3; by then s + 3 batches have been used and one more has been fetched.
        assert len(rows.rows) == (step + 3 + 1) * preset.prompts
        assert [row["made_at"] for row in rows.rows].count(step) > 0
    assert rows_in(tmp_path) == rows.rows
    assert all(row["seed"] in TRAIN for row in rows.rows)
    fetched = rows.dataset(steps=9)
    assert len(fetched) == 9 * preset.prompts
    for at in (0, 7, 17):
        assert fetched[at] == {column: rows.rows[at][column] for column in ("prompt", "seed", "actions", "seat")}


def test_the_same_seed_gives_the_same_rows_and_another_seed_others(tmp_path):
    made = [grpo.Rows(GAME, RUBRIC, TINY, seed, random_play, tmp_path / "rows.jsonl", None).rows for seed in (0, 0, 1)]
    assert made[0] == made[1] != made[2]


def test_a_resumed_run_keeps_the_rows_made_by_its_checkpoint_and_drops_later_and_torn_ones(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = grpo.Rows(GAME, RUBRIC, TINY, 0, random_play, path, None)
    rows.fill(1)
    until_1 = list(rows.rows)
    rows.fill(2)
    until_2 = list(rows.rows)
    with open(path, "a") as file:
        file.write('{"made_at": 3, "seed": 12')  # killed while writing
    resumed = grpo.Rows(GAME, RUBRIC, TINY, 0, random_play, path, 1)
    assert resumed.rows == until_1 and rows_in(tmp_path) == until_1
    resumed.fill(2)
    assert resumed.rows == until_2 and rows_in(tmp_path) == until_2


def test_a_rubric_under_which_nothing_beats_idling_is_refused_instead_of_searching_rows_for_ever(tmp_path, monkeypatch):
    calls = []

    def counted(game, seeds, players):
        calls.append(seeds)
        assert len(calls) < 300, "still searching"
        return play(game, seeds, players)

    monkeypatch.setattr(grpo, "play", counted)
    with pytest.raises(PreflightError, match="rubric nothing"):
        grpo.Rows(SHORT, Rubric("nothing", {"form": 0.0}), TINY, 0, random_play, tmp_path / "rows.jsonl", None)


def test_in_a_game_with_chat_memory_a_rows_prompt_is_the_chat_until_then():
    game = Bargaining()
    episodes = play(game, TRAIN[:12], dict.fromkeys(game.seats, mixed_player(game)))
    rows = grpo.rows_of(game, RUBRIC, episodes)
    shown = {(e.seed, at): prompt for e in episodes for at, prompt in enumerate(prompts_of(game, e))}
    assert all(row["prompt"] == list(shown[row["seed"], len(row["actions"])]) for row in rows)
    assert {len(row["prompt"]) for row in rows} == {2, 4, 6, 8}  # the openings of both sides and their later turns
    assert all(game.turn(replay(game, row["seed"], row["actions"])) == row["seat"] for row in rows)


# reward functions


def completions_of(replies):
    return [[{"role": "assistant", "content": reply}] for reply in replies]


@pytest.fixture(scope="module")
def groups():
    """Two groups of three replies, at two decision points, as TRL hands them over; and their judgements."""
    rows = grpo.rows_of(GAME, RUBRIC, mixed_games(TRAIN[:1]))
    rows, replies = [rows[0], rows[-1]], ["pass()", "accept_trade(t99)", "form_coalition([A, B, C, D], share goods)"] * 2
    columns = {name: [row[name] for row in rows for _ in range(3)] for name in ("seed", "actions")}
    judgements = [j for row in rows for j in judge(GAME, row["seed"], row["actions"], replies[:3])]
    return {"prompts": None, "completions": completions_of(replies), **columns}, judgements


def test_there_is_one_reward_function_for_each_term_named_after_it_and_it_gives_that_terms_values(groups):
    asked, judgements = groups
    for rubric in RUBRICS.values():
        functions = grpo.reward_functions(GAME, rubric)
        assert [function.__name__ for function in functions] == list(rubric.weights)
        values = {function.__name__: function(**asked, trainer_state=None) for function in functions}
        assert values == {name: [rubric.terms(j)[name] for j in judgements] for name in rubric.weights}
    assert any(any(column) for column in values.values())


def test_one_judgement_of_each_reply_serves_all_terms_and_new_replies_are_judged_anew(groups, monkeypatch):
    asked, _ = groups
    judged = []

    def counted(game, seed, actions, replies):
        judged.extend(replies)
        return judge(game, seed, actions, replies)

    monkeypatch.setattr(grpo, "judge", counted)
    functions = grpo.reward_functions(GAME, RUBRIC)
    for function in functions:
        function(**asked)
    assert len(functions) == 3 and judged == [completion[0]["content"] for completion in asked["completions"]]
    again = asked | {"completions": completions_of(["nonsense"] * 6)}
    assert functions[0](**again) == [-1.0] * 6 and judged[6:] == ["nonsense"] * 6


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_reward_that_is_not_finite_stops_the_run_and_names_the_term(groups, monkeypatch, value):
    asked, _ = groups
    monkeypatch.setitem(TERMS, "own", Term("own", -1, 1, "broken", lambda judgement: value))
    [reward] = grpo.reward_functions(GAME, Rubric("broken", {"own": 1.0}))
    with pytest.raises(ValueError, match="term own.*not finite"):
        reward(**asked)


# the monitor


def monitor_and_state(**settings):
    filled = []
    rows = SimpleNamespace(preset=replace(TINY, refresh=2), fill=filled.append)
    monitor = grpo.Monitor(rows, **{"progress": None} | settings)
    return monitor, SimpleNamespace(global_step=0, max_steps=100, log_history=[], is_world_process_zero=True), filled


def logs(**values):
    return {"reward": 0.1, "frac_reward_zero_std": 0.0} | values


def test_an_adapter_that_does_not_move_stops_the_run():
    monitor, state, _ = monitor_and_state()
    model = torch.nn.Linear(2, 2)
    monitor.on_train_begin(None, state, None, model=model)
    with pytest.raises(RuntimeError, match="adapter has not changed"):
        for state.global_step in range(1, 20):
            monitor.on_step_end(None, state, None, model=model)


def test_an_adapter_that_moves_lets_the_run_go_on_and_rows_are_refreshed_at_intervals():
    monitor, state, filled = monitor_and_state()
    state.max_steps = 8
    model = torch.nn.Linear(2, 2)
    monitor.on_train_begin(None, state, None, model=model)
    for state.global_step in range(1, 9):
        torch.nn.init.constant_(model.weight, state.global_step)
        monitor.on_step_end(None, state, None, model=model)
    assert filled == [2, 4, 6]  # not at the last step: no one would see those rows


def test_rewards_that_tie_in_every_group_for_too_long_stop_the_run_but_not_with_a_difference_in_between():
    monitor, state, _ = monitor_and_state()
    for tied in [1.0] * (monitor.PATIENCE - 1) + [0.5] + [1.0] * (monitor.PATIENCE - 1):
        monitor.on_log(None, state, None, logs=logs(frac_reward_zero_std=tied))
    with pytest.raises(RuntimeError, match="no longer tells replies apart"):
        monitor.on_log(None, state, None, logs=logs(frac_reward_zero_std=1.0))


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_logged_reward_that_is_not_finite_stops_the_run(reward):
    monitor, state, _ = monitor_and_state()
    with pytest.raises(RuntimeError, match=f"reward is {reward}"):
        monitor.on_log(None, state, None, logs=logs(reward=reward))


def test_progress_is_told_after_every_step_by_the_main_process_and_not_of_other_logs():
    seen = []
    monitor, state, _ = monitor_and_state(progress=seen.append)
    monitor.on_log(None, state, None, logs={"train_runtime": 1.0})
    monitor.on_log(None, state, None, logs=logs())
    assert seen == [state.log_history]
    state.is_world_process_zero = False
    monitor.on_log(None, state, None, logs=logs())
    assert len(seen) == 1


# training


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("undisturbed"))


def test_training_moves_the_adapter_and_leaves_every_base_weight_bitwise_as_it_was(undisturbed):
    base, _ = load(TINY)
    fresh = {name: p for name, p in add_adapter(load(TINY)[0], TINY, 0).named_parameters() if p.requires_grad}
    now = undisturbed.model.base_model.model.state_dict()
    kept = {name.replace(".base_layer", ""): tensor for name, tensor in now.items() if "lora_" not in name}
    assert kept.keys() == base.state_dict().keys()
    assert all(torch.equal(tensor, kept[name]) for name, tensor in base.state_dict().items())
    after = {name: p for name, p in undisturbed.model.named_parameters() if "lora_" in name}
    assert fresh.keys() == after.keys() and fresh.keys() - {n for n in fresh if torch.equal(fresh[n], after[n])}


def test_groups_that_are_sampled_a_few_at_once_stay_in_the_order_of_their_prompts():
    model, tokenizer = load(TINY)
    stop, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    trainer = SimpleNamespace(
        processing_class=tokenizer,
        num_generations=2,
        eos_token_ids=[stop],
        model=model,
        model_wrapped=model,
        accelerator=Accelerator(cpu=True),
        generation_config=GenerationConfig(do_sample=False, max_new_tokens=24, eos_token_id=stop, pad_token_id=pad),
    )
    chats = [row["prompt"] for row in grpo.rows_of(GAME, RUBRIC, mixed_games(TRAIN[:2]))[::5]]
    few, all_at_once = (grpo.sample_groups([chat for chat in chats for _ in range(2)], trainer, batch) for batch in (4, 100))
    alone = generator(model, tokenizer, replace(TINY, temperature=1e-6, max_new_tokens=24))(chats)
    assert len(set(alone)) > 3 and few == all_at_once
    for ids, text in zip(few["completion_ids"], [text for text in alone for _ in range(2)], strict=True):
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
    for ids, chat in zip(few["prompt_ids"], [chat for chat in chats for _ in range(2)], strict=True):
        assert tokenizer.decode(ids) == tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)


def test_a_sampled_reply_ends_with_the_first_of_the_models_stop_ids_and_without_padding(monkeypatch):
    model, tokenizer = load(TINY)
    answers = torch.tensor([[7, 2, 0, 0], [7, 8, 0, 0], [7, 8, 9, 9]])  # 0 pads and stops, as <|endoftext|> does with Qwen
    monkeypatch.setattr(GenerationMixin, "_sample", lambda self, ids, *args, **given: torch.cat([ids, answers], 1))
    trainer = SimpleNamespace(
        processing_class=tokenizer,
        num_generations=3,
        eos_token_ids=[2, 0],
        model=model,
        model_wrapped=model,
        accelerator=Accelerator(cpu=True),
        generation_config=GenerationConfig(max_new_tokens=4, eos_token_id=[2, 0], pad_token_id=0),
    )
    chat = list(messages_of(GAME, GAME.view(GAME.deal(TEST[0]), "A")))
    assert grpo.sample_groups([chat] * 3, trainer, 3)["completion_ids"] == [[7, 2], [7, 8, 0], [7, 8, 9, 9]]


@pytest.mark.parametrize("parts", [1, 3])
def test_log_probabilities_over_one_reading_of_a_groups_prompt_are_those_of_trl(parts, tmp_path, monkeypatch):
    seen = []

    def both(self, model, ids, mask, kept, **options):
        shared = original(self, model, ids, mask, kept, **options)
        alone = grpo.GRPOTrainer._full_logits_logps(self, model, ids, mask, kept, **options)
        real = mask[:, -kept:].bool()
        seen.append((shared[0].requires_grad, real.float().mean().item(), mask[:, :-kept].float().mean().item()))
        for mine, theirs in zip(shared[:2], alone[:2], strict=True):
            torch.testing.assert_close(mine[real], theirs[real], rtol=0, atol=1e-4)
        return shared

    original = grpo.GroupTrainer._full_logits_logps
    monkeypatch.setattr(grpo.GroupTrainer, "_full_logits_logps", both)
    trained(tmp_path, preset=replace(TINY, prompts=3, accumulate=parts))
    grads, replies, prompts = zip(*seen, strict=True)
    assert len(seen) == STEPS * parts and all(grads)
    assert min(replies) < 1 and min(prompts) < 1  # padding on both sides was among them


def group_of_replies(size=3):
    """(ids, mask, ids of a reply): `size` replies to each of two prompts of unlike length, padded and shuffled as TRL does."""
    prompts, replies = ([5] * 40, [6] * 25), torch.randint(3, 400, (2 * size, 12), generator=torch.Generator().manual_seed(0))
    rows = [[0] * (40 - len(prompt)) + prompt for prompt in prompts for _ in range(size)]
    ids = torch.cat([torch.tensor(rows), replies], 1)
    mask = (ids != 0).long()
    mask[1, -5:] = mask[4, -2:] = 0
    order = torch.tensor([3, 0, 4, 1, 5, 2])
    return ids[order], mask[order], 12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_log_probabilities_and_sampling_work_in_half_precision_as_on_a_gpu(dtype):
    base, tokenizer = load(TINY)
    model = add_adapter(base.to(dtype), TINY, 0)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    ids, mask, kept = group_of_replies()
    trainer = SimpleNamespace(num_generations=3, temperature=0.7)
    logps, entropies, _ = grpo.GroupTrainer._full_logits_logps(trainer, model, ids, mask, kept, compute_entropy=True)
    expected, spread, _ = grpo.GroupTrainer._full_logits_logps(trainer, load(TINY)[0], ids, mask, kept, compute_entropy=True)
    real = mask[:, -kept:].bool()
    # bfloat16 keeps 8 significant bits, so logits of about 10 are known to about 0.04.
    torch.testing.assert_close(logps.float()[real], expected[real], rtol=0.02, atol=0.2)
    torch.testing.assert_close(entropies.float()[real], spread[real], rtol=0.02, atol=0.2)
    logps[real].sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)
    trainer = SimpleNamespace(
        processing_class=tokenizer,
        num_generations=3,
        eos_token_ids=[2],
        accelerator=Accelerator(cpu=True),
        model=model,
        model_wrapped=model,
        generation_config=GenerationConfig(do_sample=True, max_new_tokens=16, eos_token_id=2, pad_token_id=0),
    )
    prompts = [list(messages_of(GAME, GAME.view(GAME.deal(seed), "A"))) for seed in TEST[:2] for _ in range(3)]
    said = tokenizer.batch_decode(grpo.sample_groups(prompts, trainer, 32)["completion_ids"])
    assert len(said) == 6 and sum("(" in reply for reply in said) >= 3  # it still writes actions


@pytest.mark.slow
def test_training_in_bfloat16_moves_a_float32_adapter(tmp_path):
    result = trained(tmp_path, preset=replace(TINY, dtype="bfloat16"), steps=2)
    adapter = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in adapter.values()} == {torch.float32}
    assert result.model.dtype == torch.bfloat16 and any(t.any() for name, t in adapter.items() if "lora_B" in name)


@pytest.mark.slow
@pytest.mark.parametrize("changed", [{"accumulate": 2}, {"checkpointing": True}], ids=["in two parts", "checkpointing"])
def test_a_step_that_saves_memory_learns_what_a_plain_one_does(changed, tmp_path):
    ends = []
    for name, fields in {"plain": {}, "changed": changed}.items():
        result = trained(tmp_path / name, preset=replace(TINY, refresh=2, max_new_tokens=16, **fields), steps=2)
        assert [entry["step"] for entry in result.history if "reward" in entry] == [1, 2]
        ends.append(load_file(tmp_path / name / "adapter" / "adapter_model.safetensors"))
    assert any(tensor.any() for name, tensor in ends[0].items() if "lora_B" in name)
    for name in ends[0]:
        torch.testing.assert_close(ends[1][name], ends[0][name], rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("preset", "trainer", "rollout"),
    [
        (TINY, "GroupTrainer", grpo.sample_groups),
        (PRESETS["t4-fallback"], "GroupTrainer", grpo.sample_groups),
        (PRESETS["t4"], "GRPOTrainer", None),
        (replace(PRESETS["l4"], vllm=True), "GRPOTrainer", None),
    ],
)
def test_prompts_are_shared_and_unsloth_and_vllm_sample_in_their_own_way(preset, trainer, rollout, monkeypatch):
    called = []

    def stand_in(name):
        def build(rollout_func, **given):
            called.append((name, rollout_func and rollout_func.func))
            args = SimpleNamespace(per_device_train_batch_size=preset.micro_batch)
            return SimpleNamespace(args=args, remove_callback=lambda callback: None)

        return build

    for name in ("GroupTrainer", "GRPOTrainer"):
        monkeypatch.setattr(grpo, name, stand_in(name))
    grpo.make_trainer(torch.nn.Linear(1, 1), None, preset, None, [], None, [])
    assert called == [(trainer, rollout)]


def test_a_batch_that_the_trainer_changed_is_refused(monkeypatch):
    monkeypatch.setattr(
        grpo, "GroupTrainer", lambda **given: SimpleNamespace(args=SimpleNamespace(per_device_train_batch_size=6))
    )
    with pytest.raises(RuntimeError, match=f"expected batches of {TINY.micro_batch}, the trainer made it 6"):
        grpo.make_trainer(None, None, TINY, None, [], None, [])


def test_the_history_has_a_curve_for_every_term_and_is_saved(undisturbed):
    steps = [entry for entry in undisturbed.history if "reward" in entry]
    assert [entry["step"] for entry in steps] == [1, 2, 3, 4]
    for entry in steps:
        means = {name: entry[f"rewards/{name}/mean"] for name in RUBRIC.weights}
        assert entry["reward"] == pytest.approx(sum(RUBRIC.weights[name] * mean for name, mean in means.items()), abs=1e-6)
    assert json.loads((undisturbed.run / "history.json").read_text()) == undisturbed.history


def test_the_model_is_usable_right_after_training_and_answers_as_its_saved_adapter_does(undisturbed):
    assert undisturbed.stopped is None and not undisturbed.model.training
    chats = [messages_of(GAME, GAME.view(state, "A")) for state in map(GAME.deal, TEST[:8])]
    said = generator(undisturbed.model, undisturbed.tokenizer, TINY)(chats)
    assert all(reply.strip() for reply in said)
    assert generator(*load(TINY, undisturbed.run / "adapter"), TINY)(chats) == said


def test_training_saw_the_rows_of_its_file_made_at_every_refresh(undisturbed):
    rows = rows_in(undisturbed.run)
    assert [row["made_at"] for row in rows] == [0, 0, 0, 0, 1, 1, 2, 2, 3, 3]  # 2 prompts a step, one batch ahead
    assert all(row["seed"] in TRAIN for row in rows)


@pytest.mark.slow
def test_a_run_killed_within_a_step_goes_on_by_itself_from_its_last_checkpoint_and_ends_where_an_undisturbed_one_does(
    undisturbed, tmp_path, capsys
):
    code = """
import os, signal, sys
from pathlib import Path
from test_grpo import grpo, trained

def after_step_3(history):
    if history[-1]["step"] == 3:  # the next that is judged are the replies of step 4
        grpo.judge = lambda *given: os.kill(os.getpid(), signal.SIGKILL)

trained(Path(sys.argv[1]), progress=after_step_3)
"""
    top, tests = Path(__file__).parents[1], Path(__file__).parent
    setup = f"import sys; sys.path[:0] = [{str(tests)!r}, {str(top)!r}]\n"
    killed = subprocess.run([sys.executable, "-c", setup + code, str(tmp_path)], cwd=top, capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    assert [path.name for path in (tmp_path / "checkpoints").glob("checkpoint-*")] == ["checkpoint-2"]
    assert {row["made_at"] for row in rows_in(tmp_path)} == {0, 1, 2, 3} and not (tmp_path / "adapter").exists()
    resumed = trained(tmp_path)
    assert f"going on with the run in {tmp_path} from step 2 of 4\n" in capsys.readouterr().out
    assert_same_end(tmp_path, undisturbed.run)
    assert [entry["step"] for entry in resumed.history if "reward" in entry] == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_time_budget_stops_cleanly_says_how_to_go_on_and_resuming_finishes_the_run(undisturbed, tmp_path):
    stopped = trained(tmp_path, budget_s=0)
    assert "time budget" in stopped.stopped and "step 1" in stopped.stopped and "resume" in stopped.stopped
    assert (tmp_path / "checkpoints" / "checkpoint-1").is_dir() and (tmp_path / "adapter").is_dir()
    assert not stopped.model.training
    assert trained(tmp_path).stopped is None
    assert_same_end(tmp_path, undisturbed.run)


class Begins(Exception):
    """Training would begin."""


def begun(run: Path, monkeypatch, **settings):
    """The checkpoint with which training in `run` would begin; None: afresh."""
    began = []

    def trainer(*args):
        raise Begins

    rows = grpo.Rows
    monkeypatch.setattr(grpo, "make_trainer", trainer)
    monkeypatch.setattr(grpo, "Rows", lambda *args: began.append(args[-1]) or rows(*args))
    with pytest.raises(Begins):
        trained(run, **settings)
    return began[0]


def copy_of(run: Path, there: Path, last: int):
    """A copy of `run` as if it had been stopped at step `last`."""
    shutil.copytree(run, there)
    history = json.loads((run / "history.json").read_text())
    (there / "history.json").write_text(json.dumps([entry for entry in history if entry["step"] <= last]))
    for checkpoint in (there / "checkpoints").glob("checkpoint-*"):
        if checkpoints.step_of(checkpoint) > last:
            shutil.rmtree(checkpoint)
    return there


def test_an_unfinished_run_is_gone_on_with_and_a_finished_one_begins_afresh_unless_resuming_is_asked_for(
    undisturbed, tmp_path, monkeypatch, capsys
):
    unfinished, finished = (copy_of(undisturbed.run, tmp_path / str(last), last) for last in (2, 4))
    assert begun(unfinished, monkeypatch) == 2 and "from step 2 of 4" in capsys.readouterr().out
    assert begun(copy_of(finished, tmp_path / "asked for", 4), monkeypatch, resume=True) == 4
    capsys.readouterr()
    assert begun(finished, monkeypatch) is None and "going on" not in capsys.readouterr().out
    assert not (finished / "checkpoints").exists()


def test_a_second_run_that_was_killed_is_gone_on_with_though_the_log_of_the_first_is_whole(undisturbed, tmp_path, monkeypatch):
    second = copy_of(undisturbed.run, tmp_path / "second", 2)
    shutil.copy(undisturbed.run / "history.json", second)
    assert begun(second, monkeypatch) == 2


def test_a_run_killed_after_its_last_checkpoint_but_before_its_adapter_was_saved_loses_nothing(
    undisturbed, tmp_path, monkeypatch
):
    killed = copy_of(undisturbed.run, tmp_path / "killed", 4)
    (killed / "history.json").unlink()  # which is written after the adapter
    assert begun(killed, monkeypatch) == 4


def test_an_unfinished_run_of_an_earlier_kaggle_session_is_taken_up_from_the_inputs_and_others_are_not(
    undisturbed, tmp_path, monkeypatch, capsys
):
    inputs = tmp_path / "input"
    monkeypatch.setattr(checkpoints, "INPUTS", inputs)
    copy_of(undisturbed.run, inputs / "a" / "finished", 4)
    (inputs / "b").mkdir()
    (inputs / "b" / "training.json").write_text("no JSON")
    assert begun(tmp_path / "1", monkeypatch) is None
    copy_of(undisturbed.run, inputs / "notebooks" / "parley-grpo-training" / "runs" / "latest", 2)
    assert begun(tmp_path / "2", monkeypatch, seed=1) is None  # made from other settings
    assert begun(tmp_path / "3", monkeypatch) == 2
    said = capsys.readouterr().out
    assert "taking up the run of an earlier session" in said and "from step 2 of 4" in said
    assert (tmp_path / "3" / "checkpoints" / "checkpoint-2" / "adapter_model.safetensors").exists()


def test_a_checkpoint_is_kept_at_least_ten_times_a_run_and_every_50_steps(tmp_path, monkeypatch):
    kept = []

    def note(keywords):
        kept.append(keywords["save_steps"])
        raise Begins

    monkeypatch.setattr(grpo, "config", note)
    monkeypatch.setattr(grpo, "preflight", lambda *args: None)
    for steps in (4, 200, 600):
        with pytest.raises(Begins):
            grpo.train(SHORT, TINY, RUBRIC, tmp_path / str(steps), steps=steps)
    assert kept == [1, 20, 50]


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"steps": STEPS + 1},
        {"preset": replace(TINY, learning_rate=2e-3)},
        {"rubric": Rubric("default", {**RUBRIC.weights, "table": 0.0})},
        {"game": Market(rounds=4)},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_folder_that_holds_a_run_with_other_settings_is_an_error_that_changes_nothing(undisturbed, other, resume):
    before = {path: path.stat().st_mtime_ns for path in undisturbed.run.rglob("*")}
    with pytest.raises(ValueError, match="run with other settings"):
        trained(undisturbed.run, resume=resume, **other)
    assert {path: path.stat().st_mtime_ns for path in undisturbed.run.rglob("*")} == before


def test_a_run_refused_by_preflight_trains_nothing(tmp_path, monkeypatch):
    def refuse(*args):
        raise PreflightError("this run can not learn")

    monkeypatch.setattr(grpo, "preflight", refuse)
    with pytest.raises(PreflightError, match="can not learn"):
        grpo.train(SHORT, TINY, RUBRIC, tmp_path, steps=STEPS)
    assert not (tmp_path / "adapter").exists() and not (tmp_path / "checkpoints").exists()


def test_a_checkpoint_that_a_kill_cut_off_is_passed_over(tmp_path):
    assert checkpoints.last_checkpoint(tmp_path) is None
    for step, state in ((50, "{}"), (100, "{}"), (150, '{"global_st'), (200, None)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if state:
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    assert checkpoints.last_checkpoint(tmp_path) == tmp_path / "checkpoint-100"


def test_a_new_run_in_a_used_folder_does_not_go_on_from_checkpoints_of_which_nobody_knows_what_made_them(tmp_path, monkeypatch):
    old = tmp_path / "checkpoints" / "checkpoint-1"
    old.mkdir(parents=True)
    (old / "trainer_state.json").write_text("{}")
    monkeypatch.setattr(grpo, "preflight", lambda *args: None)
    monkeypatch.setattr(grpo, "GroupTrainer", None)  # calling it ends the run where training would begin
    with pytest.raises(TypeError):
        grpo.train(SHORT, TINY, RUBRIC, tmp_path, steps=STEPS)
    assert not old.exists()


@pytest.mark.slow
def test_a_reward_for_doing_something_makes_idling_rarer_within_a_few_steps(tmp_path, monkeypatch):
    monkeypatch.setitem(TERMS, "own", Term("own", 0, 1, "1 for anything but pass()", lambda j: float(j.reply != "pass()")))
    preset = replace(TINY, prompts=4, generations=8, refresh=20, learning_rate=1e-2)
    result = trained(tmp_path, preset=preset, rubric=Rubric("busy", {"own": 1.0}), steps=10)
    chats = [row["prompt"] for row in grpo.rows_of(GAME, RUBRIC, mixed_games(TEST[:2]))]

    def idle(adapter):
        said = generator(result.model, result.tokenizer, preset, adapter=adapter)(chats)
        return said.count("pass()") / len(said)

    assert len(chats) > 40 and idle(adapter=True) < idle(adapter=False) / 2
