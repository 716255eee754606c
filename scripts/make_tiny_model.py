"""Make the tiny hybrid model that tests and the demo serve: random weights, a byte tokenizer, 7 MB.

Three gated-delta-net layers and one attention layer of head size 256, as in the Qwen3.5 family.
"""

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

SPECIAL_TOKENS = ("<|bos|>", "<|eos|>", "<|pad|>")
BYTES = 256


def save_weights(folder: Path, seed: int) -> None:
    """Write the model's configuration and random bfloat16 weights."""
    config = Qwen3_5TextConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=256,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        max_position_embeddings=131_072,
        tie_word_embeddings=True,
        bos_token_id=BYTES,
        eos_token_id=BYTES + 1,
        pad_token_id=BYTES + 2,
    )
    torch.manual_seed(seed)
    Qwen3_5ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def save_tokenizer(folder: Path) -> None:
    """Write a tokenizer in which every byte is one token."""
    vocabulary = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary |= {token: BYTES + index for index, token in enumerate(SPECIAL_TOKENS)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    bos, eos, pad = SPECIAL_TOKENS
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, eos_token=eos, pad_token=pad).save_pretrained(
        folder
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the model is written")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights (default: 0)")
    arguments = parser.parse_args()
    save_weights(arguments.folder, arguments.seed)
    save_tokenizer(arguments.folder)


if __name__ == "__main__":
    main()
