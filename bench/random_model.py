"""Makes a model of random weights, in the shape of a Llama of some billion parameters, as a GGUF file.

Usage: ``python -m bench.random_model FILE [--layers 28] [--width 3072]``. Needs ``gguf`` and numpy. The bytes that such
a model moves and the operations that it takes are a real one's; what it says is noise.
"""

from __future__ import annotations

import argparse

import gguf
import numpy as np

HEAD = 128
"""Width of an attention head."""


def vocabulary() -> tuple[list[bytes], list[int]]:
    """Tokens and their types: three special ones, every byte, and some letters."""
    letters = [c.encode() for c in "abcdefghijklmnopqrstuvwxyz0123456789 ▁"]
    tokens = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256)), *letters]
    return tokens, [2, 3, 3, *([6] * 256), *([1] * len(letters))]


def write(path: str, layers: int, width: int, context: int = 8192) -> None:
    """Write the file."""
    heads, groups, inner = width // HEAD, max(1, width // HEAD // 3), width * 8 // 3
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("random")
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(groups)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    tokens, types = vocabulary()
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0, 0.0, 0.0, *(-float(n) for n in range(len(tokens) - 3))])
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    noise = np.random.default_rng(0).normal(0, 0.02, 1 << 24).astype(np.float16)

    def matrix(name: str, rows: int, columns: int) -> None:
        writer.add_tensor(name, np.resize(noise, (rows, columns)))

    def ones(name: str) -> None:
        writer.add_tensor(name, np.ones(width, dtype=np.float32))

    matrix("token_embd.weight", len(tokens), width)
    matrix("output.weight", len(tokens), width)
    ones("output_norm.weight")
    for layer in range(layers):
        prefix = f"blk.{layer}."
        ones(f"{prefix}attn_norm.weight")
        ones(f"{prefix}ffn_norm.weight")
        matrix(f"{prefix}attn_q.weight", heads * HEAD, width)
        matrix(f"{prefix}attn_k.weight", groups * HEAD, width)
        matrix(f"{prefix}attn_v.weight", groups * HEAD, width)
        matrix(f"{prefix}attn_output.weight", width, heads * HEAD)
        matrix(f"{prefix}ffn_gate.weight", inner, width)
        matrix(f"{prefix}ffn_up.weight", inner, width)
        matrix(f"{prefix}ffn_down.weight", width, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=False)
    writer.close()


def main() -> None:
    """Write what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--width", type=int, default=3072)
    options = parser.parse_args()
    write(options.file, options.layers, options.width)


if __name__ == "__main__":
    main()
