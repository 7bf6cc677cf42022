"""What was trained is saved so that others can use it: plain names, equal logits, and nothing on the Hub unasked."""

import json
import re
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest
import torch
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
    assert json.loads((saved / "adapter_config.json").read_text())["base_model_name_or_path"] == "helpers/tiny"
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
