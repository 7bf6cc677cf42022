"""Saves what was trained so that others can use it: an adapter that names its plain base, one merged model, a copy on the Hub.
Nothing leaves the machine unless a repository is named and the platform's secrets hold a token."""

import os
from dataclasses import replace
from pathlib import Path

import torch
from huggingface_hub import HfApi

from helpers.machine import place
from helpers.models import load
from helpers.presets import Preset

SECRET = "HF_TOKEN"
PUSHED = ["*.json", "*.jinja", "*.md", "*.safetensors"]


def save_adapter(model, preset: Preset, folder: Path) -> None:
    """The adapter of `model`, which names its base as others know it: not by this machine's path, nor as a 4-bit copy."""
    config = model.peft_config["default"]
    path, config.base_model_name_or_path = config.base_model_name_or_path, preset.base
    model.save_pretrained(folder, save_embedding_layers=False)  # no embedding is trained; looking for it would ask the Hub
    config.base_model_name_or_path = path  # a trainer's checkpoints do look, and find the base there without asking
    (folder / "README.md").unlink()  # PEFT's is an empty form that names this machine's path; helpers/card.py writes a card


def merge(preset: Preset, adapter: Path, folder: Path) -> None:
    """Writes the base with a saved adapter merged into it as one model in 16 bits, and its tokenizer, for programs that know no
    adapters. The base is loaded anew in float32, on the CPU: merging into 4-bit weights would round the adapter away."""
    plain = replace(preset, backend="transformers", device="cpu", dtype="float32", four_bit=False, vllm=False)
    model, tokenizer = load(plain, adapter)
    merged = model.merge_and_unload().to(torch.bfloat16 if preset.dtype == "bfloat16" else torch.float16)
    merged.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def hub_token() -> str | None:
    """The token HF_TOKEN from the secrets of Kaggle or Colab, elsewhere from the environment; None when there is none."""
    try:
        if place() == "kaggle":
            from kaggle_secrets import UserSecretsClient

            return UserSecretsClient().get_secret(SECRET)
        if place() == "colab":
            from google.colab import userdata

            return userdata.get(SECRET)
    except Exception:  # each raises kinds of its own when there is no such secret, or this notebook may not read it
        return None
    return os.environ.get(SECRET)


def push(folder: Path, repository: str) -> str:
    """Uploads a folder with an adapter or a model to USER/NAME on the Hub, private when it is new; says what was done. Nothing
    is sent when `repository` is empty or there is no token."""
    if not repository:
        return "not pushed: no repository was named"
    token = hub_token()
    if not token:
        return f"not pushed to {repository}: the platform's secrets hold no {SECRET}"
    hub = HfApi(token=token)
    hub.create_repo(repository, private=True, exist_ok=True)
    hub.upload_folder(repo_id=repository, folder_path=folder, allow_patterns=PUSHED)
    return f"pushed to https://huggingface.co/{repository}"
