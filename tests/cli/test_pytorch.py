"""The losses of the gpt against PyTorch's own, trained here from the same specification.

The model is written with torch.nn and trained with torch.optim, so that nothing of ours but text,
samples and initial weights has to be believed.
"""
import math
import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from program import ProgramTest, losses, main

LAYERS, WIDTH, HEADS, SEQ, BATCH, MICROBATCHES, ITERATIONS = 2, 32, 4, 16, 8, 4, 10
VOCAB, SEED = 256, 1
LICENSES = "/usr/share/common-licenses"
M64 = (1 << 64) - 1


def mix(z):
    """The finalizer of splitmix64."""
    z = (z + 0x9E3779B97F4A7C15) & M64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
    return z ^ (z >> 31)


def fnv1a(name):
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001B3) & M64
    return h


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        rows = x.shape[0]
        q, k, v = self.qkv(self.ln1(x)).view(rows, SEQ, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(rows, SEQ, WIDTH))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, WIDTH), nn.Embedding(SEQ, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.lnf, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.endswith("bias"):
                    parameter.zero_()
                elif parameter.dim() == 1:
                    parameter.fill_(1)
                else:
                    key = mix(SEED) ^ fnv1a(name)
                    uniform = [(mix((key + i) & M64) >> 11) * 2.0 ** -53
                               for i in range(parameter.numel())]
                    parameter.copy_(torch.tensor([(u - 0.5) * (2 * 3 ** 0.5 * 0.02)
                                                  for u in uniform]).view(parameter.shape))

    def forward(self, tokens):
        x = self.tok(tokens) + self.pos.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.lnf(x))


def samples(text, iteration, microbatch):
    key = mix((mix((mix(SEED) + iteration) & M64) + microbatch) & M64)
    rows = []
    for j in range(BATCH // MICROBATCHES):
        begin = mix((key + j) & M64) % (len(text) - SEQ - 1)
        rows.append(text[begin:begin + SEQ + 1])
    windows = torch.from_numpy(np.stack(rows).astype(np.int64))
    return windows[:, :-1], windows[:, 1:]


def pytorch_losses():
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    paths = [os.path.join(LICENSES, name) for name in sorted(os.listdir(LICENSES))]
    text = np.frombuffer(b"".join(open(path, "rb").read() for path in paths
                                  if os.path.isfile(path) and not os.path.islink(path)), np.uint8)
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8,
                                  weight_decay=0.1)
    result = []
    for iteration in range(ITERATIONS):
        total = 0
        for microbatch in range(MICROBATCHES):
            tokens, targets = samples(text, iteration, microbatch)
            loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
            (loss / MICROBATCHES).backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        result.append(total / MICROBATCHES)
    return result


class PyTorch(ProgramTest):
    def test_ten_iterations_in_float64(self):
        expected = pytorch_losses()
        self.assertAlmostEqual(expected[0], math.log(VOCAB), delta=0.1)
        self.assertLess(expected[-1], expected[0] - 0.1)
        for strategy in ("single", "dp:2", "gpipe:2", "1f1b:2"):
            with self.subTest(strategy):
                report = self.train("--layers", LAYERS, "--d-model", WIDTH, "--heads", HEADS,
                                    "--seq", SEQ, "--batch", BATCH, "--dtype", "float64",
                                    "--microbatches", MICROBATCHES, "--iters", ITERATIONS,
                                    "--strategy", strategy)
                for ours, theirs in zip(losses(report), expected, strict=True):
                    self.assertAlmostEqual(ours, theirs, delta=1e-12 * theirs)


if __name__ == "__main__":
    main()
