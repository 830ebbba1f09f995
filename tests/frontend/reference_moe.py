"""The example mixture of experts in PyTorch alone, from the specification in examples/models/moe.h.

  reference_moe.py LAYERS D_MODEL HEADS KV_HEADS EXPERTS TOP_K D_FF SEQ BATCH MICROBATCHES TIED
                   ITERATIONS SEED TEXT

Every expert sees every token here, and what the router did not choose weighs nothing.
"""
import sys

import torch
from torch import nn
from torch.nn import functional

from reference import VOCAB, train
from reference_llama import EPS, rotated

BALANCE = 0.001


class Layer(nn.Module):
    def __init__(self, d, heads, kv_heads, experts, top_k, d_ff):
        super().__init__()
        self.size, self.top_k = d // heads, top_k
        self.norm1, self.norm2 = nn.RMSNorm(d, EPS), nn.RMSNorm(d, EPS)
        for name, *shape in (("wq", heads * self.size, d), ("wk", kv_heads * self.size, d),
                             ("wv", kv_heads * self.size, d), ("wo", heads * self.size, d),
                             ("q_norm", self.size), ("k_norm", self.size), ("router", experts, d),
                             ("w_gate", experts, d_ff, d), ("w_up", experts, d_ff, d),
                             ("w_down", experts, d_ff, d)):
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))

    def attention(self, x):
        rows, length, _ = x.shape
        q, k, v = (functional.linear(x, w).view(rows, length, -1, self.size).transpose(1, 2)
                   for w in (self.wq, self.wk, self.wv))
        q = rotated(functional.rms_norm(q, (self.size,), self.q_norm, EPS))
        k = rotated(functional.rms_norm(k, (self.size,), self.k_norm, EPS))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return y.transpose(1, 2).reshape(rows, length, -1) @ self.wo

    def forward(self, x):
        """The layer's output, and its balance term of each row."""
        x = x + self.attention(self.norm1(x))
        n = self.norm2(x)
        probabilities = torch.softmax(n @ self.router.T, -1)
        best, chosen = probabilities.topk(self.top_k, -1)
        picked = functional.one_hot(chosen, probabilities.shape[-1]).to(x.dtype).sum(2)
        weights = probabilities * picked / best.sum(-1, keepdim=True)
        hidden = functional.silu(torch.einsum("btd,efd->btef", n, self.w_gate)) * torch.einsum(
            "btd,efd->btef", n, self.w_up)
        made = torch.einsum("btef,efd->bted", hidden, self.w_down)
        share = picked.mean(1) / self.top_k
        balance = (share * probabilities.mean(1)).sum(-1) * probabilities.shape[-1]
        return x + (made * weights.unsqueeze(-1)).sum(2), balance


class Moe(nn.Module):
    def __init__(self, layers, *sizes):
        super().__init__()
        d = sizes[0]
        self.tok = nn.Embedding(VOCAB, d)
        self.layers = nn.ModuleList(Layer(*sizes) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(d, EPS), nn.Linear(d, VOCAB, bias=False)

    def forward(self, tokens):
        x = self.tok(tokens)
        total = 0.0
        for layer in self.layers:
            x, balance = layer(x)
            total = total + balance
        self.penalty = BALANCE / len(self.layers) * total.mean()
        return self.head(self.norm(x))


def main():
    *sizes, seq, batch, parts, _, iterations, seed = map(int, sys.argv[1:14])
    train(lambda: Moe(*sizes), parts, batch, seq, iterations, seed, sys.argv[14])


if __name__ == "__main__":
    main()
