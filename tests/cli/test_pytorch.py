"""The losses of gpt and llama against PyTorch's own, trained here from the same specification."""
import json
import pathlib
import subprocess
import sys

from program import ProgramTest, losses, main

REFERENCES = pathlib.Path(__file__).parent.parent / "frontend"
LAYERS, WIDTH, HEADS, SEQ, BATCH, MICROBATCHES, ITERATIONS, SEED = 2, 32, 4, 16, 8, 4, 10, 1
KV_HEADS, UNITS = 2, 48
TEXT = "/usr/share/common-licenses"


class PyTorch(ProgramTest):
    def compare(self, model, sizes, *flags):
        """Ten iterations in float64, under several strategies."""
        arguments = (LAYERS, WIDTH, *sizes, SEQ, BATCH, MICROBATCHES, 0, ITERATIONS, SEED, TEXT)
        run = subprocess.run([sys.executable, REFERENCES / f"reference_{model}.py",
                              *map(str, arguments)], check=True, capture_output=True)
        expected = json.loads(run.stdout)["losses"]
        self.assertLess(expected[-1], expected[0] - 0.1)
        for strategy in ("single", "dp:2", "gpipe:2", "1f1b:2"):
            with self.subTest(strategy):
                report = self.train("--model", model, "--layers", LAYERS, "--d-model", WIDTH,
                                    "--heads", HEADS, "--seq", SEQ, "--batch", BATCH, *flags,
                                    "--dtype", "float64", "--microbatches", MICROBATCHES,
                                    "--iters", ITERATIONS, "--strategy", strategy)
                for ours, theirs in zip(losses(report), expected, strict=True):
                    self.assertAlmostEqual(ours, theirs, delta=1e-12 * theirs)

    def test_gpt(self):
        self.compare("gpt", [HEADS])

    def test_llama(self):
        self.compare("llama", [HEADS, KV_HEADS, UNITS], "--kv-heads", KV_HEADS, "--d-ff", UNITS)


if __name__ == "__main__":
    main()
