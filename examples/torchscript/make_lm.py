"""Writes a small language model as a TorchScript file, with the description of its calls.

  make_lm.py FOLDER [LAYERS D_MODEL SEQ]     makes FOLDER/lm.pt and FOLDER/lm.json

An embedding, blocks of causal convolution and a gated unit with skip connections, and a head whose
matrix is the embedding's. Each becomes a call; `piper train --model FOLDER/lm.pt` trains it.
"""
import json
import pathlib
import sys
from typing import Tuple

import torch
from torch import nn
from torch.nn import functional

VOCAB = 256


class Embedding(nn.Module):
    def __init__(self, d, seq):
        super().__init__()
        self.token = nn.Embedding(VOCAB, d)
        self.register_buffer("position", torch.linspace(0, 1, seq).unsqueeze(1))

    def forward(self, tokens):
        return self.token(tokens) + self.position


class Block(nn.Module):
    """Gives its output, and what it added to its input for the next block to see."""

    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.mix = nn.Conv1d(d, d, kernel_size=3)
        self.gate, self.out = nn.Linear(d, 2 * d), nn.Linear(d, d)

    def forward(self, x, before) -> Tuple[torch.Tensor, torch.Tensor]:
        past = functional.pad(self.norm(x).transpose(1, 2), [2, 0])
        mixed = self.mix(past).transpose(1, 2)
        added = self.out(functional.glu(self.gate(functional.gelu(mixed + before))))
        return x + added, added


class Head(nn.Module):
    def __init__(self, token):
        super().__init__()
        self.weight = token.weight

    def forward(self, x):
        return functional.linear(x, self.weight)


class Model(nn.Module):
    """The calls of the description in one, for PyTorch."""

    def __init__(self, layers, d, seq):
        super().__init__()
        self.embed = Embedding(d, seq)
        self.layers = nn.ModuleList(Block(d) for _ in range(layers))
        self.head = Head(self.embed.token)

    def forward(self, tokens):
        x = self.embed(tokens)
        added = x
        for layer in self.layers:
            x, added = layer(x, added)
        return self.head(x)


def describe(layers, seq):
    calls = [{"call": "embed", "module": "embed", "inputs": ["tokens"]}]
    x = added = "embed"
    for i in range(layers):
        calls.append({"call": f"layer{i}", "module": f"layers.{i}", "inputs": [x, added],
                      "annotations": {"layer": i}})
        x, added = f"layer{i}", f"layer{i}.1"
    calls.append({"call": "head", "module": "head", "inputs": [x]})
    row = {"shape": [seq], "dtype": "int64"}
    return {"batch": 16,
            "inputs": [{"name": "tokens", **row}, {"name": "targets", **row}],
            "calls": calls,
            "loss": {"cross_entropy": ["head", "targets"]}}


def main():
    folder = pathlib.Path(sys.argv[1])
    layers, d, seq = map(int, sys.argv[2:5] or (4, 64, 64))
    torch.manual_seed(1)
    model = Model(layers, d, seq)
    torch.jit.save(torch.jit.script(model), folder / "lm.pt")
    (folder / "lm.json").write_text(json.dumps(describe(layers, seq), indent=1))


if __name__ == "__main__":
    main()
