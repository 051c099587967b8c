"""Small real components for tests, built in memory: no model hub, no network, the same every time.

tokenizer = tiny_tokenizer()               # byte-level BPE with a chat template; any text round-trips
folder = tiny_model_dir(tmp_path / "m")    # a random two-layer Llama that transformers and vLLM load
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

PAD, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Some merges, so that tokens are not characters and decoding followed by encoding need not give the same ids back.
MERGED_WORDS = ("What", " is", " the", " number", "Answer", " with", "12", "assistant")


def tiny_tokenizer(*, chat_template: str | None = CHAT_TEMPLATE) -> Any:
    """A transformers tokenizer of about 290 tokens: all bytes, a few merged words, three special tokens.

    `<|im_end|>` ends a turn (eos), `<|endoftext|>` pads. `chat_template=None` gives a base model's tokenizer.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens = [PAD, TURN_START, TURN_END, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = []
    for word in MERGED_WORDS:
        pieces = word.replace(" ", "Ġ")
        for end in range(1, len(pieces)):
            pair = (pieces[:end], pieces[end])
            if pair not in merges:
                merges.append(pair)
                tokens.append(pieces[: end + 1])
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=PAD,
        additional_special_tokens=[TURN_START],
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
    fast.chat_template = chat_template
    return fast


def tiny_model(*, tie: bool = True, seed: int = 0, layers: int = 2) -> Any:
    """A random LlamaForCausalLM in float32 with the vocabulary of `tiny_tokenizer`: `layers` layers, hidden size 64, 2 heads of 32."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    tokenizer = tiny_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=2048,
        initializer_range=0.1,
        tie_word_embeddings=tie,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return model.eval()


def tiny_model_dir(path: str | Path, *, tie: bool = True, seed: int = 0, layers: int = 2) -> Path:
    """`tiny_model` and `tiny_tokenizer` saved as one Hugging Face folder; returns it.

    `tie`: input and output embeddings are one tensor. Different seeds give different weights.
    """
    path = Path(path)
    tiny_model(tie=tie, seed=seed, layers=layers).save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


def base_model_dir(path: str | Path, *, seed: int = 0) -> Path:
    """A base model with a chat template, saved as one folder; returns it: by its settings `<|endoftext|>` ends a text, and
    `<|im_end|>`, which ends turns in its template, ends nothing. It writes that one often."""
    import torch

    path = Path(path)
    tokenizer, model = tiny_tokenizer(), tiny_model(tie=False, seed=seed)
    end, text = tokenizer.eos_token_id, "<|im_start|>assistant\n" + "".join(map(chr, range(32, 127)))
    with torch.no_grad():  # its logit is about 3.5, against 6 of all others together
        hidden = model.model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        model.lm_head.weight[end] = 3.5 * hidden / hidden.square().sum()
    tokenizer.eos_token = PAD
    tokenizer.add_special_tokens({"additional_special_tokens": [TURN_START, TURN_END]})
    for settings in (model.config, model.generation_config):
        settings.eos_token_id = tokenizer.pad_token_id
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
