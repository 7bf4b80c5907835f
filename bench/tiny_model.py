"""Makes a tiny model of random weights as a Hugging Face folder: a Llama of two layers that reads and writes bytes.

Usage: ``python -m bench.tiny_model FOLDER``. Needs numpy, safetensors, tokenizers and transformers, and no torch: any
server loads it in no time, and what it says is noise.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

WIDTH, INNER, LAYERS, HEADS, GROUPS, CONTEXT, VOCABULARY = 128, 256, 2, 4, 2, 4096, 320
SPECIAL = ("<s>", "</s>", "<pad>")


def write(folder: Path) -> None:
    """Write the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *SPECIAL]
    numbers = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=numbers, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    named = dict(zip(("bos_token", "eos_token", "pad_token"), SPECIAL, strict=True))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    fast.save_pretrained(folder)
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": numbers["<s>"],
        "eos_token_id": numbers["</s>"],
        "pad_token_id": numbers["<pad>"],
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    architecture = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    (folder / "config.json").write_text(json.dumps({**architecture, **shape}, indent=1))
    noise = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return noise.normal(0, 0.02, (rows, columns)).astype(np.float32)

    ones, narrow = np.ones(WIDTH, dtype=np.float32), WIDTH // HEADS * GROUPS
    tensors = {
        "model.embed_tokens.weight": matrix(VOCABULARY, WIDTH),
        "lm_head.weight": matrix(VOCABULARY, WIDTH),
        "model.norm.weight": ones,
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        tensors |= {
            f"{prefix}input_layernorm.weight": ones.copy(),
            f"{prefix}post_attention_layernorm.weight": ones.copy(),
            f"{prefix}self_attn.q_proj.weight": matrix(WIDTH, WIDTH),
            f"{prefix}self_attn.k_proj.weight": matrix(narrow, WIDTH),
            f"{prefix}self_attn.v_proj.weight": matrix(narrow, WIDTH),
            f"{prefix}self_attn.o_proj.weight": matrix(WIDTH, WIDTH),
            f"{prefix}mlp.gate_proj.weight": matrix(INNER, WIDTH),
            f"{prefix}mlp.up_proj.weight": matrix(INNER, WIDTH),
            f"{prefix}mlp.down_proj.weight": matrix(WIDTH, INNER),
        }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    write(Path(sys.argv[1]))
