"""What was trained is saved so that others can use it: plain names, equal logits, and nothing on the Hub unasked."""

import json
import os
import re
import shutil
import sys
from dataclasses import asdict, replace
from types import ModuleType, SimpleNamespace

import pytest
import torch
from huggingface_hub import constants
from mixed import walk
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from helpers import saving
from helpers.games.market import Market
from helpers.models import add_adapter, load
from helpers.presets import PRESETS
from helpers.rollout import TEST, messages_of

GAME, TINY = Market(), PRESETS["tiny"]
TOKEN = "hf_secret"


@pytest.fixture(scope="module")
def adapted():
    """The embedded model with an adapter that changes its answers, and its tokenizer."""
    base, tokenizer = load(TINY)
    model = add_adapter(base, TINY, 0)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    return model.eval(), tokenizer


@pytest.fixture(scope="module")
def saved(adapted, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter")
    saving.save_adapter(adapted[0], TINY, folder)
    return folder


def logits(model, tokenizer):
    """Of every next id after the prompts of one episode, the padding left out."""
    points = list(walk(GAME, TEST[0]))[:-1][::8]
    chats = [list(messages_of(GAME, GAME.view(state, GAME.turn(state)))) for _, state in points]
    texts = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    with torch.inference_mode():
        return model(**inputs).logits.float()[inputs["attention_mask"].bool()]


def test_a_saved_adapter_names_its_plain_base_and_no_path_of_this_machine(saved):
    assert json.loads((saved / "adapter_config.json").read_text())["base_model_name_or_path"] == "helpers/tiny/market"
    texts = [path.read_text() for path in saved.iterdir() if path.suffix != ".safetensors"]
    assert texts and not [text for text in texts if re.search(r"(?<![\w.:/])/\w+/", text)]


def test_a_base_from_the_hub_is_named_by_its_id_whatever_copy_was_loaded(adapted, tmp_path):
    saving.save_adapter(adapted[0], PRESETS["t4"], tmp_path)
    named = json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert named == "Qwen/Qwen2.5-1.5B-Instruct"


@pytest.mark.parametrize(("dtype", "bits"), [("float32", 11), ("bfloat16", 8)])  # saved as float16 and bfloat16
def test_a_merged_model_in_16_bits_has_the_logits_of_its_adapter(dtype, bits, adapted, saved, tmp_path):
    saving.merge(replace(TINY, dtype=dtype), saved, tmp_path)
    kept = json.loads((tmp_path / "config.json").read_text())["dtype"]
    assert kept == {11: "float16", 8: "bfloat16"}[bits]
    merged = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path, padding_side="left")
    expected, base = logits(*adapted), logits(load(TINY)[0], tokenizer)
    error = (logits(merged, tokenizer) - expected).norm() / expected.norm()
    # Rounding weights to that many bits errs by up to 2^-bits each, and errors of a few layers add up.
    assert error < 8 * 2**-bits < (base - expected).norm() / expected.norm() / 2


# GGUF


def test_a_gguf_file_is_written_by_unsloth_alone_and_only_when_it_is_asked_for(tmp_path):
    asked = []

    def write(*args, **given):
        asked.append((args, given))
        return {"gguf_directory": "run/export_gguf", "gguf_files": ["run/export_gguf/model.Q8_0.gguf"]}

    model = SimpleNamespace(save_pretrained_gguf=write)
    assert saving.export_gguf(model, "tokenizer", PRESETS["t4"], tmp_path, "") == "no GGUF file: none was asked for"
    said = saving.export_gguf(model, "tokenizer", TINY, tmp_path, "q8_0")
    assert said == "no GGUF file: only Unsloth writes one, and preset tiny does without it" and asked == []
    said = saving.export_gguf(model, "tokenizer", PRESETS["t4"], tmp_path, "q8_0")
    assert said == "written: run/export_gguf/model.Q8_0.gguf"
    assert asked == [((str(tmp_path), "tokenizer"), {"quantization_method": "q8_0"})]


# Finding a run


WANTED = {"game": "market", "preset": "tiny", "model": "tiny/market", "temperature": 0.7, "max_new_tokens": 48, "seed": 0}


def a_run(folder, seed=0, at=1_000_000_000, **other):
    """A run as `train` leaves it, all but the weights; written `at` seconds of the epoch."""
    (folder / "adapter").mkdir(parents=True)
    (folder / "adapter" / "adapter_config.json").write_text("{}")
    note = {"game": "market", "preset": asdict(TINY), "seed": seed} | other
    for name, data in zip(saving.NOTES, (note, [{"step": 200}]), strict=True):
        (folder / name).write_text(json.dumps(data))
        os.utime(folder / name, (at, at))
    return folder


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    """In place of /kaggle/input; not there yet."""
    monkeypatch.setattr(saving, "INPUTS", tmp_path / "input")
    return tmp_path / "input"


def find(run, named=""):
    return saving.find_run(named, run, "market", TINY, 0)


def test_the_adapter_in_run_is_taken_whatever_lies_beside_it(tmp_path, inputs):
    run = a_run(tmp_path / "runs" / "latest")
    a_run(tmp_path / "runs" / "newer", at=2_000_000_000)
    assert find(run) == (run, "RUN")


def test_without_one_the_newest_run_beside_it_with_these_settings_is_taken(tmp_path, inputs):
    run, runs = tmp_path / "runs" / "latest", tmp_path / "runs"
    a_run(runs / "old")
    chosen = a_run(runs / "chosen", at=1_500_000_000)
    for i, other in enumerate([{"seed": 1}, {"preset": asdict(PRESETS["t4"])}, {"game": "bargaining"}]):
        a_run(runs / f"other-{i}", at=2_000_000_000, **other)
    (a_run(runs / "killed", at=2_000_000_000) / "history.json").unlink()  # which is written last
    a_run(inputs / "parley", at=2_000_000_000)
    assert find(run) == (chosen, f"the newest beside {run}, which holds no adapter")


@pytest.mark.parametrize("mounted", ["parley-grpo-training/runs/latest", "notebooks/somebody/parley-grpo-training/runs/latest"])
def test_on_kaggle_what_04_left_is_found_among_the_inputs_or_by_the_inputs_name(tmp_path, inputs, mounted):
    run, left = tmp_path / "working" / "runs" / "latest", a_run(inputs / mounted)
    a_run(inputs / "other", seed=1, at=2_000_000_000)
    assert find(run) == (left, f"the newest of Kaggle's inputs; {run} holds no adapter")
    assert find(run, str(inputs / mounted.removesuffix("/runs/latest"))) == (left, "the folder named")
    assert find(run, str(left)) == (left, "the folder named")


def test_without_any_run_none_is_found_and_it_is_said_where_was_looked(tmp_path, inputs):
    run = tmp_path / "runs" / "latest"
    assert find(run) == (None, f"no run with {WANTED} in or beside {run}, or among Kaggle's inputs")


def test_a_run_with_other_settings_is_refused_where_it_was_named(tmp_path, inputs):
    other = a_run(tmp_path / "runs" / "latest", seed=1)
    with pytest.raises(ValueError, match="expected a run with .*'seed': 0.* got .*'seed': 1.*; run 04 with these parameters"):
        find(other)
    with pytest.raises(ValueError, match="'seed': 1"):
        find(tmp_path / "elsewhere", str(other))
    with pytest.raises(FileNotFoundError, match="expected a run of notebook 04 with .*'seed': 0"):
        find(tmp_path / "elsewhere", str(tmp_path / "runs"))


@pytest.mark.parametrize("changed", [{"model": "Qwen/Qwen2.5-1.5B"}, {"temperature": 1.0}, {"max_new_tokens": 24}])
def test_an_adapter_of_another_base_or_trained_with_other_sampling_is_refused(changed, tmp_path, inputs):
    other = a_run(tmp_path / "runs" / "latest", preset=asdict(replace(TINY, **changed)))
    [(name, value)] = changed.items()
    with pytest.raises(ValueError, match=f"expected a run with .* got .*{name!r}: {value!r}.*; run 04 with these parameters"):
        find(other)
    assert find(tmp_path / "runs" / "new")[0] is None


def test_what_is_bundled_for_the_hub_is_found_there_again_with_its_card_and_the_same_adapter(
    adapted, saved, tmp_path, inputs, monkeypatch
):
    run = a_run(tmp_path / "run")
    shutil.copytree(saved, run / "adapter", dirs_exist_ok=True)
    saving.bundle(run, "the card", tmp_path / "hub")
    assert {path.name for path in (tmp_path / "hub").iterdir()} == {
        *saving.NOTES,
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    asked = []
    monkeypatch.setattr(saving, "hub_token", lambda: TOKEN)
    monkeypatch.setattr(saving, "snapshot_download", lambda *args, **given: asked.append((args, given)) or tmp_path / "hub")
    found = find(tmp_path / "elsewhere", "someone/parley")
    assert found == (tmp_path / "hub", "someone/parley on the Hub")
    assert asked == [(("someone/parley",), {"token": TOKEN, "allow_patterns": saving.PUSHED})]
    assert (tmp_path / "hub" / "README.md").read_text() == "the card"
    model, tokenizer = load(TINY, saving.adapter_in(found[0]))
    assert torch.equal(logits(model, tokenizer), logits(*adapted))


@pytest.mark.parametrize("named", ["someone/parley", "no/such/folder"])
def test_what_is_neither_a_folder_nor_on_the_hub_is_told(tmp_path, inputs, monkeypatch, named):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(FileNotFoundError, match=f"expected a folder, or USER/NAME on the Hub, got '{named}' \\(.+\\)$"):
        find(tmp_path, named)


# The Hub


@pytest.fixture
def hub(monkeypatch):
    """What was asked of the Hub, which is not there; and no platform's variables."""
    asked = []

    def api(token):
        return SimpleNamespace(
            create_repo=lambda *args, **given: asked.append((token, "create", args, given)),
            upload_folder=lambda **given: asked.append((token, "upload", given)),
        )

    monkeypatch.setattr(saving, "HfApi", api)
    for name in ("KAGGLE_KERNEL_RUN_TYPE", "COLAB_RELEASE_TAG", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return asked


def on_kaggle(monkeypatch, get_secret):
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    client = SimpleNamespace(get_secret=get_secret)
    monkeypatch.setitem(sys.modules, "kaggle_secrets", SimpleNamespace(UserSecretsClient=lambda: client))


def on_colab(monkeypatch, get):
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release")
    colab = ModuleType("google.colab")
    colab.userdata = SimpleNamespace(get=get)
    monkeypatch.setitem(sys.modules, "google", ModuleType("google"))
    monkeypatch.setitem(sys.modules, "google.colab", colab)


def elsewhere(monkeypatch, get):
    monkeypatch.setenv("HF_TOKEN", get("HF_TOKEN"))


def no_secret(name):
    raise LookupError(f"no secret {name}")


@pytest.mark.parametrize("platform", [on_kaggle, on_colab, elsewhere])
def test_an_adapter_is_pushed_with_the_platforms_token_which_is_not_told(platform, hub, saved, monkeypatch, capsys):
    platform(monkeypatch, {"HF_TOKEN": TOKEN}.__getitem__)
    said = saving.push(saved, "someone/parley")
    assert said == "pushed to https://huggingface.co/someone/parley" and capsys.readouterr() == ("", "")
    create, upload = hub
    assert create == (TOKEN, "create", ("someone/parley",), {"private": True, "exist_ok": True})
    assert upload == (TOKEN, "upload", {"repo_id": "someone/parley", "folder_path": saved, "allow_patterns": saving.PUSHED})


@pytest.mark.parametrize("platform", [on_kaggle, on_colab, lambda *args: None], ids=["kaggle", "colab", "elsewhere"])
def test_without_a_token_nothing_is_sent_and_the_missing_secret_is_named(platform, hub, saved, monkeypatch):
    platform(monkeypatch, no_secret)
    assert saving.push(saved, "someone/parley") == "not pushed to someone/parley: the platform's secrets hold no HF_TOKEN"
    assert hub == []


def test_without_a_repository_nothing_is_sent_and_no_secret_is_read(hub, saved, monkeypatch):
    monkeypatch.setattr(saving, "hub_token", None)  # calling it would fail
    assert saving.push(saved, "") == "not pushed: no repository was named"
    assert hub == []
