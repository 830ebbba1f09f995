"""`piper check` of every strategy that ships, on every model it is for, in one process and two.

A few of them, by the seed in PIPER_SEED; all with PIPER_LONG=1."""
import json
import os
import random

from program import ProgramTest, main

SIZES = ("--layers", "4", "--d-model", "16", "--heads", "4", "--seq", "8", "--batch", "16",
         "--microbatches", "4", "--iters", "2")
GROUPED = ("--kv-heads", "2", "--d-ff", "12")
MODELS = {"gpt": (), "llama": GROUPED, "moe": (*GROUPED, "--experts", "4")}

STRATEGIES = (
    "dp:2", "zero1:2", "zero2:2", "zero3:2", "zero3:4,within=2",
    "gpipe:2", "1f1b:2", "interleaved:2", "loopedbfs:2", "zbh1:2", "zbh2:2", "zb1p:2", "zbv:2",
    "vhalf:2", "vmin:2", "wave:2", "dualpipe:2", "dualpipev:2", "tp:2", "sp:2",
    "dp:2x1f1b:2", "zero1:2x1f1b:2", "zero3:2x1f1b:2", "zero2:2xzbv:2", "tp:2x1f1b:2",
    "tp:2xdp:2x1f1b:2", "sp:2xzero1:2",
)
EXPERTS = ("ep:2", "dp:2xep:2", "ep:2x1f1b:2", "ep:2xdualpipev:2", "tp:2xep:2", "ep:2xzero3:2")

CASES = [(model, strategy, processes) for processes in (1, 2) for model in MODELS
         for strategy in STRATEGIES + (EXPERTS if model == "moe" else ())]
SAMPLE = 8


class Grid(ProgramTest):
    def test_every_strategy_learns_what_one_device_learns(self):
        cases = CASES
        if not os.environ.get("PIPER_LONG"):
            seed = int(os.environ.get("PIPER_SEED", "1"))
            print(f"{SAMPLE} of {len(CASES)} cases by the seed {seed}", flush=True)
            cases = random.Random(seed).sample(CASES, SAMPLE)
        for model, strategy, processes in cases:
            with self.subTest(f"{model} {strategy} in {processes}"):
                path = self.folder / "verdict.json"
                self.piper("check", "--model", model, *SIZES, *MODELS[model], "--strategy",
                           strategy, "--processes", processes, "--report", path)
                verdict = json.loads(path.read_text())
                self.assertLessEqual(verdict["parameter_difference"], verdict["tolerance"])
                self.assertLessEqual(verdict["loss_difference"], verdict["tolerance"])


if __name__ == "__main__":
    main()
