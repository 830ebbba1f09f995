"""What the reference models share: weights, text and the training loop.

Written from the specification in examples/models/{weights,text}.h with PyTorch's own loss and AdamW,
so that nothing is shared with what it is compared with.
"""
import json
import pathlib

import numpy
import torch
from torch.nn import functional

VOCAB = 256
WORD = 2**64
PRIME = 0x100000001B3


def scramble(counter):
    """splitmix64: the state after one more step, finalized."""
    z = (counter + 0x9E3779B97F4A7C15) % WORD
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB % WORD
    return z ^ z >> 31


def fold(items):
    """FNV-1a over a sequence of integers."""
    result = 0xCBF29CE484222325
    for item in items:
        result = (result ^ item) * PRIME % WORD
    return result


def initialize(model, seed):
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.data.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        key = scramble(seed) ^ fold(name.encode())
        uniform = [(scramble(key + k) >> 11) * 2.0**-53 for k in range(parameter.numel())]
        values = (numpy.array(uniform) - 0.5) * (2 * 3**0.5 * 0.02)
        parameter.data.copy_(torch.from_numpy(values).view(parameter.shape))


def windows(text, seed, iteration, part, size, seq):
    """One part of the batch: tokens and targets."""
    rows = []
    for sample in range(size):
        key = scramble(scramble(scramble(seed) + iteration) + part)
        start = scramble(key + sample) % (len(text) - seq - 1)
        rows.append(list(text[start : start + seq + 1]))
    rows = torch.tensor(rows)
    return rows[:, :-1], rows[:, 1:]


def train(make_model, parts, batch, seq, iterations, seed, text):
    """Trains in float64 and prints a JSON object:

    losses   of each iteration, before its update
    weights  of each parameter, before the first: a hash of its float64 bits
    """
    files = [f for f in sorted(pathlib.Path(text).iterdir()) if f.is_file() and not f.is_symlink()]
    text = b"".join(f.read_bytes() for f in files)

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    model = make_model()
    initialize(model, seed)
    hashes = {
        name: fold(parameter.detach().numpy().view(numpy.uint64).ravel().tolist())
        for name, parameter in model.named_parameters()
    }
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, foreach=False
    )
    losses = []
    for iteration in range(iterations):
        total = 0.0
        for part in range(parts):
            tokens, targets = windows(text, seed, iteration, part, batch // parts, seq)
            loss = functional.cross_entropy(model(tokens).view(-1, VOCAB), targets.reshape(-1))
            loss = loss + getattr(model, "penalty", 0.0)  # that the forward left, if any
            (loss / parts).backward()
            total += loss.item()
        losses.append(total / parts)
        optimizer.step()
        optimizer.zero_grad()
    print(json.dumps({"losses": losses, "weights": hashes}))
