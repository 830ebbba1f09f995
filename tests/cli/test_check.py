"""`piper check`: parity with one device in float64."""
import json

from program import TINY, ProgramTest, main


class Check(ProgramTest):
    def verdict(self, strategy, *arguments):
        path = self.folder / "verdict.json"
        self.piper("check", *TINY, "--strategy", strategy, "--iters", "3", "--report", path,
                   *arguments)
        return json.loads(path.read_text())

    def test_pipeline_is_bitwise_equal(self):
        for strategy in ("gpipe:2", "1f1b:2"):
            self.assertTrue(self.verdict(strategy, "--microbatches", "4")["bitwise"])

    def test_data_parallel_is_equal(self):
        verdict = self.verdict("dp:2", "--microbatches", "4")
        self.assertLessEqual(verdict["parameter_difference"], verdict["tolerance"])
        self.assertLessEqual(verdict["loss_difference"], verdict["tolerance"])

    def test_says_what_it_found(self):
        out = self.piper("check", *TINY, "--strategy", "dp:2x1f1b:2", "--microbatches", "4",
                         "--iters", "2").stdout
        self.assertRegex(out, r"(?m)^(bitwise )?equal: largest relative difference .* of a loss")

    def test_every_kind_of_sharding_and_a_split_backward(self):
        for strategy in ("zero3:2", "zero2:2x1f1b:2", "zero3:2xzbv:2", "dualpipe:2"):
            # Gradients that are all rounding must not look like a difference.
            verdict = self.verdict(strategy, "--microbatches", "8", "--batch", "8", "--d-model", "32")
            self.assertLessEqual(verdict["parameter_difference"], verdict["tolerance"] / 10)

    def test_llama(self):
        llama = ("--model", "llama", "--heads", "4", "--kv-heads", "2", "--d-ff", "24",
                 "--rope-theta", "500000", "--norm-eps", "1e-6", "--microbatches", "4")
        for strategy in ("1f1b:2", "zbv:2"):
            self.assertTrue(self.verdict(strategy, *llama)["bitwise"])
        self.verdict("dp:2", *llama, "--tied")
        self.verdict("zero3:2", *llama, "--processes", "2")

    def test_tensor_parallel_alone_and_beside_experts(self):
        self.verdict("tp:2x1f1b:2", "--microbatches", "2")
        self.verdict("sp:2", "--tied", "--processes", "2")
        moe = ("--model", "moe", "--heads", "4", "--kv-heads", "2", "--experts", "4",
               "--d-ff", "12", "--microbatches", "2")
        self.verdict("tp:2xep:2", *moe)
        self.verdict("tp:2xep:4", *moe, "--processes", "2")

    def test_several_processes(self):
        self.verdict("1f1b:2", "--microbatches", "4", "--processes", "2")
        self.verdict("zero3:2", "--microbatches", "4", "--processes", "2")


if __name__ == "__main__":
    main()
