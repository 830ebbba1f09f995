"""The losses of the gpt against PyTorch's own, trained here from the same specification."""
import json
import pathlib
import subprocess
import sys

from program import ProgramTest, losses, main

REFERENCE = pathlib.Path(__file__).parent.parent / "frontend" / "reference_gpt.py"
LAYERS, WIDTH, HEADS, SEQ, BATCH, MICROBATCHES, ITERATIONS, SEED = 2, 32, 4, 16, 8, 4, 10, 1
TEXT = "/usr/share/common-licenses"


class PyTorch(ProgramTest):
    def test_ten_iterations_in_float64(self):
        arguments = (LAYERS, WIDTH, HEADS, SEQ, BATCH, MICROBATCHES, 0, ITERATIONS, SEED, TEXT)
        expected = json.loads(subprocess.run([sys.executable, REFERENCE, *map(str, arguments)],
                                             check=True, capture_output=True).stdout)["losses"]
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
