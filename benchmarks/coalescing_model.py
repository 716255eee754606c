"""Make the hybrid model that `coalescing_ttft.py` measures: small states, so that a cache block may hold 64 tokens.

A gated-delta-net state of one value head fits into the cache page of 64 tokens of an attention layer with two heads.
The vocabulary sets what a pass costs: each one reads all of the output layer for the one row that may be sampled, a
prompt's other tokens none of it. Runs in the engine's environment.
"""

import argparse
import sys
from pathlib import Path

import torch
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
from make_tiny_model import BYTES, save_tokenizer

SMALLEST_VOCABULARY = 512


def save_weights(folder: Path, hidden_size: int, layers: int, vocabulary: int) -> None:
    """Write the configuration and random bfloat16 weights; one attention layer after the recurrent ones.

    Rows of the vocabulary from SMALLEST_VOCABULARY on are zero: a logit of zero is never the greatest of many.
    """
    config = Qwen3_5TextConfig(
        vocab_size=vocabulary,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        full_attention_interval=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=256,
        linear_num_key_heads=1,
        linear_num_value_heads=1,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        max_position_embeddings=131_072,
        tie_word_embeddings=True,
        bos_token_id=BYTES,
        eos_token_id=BYTES + 1,
        pad_token_id=BYTES + 2,
    )
    torch.manual_seed(0)
    model = Qwen3_5ForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        model.get_input_embeddings().weight[SMALLEST_VOCABULARY:] = 0
    model.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the model is written")
    parser.add_argument("--hidden-size", type=int, default=896, help="width of the model (default: 896)")
    parser.add_argument("--layers", type=int, default=4, help="its layers, the last with attention (default: 4)")
    parser.add_argument("--vocabulary", type=int, default=SMALLEST_VOCABULARY, help="its tokens (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.vocabulary < SMALLEST_VOCABULARY or arguments.layers < 2:
        parser.error(f"at least {SMALLEST_VOCABULARY} tokens and 2 layers: the tokenizer's, and one of either kind")
    save_weights(arguments.folder, arguments.hidden_size, arguments.layers, arguments.vocabulary)
    save_tokenizer(arguments.folder)


if __name__ == "__main__":
    main()
