"""Make a hybrid model whose page is the 784 tokens of the Qwen3.5 family at tensor parallelism 4: random weights.

A GDN state of 4 key and 12 value heads of 128, in float32, is as large as 784 tokens of one bfloat16 KV head of 256.
"""

import argparse
import runpy
from pathlib import Path
from typing import Final

import torch
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

SHARPNESS: Final = 4.0
LOUDNESS: Final = 20.0
"""Factors on attention's queries and on its output: with weights as they are drawn, attention averages thousands of
tokens to almost nothing, and a wrong page would hardly show in the answers."""


def save_weights(folder: Path, layers: int) -> None:
    """Write the configuration and random bfloat16 weights; every fourth layer is attention."""
    config = Qwen3_5TextConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=layers,
        num_attention_heads=6,
        num_key_value_heads=1,
        head_dim=256,
        linear_num_key_heads=4,
        linear_num_value_heads=12,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        max_position_embeddings=131_072,
        tie_word_embeddings=True,
        bos_token_id=256,
        eos_token_id=257,
        pad_token_id=258,
    )
    torch.manual_seed(0)
    model = Qwen3_5ForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            if hasattr(layer, "self_attn"):
                layer.self_attn.q_norm.weight.fill_(SHARPNESS - 1)  # the norm multiplies by 1 + weight
                layer.self_attn.o_proj.weight.mul_(LOUDNESS)
    model.to(torch.bfloat16).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the model is written")
    parser.add_argument("--layers", type=int, default=4, help="layers, a multiple of 4 (default: 4)")
    arguments = parser.parse_args()
    save_weights(arguments.folder, arguments.layers)
    runpy.run_path(str(Path(__file__).with_name("make_tiny_model.py")))["save_tokenizer"](arguments.folder)


if __name__ == "__main__":
    main()
