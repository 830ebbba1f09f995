"""The example Llama in PyTorch alone, from the specification in examples/models/llama.h, trained.

  reference_llama.py LAYERS D_MODEL HEADS KV_HEADS D_FF SEQ BATCH MICROBATCHES TIED ITERATIONS SEED TEXT
"""
import sys

import torch
from torch import nn
from torch.nn import functional

from reference import VOCAB, train

THETA, EPS = 10000.0, 1e-5


def rotated(x):
    """Rotary positions by complex numbers; x is [rows, heads, positions, elements of a head]."""
    length, size = x.shape[2:]
    frequency = THETA ** (-torch.arange(0, size, 2) / size)
    turn = torch.polar(torch.ones(1), torch.outer(torch.arange(length), frequency))
    y = torch.complex(*x.chunk(2, -1)) * turn
    return torch.cat([y.real, y.imag], -1)


class Layer(nn.Module):
    def __init__(self, d, heads, kv_heads, d_ff):
        super().__init__()
        self.size = d // heads
        self.norm1, self.norm2 = nn.RMSNorm(d, EPS), nn.RMSNorm(d, EPS)
        for name, rows in (("wq", heads * self.size), ("wk", kv_heads * self.size),
                           ("wv", kv_heads * self.size), ("wo", heads * self.size),
                           ("w_gate", d_ff), ("w_up", d_ff), ("w_down", d_ff)):
            self.register_parameter(name, nn.Parameter(torch.empty(rows, d)))

    def attention(self, x):
        rows, length, _ = x.shape
        q, k, v = (functional.linear(x, w).view(rows, length, -1, self.size).transpose(1, 2)
                   for w in (self.wq, self.wk, self.wv))
        y = functional.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True,
                                                    enable_gqa=True)
        return y.transpose(1, 2).reshape(rows, length, -1) @ self.wo

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        n = self.norm2(x)
        gated = functional.silu(n @ self.w_gate.T) * (n @ self.w_up.T)
        return x + gated @ self.w_down


class Llama(nn.Module):
    def __init__(self, layers, d, heads, kv_heads, d_ff, tied):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d)
        self.layers = nn.ModuleList(Layer(d, heads, kv_heads, d_ff) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(d, EPS), nn.Linear(d, VOCAB, bias=False)
        if tied:
            self.head.weight = self.tok.weight

    def forward(self, tokens):
        x = self.tok(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def main():
    layers, d, heads, kv_heads, d_ff, seq, batch, parts, tied, iterations, seed = map(
        int, sys.argv[1:12])
    train(lambda: Llama(layers, d, heads, kv_heads, d_ff, tied), parts, batch, seq, iterations,
          seed, sys.argv[12])


if __name__ == "__main__":
    main()
