"""Self-play: joint episodes as rows of one trainer, opponents drawn from seeds, losses as the arms say, and only what the policy
wrote is learned from. On a toy game, in which passing pays."""

import json
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from peft import PeftModel
from safetensors.torch import load_file
from test_models import with_adapter
from toy import Chatter

from helpers import selfplay
from helpers.chats import ChatPlayer
from helpers.games.bargaining import Bargaining
from helpers.games.market import Market
from helpers.grpo import config, settings
from helpers.guards import GUARDS
from helpers.models import load
from helpers.players import SCRIPTED, Scripted
from helpers.preflight import PreflightError
from helpers.presets import preset
from helpers.rewards import EPISODE_TERMS, SELF_PLAY, TERMS, Rubric, Term
from helpers.rollout import TEST, TRAIN, Episode, Turn, messages_of, play
from helpers.saving import save_adapter
from helpers.selfplay import ARMS, Arm, draw, rank_scores

GAME = Chatter()
TINY = replace(preset("tiny"), prompts=4, generations=4, learning_rate=1e-3, max_new_tokens=16)
ALMOST_GREEDY = replace(TINY, temperature=1e-6)
BOTH = Arm("both", {"A": {"policy": 1.0}, "B": {"policy": 1.0}})
ONE = Arm("one", {"A": {"policy": 1.0}, "B": {"base": 1.0}})
SIZE = TINY.generations


@pytest.fixture(autouse=True)
def scripted_players(monkeypatch):
    """The toy game has two scripted players."""
    players = {"quiet": lambda view, rng: "pass()", "rude": lambda view, rng: "quit()"}
    monkeypatch.setitem(SCRIPTED, GAME.name, players)


@pytest.fixture(scope="module")
def adapted():
    """The embedded model with an adapter that changes what it says."""
    model, tokenizer = with_adapter()
    return model.eval(), tokenizer


def trained(run, arm, steps=2, preset=TINY, **options):
    """A short training without preflight, whose verdict on so few episodes would be a matter of luck."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selfplay, "preflight", lambda *args: None)
        return selfplay.train(GAME, preset, arm, run, steps=steps, save_steps=2, **options)


def steps_of(result):
    return [entry for entry in result.history if "reward" in entry]


def trajectories(adapted, arm, seeds, game=GAME, preset=TINY, adapters=None):
    """What the rollout function returns for the rows of `seeds`, and the prompts that TRL would hand it."""
    model, tokenizer = adapted
    trainer = SimpleNamespace(
        processing_class=tokenizer, num_generations=SIZE, model_wrapped=model, accelerator=Accelerator(cpu=True)
    )
    rows = selfplay.rows_of(game, arm, seeds)
    prompts = [row["prompt"] for row in rows for _ in range(SIZE)]
    adapters = adapters or {"policy": "default", "base": None}
    return selfplay.play_groups(prompts, trainer, game, arm, preset, adapters, keep=True), prompts


# rows and players


def test_there_is_a_row_for_every_trained_seat_of_a_seed_side_by_side_with_what_the_seat_first_sees():
    for arm in (BOTH, ONE):
        rows = selfplay.rows_of(GAME, arm, TRAIN[5:8])
        assert [(row["seed"], row["seat"]) for row in rows] == [(seed, seat) for seed in TRAIN[5:8] for seat in arm.trained]
        for row in rows:
            shown = messages_of(GAME, GAME.view(GAME.deal(row["seed"]), row["seat"]))
            assert [{k: m[k] for k in ("role", "content")} for m in row["prompt"]] == list(shown)
            assert (row["prompt"][0]["seed"], row["prompt"][0]["seat"]) == (row["seed"], row["seat"])
    assert BOTH.trained == ("A", "B") and ONE.trained == ("A",)


def test_the_seed_fixes_who_plays_as_often_as_the_mixture_says_and_the_policy_always_plays_somewhere():
    arm = Arm("mixed", {"A": {"policy": 1.0}, "B": {"policy": 1.0, "base": 2.0, "quiet": 1.0}})
    drawn = [draw(arm, seed) for seed in range(2000)]
    assert drawn == [draw(arm, seed) for seed in range(2000)]
    found = Counter(players["B"] for players in drawn)
    for name, share in (("policy", 0.25), ("base", 0.5), ("quiet", 0.25)):
        assert found[name] / 2000 == pytest.approx(share, abs=0.04)  # four standard errors
    rare = Arm("rare", {"A": {"policy": 0.1, "base": 0.9}, "B": {"policy": 0.1, "base": 0.9}})
    assert all("policy" in draw(rare, seed).values() for seed in range(200))


def test_the_arms_are_the_eight_published_ones():
    assert list(ARMS) == [
        *("buyer-grpo", "buyer-cispo", "buyer-grpo-norank", "buyer-cispo-norank"),
        *("seller-grpo", "seller-cispo", "joint-grpo", "joint-cispo"),
    ]
    for name, arm in ARMS.items():
        role, loss, *rest = name.split("-")
        assert arm.trained == {"buyer": ("buyer",), "seller": ("seller",), "joint": ("buyer", "seller")}[role]
        assert arm.names == ({"policy"} if role == "joint" else {"policy", "base"})
        assert (arm.lora_rank, arm.lora_alpha) == ((32, 64) if role == "joint" else (16, 32))
        assert arm.ranks is (rest != ["norank"])
        found = config(settings(Bargaining(), TINY, SELF_PLAY, Path("run"), 0, 1, 1) | selfplay.loss_settings(arm))
        assert (found.loss_type, found.epsilon_high, found.beta) == (loss, {"grpo": 0.2, "cispo": 5.0}[loss], 0.001)
        assert found.scale_rewards == "group" and found.num_iterations == 1


# trajectories


def test_a_rows_trajectories_are_its_seats_chats_as_evaluation_shows_them(adapted):
    seeds = TRAIN[:3]
    out, _ = trajectories(adapted, BOTH, seeds)
    tokenizer, rows = adapted[1], [(seed, seat, g) for seed in seeds for seat in "AB" for g in range(SIZE)]
    for at, (seed, seat, g) in enumerate(rows):
        episode = out["episode"][at]
        assert episode.seed == seed and episode is out["episode"][rows.index((seed, "A", g))]
        said = [turn.reply for turn in episode.turns if turn.seat == seat]
        shown = []

        def again(requests, seat=seat, shown=shown, replies=[t.reply for t in episode.turns]):  # noqa: B006
            shown += [request.messages for request in requests if request.seat == seat]
            return [replies.pop(0) for _ in requests]

        again.name = "policy"
        assert play(GAME, [seed], dict.fromkeys("AB", again)) == [episode]
        chat = [*shown[-1], {"role": "assistant", "content": said[-1]}]
        text = tokenizer.apply_chat_template(chat, tokenize=False).removesuffix("\n")
        assert tokenizer.decode(out["prompt_ids"][at] + out["completion_ids"][at]) == text
        first = tokenizer.apply_chat_template(chat[:2], tokenize=False, add_generation_prompt=True)
        assert tokenizer.decode(out["prompt_ids"][at]) == first
        ids, mask = out["completion_ids"][at], out["env_mask"][at]
        own = [i for i, mine in zip(ids, mask, strict=True) if mine]
        assert tokenizer.decode(own).replace("<|im_end|>", "") == "".join(said)
        assert out["figures"][at]["payoff A"] == GAME.payoffs(final(episode))["A"]
    assert len({tuple(ids) for ids in out["completion_ids"]}) > 12  # the G episodes of a seed differ


def final(episode):
    state = GAME.deal(episode.seed)
    for action in episode.actions:
        state = GAME.step(state, GAME.parse(action))
    return state


def test_base_checkpoint_and_scripted_opponents_say_what_each_says_alone_and_leave_the_policy_trainable(adapted, tmp_path):
    model, tokenizer = adapted
    other, _ = with_adapter(seed=5)
    save_adapter(other, TINY, tmp_path / "other")
    arm = Arm("mixed", {"A": {"policy": 1.0}, "B": {"base": 1.0, str(tmp_path / "other"): 1.0, "quiet": 1.0}})
    before = {name for name, p in model.named_parameters() if p.requires_grad}
    adapters = selfplay.add_opponents(model, GAME, arm)
    out, _ = trajectories(adapted, arm, TRAIN[:12], preset=ALMOST_GREEDY, adapters=adapters)
    assert {name for name, p in model.named_parameters() if p.requires_grad} == before
    assert model.active_adapter == "default"
    models = {"policy": model, "base": load(TINY)[0], str(tmp_path / "other"): other.eval()}

    def alone(name):
        if name == "quiet":
            return Scripted("quiet", lambda view, rng: "pass()")
        # Token by token too: garbage that is read again from its text may be other tokens than those that were sampled.
        return ChatPlayer(name, models[name], tokenizer, ALMOST_GREEDY, keep=False)

    played = set()
    for seed, episode in zip(TRAIN[:12], out["episode"][::SIZE], strict=True):
        names = draw(arm, seed)
        played |= set(names.values())
        assert [episode] == play(GAME, [seed], {seat: alone(name) for seat, name in names.items()})
    assert played == arm.names
    said = [play(GAME, [0], {"A": alone("quiet"), "B": alone(name)})[0].turns for name in arm.names]
    assert len(set(said)) == 4  # they do differ
    model.delete_adapter(adapters[str(tmp_path / "other")])


def test_seats_that_never_moved_or_that_others_play_get_fillers_of_which_nothing_is_learned(adapted):
    arm = Arm("mixed", {"A": {"policy": 1.0, "rude": 2.0}, "B": {"policy": 1.0}})
    seeds = TRAIN[:8]
    out, _ = trajectories(adapted, arm, seeds)
    kinds = Counter()
    for at in range(len(out["moved"])):
        seat, episode = "AB"[at // SIZE % 2], out["episode"][at]
        theirs = [turn for turn in episode.turns if turn.seat == seat]
        if episode.players[seat] == "policy" and theirs:
            kinds["learned"] += 1
            assert out["moved"][at] and any(out["env_mask"][at])
        else:
            kinds["other" if theirs else "never moved"] += 1
            assert (out["completion_ids"][at], out["env_mask"][at], out["moved"][at]) == ([2], [0], False)
    assert set(kinds) == {"learned", "other", "never moved"}


def test_rows_that_are_not_whole_groups_side_by_side_are_refused(adapted):
    _, prompts = trajectories(adapted, BOTH, TRAIN[:1])
    model, tokenizer = adapted
    trainer = SimpleNamespace(processing_class=tokenizer, num_generations=SIZE)
    for broken in (prompts[1:], prompts[::-1], prompts[:SIZE]):
        with pytest.raises(RuntimeError, match="expected whole groups of 4 rows for A, B of one seed"):
            selfplay.play_groups(broken, trainer, GAME, BOTH, TINY, {}, keep=True)


BROKEN = {
    "expected 2 prompt_ids, one a row, got 1": {"prompt_ids": [[5]]},
    "a mask of 2 for row 1, got 1: what is missing would be learned": {"env_mask": [[1, 0], [1]]},
    "row 0 to end on the stop id 2, got \\[7\\]": {"completion_ids": [[6, 7], [6, 2]]},
    "row 1 to end on the stop id 2, got \\[\\]": {"completion_ids": [[6, 2], []], "env_mask": [[1, 0], []]},
    "no pad id 0 inside row 1": {"completion_ids": [[6, 2], [0, 2]]},
    "no pad id 0 inside row 0": {"prompt_ids": [[0, 5], [5]]},
    "no seat that is trained ever moved": {"moved": [False, False]},
}


@pytest.mark.parametrize("message", BROKEN)
def test_trajectories_that_would_be_learned_wrongly_stop_the_run_and_say_why(message):
    good = {"prompt_ids": [[5], [5]], "completion_ids": [[6, 2], [6, 2]], "env_mask": [[1, 1], [1, 0]], "moved": [True, False]}
    selfplay.check(good, 2, stop=2, pad=0)
    selfplay.check(good | {"completion_ids": [[2, 2], [6, 2]]}, 2, stop=2, pad=2)  # SmolLM2 pads with its stop id
    with pytest.raises(RuntimeError, match=message):
        selfplay.check(good | BROKEN[message], 2, stop=2, pad=0)


# rewards and advantages


def test_episode_terms_judge_one_seats_part_and_stay_within_their_bounds():
    turns = (Turn("A", "", "x", "quit()", "parse: no"), Turn("B", "", "pass()", "pass()"))
    episode = Episode("chatter", {}, 0, {}, {}, turns, {"A": -7.5, "B": 0.25})
    share, unusable, outside = (EPISODE_TERMS[name] for name in ("share", "unusable", "outside"))
    assert (share.value(episode, "A"), share.value(episode, "B")) == (-1.0, 0.25)
    assert (unusable.value(episode, "A"), unusable.value(episode, "B")) == (-1.0, 0.0)
    assert outside.value(episode, "A") == outside.value(episode, "B") == -1.0  # whoever is harmed
    assert outside.value(replace(episode, payoffs={"A": 0.0, "B": 1.0}), "A") == 0.0
    assert unusable.high == outside.high == 0  # form is never an income
    assert all(term.says and term.name == name for name, term in EPISODE_TERMS.items())
    assert not EPISODE_TERMS.keys() & TERMS.keys()


def test_terms_of_replies_and_of_episodes_do_not_mix():
    with pytest.raises(ValueError, match=r"some of share, unusable, outside, .*, got \['own'\]"):
        Rubric("mixed", {"share": 1.0, "own": 1.0})


def test_the_worst_of_a_group_has_rank_1_and_ties_share_the_average():
    # games.md: [.31, .5, .31, .2] -> [2.5, 4, 2.5, 1], then z-scores: mean 2.5, variance (2.25 + 2.25) / 3.
    spread = 1.5**0.5
    found = rank_scores(torch.tensor([0.31, 0.5, 0.31, 0.2, 7.0, 7.0, 7.0, 7.0]), 4)
    expected = [0.0, 1.5 / spread, 0.0, -1.5 / spread, 0.0, 0.0, 0.0, 0.0]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-3, atol=0)


def test_rows_that_take_no_part_leave_the_ranks_of_the_others_alone():
    nan = torch.nan
    found = rank_scores(torch.tensor([0.3, nan, 0.1, 0.2, nan, 5.0, nan, nan, nan, nan, nan, nan]), 4)
    expected = [1.0, 0.0, -1.0, 0.0, *[0.0] * 8]  # ranks 3, 1, 2: standard deviation 1
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-3, atol=0)


@pytest.mark.parametrize("ranks", [False, True])
def test_advantages_are_normalised_within_a_seed_and_seat_over_its_episodes(ranks, tmp_path, monkeypatch):
    luck = Random(0)
    term = Term("share", -1, 1, "drawn", lambda episode, seat: luck.choice((-1.0, 0.0, 0.5)) + 5.0 * (seat == "B"))
    monkeypatch.setitem(EPISODE_TERMS, "share", term)
    seen = []
    original = selfplay.EpisodeTrainer._generate_and_score_completions

    def note(self, inputs):
        output = original(self, inputs)
        seen.append((self.sums.clone(), output["advantages"].clone(), [row["moved"] for row in inputs]))
        return output

    monkeypatch.setattr(selfplay.EpisodeTrainer, "_generate_and_score_completions", note)
    arm = replace(BOTH, ranks=ranks, players={"A": {"policy": 1.0}, "B": {"policy": 1.0, "quiet": 2.0}})
    trained(tmp_path, arm, preset=replace(TINY, prompts=8), rubric=Rubric("drawn", {"share": 1.0}))
    fillers = 0
    for rewards, advantages, moved in seen:
        for start in range(0, len(rewards), SIZE):
            group, mine = rewards[start : start + SIZE], moved[start : start + SIZE]
            if not any(mine):
                fillers += 1
                assert group.isnan().all() and not advantages[start : start + SIZE].any()
                continue
            assert all(mine) and not group.isnan().any()
            expected = rank_scores(group, SIZE) if ranks else (group - group.mean()) / (group.std() + 1e-4)
            torch.testing.assert_close(advantages[start : start + SIZE], expected, rtol=1e-4, atol=1e-6)
    assert 0 < fillers < len(seen) * 8 and len(seen) == 2


def test_groups_that_take_no_part_do_not_hide_that_all_others_tie(tmp_path, monkeypatch):
    monkeypatch.setitem(EPISODE_TERMS, "share", Term("share", -1, 1, "the same for all", lambda episode, seat: 0.25))
    arm = replace(BOTH, players={"A": {"policy": 1.0}, "B": {"policy": 1.0, "quiet": 2.0}})
    result = trained(tmp_path, arm, preset=replace(TINY, prompts=8), rubric=Rubric("same", {"share": 1.0}))
    for entry in steps_of(result):
        assert (entry["frac_reward_zero_std"], entry["reward"]) == (1.0, 0.25)


# training


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    run = tmp_path_factory.mktemp("undisturbed")
    other, _ = with_adapter(seed=5, scale=0.1)
    save_adapter(other, TINY, run / "other")
    arm = Arm("mixed", {"A": {"policy": 1.0}, "B": {"policy": 1.0, str(run / "other"): 1.0}}, lora_rank=8, lora_alpha=8)
    return trained(run, arm, steps=4), arm


def test_training_moves_only_its_own_adapter_and_logs_every_term_and_figure(undisturbed):
    result, _ = undisturbed
    run = result.run.parent
    assert result.stopped is None and [entry["step"] for entry in steps_of(result)] == [1, 2, 3, 4]
    for entry in steps_of(result):
        means = {name: entry[f"rewards/{name}/mean"] for name in SELF_PLAY.weights}
        assert entry["reward"] == pytest.approx(sum(SELF_PLAY.weights[name] * x for name, x in means.items()), abs=1e-6)
        assert {"payoff A", "payoff B", "quits", "replies cut off", "kl"} <= entry.keys()
    assert json.loads((result.run / "history.json").read_text()) == result.history
    base, _ = load(TINY)
    kept = result.model.base_model.model.state_dict()
    kept = {name.replace(".base_layer", ""): tensor for name, tensor in kept.items() if "lora_" not in name}
    assert all(torch.equal(tensor, kept[name]) for name, tensor in base.state_dict().items())
    weights = load_file(run / "adapters" / "mixed" / "adapter_model.safetensors")
    assert any(tensor.any() for name, tensor in weights.items() if "lora_B" in name)
    other = load_file(run / "other" / "adapter_model.safetensors")
    inside = {name.replace(".opponent2", ""): p for name, p in result.model.named_parameters() if ".opponent2." in name}
    assert inside.keys() == other.keys() and all(torch.equal(p, other[name]) for name, p in inside.items())


def test_an_arms_adapter_is_loaded_from_its_subfolder_and_answers_as_the_trained_model(undisturbed):
    result, arm = undisturbed
    repository = result.run.parent / "adapters"
    assert sorted(path.name for path in (repository / "mixed").iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    loaded = PeftModel.from_pretrained(load(TINY)[0], repository, subfolder=arm.name)
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, result.model(ids).logits, rtol=0, atol=1e-5)
        assert not torch.allclose(loaded(ids).logits, load(TINY)[0](ids).logits, atol=1e-4)


def test_a_run_that_stopped_and_was_resumed_ends_at_the_adapter_of_an_undisturbed_one(undisturbed, tmp_path):
    result, arm = undisturbed
    stopped = trained(tmp_path, arm, steps=4, budget_s=0)
    assert "step 1" in stopped.stopped and (tmp_path / "mixed" / "checkpoints" / "checkpoint-1").is_dir()
    assert trained(tmp_path, arm, steps=4, resume=True).stopped is None
    first, second = (load_file(run / "adapters" / "mixed" / "adapter_model.safetensors") for run in (tmp_path, result.run.parent))
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="run with other settings"):
        trained(tmp_path, replace(arm, kl=0.1), steps=4)


def test_with_a_mask_of_zeros_nothing_is_learned_and_with_the_right_one_something_is(tmp_path, monkeypatch):
    norms = {}
    original = selfplay.play_groups
    for name in ("right", "zeros"):

        def rollout(*args, name=name, **options):
            out = original(*args, **options)
            return out if name == "right" else out | {"env_mask": [[0] * len(mask) for mask in out["env_mask"]]}

        monkeypatch.setattr(selfplay, "play_groups", rollout)
        norms[name] = [entry["grad_norm"] for entry in steps_of(trained(tmp_path / name, BOTH))]
    assert norms["zeros"] == [0.0, 0.0] and min(norms["right"]) > 0.01
    weights = load_file(tmp_path / "zeros" / "adapters" / "both" / "adapter_model.safetensors")
    assert not any(tensor.any() for name, tensor in weights.items() if "lora_B" in name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arm", [ONE, replace(BOTH, loss="cispo", epsilon_high=5.0, ranks=False)], ids=["one seat", "both, cispo"]
)
def test_a_reward_for_one_pattern_of_tokens_makes_the_trained_seats_write_it_more_often(arm, tmp_path):
    settings = replace(TINY, prompts=8, learning_rate=5e-3)
    result = trained(tmp_path, arm, steps=10, preset=settings)

    def passes(adapter):
        """Share of the trained seats' replies that pass, in games of 32 fresh seeds."""
        policy = ChatPlayer("policy", result.model, result.tokenizer, settings, adapter=adapter)
        other = ChatPlayer("other", result.model, result.tokenizer, settings, adapter=None)
        players = {seat: policy if seat in arm.trained else other for seat in GAME.seats}
        turns = [turn for episode in play(GAME, TEST[:32], players) for turn in episode.turns if turn.seat in arm.trained]
        return sum(turn.action == "pass()" for turn in turns) / len(turns)

    before, after = passes(None), passes("default")
    assert after > before + 0.2, (before, after)


def preflighted(adapted, rubric=SELF_PLAY, arm=BOTH, **changed):
    out, _ = trajectories(adapted, arm, TRAIN[:2])
    trainer = SimpleNamespace(rollout_func=lambda prompts, trainer: out)
    selfplay.preflight(rubric, replace(TINY, **changed), selfplay.rows_of(GAME, arm, TRAIN[:2]), trainer)


def test_what_the_games_guard_finds_in_the_log_is_warned_of_once(monkeypatch, tmp_path):
    asked = []

    def find(history, trained):
        asked.append((len([entry for entry in history if "quits" in entry]), trained))
        return {"many": f"{len(history)} entries"} if len(history) > 1 else {}

    monkeypatch.setitem(GUARDS, GAME.name, find)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trained(tmp_path, ONE, steps=3)
    assert [str(w.message) for w in told if "entries" in str(w.message)] == ["step 2: 2 entries"]
    assert asked[:3] == [(1, ("A",)), (2, ("A",)), (3, ("A",))]


def test_a_run_that_cannot_learn_is_refused_with_the_reason(adapted, monkeypatch, tmp_path):
    length = Term("share", -1, 1, "longer is better", lambda e, seat: len("".join(t.reply for t in e.turns)) / 1000)
    monkeypatch.setitem(EPISODE_TERMS, "share", length)
    preflighted(adapted)
    with pytest.raises(PreflightError, match="a prompt has .* tokens, the preset allows 10"):
        preflighted(adapted, max_prompt_tokens=10)
    monkeypatch.setitem(EPISODE_TERMS, "share", Term("share", -1, 1, "the same for all", lambda episode, seat: 0.25))
    same = Rubric("same", {"share": 1.0})
    with pytest.raises(PreflightError, match="100% of the groups tie .* rubric same.*% of the replies are no legal action"):
        preflighted(adapted, same)
    with pytest.raises(PreflightError, match="100% of the groups tie"):
        selfplay.train(GAME, TINY, BOTH, tmp_path, rubric=same, steps=2)
    assert not (tmp_path / "adapters").exists()


def test_what_does_not_fit_self_play_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="a game with chat memory, got market"):
        selfplay.train(Market(), TINY, BOTH, tmp_path)
    with pytest.raises(ValueError, match="vllm off"):
        trained(tmp_path, BOTH, preset=replace(preset("tiny"), device="cuda", dtype="bfloat16", vllm=True))
    with pytest.raises(ValueError, match="multiple of 2 trained seats x 1 processes .* got 3"):
        trained(tmp_path, BOTH, preset=replace(TINY, prompts=3))
    monkeypatch.setattr(selfplay, "PartialState", lambda: SimpleNamespace(num_processes=3))
    for changed in ({"prompts": 4}, {"prompts": 12, "generations": 2, "accumulate": 12}):
        with pytest.raises(ValueError, match="2 trained seats x 3 processes and the replies learned from at once one of 3, got"):
            trained(tmp_path, BOTH, preset=replace(TINY, **changed))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("players", "message"),
    [
        ({"A": {"policy": 1.0}, "B": {"quit": 1.0}}, "a player of chatter .policy, base, quiet, rude. or the folder.*got 'quit'"),
        ({"A": {"policy": 1.0}}, "expected players for A, B"),
        ({"A": {"base": 1.0}, "B": {"base": 1.0}}, "the policy among them"),
    ],
)
def test_an_arm_that_does_not_fit_the_game_is_refused(players, message, adapted):
    with pytest.raises(ValueError, match=message):
        selfplay.add_opponents(adapted[0], GAME, Arm("odd", players))
