"""Training in one process: the report, the change of strategy, the errors."""
import json
import math

from program import DONE, FAILED, TINY, WRONG_INPUT, ProgramTest, losses, main


class Train(ProgramTest):
    def test_report(self):
        report = self.train("--strategy", "dp:2", "--microbatches", "4", "--iters", "6")
        self.assertEqual([i["iteration"] for i in report["iterations"]], list(range(6)))
        for iteration in report["iterations"]:
            self.assertGreater(iteration["tokens_per_second"], 0)
            self.assertEqual(iteration["epoch"], 0)
        self.assertAlmostEqual(report["iterations"][0]["loss"], math.log(256), delta=0.1)
        self.assertLess(losses(report)[-1], losses(report)[0])
        self.assertEqual(report["changes"], [])
        self.assertEqual([d["device"] for d in report["devices"]], [0, 1])
        for device in report["devices"]:
            self.assertGreater(device["peak_bytes"], 0)
            self.assertGreater(device["busy_seconds"], 0)
            self.assertGreaterEqual(device["idle_seconds"], 0)
        self.assertIsInstance(report["parameters_digest"], str)
        self.assertGreaterEqual(len(report["parameters_digest"]), 16)

    def test_digest_is_of_the_parameters_and_not_of_the_layout(self):
        def digest(*arguments):
            return self.train("--microbatches", "2", "--iters", "3", *arguments)["parameters_digest"]
        single = digest("--strategy", "single")
        self.assertEqual(single, digest("--strategy", "single"))
        self.assertEqual(single, digest("--strategy", "1f1b:2"))
        self.assertNotEqual(single, digest("--strategy", "single", "--seed", "2"))

    def test_ablations_change_the_time_and_not_the_result(self):
        def digest(*arguments):
            return self.train("--microbatches", "2", "--iters", "3", *arguments)["parameters_digest"]
        for strategy in ("dp:2", "zero3:2", "1f1b:2"):
            whole = digest("--strategy", strategy)
            for flags in (["--no-overlap"], ["--no-fusion"], ["--no-bucketing"],
                          ["--no-overlap", "--no-fusion", "--no-bucketing"],
                          ["--collective", "direct"], ["--link", "100us,1GB/s"]):
                self.assertEqual(whole, digest("--strategy", strategy, *flags), flags)
        for distance in ("0", "3"):
            self.assertEqual(digest("--strategy", "zero3:2"),
                             digest("--strategy", "zero3:2", "--prefetch", distance))
        self.refused("train", *TINY, "--strategy", "dp:2", "--collective", "ring",
                     says=["direct exchange", "piper simulate --collective"])

    def test_a_slow_link_slows_and_is_waited_for_without_work(self):
        # 40 ms a message, one each way for every iteration's microbatch: nothing can be faster.
        slow = self.train("--strategy", "1f1b:2", "--microbatches", "1", "--iters", "4",
                          "--link", "40ms,1GB/s")
        tokens = 4 * 8
        for iteration in slow["iterations"][1:]:
            self.assertLess(iteration["tokens_per_second"], tokens / 0.080)
        self.refused("train", *TINY, "--strategy", "dp:2", "--link", "50us",
                     says=["--link", "cannot read the bandwidth of the link \"50us\"", "50us,1GB/s"])

    def test_change_mid_run(self):
        common = ("--microbatches", "4", "--iters", "8", "--dtype", "float64", "--devices", "2")
        plain = self.train(*common, "--strategy", "dp:2")
        changed = self.train(*common, "--strategy", "dp:2", "--at", "3=1f1b:2", "--at", "5=single")
        self.assertEqual([(c["from"], c["to"], c["iteration"]) for c in changed["changes"]],
                         [("dp:2", "1f1b:2", 3), ("1f1b:2", "single", 5)])
        for change in changed["changes"]:
            self.assertGreater(change["compile_seconds"], 0)
            self.assertGreater(change["pause_seconds"], 0)
        # What a stage did not have comes from the other device.
        self.assertGreater(changed["changes"][1]["bytes_moved"], 0)
        epochs = [i["epoch"] for i in changed["iterations"]]
        self.assertEqual([epochs.index(e) for e in sorted(set(epochs))], [0, 3, 5])
        for a, b in zip(losses(plain), losses(changed)):
            self.assertAlmostEqual(a, b, delta=1e-12 * a)

    def test_mlp(self):
        self.piper("train", "--model", "mlp", "--strategy", "gpipe:2", "--skip", "--microbatches",
                   "2", "--iters", "2")

    def test_lines_and_table(self):
        out = self.piper("train", *TINY, "--strategy", "dp:2", "--devices", "2", "--microbatches",
                         "4", "--iters", "4", "--at", "2=gpipe:2").stdout
        self.assertRegex(out, r"(?m)^iteration 0  loss \d+\.\d+  \d+ tokens/s$")
        self.assertRegex(out, r"(?m)^dp:2 +0-1 .*%$")
        self.assertRegex(out, r"(?m)^gpipe:2 +2-3 .*%$")
        self.assertRegex(out, r"(?m)^dp:2 -> gpipe:2 +2 .* ms .* ms .* ms .*B$")

    def test_evaluation(self):
        report = self.train("--strategy", "single", "--iters", "4", "--eval-every", "2")
        self.assertEqual(["eval_loss" in i for i in report["iterations"]],
                         [False, True, False, True])

    def test_refused(self):
        self.refused("train", *TINY, "--strategy", "single", "--at", "2", says="ITER=STRATEGY")
        self.refused("train", *TINY, "--strategy", "single", "--at", "0=single",
                     says="ITER=STRATEGY")
        self.refused("train", *TINY, "--strategy", "single", "--iters", "5", "--at", "5=single",
                     says="is not reached")
        self.refused("train", *TINY, "--strategy", "single", "--at", "2=none.json",
                     says="none.json")
        self.refused("train", *TINY, "--strategy", "dp:2", "--devices", "1", says="device")
        self.refused("train", *TINY, "--strategy", "dp:3", "--microbatches", "4", says="3")
        self.refused("train", *TINY, "--strategy", "single", "--processes", "2",
                     says="2 processes cannot share 1 devices")

    def test_memory_cap(self):
        self.refused("train", *TINY, "--strategy", "single", "--memory-cap", "10000",
                     says=["device 0", "bytes may be live, the cap is 10000"], code=FAILED)
        self.train("--strategy", "single", "--memory-cap", "1GiB", "--iters", "2", code=DONE)

    def test_offload(self):
        plain = self.train("--strategy", "single", "--microbatches", "2", "--iters", "3")
        strategy = self.write("away.json", [
            {"op": "schedule", "name": "single"},
            {"op": "offload", "filter": {}, "what": ["activations", "optimizer", "params"]}])
        away = self.train("--strategy", strategy, "--microbatches", "2", "--iters", "3",
                          "--offload-dir", self.folder)
        for a, b in zip(losses(plain), losses(away), strict=True):
            self.assertAlmostEqual(a, b, delta=1e-6 * a)
        self.assertEqual(plain["devices"][0]["offloaded_bytes"], 0)
        self.assertGreater(away["devices"][0]["offloaded_bytes"], 0)
        self.assertEqual(list(self.folder.glob("*offload*")), [])
        self.refused("train", *TINY, "--strategy", strategy, "--offload-dir",
                     self.folder / "none", says=["none", "No such file"], code=FAILED)

    def test_timeline(self):
        trace, picture = self.folder / "trace.json", self.folder / "iteration.svg"
        self.train("--strategy", "1f1b:2", "--microbatches", "4", "--iters", "3", "--trace", trace,
                   "--svg", picture)
        events = json.loads(trace.read_text())["traceEvents"]
        for device in 0, 1:
            passes = [e["name"].split()[0] for e in events if e["ph"] == "X" and
                      e["pid"] == device and e["cat"] in ("forward", "backward")]
            self.assertEqual(passes.count("F"), 4)
            self.assertEqual(passes.count("B"), 4)
        self.assertIn("<title>B ", picture.read_text())
        self.refused("train", *TINY, "--strategy", "single", "--iters", "1", "--trace",
                     self.folder / "none" / "trace.json", says=["none/trace.json", "--trace"],
                     code=WRONG_INPUT)

    def test_unwritable_report(self):
        self.refused("train", *TINY, "--strategy", "single", "--iters", "1", "--report",
                     self.folder / "none" / "report.json", says="cannot write the report")


if __name__ == "__main__":
    main()
