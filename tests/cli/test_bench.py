"""The benchmarks run and print what they promise; how fast they are is not asked."""
import re

from program import ProgramTest, TINY, WRONG_INPUT, main


class Bench(ProgramTest):
    def test_memory(self):
        out = self.piper("bench", "memory", *TINY, "--strategies", "1f1b:2,zero3:2",
                         "--microbatches", "2", "--memory-cap", "400000", "--largest", "64",
                         "--iters", "2").stdout
        batches = {}
        for line in out.splitlines():
            row = re.match(r"(\S+)\s+(recompute|offload|both)?\s+(\d+)\s+([\d.]+)\s", line)
            if row:
                batches[row[1], row[2] or ""] = int(row[3])
        self.assertEqual(len(batches), 8, out)
        for strategy in ("1f1b:2", "zero3:2"):
            for variant in ("recompute", "offload", "both"):
                self.assertGreaterEqual(batches[strategy, variant], batches[strategy, ""], out)

    def test_overlap(self):
        out = self.piper("bench", "overlap", *TINY, "--strategy", "zero3:2", "--microbatches", "2",
                         "--iters", "3", "--unmeasured", "1", "--rounds", "1", "--time",
                         "20").stdout
        self.assertRegex(out, r"over the link, without overlap +\d")
        self.assertRegex(out, r"sent by a device over .*/s.*; (-?\d+% hidden|the DAG allows nothing)")

    def test_simulate(self):
        out = self.piper("bench", "simulate", *TINY, "--strategies", "single,1f1b:2", "--rounds",
                         "2", "--iters", "3", "--unmeasured", "1", "--time", "20").stdout
        self.assertRegex(out, r"single +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+-[\d.]+")
        self.assertRegex(out, r"1f1b:2 +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+-[\d.]+")

    def test_refused(self):
        self.refused("bench", "overlap", *TINY, "--strategy", "single", "--iters", "3",
                     "--rounds", "1", "--time", "20", says="its devices send nothing",
                     code=WRONG_INPUT)


if __name__ == "__main__":
    main()
