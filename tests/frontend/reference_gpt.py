"""The example GPT in PyTorch alone, from the specification in examples/models/gpt.h, trained.

  reference_gpt.py LAYERS D_MODEL HEADS SEQ BATCH MICROBATCHES TIED ITERATIONS SEED TEXT
"""
import sys

from torch import nn
from torch.nn import functional

from reference import VOCAB, train


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc1, self.fc2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        rows, length, d = x.shape
        split = self.qkv(self.ln1(x)).view(rows, length, 3, self.heads, d // self.heads)
        q, k, v = (split[:, :, i].transpose(1, 2) for i in range(3))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(rows, length, d))
        return x + self.fc2(functional.gelu(self.fc1(self.ln2(x))))


class Gpt(nn.Module):
    def __init__(self, layers, d, heads, seq, tied):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, d), nn.Embedding(seq, d)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.lnf, self.head = nn.LayerNorm(d), nn.Linear(d, VOCAB, bias=False)
        if tied:
            self.head.weight = self.tok.weight

    def forward(self, tokens):
        x = self.tok(tokens) + self.pos.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.lnf(x))


def main():
    layers, d, heads, seq, batch, parts, tied, iterations, seed = map(int, sys.argv[1:10])
    train(lambda: Gpt(layers, d, heads, seq, tied), parts, batch, seq, iterations, seed,
          sys.argv[10])


if __name__ == "__main__":
    main()
