"""Models that Python saved: parity with one device and with PyTorch, and what is refused."""
import json
import pathlib
import re
import subprocess
import sys

import torch
from torch import nn

from program import PIPER, TIMEOUT, ProgramTest, losses, main

EXAMPLES = pathlib.Path(__file__).parent.parent.parent / "examples" / "torchscript"
LAYERS, WIDTH, SEQ = 3, 16, 8
ROWS = 40  # of the saved data


class Regression(nn.Module):
    """Two linear layers, the first with a constant that is no parameter, and a loss of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.error = nn.Linear(6, 5), nn.Linear(5, 2), nn.MSELoss()
        self.first.bias.requires_grad_(False)

    def forward(self, x, y):
        return self.error(self.second(self.first(x)), y)


DESCRIPTION = {"batch": 8, "data": "rows.pt",
               "inputs": [{"name": "x", "shape": [6], "dtype": "float"},
                          {"name": "y", "shape": [2], "dtype": "float"}],
               "calls": [{"call": "first", "module": "first", "inputs": ["x"],
                          "annotations": {"layer": 0}},
                         {"call": "second", "module": "second", "inputs": ["first"],
                          "annotations": {"layer": 1}},
                         {"call": "error", "module": "error", "inputs": ["second", "y"]}],
               "loss": "error"}


class TorchScript(ProgramTest):
    def language_model(self):
        subprocess.run([sys.executable, EXAMPLES / "make_lm.py", self.folder, str(LAYERS),
                        str(WIDTH), str(SEQ)], check=True)
        return self.folder / "lm.pt"

    def regression(self, module=None, **changes):
        """A file and its description, with rows to learn from."""
        torch.manual_seed(2)
        module = module or Regression()
        torch.save({"x": torch.randn(ROWS, 6), "y": torch.randn(ROWS, 2)}, self.folder / "rows.pt")
        torch.jit.save(torch.jit.script(module), self.folder / "net.pt")
        self.write("net.json", {**DESCRIPTION, **changes})
        return self.folder / "net.pt"

    def verdict(self, model, strategy, *arguments):
        path = self.folder / "verdict.json"
        self.piper("check", "--model", model, "--strategy", strategy, "--microbatches", "4",
                   "--iters", "3", "--report", path, *arguments)
        return json.loads(path.read_text())

    def trained(self, model, *arguments):
        path = self.folder / "report.json"
        self.piper("train", "--model", model, "--dtype", "float64", "--report", path, *arguments)
        return json.loads(path.read_text())

    def test_parity_with_one_device(self):
        model = self.language_model()
        for strategy in ("dp:2", "1f1b:2", "zero3:2", "zbv:2"):
            with self.subTest(strategy):
                self.verdict(model, strategy)
        for strategy in ("dp:2", "1f1b:2", "zero3:2"):
            with self.subTest(strategy, processes=2):
                self.verdict(model, strategy, "--processes", "2")

    def test_losses_are_pytorch_s(self):
        path = self.regression()
        model, rows = torch.jit.load(path).double(), torch.load(self.folder / "rows.pt")
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad],
                                      lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
        expected = []
        for i in range(10):
            number = torch.arange(i * 8, i * 8 + 8) % ROWS
            loss = model(rows["x"][number].double(), rows["y"][number].double())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            expected.append(loss.item())
        for strategy in ("single", "dp:2", "1f1b:2"):
            report = self.trained(path, "--strategy", strategy, "--microbatches", "2",
                                  "--iters", "10")
            for ours, theirs in zip(losses(report), expected, strict=True):
                self.assertAlmostEqual(ours, theirs, delta=1e-12 * theirs)
        self.assertLess(expected[5], expected[0])  # the same rows again

    def test_initial_weights_are_the_file_s_whatever_the_seed(self):
        path = self.regression()
        one, two = (self.trained(path, "--strategy", "single", "--iters", "1", "--seed", seed)
                    for seed in (1, 2))
        self.assertEqual(losses(one), losses(two))

    def test_random_rows(self):
        path = self.regression(data="random", loss={"mse": ["second", "y"]},
                               calls=DESCRIPTION["calls"][:2])
        one, two = (losses(self.trained(path, "--strategy", "dp:2", "--iters", "2", "--seed", seed))
                    for seed in (1, 2))
        self.assertNotEqual(one, two)
        self.assertTrue(self.verdict(path, "1f1b:2")["bitwise"])

    def test_tied_weights_stay_one(self):
        out = self.piper("compile", "--model", self.language_model(), "--strategy", "1f1b:2",
                         "--emit", "graph").stdout
        self.assertIn("embed.token.weight", out)
        self.assertNotIn("head.weight", out)

    def refuse(self, path, *says, arguments=()):
        self.refused("train", "--model", path, "--strategy", "single", "--iters", "1", *arguments,
                     says=says)

    def test_files_that_are_refused(self):
        path = self.regression()
        path.unlink()
        self.refuse(path, "net.pt", "the file cannot be read: No such file",
                    "give a file on this machine")
        torch.save(Regression().state_dict(), path)
        self.refuse(path, "it is not a TorchScript module", "torch.jit.save")
        path.write_text("no archive")
        self.refuse(path, "it is not a TorchScript module")
        self.refuse(self.folder / "other.pt", "cannot read the configuration", "other.json")

    def test_descriptions_that_are_refused(self):
        first, second, error = DESCRIPTION["calls"]
        for says, changes in (
                (["call 'first'", "no submodule 'third'", "it has first, second, error"],
                 {"calls": [{**first, "module": "third"}]}),
                (["call 'first'", "'first' has no method 'backward'", "it has forward"],
                 {"calls": [{**first, "method": "backward"}]}),
                (["call 'second'", "there is no value 'third' before it", "there are first, x, y"],
                 {"calls": [first, {**second, "inputs": ["third"]}]}),
                (["call 'second'", "it cannot take f32[B,6]", "shapes cannot be multiplied"],
                 {"calls": [{**second, "inputs": ["x"]}]}),
                (["call 1", "unknown key 'inptus'", "known are call, module, method, inputs"],
                 {"calls": [first, {"call": "second", "inptus": ["first"]}]}),
                (["input 0", "'dtype' is \"complex\"", "float, int64"],
                 {"inputs": [{"name": "x", "shape": [6], "dtype": "complex"}]}),
                (["loss", "there is no loss 'huber' of values", "cross_entropy, mse"],
                 {"loss": {"huber": ["second", "y"]}}),
                (["rows.pt", "the tensor 'x' is [40,6]", "rows of [7]"],
                 {"inputs": [{"name": "x", "shape": [7]}, DESCRIPTION["inputs"][1]]}),
                (["text cannot feed the input 'x'", "\"random\""], {"data": "some.txt"})):
            with self.subTest(says):
                self.refuse(self.regression(**changes), *says)
        self.refuse(self.regression(loss=None), "'loss' is null")

    def test_a_module_that_changes_its_buffers(self):
        module = Regression()
        module.first = nn.BatchNorm1d(6)
        module.second = nn.Linear(6, 2)
        self.refuse(self.regression(module), "call 'first'", "it changes its buffer")
        self.verdict(self.regression(module.eval()), "dp:2")

    def start_session(self, path):
        """A run that waits for a worker, and the address where it does."""
        run = subprocess.Popen([PIPER, "train", "--model", path, "--strategy", "zero3:2",
                                "--microbatches", "2", "--iters", "2", "--workers", "1",
                                "--verbose"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True)
        self.addCleanup(run.communicate)
        self.addCleanup(run.kill)
        for line in run.stdout:
            if found := re.search(r"127\.0\.0\.1:\d+", line):
                return run, found[0]
        self.fail("it does not say where workers join")

    def test_worker_joins_by_hand(self):
        run, address = self.start_session(self.language_model())
        self.piper("worker", "--join", address)
        run.communicate(timeout=TIMEOUT)
        self.assertEqual(run.returncode, 0)

    def test_worker_without_the_file_is_refused(self):
        path = self.language_model()
        run, address = self.start_session(path)
        path.unlink()
        self.refused("worker", "--join", address, says=["lm.pt", "the file cannot be read"])

    def test_worker_with_other_weights_is_refused(self):
        path = self.language_model()
        run, address = self.start_session(path)
        module = torch.jit.load(path)
        with torch.no_grad():
            module.embed.token.weight += 1
        path.unlink()
        torch.jit.save(module, path)
        self.refused("worker", "--join", address, says="the worker's model 'torchscript' is")


if __name__ == "__main__":
    main()
